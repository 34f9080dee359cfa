"""One window of a run: what all monitors report of the same training batches."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, TypeVar

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.report import Report

R = TypeVar("R", bound=Report)


class Window:
    """The reports of the monitors whose windows end at the same training batch; it does not change.

    Args:
        reports: One report of each monitor.

    Attributes:
        reports: The same, in the order of the monitors.
    """

    def __init__(self, reports: Iterable[Any] = ()) -> None:
        self.reports: tuple[Any, ...] = tuple(reports)

    def report(self, kind: type[R]) -> R | None:
        """The report of a class; of several the first, None without one."""
        return next((report for report in self.reports if isinstance(report, kind)), None)

    @property
    def alerts(self) -> Iterator[Alert]:
        """The alerts of all reports."""
        return (alert for report in self.reports for alert in report.alerts)

    def with_alerts(self, alerts: Iterable[Sequence[Alert]]) -> Window:
        """This window with other alerts, given by report."""
        pairs = zip(self.reports, alerts, strict=True)
        return Window(dataclasses.replace(report, alerts=tuple(found)) for report, found in pairs)

    @cached_property
    def places(self) -> Mapping[str, float]:
        """The place of each module along the forward pass, as the report that knows most of them says."""
        longest: list[str] = max((report.forward_order for report in self.reports), key=len, default=[])
        return {site: place for place, site in enumerate(longest)}

    @property
    def loss(self) -> float | None:
        """The mean loss, from the report that has it; None where none has."""
        losses = [report.loss for report in self.reports if getattr(report, "loss", None) is not None]
        return next((loss.mean for loss in losses if math.isfinite(loss.mean)), None)
