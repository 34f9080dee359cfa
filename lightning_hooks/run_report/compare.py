"""A comparison of two runs: what differs in the set-up, in the losses, and layer by layer, the largest differences first."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from lightning_hooks.plots.series import FRACTIONS
from lightning_hooks.run_report.blocks import DASH, Block, Card, chart, flat, number, percent, section, table
from lightning_hooks.run_report.recorded import MOST_DRAWN, STATISTICS, DrawnStatistic, Run
from lightning_hooks.run_report.sections import sections_of
from lightning_hooks.run_report.training import MOST_CHARTS, layers, rates_by_group
from lightning_hooks.run_report.verdict import courses, judge

MOST = 25  # rows of a table


@dataclass(frozen=True, slots=True)
class Difference:
    """One number of two runs."""

    what: str  # in words
    stat: str  # the statistic's name
    name: str  # of the layer
    a: float  # in the first run
    b: float  # in the second

    @property
    def share(self) -> bool:
        """Whether it is a share, from 0 to 1."""
        return self.stat in FRACTIONS

    @property
    def size(self) -> float:
        """How much they differ: in decades, and shares so that from none to all weighs as much as a thousandfold."""
        finite = math.isfinite(self.a), math.isfinite(self.b)
        if finite == (False, False) or self.a == self.b:
            return 0.0
        if not all(finite):
            return math.inf
        if self.share:
            return 3 * abs(self.b - self.a)
        if self.a <= 0 or self.b <= 0:
            return math.inf if self.a <= 0 < self.b or self.b <= 0 < self.a else 0.0
        return abs(math.log10(self.b) - math.log10(self.a))

    @property
    def change(self) -> str:
        """From the first to the second, where both are finite and above zero, or shares."""
        if self.share:
            return f"{100 * (self.b - self.a):+.3g} points"
        if not (0 < self.a < math.inf and 0 < self.b < math.inf):
            return DASH
        sign, factor = ("×", self.b / self.a) if self.b >= self.a else ("÷", self.a / self.b)  # noqa: RUF001  of arithmetic
        return f"{sign} {factor:.0f}" if 100 <= factor < 1e6 else f"{sign} {factor:.3g}"


def compare(a: Run, b: Run) -> dict[str, Any]:
    """Make the page that compares two runs; numbers are those of the last window that both have."""
    of_a, of_b = _settings(a), _settings(b)
    differ = [key for key in of_a | of_b if of_a.get(key) != of_b.get(key)]
    settings = [(key, *(DASH if one is None else str(one) for one in (of_a.get(key), of_b.get(key)))) for key in differ[:MOST]]
    losses = _losses(a, b)
    set_up: Card = [
        *[table(("", "A", "B"), [*settings, *losses])] * bool(settings or losses),
        *[{"text": "The set-up is the same, as far as it is known."}] * (not settings),
        *_and_more(differ),
    ]
    made = [
        section("set-up", "Set-up and loss", [set_up]),
        *_curves_of_both(a, b),
        _largest_differences(a, b),
        section("alerts", "Alerts at the end", _alerts(a, b)),
    ]
    return {
        "title": f"Two runs compared: {a.name} and {b.name}",
        "verdicts": [
            {"letter": letter, "name": run.name, "status": found.status, "headline": found.headline, "details": list(found.details)}
            for letter, run, found in (("A", a, judge(a)), ("B", b, judge(b)))
        ],
        "sections": [each for each in made if each["cards"]],
    }


def _largest_differences(a: Run, b: Run) -> dict[str, Any]:
    both = set.intersection(*({epoch for record in run.monitors for epoch in record.columns} for run in (a, b)))
    if not both:
        text = f"Numbers are not compared: {a.name} and {b.name} have no {a.unit} in common."
        return section("differences", "Largest differences", [[{"text": text}]])
    found = (
        Difference(each.name, each.stat, name, first[name], second[name])
        for each in STATISTICS
        for first, second in [[_numbers(run, each, max(both)) for run in (a, b)]]
        for name in first
        if name in second
    )
    largest = sorted((one for one in found if one.size > 0), key=lambda one: -one.size)
    cells = [
        (one.name, one.what, *((percent if one.share else number)(value) for value in (one.a, one.b)), one.change)
        for one in largest[:MOST]
    ]
    card: Card = [
        table(("layer", "of it", "A", "B", "A to B"), cells) if cells else {"text": "All numbers that both runs have are the same."}
    ]
    return section("differences", f"Largest differences, {a.unit} {max(both)}", [[*card, *_and_more(largest)]])


def _and_more(found: Sequence[Any]) -> Card:
    return [{"text": f"and {len(found) - MOST} more"}] * (len(found) > MOST)


def _numbers(run: Run, each: DrawnStatistic, epoch: int) -> dict[str, float]:
    tables = (record.columns.get(epoch, {}).get(each.table, ((), {})) for record in run.of(each.prefix))
    known = (pair for names, stats in tables for pair in zip(names, stats.get(each.stat, ()), strict=False))
    return {name: float(value) for name, value in known if not math.isinf(value)}


def _alerts(a: Run, b: Run) -> Iterator[Card]:
    mine, theirs = ({course.key: course for course in courses(run) if course.lasts and course.serious} for run in (a, b))
    groups = {
        "Only in A": [course for key, course in mine.items() if key not in theirs],
        "Only in B": [course for key, course in theirs.items() if key not in mine],
        "In both": [course for key, course in mine.items() if key in theirs],
    }
    for who, found in groups.items():
        if found:
            cells = [(course.alert.site, course.alert.kind, course.severity, course.since) for course in found[:MOST]]
            shown = table(("where", "alert", "severity", f"since {a.unit}"), cells)
            yield [{"title": f"{who} ({len(found)})"}, shown, *_and_more(found)]


def _curves(run: Run) -> dict[tuple[str, str], tuple[Block, list[float | None]]]:
    found, heading = {}, ""
    for each in sections_of(run, MOST_DRAWN):
        for block in (block for card in each["cards"] for block in flat(card)):
            drawn, heading = block.get("chart", {}), block.get("title", heading)
            for one in drawn.get("lines", ()):
                if not one.get("dashed"):
                    found[each["title"], f"{drawn['title'] or heading}: {one['label']}"] = drawn, one["values"]
    return found


def _curves_of_both(a: Run, b: Run) -> list[dict[str, Any]]:
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


def _losses(a: Run, b: Run) -> list[tuple[str, float, float]]:
    """Loss and metrics at the first and at the last window that both have, and at the end of each, where any is known."""
    both = sorted(set(a.epochs) & set(b.epochs))
    places = {f"{a.unit} {place}": (place, place) for place in (both[:1] + both[-1:])}
    ends = max(a.epochs, default=-1), max(b.epochs, default=-1)
    if ends[0] != ends[1]:
        places[f"last {a.window}"] = ends
    known = any(math.isfinite(run.loss(at)) for run in (a, b) for at in run.timing)
    names = ["loss"] * known + [name for name in a.metrics if name in b.metrics and name != "loss"][:MOST_CHARTS]
    return [
        (f"{what}, {where}", a.metric(what, first), b.metric(what, second))
        for what in names
        for where, (first, second) in places.items()
    ]


# What a fit event says that is not a setting; layers are compared one by one.
NOT_SETTINGS = ("event", "version", "started", "epoch", "step", "monitors", "watched", "layers")
# Settings of parameter groups that are compared; learning rates are compared over the whole run.
OF_OPTIMIZERS = ("weight_decay", "momentum", "betas", "eps", "maximize")


def _settings(run: Run) -> dict[str, Any]:
    found: dict[str, Any] = {"optimizers": run.fit.get("optimizers")}
    for group, rates in rates_by_group(run).items():
        known = [rate for rate in rates if not math.isnan(rate)]
        if known:
            low, high, last = (number(rate) for rate in (min(known), max(known), known[-1]))
            found[f"learning rate of {group}"] = low if low == high else f"{low} to {high}, last {last}"
    for record in run.monitors:
        for name, stats in record.rows("optimizers").items():
            groups = [given for given in stats.get("groups") or () if isinstance(given, dict)]
            for place, given in enumerate(groups):
                suffix = f"/pg{place + 1}" if len(groups) > 1 else ""
                found |= {f"{key} of {name}{suffix}": given.get(key) for key in OF_OPTIMIZERS}
            found[f"clipping limit of {name}"] = stats.get("limit")
        if record.fields.get("batches"):
            found[f"batches of a {run.window}"] = record.fields["batches"]
    found |= {
        **{key: value for key, value in run.fit.items() if key not in NOT_SETTINGS},
        "monitors": ", ".join(f"{record.prefix} ({record.modules})" for record in run.monitors),
        f"{run.window}s": len(run.epochs),
        **{f"layer {name}": f"{kind}({detail})" for name, kind, detail, _ in layers(run)},
    }
    return {key: number(value) if isinstance(value, float) else value for key, value in found.items()}
