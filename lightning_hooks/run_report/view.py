"""What the report of a run shows, in order: the page and the Markdown are templates over this view."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np

from lightning_hooks.alerts import ClipReport, FeatureReport, GradientFlowReport
from lightning_hooks.declare.kinds import gravity
from lightning_hooks.run_report.charts import strip
from lightning_hooks.run_report.heat import HEATS, NEEDS_MORE_THAN_ZERO, HeatMap, heat_map
from lightning_hooks.run_report.recorded import Limits, severities
from lightning_hooks.run_report.run import Run
from lightning_hooks.run_report.sections import (
    AlertLine,
    Clipped,
    Coverage,
    Listing,
    Section,
    clipped,
    gradient_listings,
    output_listings,
)
from lightning_hooks.run_report.text import measured, number, percent, seconds
from lightning_hooks.run_report.training import Training, layers, settings, training
from lightning_hooks.run_report.verdict import Course, Verdict, courses, judge


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

    @cached_property
    def alerts(self) -> list[AlertLine]:
        """The first of them."""
        epochs = self.run.epochs
        shown = self.courses[: self.limits.alerts]
        return [AlertLine(course, *measured(course.alert), strip(course.epochs, epochs)) for course in shown]

    @cached_property
    def training(self) -> Training:
        """The loss and the learning rates."""
        return training(self.run)

    @cached_property
    def gradients(self) -> list[Section]:
        """The gradient at each module, and what the updates do to each parameter, in the last epoch."""
        return self._sections("gradient_flow", GradientFlowReport, "modules", gradient_listings, lambda stats: float(stats.rms))

    @cached_property
    def outputs(self) -> list[Section]:
        """What is wrong with outputs in the last epoch: dead, saturated and non-finite shares."""
        return self._sections("features", FeatureReport, "sites", output_listings, _unaffected)

    @cached_property
    def heat_maps(self) -> list[tuple[str, HeatMap]]:
        """Captions and statistics of all layers over all epochs."""
        figures = []
        for prefix, table, stat, caption in HEATS:
            for record in self.run.of(prefix):
                series = record.series(table, stat)
                if not series.names or (stat in NEEDS_MORE_THAN_ZERO and not np.nansum(series.values)):
                    continue
                several = len(series.epochs) > 1
                drawn = heat_map(series, stat, self.limits.heat_rows, self.limits.heat_columns, relative=several)
                if drawn is not None:
                    figures.append((f"{caption}, relative to its first {self.run.window}" if drawn.relative else caption, drawn))
        return figures

    @cached_property
    def clipping(self) -> list[Clipped]:
        """Norms before and after clipping, and how many steps it touched."""
        return [
            clipped(record, optimizer, stats)
            for record in self.run.of("gradient_clip")
            if isinstance(record.last, ClipReport)
            for optimizer, stats in record.last.optimizers.items()
        ]

    @cached_property
    def silent(self) -> list[tuple[str, list[str]]]:
        """Modules that were never called, or that no gradient arrived at, and parameters without a gradient."""
        found = []
        for prefix, text in (("features", "Never called in a sampled batch"), ("gradient_flow", "Reached by no gradient")):
            names = [site for record in self.run.of(prefix) for site in getattr(record.last, "silent", ())]
            found.append((text, list(dict.fromkeys(names))))
        tables = [getattr(record.last, "parameters", {}) for record in self.run.of("gradient_flow")]
        missing = [site for table in tables for site, stats in table.items() if stats.missing_steps and not stats.steps]
        return [(text, names) for text, names in (*found, ("Parameters without a gradient", missing)) if names]

    @cached_property
    def settings(self) -> list[tuple[str, Any]]:
        """How training was set up."""
        return settings(self.run)

    @cached_property
    def layers(self) -> Sequence[tuple[str, str, str, int]]:
        """Name, type, shape and elements of the model's leaves."""
        return layers(self.run)

    @cached_property
    def coverage(self) -> list[Coverage]:
        """What was record, and how much of training that is."""
        lines = []
        for record in self.run.monitors:
            report, kinds = record.last, ("sites", "modules", "parameters", "optimizers", "routers", "codebooks")
            observed = " + ".join(str(len(getattr(report, kind))) for kind in kinds if hasattr(report, kind))
            total = getattr(report, "batches", None)
            batches = f"{getattr(report, 'sampled_batches', None)} of {total}" if total else "every step"
            silent = len(getattr(report, "silent", ()))
            lines.append(Coverage(record.prefix, record.modules, observed, silent, batches, len(record.epochs)))
        return lines

    @cached_property
    def cost(self) -> list[tuple[str, str]]:
        """What the monitors took."""
        return costs(self.run)

    def _sections(
        self, prefix: str, kind: type, table: str, listings: Callable[..., list[Listing]], key: Callable[[Any], float]
    ) -> list[Section]:
        """A section for each monitor of a kind; ``key`` is what Markdown sorts the rows of its table by."""
        found, monitors, most = [], self.run.of(prefix), self.limits.rows
        for record in monitors:
            report, affected = record.last, severities(record)
            if isinstance(report, kind):
                name = record.modules if len(monitors) > 1 else ""
                drawn, rows = listings(record, report, affected, most), worst(getattr(report, table), key, affected, most)
                found.append(Section(name, report, affected, drawn, rows))
        return found


def _unaffected(stats: Any) -> float:
    return -max(stats.dead_fraction or 0, stats.saturated_fraction or 0)


def costs(run: Run) -> list[tuple[str, str]]:
    """(what, how much) of all that is known."""
    found: list[tuple[str, str]] = []
    ends: dict[int, float] = {}
    for record in run.monitors:
        for epoch, took in record.seconds.items():
            if math.isfinite(took):
                ends[epoch] = ends.get(epoch, 0.0) + took
    if ends:
        found.append((f"per {run.window}'s end: merging, judging, logging (median)", seconds(statistics.median(ends.values()))))
    durations = {epoch: float(event["seconds"]) for epoch, event in run.timing.items() if _known(event.get("seconds"))}
    if durations:
        found.append((f"per {run.window} (median)", seconds(statistics.median(durations.values()))))
        parts = [ends[epoch] / durations[epoch] for epoch in durations if epoch in ends and durations[epoch] > 0]
        if parts:
            found.append(
                (
                    f"of {'an' if run.unit == 'epoch' else 'a'} {run.window}'s time is its end in the monitors",
                    percent(statistics.median(parts)),
                )
            )
    shares = [record.last.overhead for record in run.monitors if getattr(record.last, "overhead", None) is not None]
    if shares:
        found.append((f"of a training batch's time added by the monitors, last {run.window}", percent(sum(shares))))
    sizes = [float(event["bytes"]) for event in run.timing.values() if _known(event.get("bytes"))]
    if sizes:
        found.append(("of tables on the device", f"{number(sizes[-1] / 1000)} kB"))
    return found


def _known(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0


def worst(table: Mapping[str, Any], key: Callable[[Any], float], severities: Mapping[str, str], most: int) -> dict[str, Any]:
    """Which rows of a table Markdown has, in the model's order: of too many those with an alert, then the smallest by ``key``."""
    if len(table) <= most:
        return dict(table)

    def rank(site: str) -> tuple[int, float]:
        value = key(table[site])
        return gravity(severities.get(site, "")), value if math.isfinite(value) else -math.inf

    kept = set(sorted(table, key=rank)[:most])
    return {site: stats for site, stats in table.items() if site in kept}
