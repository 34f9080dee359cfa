"""The arguments that monitors share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal, TypeGuard

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.rule import check_share
from lightning_hooks.hooks import ModuleSelector
from lightning_hooks.hooks.checks import check_bools, check_count
from lightning_hooks.hooks.selection import check_selector

OnAlertOne = Literal["log", "warn", "stop", "raise"] | Callable[[Alert], None]
OnAlert = OnAlertOne | Sequence[OnAlertOne]  # what is done with a new alert: one of these, or several
Rules = Sequence[Any]  # what ``rules=`` takes: RuleSpec, typed loosely so that LightningCLI passes it on
Summary = bool | Literal["full"]
Logged = str | Sequence[str]  # ``auto``, ``all``, or the statistics to log
Histograms = bool | str | Sequence[str]  # whether sites get histograms, or patterns on the names of those that do
# Where a run's reports are written: ``auto``, a directory, or None (or False) for nowhere
ReportDir = str | os.PathLike[str] | Literal[False] | None
# Where the capsule of a bad step is written: ``auto``, ``rows`` (without samples), a folder, or None for nowhere
CapsulePlace = str | os.PathLike[str] | None
Learning = bool | Literal["auto"]  # whether it is measured what of the training learns
ReportEvery = int | Literal["auto"] | None  # how many training batches make a window: a number, ``auto``, or None for an epoch

ON_ALERT = ("log", "warn", "stop", "raise")


def _is_number(value: object) -> TypeGuard[float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_bool_or(word: str, value: object) -> bool:
    return isinstance(value, bool) or (isinstance(value, str) and value == word)


def arguments_in(variables: Mapping[str, Any], *own: str) -> dict[str, Any]:
    """The arguments of a constructor but its own, of its ``locals()`` at its start: each is written once, in its signature."""
    return {name: value for name, value in variables.items() if name not in ("self", "__class__", *own)}


@dataclass(frozen=True, kw_only=True)
class Settings:
    """The arguments that monitors share, checked. Their meaning: :class:`~lightning_hooks.TrainingMonitor`.

    Raises:
        ImportError: If figures are asked for and matplotlib is not installed.
        TypeError: If an argument is of a wrong type.
        ValueError: If one is out of range.
    """

    modules: ModuleSelector | None = None
    every_n_steps: int = 10
    on_alert: OnAlert = "log"
    rules: Rules = ()
    min_probability: float = 0.8
    summary: Summary = True
    logged: Logged = "auto"
    max_overhead: float | None = None
    report_dir: ReportDir = "auto"
    histograms: Histograms = False
    figures: bool | int = False
    check_every_n_steps: int | None = None
    progress_bar: bool = False
    report_every_n_steps: ReportEvery = "auto"
    functional: bool = False
    capsule: CapsulePlace = None
    max_capsule_mb: float = 200
    keep_batches: int = 0
    learning: Learning = "auto"

    def __post_init__(self) -> None:
        check_selector(self.modules)
        check_count("every_n_steps", self.every_n_steps, 1)
        check_count("keep_batches", self.keep_batches, 0)
        if self.report_every_n_steps is not None and self.report_every_n_steps != "auto":
            check_count("report_every_n_steps", self.report_every_n_steps, 1, "'auto', or None for epochs")
        if self.check_every_n_steps is not None:
            check_count("check_every_n_steps", self.check_every_n_steps, 1, "or None (alerts at the end of each window)")
        check_share(self.min_probability, "min_probability")
        check_bools(progress_bar=self.progress_bar, functional=self.functional)
        for name, valid, error, expected in self._checks():
            if not valid:
                raise error(f"{name} must be {expected}; got {getattr(self, name)!r}.")
        if self.figures and find_spec("matplotlib") is None:
            raise ImportError(f"figures={self.figures!r} needs matplotlib: pip install matplotlib.")

    def _checks(self) -> list[tuple[str, bool, type[Exception], str]]:
        """Arguments, whether each is valid, the error where it is not, and what is expected."""
        share, most, figures, path = self.max_overhead, self.max_capsule_mb, self.figures, str | os.PathLike
        actions = [callable(entry) or (isinstance(entry, str) and entry in ON_ALERT) for entry in self._on_alert]
        one_of = f"one of {', '.join(ON_ALERT)}, a function of an Alert, or a list of these"
        folder = self.report_dir is False or isinstance(self.report_dir, path | None)
        histograms = [self.histograms] if isinstance(self.histograms, str) else self.histograms
        patterns = histograms if isinstance(histograms, Sequence) else []
        texts = isinstance(histograms, bool | Sequence) and all(isinstance(each, str) for each in patterns)
        globs = "True, False, or glob patterns on the names of sites"
        return [
            ("on_alert", all(actions) and len(actions) > 0, ValueError, one_of),
            (
                "summary",
                _is_bool_or("full", self.summary),
                TypeError,
                "True (three lines at the end), 'full' (with tables) or False",
            ),
            ("max_overhead", share is None or _is_number(share), TypeError, "None or a share of the step's time such as 0.01"),
            ("max_overhead", not _is_number(share) or 0 < share <= 1, ValueError, "above 0 and at most 1 (0.01 is one hundredth)"),
            ("max_capsule_mb", _is_number(most) and most > 0, ValueError, "a number of millions of bytes above 0"),
            ("report_dir", folder, TypeError, "'auto', a directory, or None for nowhere"),
            (
                "capsule",
                isinstance(self.capsule, path | None),
                TypeError,
                "'auto', 'rows' (no samples are stored), a folder, or None",
            ),
            ("learning", _is_bool_or("auto", self.learning), TypeError, "'auto', True or False"),
            ("histograms", texts, TypeError, globs),
            ("histograms", isinstance(histograms, bool) or (all(patterns) and len(patterns) > 0), ValueError, globs),
            ("figures", isinstance(figures, int), TypeError, "True, False, or a number of epochs"),
            ("figures", not _is_number(figures) or figures >= 0, ValueError, "True, False, or a number of epochs of at least 1"),
        ]

    def check_early(self, name: str, can: bool) -> None:
        """Raise if ``check_every_n_steps`` is set, and the monitor called so finds nothing that is urgent."""
        if self.check_every_n_steps is not None and not can:
            raise ValueError(
                f"{name} has nothing to check within a window; got check_every_n_steps={self.check_every_n_steps!r}. Give it to "
                "GradientFlowMonitor or FeatureStatsMonitor, or to monitors()."
            )

    @property
    def _on_alert(self) -> Sequence[Any]:
        given = self.on_alert
        return given if isinstance(given, Sequence) and not isinstance(given, str) else [given]

    @property
    def actions(self) -> frozenset[str]:
        """What ``on_alert`` names of ``log``, ``warn``, ``stop`` and ``raise``."""
        return frozenset(entry for entry in self._on_alert if isinstance(entry, str))

    @property
    def functions(self) -> Sequence[Callable[[Alert], None]]:
        """The functions of ``on_alert``, in order."""
        return [entry for entry in self._on_alert if callable(entry)]
