"""The arguments that monitors share."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
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


def _check_positive(value: object, expected: str) -> None:
    """Raise, with a text, if a value is no integer of at least 1."""
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(expected)
    if value < 1:
        raise ValueError(expected)


def arguments_in(variables: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a constructor, of its ``locals()`` at its start: each is written once, in its signature."""
    return {name: value for name, value in variables.items() if name not in ("self", "__class__")}


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
        self._check_on_alert()
        if self.summary not in (True, False, "full") or not isinstance(self.summary, bool | str):
            raise TypeError(f"summary must be True (three lines at the end), 'full' (with tables) or False; got {self.summary!r}.")
        share = self.max_overhead
        if share is not None and (isinstance(share, bool) or not isinstance(share, int | float)):
            raise TypeError(f"max_overhead must be None or a share of the step's time such as 0.01; got {share!r}.")
        if share is not None and not 0 < share <= 1:
            raise ValueError(f"max_overhead must be above 0 and at most 1 (0.01 is one hundredth); got {share!r}.")
        check_share(self.min_probability, "min_probability")
        folder = self.report_dir
        if folder is not None and folder is not False and not isinstance(folder, str | os.PathLike):
            raise TypeError(f"report_dir must be 'auto', a directory, or None for nowhere; got {folder!r}.")
        if self.capsule is not None and not isinstance(self.capsule, str | os.PathLike):
            raise TypeError(f"capsule must be 'auto', 'rows' (no samples are stored), a folder, or None; got {self.capsule!r}.")
        most = self.max_capsule_mb
        if isinstance(most, bool) or not isinstance(most, int | float) or not most > 0:
            raise ValueError(f"max_capsule_mb must be a number of millions of bytes above 0; got {most!r}.")
        if self.learning not in (True, False, "auto") or not isinstance(self.learning, bool | str):
            raise TypeError(f"learning must be 'auto', True or False; got {self.learning!r}.")
        check_count("keep_batches", self.keep_batches, 0)
        check_bools(progress_bar=self.progress_bar, functional=self.functional)
        window = self.report_every_n_steps
        if window is not None and window != "auto":
            expected = "report_every_n_steps must be a number of training batches of at least 1, 'auto', or None for epochs"
            _check_positive(window, f"{expected}; got {window!r}.")
        self._check_histograms()
        self._check_figures()

    def check_early(self, name: str, can: bool) -> None:
        """Raise if the monitor called so finds nothing that is urgent, and ``check_every_n_steps`` is set, or that is no count."""
        every = self.check_every_n_steps
        if every is None:
            return
        expected = "check_every_n_steps must be None (alerts at the end of each window) or an integer of at least 1"
        _check_positive(every, f"{expected}; got {every!r}.")
        if not can:
            raise ValueError(
                f"{name} has nothing to check within a window; got check_every_n_steps={every!r}. Give it to "
                "GradientFlowMonitor or FeatureStatsMonitor, or to monitors()."
            )

    def _check_on_alert(self) -> None:
        entries = self._on_alert
        if not entries or not all(callable(entry) or (isinstance(entry, str) and entry in ON_ALERT) for entry in entries):
            raise ValueError(
                f"on_alert must be one of {', '.join(ON_ALERT)}, a function of an Alert, or a list of these; got {self.on_alert!r}."
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

    def _check_histograms(self) -> None:
        patterns = [self.histograms] if isinstance(self.histograms, str) else self.histograms
        expected = f"histograms must be True, False, or glob patterns on the names of sites; got {self.histograms!r}."
        if isinstance(patterns, bool):
            return
        if not (isinstance(patterns, Sequence) and all(isinstance(pattern, str) for pattern in patterns)):
            raise TypeError(expected)
        if not all(patterns or [""]):
            raise ValueError(expected)

    def _check_figures(self) -> None:
        if not isinstance(self.figures, int):
            raise TypeError(f"figures must be True, False, or a number of epochs; got {self.figures!r}.")
        if self.figures < 0:
            raise ValueError(f"figures must be True, False, or a number of epochs of at least 1; got {self.figures!r}.")
        if self.figures and find_spec("matplotlib") is None:
            raise ImportError(f"figures={self.figures!r} needs matplotlib: pip install matplotlib.")
