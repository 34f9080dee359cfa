"""The sections of a run's report that show numbers of layers and optimizers."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightning_hooks.alerts import FeatureReport, GradientFlowReport
from lightning_hooks.alerts.defaults import limit_of
from lightning_hooks.clipping import ClipStats
from lightning_hooks.diagnostics.gradients.stats import GradientStats
from lightning_hooks.run_report.charts import Chart, Line, Row, Rows, chart, rows
from lightning_hooks.run_report.recorded import chosen
from lightning_hooks.run_report.run import MonitorRecord
from lightning_hooks.run_report.text import number, percent
from lightning_hooks.run_report.verdict import Course

SHARES = (
    ("dead_fraction", "dead", "dead", "Share of each rectifier's units that gave 0 in every sampled batch"),
    ("saturated_fraction", "saturated", "saturated", "Share of each bounded activation's values that sit at a bound"),
    ("nonfinite_fraction", "nonfinite", "NaN, inf", "Share of each module's values that are NaN or infinite"),
)
"""What may be wrong with outputs: statistic, its rule, a short name, in words."""
CLIP_STATS = ("steps", "clipped_steps", "skipped_steps", "nonfinite_steps", "rate", "norm_before", "norm_before_max", "norm_after")


@dataclass(frozen=True, slots=True)
class AlertLine:
    """One alert over the epochs."""

    course: Course  # the alert, and when
    value: str  # its value in the unit of its kind; empty where there is nothing to measure
    limit: str
    active: list[tuple[int, int]]  # the epochs with it: place of the first, how many


@dataclass(frozen=True, slots=True)
class Listing:
    """Numbers of layers on a scale, with a sentence before them."""

    lead: str
    rows: Rows  # the layers that are drawn
    total: int  # how many there are
    noun: str  # what they are


@dataclass(frozen=True, slots=True)
class Section:
    """What one monitor says of layers in the last epoch."""

    monitor: str  # which of several of its kind; empty where there is one
    report: Any  # its last report
    severities: dict[str, str]  # of each layer with an alert
    listings: list[Listing]  # for the page
    worst: dict[str, Any]  # for Markdown: the layers that it has room for


@dataclass(frozen=True, slots=True)
class Clipped:
    """Clipping of one optimizer."""

    optimizer: str  # its key
    stats: ClipStats  # of the last epoch
    counts: dict[str, int]  # steps, skipped steps and others over all epochs
    charts: list[Chart]  # norms, and the share of steps that were clipped
    kept: int  # how many epochs are drawn
    epochs: int  # how many there are

    @property
    def rate(self) -> float:
        """The share of all steps that were clipped."""
        total = self.counts["steps"] + self.counts["skipped_steps"]
        return self.counts["clipped_steps"] / total if total else math.nan

    @property
    def causes(self) -> str:
        """The parameters with the largest gradients where it clipped, of the last epoch."""
        return ", ".join(f"{parameter} ({share:.0%})" for parameter, share in self.stats.top_parameters[:3])


@dataclass(frozen=True, slots=True)
class Coverage:
    """What one monitor record."""

    prefix: str  # of the monitor
    modules: str  # which it was given
    observed: str  # how many of each kind of site
    silent: int  # how many were never seen
    batches: str  # how many of the last epoch's
    epochs: int  # how many


def gradient_listings(record: MonitorRecord, report: GradientFlowReport, affected: Mapping[str, str], most: int) -> list[Listing]:
    """The gradient at each module, and what the updates do to each parameter."""
    kept = chosen(list(report.modules), affected, most)
    modules = [_gradient_row(site, report.modules[site], affected.get(site, "")) for site in kept]
    updates = [
        Row(site, math.nan if ratio is None else ratio, severity=affected.get(site, ""), note="not measured" * (ratio is None))
        for site in chosen(list(report.parameters), affected, most)
        for ratio in (report.parameters[site].update_ratio,)
    ]
    of_modules = (
        f"RMS of the loss's gradient at each module's output in {report.when}, from the input to the loss: the dot; the "
        "band reaches from the mean's magnitude to the largest value."
    )
    of_updates = "Norm of an optimizer step's update over the norm of the weight; often near 1e-3 in healthy runs."
    limits = [_limit(record, kind) for kind in ("update_too_small", "update_too_large")]
    drawn = rows(modules, "RMS", limits=[_limit(record, "exploding")])
    return [
        Listing(of_modules, drawn, len(report.modules), "modules"),
        Listing(of_updates, rows(updates, "ratio", shades=(1e-4, 1e-2), limits=limits), len(report.parameters), "parameters"),
    ]


def _gradient_row(site: str, stats: GradientStats, severity: str) -> Row:
    largest = float(np.fmax(abs(stats.min), abs(stats.max)))
    title = f"{site}: RMS {number(stats.rms)}, mean {number(stats.mean)}, from {number(stats.min)} to {number(stats.max)}"
    return Row(site, stats.rms, abs(stats.mean), largest, severity, title=title)


def output_listings(record: MonitorRecord, report: FeatureReport, affected: Mapping[str, str], most: int) -> list[Listing]:
    """Dead, saturated and non-finite shares, as far as there are any."""
    found = []
    for stat, rule, what, text in SHARES:
        shares = {site: getattr(stats, stat) for site, stats in report.sites.items() if getattr(stats, stat) is not None}
        if not shares or (stat == "nonfinite_fraction" and not any(shares.values())):
            continue
        kept = chosen(list(shares), affected, most)
        limit = _limit(record, rule)
        line = f"; the line is the rule's limit, {percent(limit)}" if limit else ""
        drawn = [Row(site, shares[site], severity=affected.get(site, "")) for site in kept]
        lead = f"{text}, in {report.when}{line}."
        found.append(Listing(lead, rows(drawn, what, linear=True, limits=[limit]), len(shares), "modules"))
    return found


def _limit(record: MonitorRecord, kind: str) -> float:
    return limit_of(kind, (alert for alerts in record.alerts.values() for alert in alerts))


def clipped(record: MonitorRecord, optimizer: str, stats: ClipStats) -> Clipped:
    """Norms of one optimizer before and after clipping, and how many steps it touched."""
    epochs = list(record.columns)
    numbers = {stat: record.values("optimizers", stat, optimizer) for stat in CLIP_STATS}
    limit = [stats.limit] * len(epochs) if stats.limit else None
    often = [_limit(record, "always_clipped")] * len(epochs)
    label = "norm before clipping (mean, to the largest)"
    norms = [
        Line(label, numbers["norm_before"], "var(--blue)", top=numbers["norm_before_max"]),
        Line("norm after", numbers["norm_after"], "var(--amber)"),
        *([Line(f"configured limit {number(stats.limit)}", limit, "var(--soft)", dashed=True)] if limit else []),
    ]
    rate = [
        Line("share of steps clipped", numbers["rate"], "var(--sky)"),
        Line("limit of always_clipped", often, "var(--soft)", dashed=True),
    ]
    counts = {stat: int(np.nansum(numbers[stat])) for stat in CLIP_STATS if stat.endswith("steps")}
    charts = [chart(norms, epochs, unit=record.unit), chart(rate, epochs, 90, kind="share", unit=record.unit)]
    return Clipped(optimizer, stats, counts, charts, len(epochs), len(record.alerts))
