"""A run, and two compared, as the page shows them: plain JSON types. It needs no torch."""

from __future__ import annotations

import base64
import math
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from lightning_hooks.declare.kinds import capital
from lightning_hooks.declare.plain import TABLES
from lightning_hooks.plots.series import FRACTIONS
from lightning_hooks.run_report.blocks import (
    DASH,
    Block,
    Card,
    chart,
    flat,
    fold,
    measured,
    named,
    numbers,
    row,
    rows,
    section,
    table,
)
from lightning_hooks.run_report.compare import DIFFERENCE, MOST, Comparison, compare
from lightning_hooks.run_report.recorded import MOST_DRAWN, STATISTICS, Run, chosen, number_of, severities
from lightning_hooks.run_report.sections import sections_of
from lightning_hooks.run_report.training import loss_by_epoch, thinned
from lightning_hooks.run_report.verdict import Course, Problem, Verdict, courses, judge

MOST_NAMES = 9  # of sites of one problem
MOST_POINTS = 60  # of the loss in the list of runs
MOST_ALERTS = 20  # of two runs that are compared, for each of them
OPEN_LAYERS = 2
Page = dict[str, Any]


def entry(run: Run, updated: float) -> Page:
    """A run in the list of runs."""
    if not run.fit and not run.monitors:
        raise ValueError("it holds no run.")
    return _entry(run, judge(run), updated)


def _entry(run: Run, verdict: Verdict, updated: float) -> Page:
    durations = [took for event in run.timing.values() if math.isfinite(took := number_of(event.get("seconds")))]
    return {
        **_verdict(verdict),
        "state": "running" if run.end is None else str(run.end.get("how", "ended")),
        "model": str(run.fit.get("model", "")),
        "updated": updated,
        "window": max(durations[-20:], default=0.0),
        "unit": run.unit,
        "last": max(run.epochs, default=None),
        "planned": run.fit.get("max_epochs") if run.unit == "epoch" else None,
        "loss": numbers(thinned(loss_by_epoch(run)[1], MOST_POINTS)),
        "open": [_short(problem) for problem in verdict.problems if problem.lasts and problem.severity != "info"],
        "damaged": run.damaged,
    }


def whole(run: Run, updated: float, most: int = MOST_DRAWN) -> Page:
    """A run's page; the numbers of heat maps and of single curves are asked for one by one."""
    verdict = judge(run)
    versions = (("lightning_hooks", "package"), ("torch", "torch"), ("Lightning", "lightning"))
    made = ", ".join(f"{what} {run.fit[key]}" for what, key in versions if key in run.fit) or "lightning_hooks"
    again = (
        "To make it again: lightning-hooks report RUN_DIR; to compare two runs: lightning-hooks compare RUN_A RUN_B."
        if run.fit
        else ""
    )
    started = f" Training started {run.fit['started']}." if "started" in run.fit else ""
    return {
        **(_entry(run, verdict, updated) if run.fit or run.monitors else {}),
        "title": f"Health report: {run.fit.get('model', 'training')} · {'this directory' if run.name == '.' else run.name}",
        "verdicts": [{**_verdict(verdict), "details": list(verdict.details)}],
        "problems": [_problem(run, problem) for problem in verdict.problems],
        "sections": sections_of(run, most),
        "tables": list(_tables(run)),
        "footer": [text for text in (f"Made by {made}.{started}", again) if text],
    }


def _verdict(verdict: Verdict) -> Page:
    return {"status": verdict.status, "headline": verdict.headline}


def _short(problem: Problem) -> Page:
    return {"id": problem.first.name, "severity": problem.severity, "title": problem.title, "where": problem.where}


def _problem(run: Run, problem: Problem) -> Page:
    value, limit = measured(problem.first)
    return {
        **_short(problem),
        **{name: getattr(problem, name) for name in ("headline", "seen_as", "when", "lasts", "advice", "rules", "record")},
        **{name: getattr(problem, name) for name in ("evidence", "against")},
        "probability": problem.first.probability,
        "sites": problem.sites[:MOST_NAMES],
        "others": max(len(problem.sites) - MOST_NAMES, 0),
        "consequences": problem.consequences[:MOST_NAMES],
        "value": value,
        "limit": limit,
        "curve": _curve_of(run, problem),
    }


def _curve_of(run: Run, problem: Problem) -> Page | None:
    """The curve that shows a problem: of the statistic with its kind's name, or with the alert's value, else of a heat map."""
    alert = problem.first
    at = alert.epoch if problem.unit == "epoch" else alert.step
    for place, record in enumerate(run.monitors):
        if not any(found.name == alert.name for found in record.alerts.get(at, ())):
            continue
        for of, (names, stats) in record.columns.get(at, {}).items():
            if alert.site in names:
                values = {stat: float(column[names.index(alert.site)]) for stat, column in stats.items()}
                usual = [each.stat for each in STATISTICS if (each.prefix, each.table) == (record.prefix, of)]
                equal = [stat for stat, value in values.items() if value and math.isclose(value, alert.value, rel_tol=1e-3)]
                order = [*(stat for stat in stats if stat.startswith(alert.kind)), *equal, *usual, *stats]
                stat = next((stat for stat in order if math.isfinite(values.get(stat, math.nan))), None)
                if stat is not None:
                    at_row = record.series(of, stat).names.index(alert.site)
                    return {"monitor": place, "table": of, "stat": stat, "row": at_row}
    return None


def _tables(run: Run) -> Iterable[Page]:
    """What can be drawn: a monitor's table with its statistics."""
    for place, record in enumerate(run.monitors):
        columns = next(reversed(record.columns.values()), {})
        for of, (names, stats) in columns.items():
            if stats and names and of in TABLES:
                yield {"monitor": place, "prefix": record.prefix, "table": of, "stats": list(stats)}


def heat(
    run: Run,
    monitor: int,
    table: str,
    stat: str,
    row: int | None = None,
    most: int = MOST_DRAWN,
    found: Sequence[Course] | None = None,
) -> Page:
    """A statistic of all layers over the windows, thinned to what a screen shows, or of the layer in one row, with its alerts.

    ``found`` are the :func:`courses` of the run's alerts, where they are known.

    Raises:
        LookupError: If there is no such monitor, statistic or layer.
    """
    record = run.monitors[monitor]
    series = record.series(table, stat)
    if not series.names or not series.epochs:
        raise LookupError("no such statistic")
    kept = {series.names[row]} if row is not None else set(chosen(series.names, severities(record), most))
    at = [number for number, name in enumerate(series.names) if name in kept]
    every = max(1, -(-len(series.epochs) // most))
    columns = sorted({0, *range(len(series.epochs) - 1, 0, -every)})  # with the first and the last
    place = {series.names[number]: index for index, number in enumerate(at)}
    return {
        "stat": stat,
        "share": stat in FRACTIONS,
        "names": [series.names[number] for number in at],
        "rows": at,
        "epochs": [series.epochs[column] for column in columns],
        "unit": series.unit,
        "of": [len(series.names), len(series.epochs)],
        "values": packed(series.values[np.ix_(at, columns)]),
        "marks": [
            [place[course.alert.site], course.since, course.until, course.severity, course.alert.name]
            for course in (courses(run) if found is None else found)
            if course.alert.site in place and course.prefix == record.prefix and (course.serious or row is not None)
        ],
    }


def packed(values: np.ndarray) -> str:
    """Numbers row by row in Base64: the three upper bytes of each little-endian float32, which are four digits; NaN for none."""
    bits = np.where(np.isfinite(values), values, np.nan).astype("<f4").view("<u4") + np.uint32(0x80)
    return base64.b64encode(np.ascontiguousarray(bits).view(np.uint8).reshape(-1, 4)[:, 1:].tobytes()).decode()


def names(run: Run, monitor: int, table: str, stat: str) -> list[str]:
    """The layers that have a statistic; the place of each is its row.

    Raises:
        LookupError: If there is no such monitor.
    """
    return list(run.monitors[monitor].series(table, stat).names)


def both(a: Run, b: Run) -> Page:
    """Two runs compared; without a window in common, their verdicts and losses."""
    try:
        return compared(compare(a, b))
    except ValueError as error:
        sections = [*_of_both(a, b), section("differences", "Largest differences", [[{"text": str(error)}]])]
        return {**_head_of_two(a, b, judge(a), judge(b)), "sections": sections}


def _head_of_two(a: Run, b: Run, *verdicts: Verdict) -> Page:
    heads = [
        {"letter": letter, "name": run.name, **_verdict(verdict), "details": list(verdict.details)}
        for letter, run, verdict in zip("AB", (a, b), verdicts, strict=True)
    ]
    return {"title": f"Two runs compared: {a.name} and {b.name}", "verdicts": heads}


def compared(found: Comparison) -> Page:
    """A comparison of two runs."""
    a, b = found.a, found.b
    settings = [(what, *(DASH if value is None else str(value) for value in values)) for what, *values in found.settings]
    set_up = [table(("", "A", "B"), [*settings, *found.losses])] if settings or found.losses else []
    if not settings:
        set_up.append({"text": "The set-up is the same, as far as it is known."})
    largest = found.largest
    differ: Card = [table(DIFFERENCE, [one.cells for one in largest[:MOST]])] if largest else [{"text": SAME}]
    differ += [{"text": f"and {len(largest) - MOST} more"}] * (len(largest) > MOST)
    made = [
        section("set-up", "Set-up and loss", [set_up]),
        *_of_both(a, b),
        section("differences", f"Largest differences, {a.unit} {found.epoch}", [differ]),
        section("alerts", "Alerts at the end", _alerts_of(found)),
        section("layers", "Layer by layer", [_layers(found)]),
        section(
            "only", "Only in one", ([named(f"Only in {letter} ({len(names)})", names)] for letter, names in found.only.items())
        ),
    ]
    return {**_head_of_two(a, b, *found.verdicts), "sections": [each for each in made if each["cards"]]}


SAME = "All numbers that both runs have are the same."


def _curves(run: Run) -> dict[tuple[str, str], tuple[Block, list[float | None]]]:
    """The curves of a run's page, by section and by heading and label."""
    found, heading = {}, ""
    for each in sections_of(run, MOST_DRAWN):
        for block in (block for card in each["cards"] for block in flat(card)):
            drawn, heading = block.get("chart", {}), block.get("title", heading)
            for one in drawn.get("lines", ()):
                if not one.get("dashed"):
                    found[each["title"], f"{drawn['title'] or heading}: {one['label']}"] = drawn, one["values"]
    return found


def _of_both(a: Run, b: Run) -> list[Page]:
    of_a, of_b = _curves(a), _curves(b)
    sections: dict[str, Card] = {}
    for key in (key for key in of_a if key in of_b):
        known = [dict(zip(drawn["epochs"], values, strict=True)) for drawn, values in (of_a[key], of_b[key])]
        epochs = sorted({epoch for values in known for epoch in values})
        lines = [{"label": letter, "values": [*map(values.get, epochs)]} for letter, values in zip("AB", known, strict=True)]
        drawn, _ = of_a[key]
        kind = {"kind": drawn["kind"]} if "kind" in drawn else {}
        sections.setdefault(key[0], []).append(chart(key[1], epochs, a.unit, lines, **kind))
    return [section(title.lower(), title, [card]) for title, card in sections.items()]


def _alerts_of(found: Comparison) -> Iterable[Card]:
    for who, alerts in found.alerts.items():
        cells = [(course.alert.site, course.alert.kind, course.severity, course.since) for course in alerts[:MOST_ALERTS]]
        left = len(alerts) - MOST_ALERTS
        heads = ("where", "alert", "severity", f"since {found.a.unit}")
        yield [{"title": f"{capital(who)} ({len(alerts)})"}, table(heads, cells), *[{"text": f"and {left} more"}] * (left > 0)]


def _layers(found: Comparison) -> Card:
    card: Card = []
    for each in (each for each in STATISTICS if each.caption and each.stat != "nonfinite_fraction"):
        differences, share = found.of(each.stat), each.stat in FRACTIONS
        if not differences or (share and not any(difference.a or difference.b for difference in differences)):
            continue
        kept = set(sorted(differences, key=lambda difference: -difference.size)[:MOST_DRAWN])
        drawn = rows([row(d.name, d.a, other=d.b, shown=d.change) for d in differences if d in kept], "A to B", share)
        more = [{"text": f"The {len(kept)} of {len(differences)} that differ most."}] * (len(kept) < len(differences))
        card.append(fold(each.caption, [drawn, *more], len(card) < OPEN_LAYERS))
    return [{"text": "Dot: A. Diamond: B. The number is the change."}, *card] if card else []
