"""The sections of a run's page, as blocks: what is shown, in which order, and in which words. It needs no torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby, islice
from operator import itemgetter
from types import SimpleNamespace
from typing import Any

import numpy as np

from lightning_hooks.declare.kinds import gravity
from lightning_hooks.declare.plain import NONFINITE
from lightning_hooks.diagnostics.sections import SECTIONS, Panel, Section
from lightning_hooks.plots.series import FRACTIONS
from lightning_hooks.run_report.blocks import (
    Block,
    Card,
    chart,
    fold,
    line,
    measured,
    number,
    percent,
    row,
    rows,
    section,
    table,
)
from lightning_hooks.run_report.recorded import STATISTICS, MonitorRecord, Run, chosen, number_of, place, severities
from lightning_hooks.run_report.training import model, training, unusual
from lightning_hooks.run_report.verdict import Course, courses

NEEDS_MORE_THAN_ZERO = ("dead_fraction", "saturated_fraction", "nonfinite_fraction")
SHOWN_MAPS = 3
OUTPUTS = {"mean": "mean", "std": "std", "zeros": "zero_fraction", "dead": "dead_fraction", "saturated": "saturated_fraction"}


def sections_of(run: Run, most: int) -> list[dict[str, Any]]:
    """The sections of a run, without those that have nothing to show, and of too many layers ``most``."""
    made = [
        section("alerts", "Alerts, root causes first", _alerts(run, most)),
        section("training", "Loss and learning rate", training(run)),
        section("unusual", "Unusual batches", unusual(run)),
        section("gradients", "Gradient flow", (_gradients(run, record, most) for record in run.of("gradient_flow"))),
        section("outputs", "Outputs", (_outputs(run, record, most) for record in run.of("features"))),
        section("maps", f"Over the {run.window}s", _maps(run)),
        *(section(each.title.lower(), each.title, _declared(run, each, most)) for each in SECTIONS),
        section("model", "Model and set-up", model(run, most)),
        section("coverage", "Coverage and cost", _coverage(run)),
    ]
    return [found for found in made if found["cards"]]


def _alerts(run: Run, most: int) -> Iterator[Card]:
    def order(course: Course) -> tuple[bool, int, bool, int]:
        return bool(course.alert.cause), gravity(course.severity), not course.lasts, course.since

    found = sorted(courses(run), key=order)
    left = len(found) - most // 2
    if found:
        drawn = {"alerts": [_course(run, course) for course in found[: most // 2]], "windows": len(run.epochs), "unit": run.unit}
        yield [drawn, *[{"text": f"{left} more alerts are in reports.jsonl."}] * (left > 0)]


def _course(run: Run, course: Course) -> dict[str, Any]:
    value, limit = measured(course.alert)
    with_it = groupby(enumerate(epoch in course.epochs for epoch in run.epochs), itemgetter(1))
    active = [[at for at, _ in stretch] for shows, stretch in with_it if shows]
    return {
        "id": course.alert.name,
        "kind": course.alert.kind,
        "site": course.alert.site,
        "severity": course.severity,
        "cause": course.alert.cause,
        "since": course.since,
        "until": course.until,
        "lasts": course.lasts,
        "value": value,
        "limit": limit,
        "active": [[stretch[0], len(stretch)] for stretch in active],
    }


def _head(run: Run, record: MonitorRecord) -> Card:
    return [{"title": record.modules, "name": True}] * (len(run.of(record.prefix)) > 1)


def _when(record: MonitorRecord) -> str:
    return f"{record.unit} {place(record.latest or {})}"


def _of(kept: int, total: int, noun: str) -> Card:
    return [{"text": f"{kept} of {total} {noun} are shown: those with an alert, and every so many of the others."}] * (kept < total)


def _gradients(run: Run, record: MonitorRecord, most: int) -> Card:
    found, updates, affected = record.rows("modules"), record.rows("parameters"), severities(record)
    if not found and not updates:
        return []
    card = _head(run, record)
    if found:
        lines, cells = [], []
        for site in chosen(list(found), affected, most):
            rms, mean, low, high = (number_of(found[site].get(stat)) for stat in ("rms", "mean", "min", "max"))
            largest = max((abs(end) for end in (low, high) if not math.isnan(end)), default=math.nan)
            title = f"{site}: RMS {number(rms)}, mean {number(mean)}, from {number(low)} to {number(high)}"
            lines.append(row(site, rms, abs(mean), largest, severity=affected.get(site, ""), title=title))
            cells.append((site, rms, number_of(found[site].get("norm")), affected.get(site, "")))
        lead = (
            f"RMS of the loss's gradient at each module's output in {_when(record)}, from the input to the loss: the dot; the band "
            f"reaches from the mean's magnitude to the largest value. Total norm: "
            f"{number(number_of(record.fields.get('total_norm')))}."
        )
        card += [
            {"text": lead},
            rows(lines, "RMS", limits=[record.limit("exploding")]),
            *_of(len(lines), len(found), "modules"),
            fold("Numbers", [table(("module", "RMS", "norm", "alert"), cells)]),
        ]
    else:
        card.append({"text": "No gradient arrived at any module."})
    if updates:
        ratios = {site: updates[site].get("update_ratio") for site in chosen(list(updates), affected, most)}
        lines = [
            row(site, number_of(ratio), severity=affected.get(site, ""), note="not measured" if ratio is None else "")
            for site, ratio in ratios.items()
        ]
        limit = [record.limit(kind) for kind in ("update_too_small", "update_too_large")]
        drawn = [
            {"text": "Norm of an optimizer step's update over the norm of the weight; often near 1e-3 in healthy runs."},
            rows(lines, "ratio", shades=(1e-4, 1e-2), limits=limit),
            *_of(len(lines), len(updates), "parameters"),
        ]
        card.append(fold(f"Updates of the {len(updates)} parameters", drawn))
    return card


def _outputs(run: Run, record: MonitorRecord, most: int) -> Card:
    found, affected = record.rows("sites"), severities(record)
    if not found:
        return []
    card = _head(run, record)
    for _, _, stat, what, caption in (each for each in STATISTICS if each.table == "sites" and each.stat in NEEDS_MORE_THAN_ZERO):
        shares = {site: number_of(stats[stat]) for site, stats in found.items() if stats.get(stat) is not None}
        if not shares or (stat == "nonfinite_fraction" and not any(shares.values())):
            continue
        limit = record.limit(stat.removesuffix("_fraction"))  # of the rule with that name
        at = f"; the line is the rule's limit, {percent(limit)}" if limit else ""
        lines = [row(site, shares[site], severity=affected.get(site, "")) for site in chosen(list(shares), affected, most)]
        drawn = rows(lines, what, share=True, limits=[limit])
        card += [{"text": f"{caption}, in {_when(record)}{at}."}, drawn, *_of(len(lines), len(shares), "modules")]
    kept = chosen(list(found), affected, most)
    columns = {**OUTPUTS, "non-finite": "nonfinite_fraction"}
    cells = [(site, *(_cell(found[site], stat) for stat in columns.values()), affected.get(site, "")) for site in kept]
    return [*card, fold("Numbers", [table(("module", *columns, "alert"), cells), *_of(len(kept), len(found), "modules")])]


def _cell(stats: Mapping[str, Any], stat: str) -> Any:
    value = stats.get(stat)
    known = value if value is None or isinstance(value, int) else number_of(value)
    return percent(known) if stat in FRACTIONS else known


def _maps(run: Run) -> Iterator[Card]:
    lead = (
        f"Layers from the input (above) to the loss (below), {run.window}s from left to right; hatched where nothing was "
        f"measured. Sizes are relative to the layer's own first {run.window}, since layers of different types differ a "
        "thousandfold in healthy runs; shares are absolute."
    )
    maps = [
        {"map": {"monitor": at, "table": each.table, "stat": each.stat, "caption": each.caption}}
        for each in STATISTICS
        for at, record in enumerate(run.monitors)
        if each.caption and record.prefix == each.prefix
        for series in [record.series(each.table, each.stat)]
        if series.names and (each.stat not in NEEDS_MORE_THAN_ZERO or np.nansum(series.values))
    ]
    more = maps[SHOWN_MAPS:]
    if maps:
        yield [{"text": lead}, *maps[:SHOWN_MAPS], *[fold(f"{len(more)} more", more)] * bool(more)]


def _declared(run: Run, each: Section, most: int) -> Iterator[Card]:
    """The rows of a section that a capability declares: facts, curves, a note; and the numbers of the last window."""
    cells = []
    for record in run.of(each.prefix):
        for name, found in islice(record.rows(each.table).items(), most):
            known = {stat: record.values(each.table, stat, name) for stat in each.stats}
            counts = {stat: int(np.nansum(values)) for stat, values in known.items() if stat.endswith("steps")}
            stats = SimpleNamespace(**{key: _finite(value) for key, value in found.items()})
            facts, note = each.facts(counts, stats, run.window)
            cells.append((name, *(_cell(found, stat) for stat in each.columns.values())))
            shown = [[what, number(value) if isinstance(value, int) else percent(value)] for what, value in facts]
            drawn, windows = len(record.columns), len(record.alerts)
            thinned = f"{drawn} of {windows} {run.window}s are drawn and counted."
            yield [
                {"title": name, "name": True},
                *[{"facts": shown}] * bool(shown),
                *(_panel(record, panel, known, stats) for panel in each.panels),
                *({"text": text} for text in (note, thinned * (drawn < windows)) if text),
            ]
    if cells:
        yield [fold(f"The last {run.window} in numbers", [table((each.table.removesuffix("s"), *each.columns), cells)])]


def _finite(value: Any) -> Any:
    if isinstance(value, list):
        return [_finite(inner) for inner in value]
    return NONFINITE.get(value, value) if isinstance(value, str) else value


def _panel(record: MonitorRecord, panel: Panel, known: Mapping[str, Sequence[float]], stats: Any) -> Block:
    epochs, share = list(record.columns), any(stat in FRACTIONS for stat, _ in panel.curves.values())
    lines = [
        line(text + " (mean, to the largest)" * bool(top), known[stat], known.get(top))
        for text, (stat, top) in panel.curves.items()
    ]
    limit = number_of(getattr(stats, panel.limit, None)) if panel.limit else math.nan
    limits = {f"configured limit {number(limit)}": limit} if limit > 0 else {}
    if panel.rule:
        limits[f"limit of {panel.rule}"] = record.limit(panel.rule)
    lines += [line(text, [at] * len(epochs), dashed=True, color="soft") for text, at in limits.items()]
    return chart("", epochs, record.unit, lines, kind="share" if share else "log", height=90 if share else 170)


def _coverage(run: Run) -> Iterator[Card]:
    cells = [
        (
            f"{record.prefix} ({record.modules})",
            " + ".join(str(len(names)) for names in record.names.values()) or None,
            len(silent) if isinstance(silent, list) else 0,
            f"{sampled} of {batches}" if batches else "every step",
            len(record.epochs),
            percent(number_of(record.fields.get("overhead"))),
        )
        for record in run.monitors
        for sampled, batches, silent in [map(record.fields.get, ("sampled_batches", "batches", "silent"))]
    ]
    why = (
        f"Batches: how many of the last {run.window}'s batches were sampled. What happens between two of them shows only if its "
        "effects last. Cost: the share of a training batch's time that the monitor adds, in the first process."
    )
    yield [table(("monitor", "observed", "silent", "batches", f"{run.window}s", "cost"), cells), {"text": why}]
