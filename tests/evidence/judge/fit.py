"""Fits the weights of the judge: ``python -m tests.evidence.judge.fit [TABLE …]`` writes ``judge.json``.

Given tables of rows (:mod:`tests.evidence.population.record`), of drawn trainings and of sets, it first writes ``table.json`` anew:
the evidence of each alert that was passed on, or would have been but for its probability, with how many harmed trainings and how
many healthy ones had it.
The weights are those of a logistic regression (scikit-learn, penalty of the squares) in which healthy trainings count four times
as much as harmed ones: one training in five has a fault. Evidence of single kinds and causes is scaled down, which pulls its
weight to 0 where few trainings have it. What would be fitted with another sign than it is declared to have is left out, and
named.
"""

from __future__ import annotations

import argparse
import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from sklearn.linear_model import LogisticRegression

from lightning_hooks.declare.cause import AGAINST, EXCLUDES, PROOF, SHOWN, SLIGHT, SOME, STRENGTHS, STRONG
from lightning_hooks.declare.kinds import KINDS
from tests.evidence.population.record import read

TABLE = Path(__file__).with_name("table.json")
WEIGHTS = Path("lightning_hooks/judge/judge.json")
HEALTHY_OVER_HARMED = 4.0
"""Of five trainings one has a fault."""
SINGLE, CLASS = 1.0, 1.5
"""How evidence of single kinds and causes is scaled, and that of all others: the larger, the less it is pulled to 0."""
SIGNS = {
    "a part of it": -1, "all of it": 1, "near its limit": -1, "far over its limit": 1,
    "symptom, cause unknown": -1, "symptom, cause known": 1, "symptom, cause likely": 1,
    "outcome, cause unknown": -1, "outcome, cause known": 1, "outcome, cause likely": 1,
    "symptom, loss falls": -1, "symptom, loss stands": 1, "outcome, loss falls": -1, "outcome, loss stands": 1,
}  # fmt: skip
"""What speaks for a problem, and what against it."""
Table = dict[str, Any]


def tabled(rows: Iterable[Mapping[str, Any]]) -> Table:
    """The evidence of the alerts of drawn trainings; each kind of a training counts once."""
    rows = list(rows)
    plain = {(row["set"], row["name"], row["seed"]): row for row in rows if not row["operators"]}
    healthy = [row for row in plain.values() if row["healthy"]]
    twins = {(row["set"], row["name"], row["seed"]) for row in healthy}
    harmed = [row for row in rows if row["operators"] and row["harmful"] and not row.get("raised")]
    harmed = [row for row in harmed if (row["set"], row["name"], row["seed"]) in twins]
    counts: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0])
    for place, group in enumerate((harmed, healthy)):
        for row in group:
            for alert in judged(row["alerts"]):
                counts[tuple(alert["evidence"])][place] += 1
    causes: dict[tuple[str, ...], list[int]] = defaultdict(lambda: [0, 0])
    for row in (row for row in harmed if row["causes"]):  # of the faults of sets not all have one by name
        for name, strengths in considered(row).items():
            causes[strengths][name not in row["causes"]] += 1
    seeds = [row["seed"] for row in rows]
    return {
        "commits": sorted({row["versions"]["commit"] for row in rows}), "seeds": [min(seeds), max(seeds)],
        "harmed": len(harmed), "healthy": len(healthy),
        "evidence": [[*number, list(names)] for names, number in sorted(counts.items())],
        "causes": [[*number, list(strengths)] for strengths, number in sorted(causes.items())],
    }  # fmt: skip


def judged(alerts: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """The alerts of a training that were judged, the first of each kind."""
    found: dict[str, Mapping[str, Any]] = {}
    for alert in alerts:
        if alert.get("evidence"):
            found.setdefault(alert["kind"], alert)
    return [*found.values()]


def considered(row: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The causes that something speaks for at a kind of alert, with the strengths of what holds when that was first so."""
    kinds, found = {alert["kind"] for alert in row["alerts"]}, dict[str, tuple[str, ...]]()
    for window in row["windows"]:
        for name, kind, _, _, evidence in window["causes"]:
            strengths = tuple(sorted(strength for _, holds, strength, _ in evidence if holds and strength != SHOWN))
            if kind in kinds and not {*strengths} <= {AGAINST, EXCLUDES}:
                found.setdefault(name, strengths)
    return found


FOR, NOT_FOR = (SLIGHT, SOME, STRONG, PROOF), (AGAINST, EXCLUDES)
"""Strengths, each more than the one before it."""


def strengths_of(table: Table) -> dict[str, float]:
    """What each strength of evidence adds to the log-odds of a cause, and the intercept.

    Fitted is what each strength adds to the one before it, which is pulled to 0; what has the wrong sign is none.
    """
    steps = [(sign, known[place:]) for sign, known in ((1, FOR), (-1, NOT_FOR)) for place in range(len(known))]
    rows = [[sum(map(of.__contains__, strengths)) for _, of in steps] for *_, strengths in table["causes"] for _ in "rw"]
    right = [1, 0] * len(table["causes"])
    weights = [number for entry in table["causes"] for number in entry[:2]]
    used = list(range(len(steps)))
    while True:
        model = LogisticRegression(C=1.0, max_iter=10_000, tol=1e-8).fit(np.array(rows)[:, used], right, sample_weight=weights)
        added = dict(zip(used, model.coef_[0].tolist(), strict=True))
        wrong = {step: weight for step, weight in added.items() if steps[step][0] * weight < 0}
        if not wrong:
            break
        used.remove(max(wrong, key=lambda step: abs(wrong[step])))
    found = {name: sum(weight for step, weight in added.items() if name in steps[step][1]) for name in STRENGTHS}
    return {"intercept": float(model.intercept_[0]), **found}


def scales(names: Iterable[str]) -> list[float]:
    """How each piece of evidence is scaled."""
    return [SINGLE if name.startswith(("kind ", "cause ")) else CLASS for name in names]


def matrix(table: Table, names: Sequence[str]) -> tuple[Any, Any, Any]:
    """Rows of 0 and 1, whether the training was harmed, and how much the row counts."""
    rows, right, weights = [], [], []
    for harmed, healthy, found in table["evidence"]:
        row = [scale * (name in found) for name, scale in zip(names, scales(names), strict=True)]
        for count, is_right, each in ((harmed, 1, 1 / table["harmed"]), (healthy, 0, HEALTHY_OVER_HARMED / table["healthy"])):
            if count:
                rows.append(row)
                right.append(is_right)
                weights.append(count * each * table["healthy"] / HEALTHY_OVER_HARMED)
    return np.array(rows), np.array(right), np.array(weights)


def fitted(table: Table) -> tuple[float, dict[str, float], list[str]]:
    """The intercept, the weight of each piece of evidence, and what was left out because of its sign."""
    names = sorted({name for _, _, found in table["evidence"] for name in found})
    dropped: list[str] = []
    while True:
        rows, right, weights = matrix(table, names)
        model = LogisticRegression(C=1.0, max_iter=10_000, tol=1e-8).fit(rows, right, sample_weight=weights)
        found = dict(zip(names, (model.coef_[0] * scales(names)).tolist(), strict=True))
        wrong = [name for name, weight in found.items() if SIGNS.get(name, 0) * weight < 0]
        if not wrong:
            return float(model.intercept_[0]), found, dropped
        worst = max(wrong, key=lambda name: abs(found[name]))
        dropped.append(worst)
        names.remove(worst)


def weights_of(table: Table) -> dict[str, Any]:
    """What ``judge.json`` holds."""
    intercept, found, dropped = fitted(table)
    numbers, kinds = Counter[str](), {kind: [0, 0] for kind in KINDS}
    for harmed, healthy, names in table["evidence"]:
        numbers.update(dict.fromkeys(names, harmed + healthy))
        for name in names:
            if name.startswith("kind "):
                kinds[name.removeprefix("kind ")][0] += harmed
                kinds[name.removeprefix("kind ")][1] += healthy
    return {
        "date": table["date"], "commits": table["commits"], "seeds": table["seeds"],
        "trainings": [table["harmed"], table["healthy"]], "dropped": dropped, "intercept": round(intercept, 3),
        "weights": {name: [round(weight, 3), numbers[name]] for name, weight in sorted(found.items())},
        "causes": {name: round(weight, 3) for name, weight in strengths_of(table).items()},
        "kinds": {kind: count for kind, count in kinds.items() if any(count)},
    }  # fmt: skip


def text(weights: Mapping[str, Any]) -> str:
    """The file as it should be: an entry a line."""
    parts = []
    for name, value in weights.items():
        if isinstance(value, dict):
            lines = ",\n".join(f"    {json.dumps(key)}: {json.dumps(entry)}" for key, entry in value.items())
            parts.append(f"  {json.dumps(name)}: {{\n{lines}\n  }}")
        else:
            parts.append(f"  {json.dumps(name)}: {json.dumps(value)}")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def added(known: Table, table: Table) -> Table:
    """Two tables as one."""
    counts: dict[str, dict[tuple[str, ...], list[int]]] = {"evidence": {}, "causes": {}}
    for of in (known, table):
        for part, entries in counts.items():
            for right, wrong, names in of.get(part, ()):
                entry = entries.setdefault(tuple(names), [0, 0])
                entry[0], entry[1] = entry[0] + right, entry[1] + wrong
    listed = {part: [[*number, list(names)] for names, number in sorted(entries.items())] for part, entries in counts.items()}
    numbers = {name: known[name] + table[name] for name in ("harmed", "healthy", "commits", "seeds")}
    return {**numbers, **listed}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tables", nargs="*", type=Path)
    parser.add_argument("--add", action="store_true", help="add to the trainings of table.json, instead of replacing them")
    parser.add_argument("--date", default="")
    given = parser.parse_args()
    if given.tables:
        table = tabled(row for path in given.tables for row in read(path))
        table = added(json.loads(TABLE.read_text(encoding="utf-8")), table) if given.add else table
        parts = {part: ",\n".join(f"  {json.dumps(entry)}" for entry in table.pop(part)) for part in ("evidence", "causes")}
        head = json.dumps({**table, "date": given.date})[:-1]
        lists = ",\n".join(f'"{part}": [\n{entries}\n]' for part, entries in parts.items())
        TABLE.write_text(f"{head},\n{lists}}}\n", encoding="utf-8")
    WEIGHTS.write_text(text(weights_of(json.loads(TABLE.read_text(encoding="utf-8")))), encoding="utf-8")


if __name__ == "__main__":
    main()
