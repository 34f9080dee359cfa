"""What the report of a run shows, in order: the page and the Markdown are templates over this view."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

from lightning_hooks.alerts import FeatureReport, GradientFlowReport
from lightning_hooks.declare.kinds import gravity
from lightning_hooks.declare.section import Section
from lightning_hooks.run_report.charts import Row, Rows, rows
from lightning_hooks.run_report.heat import HeatMap, heat_map, heat_series
from lightning_hooks.run_report.recorded import Limits, MonitorRecord, Run, chosen, severities
from lightning_hooks.run_report.sections import SECTIONS, parts_of
from lightning_hooks.run_report.text import number, percent, seconds
from lightning_hooks.run_report.training import Training, UnusualBatches, training, unusual_batches
from lightning_hooks.run_report.verdict import Course, Verdict, courses, judge

SHARES = (
    ("dead_fraction", "dead", "dead", "Share of each rectifier's units that gave 0 in every sampled batch"),
    ("saturated_fraction", "saturated", "saturated", "Share of each bounded activation's values that sit at a bound"),
    ("nonfinite_fraction", "nonfinite", "NaN, inf", "Share of each module's values that are NaN or infinite"),
)
"""What may be wrong with outputs: statistic, its rule, a short name, in words."""


class Listing(NamedTuple):
    """Numbers of layers on a scale, with a sentence before them."""

    lead: str
    rows: Rows  # the layers that are drawn
    total: int  # how many there are
    noun: str  # what they are


class MonitorSection(NamedTuple):
    """What one monitor says of layers in the last epoch."""

    monitor: str  # which of several of its kind; empty where there is one
    report: Any  # its last report
    severities: dict[str, str]  # of each layer with an alert
    listings: list[Listing]  # for the page
    worst: dict[str, Any]  # for Markdown: the layers that it has room for


@dataclass(frozen=True)
class RunView:
    """A run as its report shows it; a section that has nothing to show is empty. Each is computed when a template asks for it."""

    run: Run
    limits: Limits

    @cached_property
    def verdict(self) -> Verdict:
        """What is wrong, since when, and what to try."""
        return judge(self.run)

    @property
    def made(self) -> str:
        """The versions of what the report was made by."""
        keys = (("lightning_hooks", "package"), ("torch", "torch"), ("Lightning", "lightning"))
        return ", ".join(f"{what} {self.run.fit[key]}" for what, key in keys if key in self.run.fit) or "lightning_hooks"

    @cached_property
    def courses(self) -> list[Course]:
        """All alerts over the epochs: those that last first, by severity."""
        return sorted(courses(self.run), key=lambda course: (gravity(course.severity), not course.lasts, course.since))

    @property
    def alerts(self) -> list[Course]:
        """The first of them."""
        return self.courses[: self.limits.alerts]

    @cached_property
    def training(self) -> Training:
        """The loss and the learning rates."""
        return training(self.run)

    @cached_property
    def unusual(self) -> list[UnusualBatches]:
        """The batches with the largest losses and gradient norms."""
        return unusual_batches(record.last for record in self.run.monitors)

    @cached_property
    def gradients(self) -> list[MonitorSection]:
        """The gradient at each module, and what the updates do to each parameter, in the last epoch."""
        return self._sections("gradient_flow", GradientFlowReport, "modules", gradient_listings, lambda stats: float(stats.rms))

    @cached_property
    def outputs(self) -> list[MonitorSection]:
        """What is wrong with outputs in the last epoch: dead, saturated and non-finite shares."""
        return self._sections(
            "features", FeatureReport, "sites", output_listings,
            lambda stats: -max(getattr(stats, stat) or 0 for stat, *_ in SHARES[:2]),
        )  # fmt: skip

    @cached_property
    def heat_maps(self) -> list[tuple[str, HeatMap]]:
        """Captions and statistics of all layers over all epochs."""
        figures = []
        for _, _, stat, caption, series in heat_series(self.run):
            relative = len(series.epochs) > 1
            drawn = heat_map(series, stat, self.limits.heat_rows, self.limits.heat_columns, relative=relative)
            if drawn is not None:
                figures.append((f"{caption}, relative to its first {self.run.window}" if drawn.relative else caption, drawn))
        return figures

    @cached_property
    def declared(self) -> list[tuple[str, str, tuple[Section, list[dict[str, Any]]]]]:
        """The sections that capabilities declare: anchor, heading, and what is in it."""
        found = [(section, parts_of(self.run, section, self.limits.rows)) for section in SECTIONS]
        return [(section.title.lower(), section.title, (section, parts)) for section, parts in found if parts]

    @cached_property
    def silent(self) -> list[tuple[str, list[str]]]:
        """Modules that were never called, or that no gradient arrived at, and parameters without a gradient."""
        found = {
            text: [site for record in self.run.of(prefix) for site in record.silent]
            for prefix, text in (("features", "Never called in a sampled batch"), ("gradient_flow", "Reached by no gradient"))
        }
        tables = [getattr(record.last, "parameters", {}) for record in self.run.of("gradient_flow")]
        missing = [site for table in tables for site, stats in table.items() if stats.missing_steps and not stats.steps]
        found["Parameters without a gradient"] = missing
        return [(text, list(dict.fromkeys(names))) for text, names in found.items() if names]

    @cached_property
    def coverage(self) -> list[dict[str, Any]]:
        """What each monitor recorded, and how much of training that is."""
        return [
            {
                "prefix": record.prefix,
                "modules": record.modules,
                "observed": " + ".join(str(len(names)) for names in record.names.values()),
                "silent": len(record.silent),
                "batches": (
                    f"{record.fields.get('sampled_batches')} of {record.fields['batches']}"
                    if record.fields.get("batches")
                    else "every step"
                ),
                "epochs": len(record.epochs),
            }
            for record in self.run.monitors
        ]

    @cached_property
    def cost(self) -> list[tuple[str, str]]:
        """What the monitors took: (what, how much) of all that is known."""
        run, window = self.run, self.run.window
        ends: dict[int, float] = {}
        for epoch, took in (item for record in run.monitors for item in record.seconds.items()):
            if math.isfinite(took):
                ends[epoch] = ends.get(epoch, 0.0) + took
        durations = {epoch: float(event["seconds"]) for epoch, event in run.timing.items() if _known(event.get("seconds"))}
        parts = [ends[epoch] / durations[epoch] for epoch in durations if epoch in ends]
        shares = [record.last.overhead for record in run.monitors if getattr(record.last, "overhead", None) is not None]
        sizes = [float(event["bytes"]) for event in run.timing.values() if _known(event.get("bytes"))]
        found: tuple[tuple[str, Callable[[float], str], Sequence[float]], ...] = (
            (f"per {window}'s end: merging, judging, logging (median)", seconds, [*ends.values()]),
            (f"per {window} (median)", seconds, [*durations.values()]),
            (f"of {'an' if window == 'epoch' else 'a'} {window}'s time is its end in the monitors", percent, parts),
            (f"of a training batch's time added by the monitors, last {window}", percent, [sum(shares)] if shares else []),
            ("of tables on the device", lambda size: f"{number(size / 1000)} kB", sizes[-1:]),
        )
        return [(what, shown(statistics.median(values))) for what, shown, values in found if values]

    def _sections(
        self, prefix: str, kind: type, table: str, listings: Callable[..., list[Listing]], key: Callable[[Any], float]
    ) -> list[MonitorSection]:
        """A section for each monitor of a kind; ``key`` is what Markdown sorts the rows of its table by."""
        found, monitors, most = [], self.run.of(prefix), self.limits.rows
        for record in monitors:
            report, affected = record.last, severities(record)
            if isinstance(report, kind):
                name = record.modules if len(monitors) > 1 else ""
                drawn, rows = listings(record, report, affected, most), worst(getattr(report, table), key, affected, most)
                found.append(MonitorSection(name, report, affected, drawn, rows))
        return found


def worst(table: Mapping[str, Any], key: Callable[[Any], float], severities: Mapping[str, str], most: int) -> dict[str, Any]:
    """Which rows of a table Markdown has, in the model's order: of too many those with an alert, then the smallest by ``key``."""

    def rank(site: str) -> tuple[int, float]:
        value = key(table[site])
        return gravity(severities.get(site, "")), value if math.isfinite(value) else -math.inf

    kept = set(sorted(table, key=rank)[:most])
    return {site: stats for site, stats in table.items() if site in kept}


def gradient_listings(record: MonitorRecord, report: GradientFlowReport, affected: Mapping[str, str], most: int) -> list[Listing]:
    """The gradient at each module, and what the updates do to each parameter."""
    modules, updates = [], []
    for site in chosen(list(report.modules), affected, most):
        stats = report.modules[site]
        title = f"{site}: RMS {number(stats.rms)}, mean {number(stats.mean)}, from {number(stats.min)} to {number(stats.max)}"
        largest = max((abs(end) for end in (stats.min, stats.max) if not math.isnan(end)), default=math.nan)
        modules.append(Row(site, stats.rms, abs(stats.mean), largest, affected.get(site, ""), title=title))
    for site in chosen(list(report.parameters), affected, most):
        ratio = report.parameters[site].update_ratio
        value, note = (math.nan, "not measured") if ratio is None else (ratio, "")
        updates.append(Row(site, value, severity=affected.get(site, ""), note=note))
    of_modules = (
        f"RMS of the loss's gradient at each module's output in {report.when}, from the input to the loss: the dot; the "
        "band reaches from the mean's magnitude to the largest value."
    )
    of_updates = "Norm of an optimizer step's update over the norm of the weight; often near 1e-3 in healthy runs."
    limits = [record.limit(kind) for kind in ("update_too_small", "update_too_large")]
    drawn = rows(modules, "RMS", limits=[record.limit("exploding")])
    return [
        Listing(of_modules, drawn, len(report.modules), "modules"),
        Listing(of_updates, rows(updates, "ratio", shades=(1e-4, 1e-2), limits=limits), len(report.parameters), "parameters"),
    ]


def output_listings(record: MonitorRecord, report: FeatureReport, affected: Mapping[str, str], most: int) -> list[Listing]:
    """Dead, saturated and non-finite shares, as far as there are any."""
    found = []
    for stat, rule, what, text in SHARES:
        shares = {site: getattr(stats, stat) for site, stats in report.sites.items() if getattr(stats, stat) is not None}
        if not shares or (stat == "nonfinite_fraction" and not any(shares.values())):
            continue
        limit = record.limit(rule)
        line = f"; the line is the rule's limit, {percent(limit)}" if limit else ""
        drawn = [Row(site, shares[site], severity=affected.get(site, "")) for site in chosen(list(shares), affected, most)]
        found.append(
            Listing(f"{text}, in {report.when}{line}.", rows(drawn, what, linear=True, limits=[limit]), len(shares), "modules")
        )
    return found


def _known(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0
