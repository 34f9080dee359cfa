"""The comparison of two runs as its page shows it, and as lines for a terminal."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

from lightning_hooks.plots.series import FRACTIONS
from lightning_hooks.run_report.charts import Chart, Line, Row, Rows, chart, rows
from lightning_hooks.run_report.compare import Comparison, Difference
from lightning_hooks.run_report.heat import HEATS
from lightning_hooks.run_report.recorded import Limits
from lightning_hooks.run_report.text import DASH, number, percent
from lightning_hooks.trackers.console import shortened, some, table_lines

MOST = 25
"""How many differences are shown as those that matter most."""
MOST_OF_A_CAUSE = 5
"""How many of them under one cause."""

LAYERS = ("rms", "update_ratio", "std", "dead_fraction", "saturated_fraction", "zero_fraction")
"""The statistics of which all layers are drawn."""
CAPTIONS = {stat: caption for _, _, stat, caption in HEATS}


@dataclass(frozen=True, slots=True)
class Group:
    """Differences with one cause."""

    title: str  # the cause; empty where there is but one group without
    cells: list[tuple[str, str, str, str, str]]  # of each that is shown: name, what, A, B, the change
    more: int  # how many are not shown


@dataclass(frozen=True)
class ComparisonView:
    """The comparison of two runs; a section that has nothing to show is empty. Each is computed when a template asks for it."""

    found: Comparison
    limits: Limits

    @cached_property
    def groups(self) -> list[Group]:
        """What differs most, by cause."""
        return groups(self.found)

    @cached_property
    def layers(self) -> list[tuple[str, Rows, int]]:
        """The layers of both on one scale: the statistic in words, those that are drawn, how many there are."""
        found = []
        for stat in LAYERS:
            differences, linear = self.found.of(stat), stat in FRACTIONS
            if not differences or (linear and not any(difference.a or difference.b for difference in differences)):
                continue
            kept = set(sorted(differences, key=lambda difference: -difference.size)[: self.limits.rows])
            lines = [Row(d.name, d.a, other=d.b, shown=d.change) for d in differences if d in kept]
            found.append((CAPTIONS[stat], rows(lines, "A to B", linear), len(differences)))
        return found

    @cached_property
    def clipping(self) -> list[tuple[str, Chart]]:
        """Norms before clipping of each optimizer."""
        optimizers = dict.fromkeys(difference.name for difference in self.found.of("norm_before"))
        return [(optimizer, self._norms(optimizer)) for optimizer in optimizers]

    def _norms(self, optimizer: str) -> Chart:
        known = [
            {
                epoch: value
                for record in run.of("gradient_clip")
                if optimizer in record.series("optimizers", "norm_before").names
                for epoch, value in zip(record.columns, record.values("optimizers", "norm_before", optimizer), strict=True)
            }
            for run in (self.found.a, self.found.b)
        ]
        epochs = sorted({epoch for values in known for epoch in values})
        lines = [
            Line(f"{letter}: norm before clipping", [values.get(epoch, float("nan")) for epoch in epochs], color)
            for letter, values, color in zip("AB", known, ("var(--blue)", "var(--amber)"), strict=True)
        ]
        return chart(lines, epochs, unit=self.found.a.unit)


def groups(found: Comparison) -> list[Group]:
    """What differs most, by cause."""
    by_cause = found.by_cause()
    made = []
    for course, differences in by_cause:
        most = MOST if course is None else MOST_OF_A_CAUSE
        title = "Without an alert that explains it" if len(by_cause) > 1 else ""
        if course is not None:
            title = f"{course.alert.name}, only in {'A' if course in found.alerts_a else 'B'}, and its consequences"
        cells = [(d.name, d.what, _shown(d, d.a), _shown(d, d.b), d.change) for d in differences[:most]]
        made.append(Group(title, cells, len(differences[most:])))
    return made


def _shown(difference: Difference, value: float) -> str:
    return percent(value) if difference.share else number(value)


def compare_lines(found: Comparison) -> list[str]:
    """The comparison of two runs as plain lines: the set-up and the losses first."""
    lines = [f"A  {found.a.name}: {found.verdicts[0].headline}", f"B  {found.b.name}: {found.verdicts[1].headline}", ""]
    lines += ["What differs in the set-up:"] if found.settings else ["The set-up is the same, as far as it is known."]
    settings = [(shortened(key, 44), setting(a), setting(b)) for key, a, b in found.settings]
    lines += [f"  {line}" for line in table_lines(("", "A", "B"), settings)] if settings else []
    if found.losses:
        rows = [(where, number(a), number(b)) for where, a, b in found.losses]
        lines += ["", "Loss:", *(f"  {line}" for line in table_lines(("", "A", "B"), rows))]
    lines.append("")
    different = groups(found)
    if different:
        lines.append(f"Largest differences, {found.a.unit} {found.epoch}:")
    for group in different:
        cells = [(shortened(name, 44), *rest) for name, *rest in group.cells]
        lines += [f"  {group.title}:"] * bool(group.title)
        lines += [f"  {line}" for line in table_lines(("layer", "of it", "A", "B", "A to B"), cells)]
        lines += [f"  and {group.more} more"] * bool(group.more)
    if not different:
        lines.append(f"All numbers of {found.a.unit} {found.epoch} that both runs have are the same.")
    for title, alerts in (("Alerts only in A", found.alerts_a), ("Alerts only in B", found.alerts_b)):
        if alerts:
            lines += ["", f"{title} ({len(alerts)}):"]
            lines += [
                f"  [{course.severity}] {course.alert.kind} at {course.alert.site}, since {course.unit} {course.since}"
                for course in alerts[:10]
            ]
    for letter, names in found.only:
        lines += ["", f"Only in {letter}: {some(names)}"]
    return lines


def setting(value: Any) -> str:
    """A setting in words; a dash for none."""
    return DASH if value is None else shortened(str(value), 60)
