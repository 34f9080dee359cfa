"""What the rules make of drawn trainings, on one page: ``docs/guides/population.md``.

``python -m tests.evidence.population.report [TABLE …] [--page docs/guides/population.md]`` reads tables of rows as
:mod:`~tests.evidence.population.record` describes them. A mutant is found where it has a warning or a critical of a kind that its
twin, the same training without the fault, does not have. One that raises an error needs no monitor, and is left out.
"""

from __future__ import annotations

import argparse
import datetime
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lightning_hooks.declare.kinds import KINDS
from tests.evidence.population.judges import JUDGES, bins, calibration_error, draw, verdicts
from tests.evidence.population.record import read

TABLES = Path("runs/population")
PAGE = Path("docs/guides/population.md")
DIAGRAM = Path("docs/figures/reliability.png")
GROUPS = ("data", "model", "loss", "optimizer", "schedule", "training", "two at once")
FIELDS = ("task", "model", "optimizer", "schedule", "norm", "activation", "loss")
WITHIN = 50
"""Batches within which a fault is to be found, where an epoch is shorter."""
FEWEST = 200
"""Trainings from which on ranks are compared."""
MOST_FALSE = 10
FIRST_OF_REPORTS = 1_000_000
"""Seeds from here on are for reports, each used once."""
Row = dict[str, Any]


def wilson(some: int, of: int, z: float = 1.96) -> tuple[float, float]:
    """The 95 % interval of a share (Wilson 1927)."""
    if not of:
        return math.nan, math.nan
    share = some / of
    middle, half = share + z * z / (2 * of), z * math.sqrt(share * (1 - share) / of + z * z / (4 * of * of))
    return max(0.0, (middle - half) / (1 + z * z / of)), min(1.0, (middle + half) / (1 + z * z / of))


def counted(some: int, of: int) -> str:
    """``31 of 1077, 2.9 % (2.0 to 4.1)``."""
    if not of:
        return "-"
    low, high = wilson(some, of)
    return f"{some} of {of}, {100 * some / of:.1f} % ({100 * low:.1f} to {100 * high:.1f})"


def loud(row: Row) -> list[dict[str, Any]]:
    """The warnings and criticals of a training."""
    return [alert for alert in row["alerts"] if alert["severity"] != "info"]


def kinds(row: Row) -> set[str]:
    return {alert["kind"] for alert in loud(row)}


class Mutant:
    """A training with a fault, beside its twin."""

    def __init__(self, row: Row, twin: Row) -> None:
        self.row, self.twin = row, twin
        self.new = [alert for alert in loud(row) if alert["kind"] not in kinds(twin)]

    @property
    def group(self) -> str:
        return GROUPS[-1] if len(self.row["operators"]) > 1 else self.row["groups"][0]

    @property
    def found(self) -> bool:
        return bool(self.new)

    @property
    def early(self) -> bool:
        """Whether it is found within the first epoch, or 50 batches."""
        return any(alert["batches"] <= max(WITHIN, self.row["first_epoch"]) for alert in self.new)

    @property
    def named(self) -> bool:
        """Whether the first new alert names a right cause first."""
        causes = self.new[0]["causes"] if self.new else []
        return bool(causes) and causes[0][0] in self.row["causes"]


class Population:
    """Rows of drawn trainings: those that learn, and mutants of these with a known harm."""

    def __init__(self, rows: Iterable[Row]) -> None:
        rows = list(rows)
        plain = {(row["set"], row["name"], row["seed"]): row for row in rows if not row["operators"]}
        self.healthy = [row for row in plain.values() if row["healthy"]]
        self.dropped = len(plain) - len(self.healthy)
        pairs = [(row, plain.get((row["set"], row["name"], row["seed"]))) for row in rows if row["operators"]]
        self.raised = [row["raised"] for row in rows if row["operators"] and row.get("raised")]
        mutants = [Mutant(row, twin) for row, twin in pairs if twin and twin["healthy"] and not row.get("raised")]
        self.harmful = [mutant for mutant in mutants if mutant.row["harmful"]]
        self.harmless = [mutant for mutant in mutants if mutant.row["harmful"] is False]

    def false_kinds(self) -> Counter[str]:
        """In how many healthy trainings each kind is raised."""
        return Counter(kind for row in self.healthy for kind in kinds(row))


def numbers(harmful: Sequence[Mutant], harmless: Sequence[Mutant]) -> list[str]:
    """The cells of some mutants."""
    found = [mutant for mutant in harmful if mutant.found]
    alerts = f"{np.mean([len(loud(mutant.row)) for mutant in found]):.2f}" if found else "-"
    return [
        str(len(harmful)),
        counted(sum(mutant.early for mutant in harmful), len(harmful)),
        counted(len(found), len(harmful)),
        counted(sum(mutant.named for mutant in found), len(found)),
        alerts,
        counted(sum(mutant.found for mutant in harmless), len(harmless)),
    ]


def by_operator(mutants: Sequence[Mutant]) -> str:
    """``rate_too_high 12/13, …``: found of the harmful ones, the seldom found first."""
    of: dict[str, list[bool]] = {}
    for mutant in mutants:
        of.setdefault(" + ".join(mutant.row["operators"]), []).append(mutant.found)
    listed = sorted(of.items(), key=lambda item: (np.mean(item[1]), -len(item[1])))
    return ", ".join(f"{name} {sum(found)}/{len(found)}" for name, found in listed)


def groups(population: Population) -> list[str]:
    """The mutants by group."""
    columns = (
        *("group", "harmful mutants", "found within an epoch", "found", "right cause named first", "alerts per mutant"),
        *("harmless mutants with a warning", "found of each fault"),
    )
    lines = [f"| {' | '.join(columns)} |", "|---" * 8 + "|"]
    chosen: list[tuple[str, Callable[[Mutant], bool]]] = [("all", lambda _: True)]
    chosen.append(("of one fault", lambda mutant: mutant.group != GROUPS[-1]))
    chosen += [(group, lambda mutant, group=group: mutant.group == group) for group in GROUPS]  # type: ignore[misc]
    for name, belongs in chosen:
        harmful, harmless = ([m for m in some if belongs(m)] for some in (population.harmful, population.harmless))
        each = by_operator(harmful) if name in GROUPS[:-1] else ""
        if harmful or harmless:
            lines.append(f"| {' | '.join([name, *numbers(harmful, harmless), each])} |")
    return lines


def false_alarms(population: Population) -> list[str]:
    """The kinds that are raised in healthy trainings, with one to look at; nothing where none is."""
    lines = ["| kind of the false warning | healthy trainings | an example | to show it |", "|---|---|---|---|"]
    for kind, n in population.false_kinds().most_common(MOST_FALSE):
        row = min((row for row in population.healthy if kind in kinds(row)), key=lambda row: len(kinds(row)))
        recipe = row["recipe"]
        what = f"{recipe['task']}, {recipe['model']}, {recipe['optimizer']} {recipe['rate']:.2g}"
        show = f"`python -m tests.evidence.population.show {row['seed']}`"
        lines.append(f"| `{kind}` | {counted(n, len(population.healthy))} | {what} | {show} |")
    return lines if len(lines) > 2 else []


def probabilities(population: Population) -> list[str]:
    """What alerts say of their probability against what was so, and the shipped judge beside others."""
    pairs = [(mutant.row, mutant.twin) for mutant in population.harmful]
    found = bins(population.healthy, [row for row, _ in pairs])
    if not found:
        return []
    others = ["| judge | healthy trainings with a warning | harmful mutants found |", "|---|---|---|"]
    for name, judge in JUDGES.items():
        wrong, right = verdicts(population.healthy, pairs, judge)
        others.append(f"| {name} | {counted(wrong, len(population.healthy))} | {counted(right, len(pairs))} |")
    lines = ["| an alert says | alerts | on average | trainings that were harmed |", "|---|---|---|---|"]
    for one in found:
        edges = f"{100 * one.low:.0f} to {100 * one.high:.0f} %"
        lines.append(f"| {edges} | {one.alerts} | {100 * one.said:.0f} % | {100 * one.harmed:.0f} % |")
    return [
        "Three judges of the same findings: every finding of a rule is a warning; facts, and symptoms that are total or explained, "
        "are (no weights); the probability from measured weights is at least 80 %, as shipped.",
        "\n".join(others),
        "The probability that an alert states, where one training in five has a fault, against the share of trainings that were "
        f"harmed. The mean distance of the two, the calibration error, is {calibration_error(found):.3f}.",
        "\n".join(lines),
        f"![Reliability diagram: stated probability against the share of harmed trainings](../figures/{DIAGRAM.name})",
    ]


def recipes(population: Population) -> list[str]:
    """What the healthy trainings are."""
    lines = ["| drawn | share in % |", "|---|---|"]
    for field in FIELDS:
        counts = Counter(str(row["recipe"][field]) or "none" for row in population.healthy)
        shares = [f"{name} {100 * n / len(population.healthy):.1f}" for name, n in counts.most_common()]
        lines.append(f"| {field} | {', '.join(shares)} |")
    return lines


def naming(causes: Iterable[str]) -> set[str]:
    """The kinds that a right cause may be named by."""
    right = set(causes)
    return {name for name, kind in KINDS.items() if right & {one.name for one in kind.causes}}


def rates(population: Population) -> dict[str, tuple[float, float]]:
    """By kind: the share of healthy trainings that it is raised in, and of its faults that it finds."""
    false, named, found = population.false_kinds(), Counter[str](), Counter[str]()
    for mutant in population.harmful:
        raised = {alert["kind"] for alert in mutant.new}
        for kind in naming(mutant.row["causes"]):
            named[kind] += 1
            found[kind] += kind in raised
    return {kind: (false[kind] / len(population.healthy), found[kind] / named[kind] if named[kind] else math.nan) for kind in KINDS}


def agreement(population: Population, sets: Population) -> dict[str, tuple[float, float, float, float]]:
    """By kind: the share of healthy trainings that it is raised in, here and in the sets; of its faults that it finds, likewise."""
    here, there = rates(population), rates(sets)
    return {kind: (here[kind][0], there[kind][0], here[kind][1], there[kind][1]) for kind in KINDS}


def spearman(pairs: Sequence[tuple[float, float]]) -> float:
    """The correlation of ranks, of equal numbers their mean rank."""
    known = np.array([pair for pair in pairs if not any(map(math.isnan, pair))])
    if len(known) < 3:
        return math.nan
    ranks = [[(column < x).sum() + ((column == x).sum() - 1) / 2 for x in column] for column in known.T]
    return float(np.corrcoef(ranks)[0, 1]) if all(np.ptp(rank) for rank in ranks) else math.nan


def verdict_of_sets(population: Population, sets: Population) -> list[str]:
    """How well it agrees with what the hand-written sets say of the same rules."""
    lines = []
    if sets.healthy and len(population.healthy) + population.dropped >= FEWEST:
        by_kind = agreement(population, sets)
        raised = {kind: row for kind, row in by_kind.items() if row[0] or row[1]}
        false, found = spearman([row[:2] for row in raised.values()]), spearman([row[2:] for row in by_kind.values()])
        apart = sorted(raised, key=lambda kind: -abs(raised[kind][0] - raised[kind][1]))[:3]
        listed = ", ".join(f"`{kind}` {100 * raised[kind][0]:.1f} % here and {100 * raised[kind][1]:.1f} % there" for kind in apart)
        lines.append(
            f"By kind, the ranks of false warnings here and in the hand-written sets correlate with {false:.2f} "
            f"({len(raised)} kinds), those of the share of its faults that it finds with {found:.2f}. "
            f"The largest differences: {listed}."
        )
    if sets.healthy:
        warned = sum(bool(loud(row)) for row in sets.healthy)
        lines.append(
            f"Of the sets, {counted(warned, len(sets.healthy))} of the healthy trainings in the table are warned of, and "
            f"{counted(sum(m.found for m in sets.harmful), len(sets.harmful))} of the faults are found."
        )
    return lines


def spans(seeds: Iterable[int]) -> str:
    """``0 to 99, 200``: seeds in words."""
    runs: list[list[int]] = []
    for seed in sorted(set(seeds)):
        if runs and seed <= runs[-1][1] + 5:  # dropped ones are drawn too
            runs[-1][1] = seed
        else:
            runs.append([seed, seed])
    return ", ".join(f"{first} to {last}" if last > first else str(first) for first, last in runs)


def page(rows: Iterable[Row], date: str) -> str:
    """The report, as of a date."""
    rows = list(rows)
    drawn = [row for row in rows if row["set"] == "population"]
    population, sets = Population(drawn), Population(row for row in rows if row["set"] != "population")
    n, warned = len(population.healthy), sum(bool(loud(row)) for row in population.healthy)
    late = sum(raised == "TooLong" for raised in population.raised)
    commit = ", ".join(dict.fromkeys(row["versions"].get("commit", "unknown") for row in drawn))
    use = "of development" if max(row["seed"] for row in drawn) < FIRST_OF_REPORTS else "of a report"
    blocks = [
        "# Drawn trainings",
        "Small trainings are drawn at random from a grammar of tasks, architectures, optimizers and habits. A *mutant* is one of "
        "them with a planted fault; its *twin* is the same training without the fault. A mutant is *harmful* if it learns at least "
        "a quarter less than its twin. It is *found* if it has a warning of a kind that its twin does not have. Brackets have 95 % "
        "intervals (Wilson).",
        f"{date}, seeds {use} {spans(row['seed'] for row in drawn)}, commit `{commit}`, PyTorch {drawn[0]['versions']['torch']}: "
        f"{n + population.dropped} trainings drawn, {population.dropped} dropped because they do not learn. "
        f"Of their mutants {len(population.raised)} raised an error or took too long ({late}), and are left out. "
        f"**False warnings: {counted(warned, n)} of the healthy trainings.**",
        *("\n".join(of) for of in (groups(population), false_alarms(population), verdict_of_sets(population, sets))),
        *probabilities(population),
        "\n".join(recipes(population)),
    ]
    return "\n\n".join(filter(None, blocks)) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("tables", nargs="*", type=Path, help=f"by default all in {TABLES}")
    parser.add_argument("--page", type=Path, default=PAGE)
    options = parser.parse_args()
    rows = list(read(*(options.tables or sorted(TABLES.glob("*.jsonl.gz")))))
    text = page(rows, datetime.date.today().isoformat())
    print(text)
    options.page.write_text(text, encoding="utf-8")
    population = Population(row for row in rows if row["set"] == "population")
    if found := bins(population.healthy, [mutant.row for mutant in population.harmful]):
        draw(found, options.page.parent / "../figures" / DIAGRAM.name)


if __name__ == "__main__":
    main()
