"""The parts of a health report that draw: gradient flow, outputs, heat maps, clipping."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np

from lightning_hooks.alerts import (
    AlwaysClipped,
    ClipReport,
    Dead,
    Exploding,
    FeatureReport,
    GradientFlowReport,
    Saturated,
    UpdateTooLarge,
    UpdateTooSmall,
)
from lightning_hooks.health.charts import Line, chart
from lightning_hooks.health.heat import heat_map
from lightning_hooks.health.html import Markup, number, percent, tag
from lightning_hooks.health.limits import Limits, left_out, severities, whose
from lightning_hooks.health.parts import Row, card, chosen, facts, heat, name, rows
from lightning_hooks.health.run import Recorded, Run

HEATS = (
    ("gradient_flow", "modules", "rms", "Gradient RMS at each module's output"),
    ("gradient_flow", "parameters", "update_ratio", "Update ratio of each parameter"),
    ("features", "sites", "std", "Spread (std) of each module's output"),
    ("features", "sites", "zero_fraction", "Share of zeros in each module's output"),
    ("features", "sites", "dead_fraction", "Share of dead units of each rectifier"),
    ("features", "sites", "saturated_fraction", "Share of saturated values of each bounded activation"),
    ("features", "sites", "nonfinite_fraction", "Share of NaN and infinite values in the outputs"),
    ("gradient_flow", "modules", "nonfinite_fraction", "Share of NaN and infinite values in the gradients"),
)
"""The heat maps: prefix, table, statistic, caption."""
SHOWN_OPEN = 3
DEFAULT_LIMITS = {
    "dead": Dead().threshold,
    "saturated": Saturated().threshold,
    "always_clipped": AlwaysClipped().threshold,
    "exploding": Exploding().absolute,
    "update_too_small": UpdateTooSmall().threshold,
    "update_too_large": UpdateTooLarge().threshold,
}
"""What rules are set to by default; drawn as lines."""
NEEDS_MORE_THAN_ZERO = ("dead_fraction", "saturated_fraction", "nonfinite_fraction")
UPDATE_KINDS = ("update_too_small", "update_too_large")
RULE_OF = {"dead_fraction": "dead", "saturated_fraction": "saturated", "nonfinite_fraction": "nonfinite"}
CLIP_STATS = (
    *("steps", "clipped_steps", "skipped_steps", "nonfinite_steps", "rate", "norm_before", "norm_before_max", "norm_after"),
)


def gradient_flow(run: Run, limits: Limits) -> list[Markup]:
    """The gradient at each module, and what the updates do to each parameter, in the last epoch."""
    parts: list[Markup] = []
    for recorded in run.of("gradient_flow"):
        report = recorded.last
        if not isinstance(report, GradientFlowReport):
            continue
        ill = severities(recorded)
        body: list[Any] = [whose(run, recorded)]
        if report.modules:
            kept = chosen(list(report.modules), ill, limits.rows)
            lines = [_module_row(site, report.modules[site], ill.get(site, "")) for site in kept]
            body += [
                tag("p", f"RMS of the loss's gradient at each module's output in epoch {report.epoch}, from the input to the loss: "
                    "the dot; the band reaches from the mean's magnitude to the largest value.", class_="soft"),
                rows(lines, "RMS", limits=[_limit(recorded, "exploding")]), left_out(len(kept), len(report.modules), "modules"),
            ]  # fmt: skip
        else:
            body.append(tag("p", "No gradient was seen at any module."))
        if report.parameters:
            body.append(_parameters(recorded, report, ill, limits))
        parts.append(card(body))
    return parts


def _module_row(site: str, stats: Any, severity: str) -> Row:
    largest = np.fmax(abs(stats.min), abs(stats.max))
    title = f"{site}: RMS {number(stats.rms)}, mean {number(stats.mean)}, from {number(stats.min)} to {number(stats.max)}"
    return Row(site, stats.rms, abs(stats.mean), float(largest), severity, title=title)


def _parameters(recorded: Recorded, report: GradientFlowReport, ill: Mapping[str, str], limits: Limits) -> Markup:
    kept = chosen(list(report.parameters), ill, limits.rows)
    updates = []
    for site in kept:
        ratio = report.parameters[site].update_ratio
        own = ill.get(site, "")
        updates.append(Row(site, math.nan if ratio is None else ratio, severity=own, note="not measured" if ratio is None else ""))
    return tag(
        "details", tag("summary", f"Updates of the {len(report.parameters)} parameters"),
        tag("p", "Norm of an optimizer step's update over the norm of the weight; often near 1e-3 in healthy runs.", class_="soft"),
        rows(updates, "ratio", shades=(1e-4, 1e-2), limits=[_limit(recorded, kind) for kind in UPDATE_KINDS]),
        left_out(len(kept), len(report.parameters), "parameters"),
    )  # fmt: skip


def features(run: Run, limits: Limits) -> list[Markup]:
    """What is wrong with outputs in the last epoch: dead, saturated and non-finite shares."""
    parts: list[Markup] = []
    for recorded in run.of("features"):
        report = recorded.last
        if not isinstance(report, FeatureReport):
            continue
        ill = severities(recorded)
        body: list[Any] = []
        for stat, what, text in (
            ("dead_fraction", "dead", "Share of each rectifier's units that gave 0 in every sampled batch"),
            ("saturated_fraction", "saturated", "Share of each bounded activation's values that sit at a bound"),
            ("nonfinite_fraction", "NaN, inf", "Share of each module's values that are NaN or infinite"),
        ):
            shares = {site: getattr(stats, stat) for site, stats in report.sites.items() if getattr(stats, stat) is not None}
            if not shares or (stat == "nonfinite_fraction" and not any(shares.values())):
                continue
            kept = chosen(list(shares), ill, limits.rows)
            lines = [Row(site, shares[site], severity=ill.get(site, "")) for site in kept]
            limit = _limit(recorded, RULE_OF[stat])
            told = f"; the line is the rule's limit, {percent(limit)}" if limit else ""
            lead = tag("p", f"{text}, in epoch {report.epoch}{told}.", class_="soft")
            body += [lead, rows(lines, what, linear=True, limits=[limit])]
            body.append(left_out(len(kept), len(shares), "modules"))
        if body:
            parts.append(card(whose(run, recorded), body))
    return parts


def heat_maps(run: Run, limits: Limits) -> Markup | None:
    """Statistics of all layers over all epochs; the first stand open."""
    figures = []
    for prefix, tables, stat, caption in HEATS:
        for recorded in run.of(prefix):
            series = recorded.series(tables, stat)
            if stat in NEEDS_MORE_THAN_ZERO and not np.nansum(series.values):
                continue
            several = len(series.epochs) > 1
            drawn = heat_map(series, stat, limits.heat_rows, limits.heat_columns, relative=several) if series.names else None
            if drawn is not None:
                figures.append(heat(f"{caption}, relative to its first epoch" if drawn.relative else caption, drawn))
    if not figures:
        return None
    more = figures[SHOWN_OPEN:]
    folded = tag("details", tag("summary", f"{len(more)} more"), more) if more else None
    lead = (
        "Layers from the input (above) to the loss (below), epochs from left to right; hatched where nothing was measured. "
        "Sizes are relative to the layer's own first epoch, since layers of different types differ a thousandfold in health; "
        "shares are as they are."
    )
    return card(tag("p", lead, class_="soft"), figures[:SHOWN_OPEN], folded)


def clipping(run: Run) -> list[Markup]:
    """Norms before and after clipping, and how many steps it touched."""
    parts: list[Markup] = []
    for recorded in run.of("gradient_clip"):
        last = recorded.last
        if not isinstance(last, ClipReport):
            continue
        for optimizer, stats in last.optimizers.items():
            numbers = {stat: _of(recorded, optimizer, stat) for stat in CLIP_STATS}
            epochs = list(recorded.columns)
            counts = {stat: int(np.nansum(numbers[stat])) for stat in CLIP_STATS if stat.endswith("steps")}
            total = counts["steps"] + counts["skipped_steps"]
            limit = [stats.limit] * len(epochs) if stats.limit else None
            often = _limit(recorded, "always_clipped")
            curves = [
                Line(
                    "norm before clipping (mean, to the largest)",
                    numbers["norm_before"],
                    "var(--blue)",
                    top=numbers["norm_before_max"],
                ),
                Line("norm after", numbers["norm_after"], "var(--amber)"),
                *([Line(f"configured limit {number(stats.limit)}", limit, "var(--soft)", dashed=True)] if limit else []),
            ]
            causes = ", ".join(f"{parameter} ({share:.0%})" for parameter, share in stats.top_parameters[:3])
            parts.append(card(
                tag("h3", name(optimizer)),
                facts([
                    (f"of {number(total)} steps clipped", percent(counts["clipped_steps"] / total if total else math.nan)),
                    ("skipped by a loss scaler", number(counts["skipped_steps"])),
                    ("taken with NaN or infinite gradients", number(counts["nonfinite_steps"])),
                    ("of the norm left on average, last epoch", percent(stats.coefficient)),
                ]),
                chart(curves, epochs),
                chart(
                    [
                        Line("share of steps clipped", numbers["rate"], "var(--sky)"),
                        Line("limit of always_clipped", [often] * len(epochs), "var(--soft)", dashed=True),
                    ],
                    epochs, 90, kind="share",
                ),
                tag("p", "Clips of the last epoch were caused by: ", causes, ".", class_="soft") if causes else None,
                _thinned(recorded),
            ))  # fmt: skip
    return parts


def _limit(recorded: Recorded, kind: str) -> float:
    """The threshold of a rule: that of its last alert, which the user may have set, or the default."""
    told = [alert.threshold for alerts in recorded.alerts.values() for alert in alerts if alert.kind == kind]
    return told[-1] if told else DEFAULT_LIMITS.get(kind, 0.0)


def _of(recorded: Recorded, optimizer: str, stat: str) -> list[float]:
    series = recorded.series("optimizers", stat)
    if optimizer not in series.names:
        return [math.nan] * len(series.epochs)
    return [float(value) for value in series.values[series.names.index(optimizer)]]


def _thinned(recorded: Recorded) -> Markup | None:
    if len(recorded.columns) == len(recorded.alerts):
        return None
    return tag("p", f"{len(recorded.columns)} of {len(recorded.alerts)} epochs are drawn and counted.", class_="soft")
