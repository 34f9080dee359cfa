"""A window: what each monitor reports of it, and what all of them report together."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import cached_property
from typing import Any, ClassVar, TypeVar

from typing_extensions import Self

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import FORWARD, STEP
from lightning_hooks.declare.plain import PlainReport

# FORWARD, BACKWARD or STEP; of what is not finite, the batch at which it first was not, None where that is the alert's own; every
# how many batches its site is sampled
Moment = tuple[int, float | None, int]
Began = tuple[float, int, float]  # batch, pass, and place along the pass; backward goes from the last module to the first

LAST = 3  # reports of the last windows that a report knows, next to that of the training's first one


class ReportWithPast(PlainReport):
    """A report that knows those of earlier windows, while rules read it; what is kept and written of it does not."""

    __slots__ = ("_earlier",)

    @property
    def earlier(self) -> tuple[Self, ...]:
        """The reports of earlier windows, oldest first: that of the training's first window, and the last few."""
        return getattr(self, "_earlier", ())

    @property
    def windows(self) -> tuple[Self, ...]:
        """The earlier reports, and this one."""
        return (*self.earlier, self)

    @property
    def first(self) -> Self:
        """The report of the training's first window; this one where it is that."""
        return self.windows[0]

    def previous(self, n: int = 1) -> Self | None:
        """The report ``n`` windows before this one; None where there is none, and for more than three windows."""
        return self.earlier[-n] if 1 <= n <= min(LAST, len(self.earlier)) else None

    def after(self, earlier: Sequence[Self]) -> Self:
        """This report with those of earlier windows, oldest first."""
        report = replace(self)  # type: ignore[type-var]  # each report is a dataclass
        object.__setattr__(report, "_earlier", tuple(earlier))
        return report


@dataclass(frozen=True, slots=True, repr=False)
class Report(ReportWithPast):
    """What a monitor reports, once per window.

    Attributes:
        epoch: The epoch, from 0.
        step: The trainer's ``global_step`` at the end of the window.
        alerts: What the rules found, root causes first.
        overhead: What the monitor added to the training batches, as a share of their time without it (0.01 is 1 %), on this rank;
            None where it is not known.
        every_n_steps: The sampling in force at the end of the window.
        window: The window of the epoch, from 0, where windows are shorter than epochs; None for the report of a whole epoch.
        subject: What its statistics are of, in titles.
    """

    subject: ClassVar[str] = "Output"

    epoch: int
    step: int
    _: KW_ONLY
    alerts: tuple[Alert, ...] = ()
    overhead: float | None = field(default=None, compare=False, repr=False)
    every_n_steps: int = 1
    window: int | None = None

    def moment_of(self, alert: Alert) -> Moment:
        """When in a training batch what an alert is about happens."""
        return STEP, None, 1

    @property
    def forward_order(self) -> list[str]:
        """The modules in the order of the forward pass, as far as the report knows it."""
        return []


def batch_of(stats: Any) -> float:
    """The batch at which statistics first were not finite; infinite without any."""
    batch = getattr(stats, "first_nonfinite_batch", None)
    return math.inf if batch is None else float(batch)


R = TypeVar("R", bound=Report)


class Window:
    """The reports of the monitors whose windows end at the same training batch; it does not change.

    Attributes:
        reports: The same, in the order of the monitors.
    """

    def __init__(self, reports: Iterable[Any] = ()) -> None:
        self.reports: tuple[Any, ...] = tuple(reports)

    def report(self, kind: type[R]) -> R | None:
        """The report of a class; of several the first, None without one."""
        return next((report for report in self.reports if isinstance(report, kind)), None)

    @property
    def alerts(self) -> tuple[Alert, ...]:
        """The alerts of all reports."""
        return tuple(alert for report in self.reports for alert in report.alerts)

    def with_alerts(self, alerts: Iterable[Sequence[Alert]]) -> Window:
        """This window with other alerts, given by report."""
        pairs = zip(self.reports, alerts, strict=True)
        return Window(replace(report, alerts=tuple(found)) for report, found in pairs)

    def led_by(self, alert: Alert, place: int) -> Window:
        """This window with another alert as the first one of a report, in place of those of its name."""
        kept = [[one for one in report.alerts if one.name != alert.name] for report in self.reports]
        kept[place].insert(0, alert)
        return self.with_alerts(kept)

    @cached_property
    def places(self) -> Mapping[str, float]:
        """The place of each module along the forward pass, as the report that knows most of them says."""
        longest: list[str] = max((report.forward_order for report in self.reports), key=len, default=[])
        return {site: place for place, site in enumerate(longest)}

    def began(self, report: Report, alert: Alert) -> Began:
        """When what an alert of a report is about began, as far as it is known."""
        own = math.inf if alert.batch is None else float(alert.batch)
        passing, batch, every = report.moment_of(alert)
        batch = own if batch is None else max(batch - every + 1, min(batch, 0.0))  # it may have been so since it was sampled before
        if passing != STEP:
            batch = min(batch, own)  # known from the judgement of each step, before the site was sampled
        site = place_of(alert.site, self.places)
        return batch, passing, site if passing == FORWARD else -site

    @property
    def loss(self) -> float | None:
        """The mean loss, from the report that has it; None where none has."""
        losses = [report.loss for report in self.reports if getattr(report, "loss", None) is not None]
        return next((loss.mean for loss in losses if math.isfinite(loss.mean)), None)


def place_of(name: str, places: Mapping[str, float]) -> float:
    """The place of a module along the forward pass, or of the module that holds it, or a parameter; infinite if unknown."""
    while name:
        if name in places:
            return places[name]
        name = name.rpartition(".")[0]
    return math.inf
