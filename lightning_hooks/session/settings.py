"""The arguments that monitors share."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.rule import check_share
from lightning_hooks.diagnostics.metrics.collector import check_metrics
from lightning_hooks.hooks import ModuleSelector
from lightning_hooks.hooks.checks import check_bools, check_count
from lightning_hooks.hooks.selection import check_selector

OnAlertOne = Literal["log", "warn", "stop", "raise"] | Callable[[Alert], None]
OnAlert = OnAlertOne | Sequence[OnAlertOne]
"""What is done with a new alert: one of these, or several."""
Rules = Sequence[Any]
"""What ``rules=`` takes: :data:`lightning_hooks.declare.rulebook.RuleSpec`, typed loosely so that LightningCLI passes it on."""
Summary = bool | Literal["full"]
Logged = str | Sequence[str]
"""``auto``, ``all``, or the statistics to log."""
Histograms = bool | str | Sequence[str]
"""Whether sites get histograms, or patterns on the names of those that do."""
ReportDir = str | os.PathLike[str] | Literal[False] | None
"""Where a run's reports are written: ``auto``, a directory, or None (or False) for nowhere."""
CapsulePlace = str | os.PathLike[str] | None
"""Where the capsule of a bad step is written: ``auto``, ``rows`` (without samples), a folder, or None for nowhere."""
Learning = bool | Literal["auto"]
"""Whether it is measured what of the training learns."""
ReportEvery = int | Literal["auto"] | None
"""How many training batches make a window: a number, ``auto``, or None for an epoch."""

ON_ALERT = ("log", "warn", "stop", "raise")


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _is_positive(name: str, value: object, expected: str) -> Iterator[tuple[str, bool, type[Exception], str]]:
    yield name, isinstance(value, int) and not isinstance(value, bool), TypeError, expected
    yield name, isinstance(value, int) and value >= 1, ValueError, expected


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
    metrics: Mapping[Any, Any] | None = None

    def __post_init__(self) -> None:
        check_selector(self.modules)
        check_metrics(self.metrics)
        check_count("every_n_steps", self.every_n_steps, 1)
        check_count("keep_batches", self.keep_batches, 0)
        check_share(self.min_probability, "min_probability")
        check_bools(progress_bar=self.progress_bar, functional=self.functional)
        for name, valid, error, expected in self._checks():
            if not valid:
                raise error(f"{name} must be {expected}; got {getattr(self, name)!r}.")
        if self.figures and find_spec("matplotlib") is None:
            raise ImportError(f"figures={self.figures!r} needs matplotlib: pip install matplotlib.")

    def _checks(self) -> Iterator[tuple[str, bool, type[Exception], str]]:
        """Arguments, whether each is valid, the error where it is not, and what is expected; each as long as those before are."""
        valid = all(callable(entry) or (isinstance(entry, str) and entry in ON_ALERT) for entry in self._on_alert)
        expected = f"one of {', '.join(ON_ALERT)}, a function of an Alert, or a list of these"
        yield "on_alert", valid and len(self._on_alert) > 0, ValueError, expected
        valid = self.summary in (True, False, "full") and isinstance(self.summary, bool | str)
        yield "summary", valid, TypeError, "True (three lines at the end), 'full' (with tables) or False"
        share, most = self.max_overhead, self.max_capsule_mb
        yield "max_overhead", share is None or _is_number(share), TypeError, "None or a share of the step's time such as 0.01"
        yield "max_overhead", share is None or 0 < share <= 1, ValueError, "above 0 and at most 1 (0.01 is one hundredth)"
        yield "max_capsule_mb", _is_number(most) and most > 0, ValueError, "a number of millions of bytes above 0"
        valid = self.report_dir is None or self.report_dir is False or isinstance(self.report_dir, str | os.PathLike)
        yield "report_dir", valid, TypeError, "'auto', a directory, or None for nowhere"
        valid = self.capsule is None or isinstance(self.capsule, str | os.PathLike)
        yield "capsule", valid, TypeError, "'auto', 'rows' (no samples are stored), a folder, or None"
        valid = self.learning in (True, False, "auto") and isinstance(self.learning, bool | str)
        yield "learning", valid, TypeError, "'auto', True or False"
        if self.report_every_n_steps is not None and self.report_every_n_steps != "auto":
            yield from _is_positive(
                "report_every_n_steps",
                self.report_every_n_steps,
                "a number of training batches of at least 1, 'auto', or None for epochs",
            )
        patterns: Any = [self.histograms] if isinstance(self.histograms, str) else self.histograms
        if not isinstance(patterns, bool):
            valid, expected = isinstance(patterns, Sequence), "True, False, or glob patterns on the names of sites"
            yield "histograms", valid and all(isinstance(each, str) for each in patterns), TypeError, expected
            yield "histograms", all(patterns or [""]), ValueError, expected
        yield "figures", isinstance(self.figures, int), TypeError, "True, False, or a number of epochs"
        yield "figures", self.figures >= 0, ValueError, "True, False, or a number of epochs of at least 1"
        if self.check_every_n_steps is not None:
            yield from _is_positive(
                "check_every_n_steps",
                self.check_every_n_steps,
                "None (alerts at the end of each window) or an integer of at least 1",
            )

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
