"""A comparison of two runs: what differs in the set-up, in the losses, and layer by layer, the largest differences first."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from lightning_hooks.plots.series import FRACTIONS
from lightning_hooks.run_report.blocks import number, percent
from lightning_hooks.run_report.recorded import STATISTICS, DrawnStatistic, Run
from lightning_hooks.run_report.training import MOST_CHARTS, layers, rates_by_group
from lightning_hooks.run_report.verdict import Course, Verdict, courses, judge


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
    def cells(self) -> tuple[str, str, str, str, str]:
        """It as a row of a table: the layer, what, A, B, the change."""
        text = percent if self.share else number
        return self.name, self.what, text(self.a), text(self.b), self.change

    @property
    def change(self) -> str:
        """From the first to the second, in words."""
        if self.a == self.b or (math.isnan(self.a) and math.isnan(self.b)):
            return "same"
        if not math.isfinite(self.a) or not math.isfinite(self.b):
            return "not finite in A" if math.isfinite(self.b) else "not finite in B"
        if self.share:
            return f"{100 * (self.b - self.a):+.3g} points"
        if self.a <= 0 or self.b <= 0:
            return "zero in A" if self.a <= 0 else "zero in B"
        sign, factor = ("×", self.b / self.a) if self.b >= self.a else ("÷", self.a / self.b)  # noqa: RUF001  of arithmetic
        return f"{sign} {factor:.0f}" if 100 <= factor < 1e6 else f"{sign} {factor:.3g}"


DIFFERENCE = ("layer", "of it", "A", "B", "A to B")  # what the cells of a difference are
MOST = 25  # how many differences are shown as those that matter most


@dataclass(frozen=True, slots=True)
class Comparison:
    """A comparison of two runs."""

    a: Run  # the first
    b: Run  # the second
    epoch: int  # the epoch at which numbers are compared: the last that both have
    verdicts: tuple[Verdict, Verdict]  # of both
    differences: tuple[Difference, ...]  # of layers that both have, in the order of STATISTICS and of the model
    only: Mapping[str, tuple[str, ...]]  # A or B to the layers that only it has; without those that have none, as below
    alerts: Mapping[str, tuple[Course, ...]]  # at the end, by who has them: only in A, only in B, or in both, as the first has them
    settings: tuple[tuple[str, Any, Any], ...]  # (name, first, second) of what was set up differently
    losses: tuple[tuple[str, float, float], ...] = ()  # (what at which window, first, second) of loss and metrics, where known

    @property
    def largest(self) -> list[Difference]:
        """What differs, the most first."""
        differ = (difference for difference in self.differences if difference.size > 0)
        return sorted(differ, key=lambda difference: -difference.size)

    def of(self, stat: str) -> list[Difference]:
        """The differences of one statistic, in the model's order."""
        return [difference for difference in self.differences if difference.stat == stat]


def compare(a: Run, b: Run, epoch: int | None = None) -> Comparison:
    """Compare two runs at an epoch, or at the last that both have.

    Raises:
        ValueError: If there is no epoch that both have, or not that one.
    """
    kept = ({epoch for record in run.monitors for epoch in record.columns} for run in (a, b))
    both = sorted(set.intersection(*kept))
    if not both or (epoch is not None and epoch not in both):
        some = f"{a.unit}s {both[0]} to {both[-1]}" if both else f"no {a.unit}"
        wanted = "" if epoch is None else f" at {a.unit} {epoch}"
        raise ValueError(f"cannot compare{wanted}: {a.name} and {b.name} have {some} in common.")
    at = both[-1] if epoch is None else epoch
    found: list[Difference] = []
    only: dict[str, dict[str, None]] = {"A": {}, "B": {}}
    for each in STATISTICS:
        (names_a, first), (names_b, second) = (_numbers(run, each, at) for run in (a, b))
        found += [Difference(each.name, each.stat, name, first[name], second[name]) for name in first if name in second]
        if names_a and names_b:  # by name: a layer may be there without this number, such as an update ratio without an update
            only["A"] |= dict.fromkeys(name for name in names_a if name not in names_b)
            only["B"] |= dict.fromkeys(name for name in names_b if name not in names_a)
    mine, theirs = ({course.key: course for course in courses(run) if course.lasts and course.serious} for run in (a, b))
    alerts = {
        "only in A": tuple(course for key, course in mine.items() if key not in theirs),
        "only in B": tuple(course for key, course in theirs.items() if key not in mine),
        "in both": tuple(course for key, course in mine.items() if key in theirs),
    }
    return Comparison(
        a,
        b,
        at,
        (judge(a), judge(b)),
        tuple(found),
        {letter: _outermost(names) for letter, names in only.items() if names},
        {who: found for who, found in alerts.items() if found},
        tuple(setup_differences(a, b)),
        tuple(_losses(a, b)),
    )


def _outermost(names: dict[str, None]) -> tuple[str, ...]:
    """Names without the parameters of a module that is among them."""
    return tuple(name for name in names if name.rpartition(".")[0] not in names)


def _numbers(run: Run, each: DrawnStatistic, epoch: int) -> tuple[dict[str, None], dict[str, float]]:
    """All names of a table at an epoch, and the numbers of those that have the statistic."""
    names: dict[str, None] = {}
    values: dict[str, float] = {}
    for record in run.of(each.prefix):
        found, stats = record.columns.get(epoch, {}).get(each.table, ((), {}))
        names |= dict.fromkeys(found)
        values |= {
            name: float(value) for name, value in zip(found, stats.get(each.stat, ()), strict=False) if not math.isinf(value)
        }
    return names, values


def _losses(a: Run, b: Run) -> list[tuple[str, float, float]]:
    """Loss and metrics at the first and at the last window that both have, and at the end of each, where any is known."""
    both = sorted(set(a.epochs) & set(b.epochs))
    places = {f"{a.unit} {place}": (place, place) for place in (both[:1] + both[-1:])}
    ends = max(a.epochs, default=-1), max(b.epochs, default=-1)
    if ends[0] != ends[1]:
        places[f"last {a.window}"] = ends
    known = any(math.isfinite(run.loss(at)) for run in (a, b) for at in run.timing)
    names = ["loss"] * known + [name for name in a.metrics if name in b.metrics and name != "loss"][:MOST_CHARTS]
    at = [(what, where, *two) for what in names for where, two in places.items()]
    return [(f"{what}, {where}", a.metric(what, first), b.metric(what, second)) for what, where, first, second in at]


# What a fit event says that is not a setting; layers are compared one by one.
NOT_SETTINGS = ("event", "version", "started", "epoch", "step", "monitors", "watched", "layers")
# Settings of parameter groups that are compared; learning rates are compared over the whole run.
OF_OPTIMIZERS = ("weight_decay", "momentum", "betas", "eps", "maximize")
MOST_LAYERS = 8


def setup_differences(a: Run, b: Run) -> list[tuple[str, Any, Any]]:
    """What differs, as (what, in the first, in the second), the optimizers and their learning rates first."""
    changed = _paired(_layers(a), _layers(b))
    more = [("more layers that differ", len(changed) - MOST_LAYERS, None)] if len(changed) > MOST_LAYERS else []
    return [*_paired(_settings(a), _settings(b)), *changed[:MOST_LAYERS], *more]


def _paired(a: Mapping[str, Any], b: Mapping[str, Any]) -> list[tuple[str, Any, Any]]:
    return [(key, a.get(key), b.get(key)) for key in dict.fromkeys((*a, *b)) if a.get(key) != b.get(key)]


def _settings(run: Run) -> dict[str, Any]:
    monitors = ", ".join(f"{record.prefix} ({record.modules})" for record in run.monitors)
    return {
        "optimizers": run.fit.get("optimizers"),
        **_rates(run),
        **_of_reports(run),
        **{key: value for key, value in run.fit.items() if key not in NOT_SETTINGS},
        "monitors": monitors,
        f"{run.window}s": len(run.epochs),
    }


def _rates(run: Run) -> dict[str, str]:
    """The learning rate of each parameter group: one number where it stays, else its range and the last."""
    found = {}
    for group, rates in rates_by_group(run).items():
        known = [rate for rate in rates if not math.isnan(rate)]
        if known:
            low, high, last = (number(rate) for rate in (min(known), max(known), known[-1]))
            found[f"learning rate of {group}"] = low if low == high else f"{low} to {high}, last {last}"
    return found


def _of_reports(run: Run) -> dict[str, Any]:
    """What the last reports say of optimizers, clipping and batches."""
    found: dict[str, Any] = {}
    for record in run.monitors:
        for name, stats in record.rows("optimizers").items():
            groups = [group for group in stats.get("groups") or () if isinstance(group, dict)]
            for place, group in enumerate(groups):
                suffix = f"/pg{place + 1}" if len(groups) > 1 else ""
                found |= {f"{key} of {name}{suffix}": group.get(key) for key in OF_OPTIMIZERS}
            if stats.get("limit"):
                found[f"clipping limit of {name}"] = stats["limit"]
        if record.fields.get("batches"):
            found[f"batches of a {run.window}"] = record.fields["batches"]
    found = {key: tuple(value) if isinstance(value, list) else value for key, value in found.items()}
    return {key: number(value) if isinstance(value, float) else value for key, value in found.items()}


def _layers(run: Run) -> dict[str, str]:
    return {f"layer {name}": f"{kind}({detail})" for name, kind, detail, _ in layers(run)}
