"""Fits the weights of the judge: ``python -m tests.evidence.judge.fit [TABLE …]`` writes ``judge.json``.

Given tables of rows (:mod:`tests.evidence.population.record`), it first writes ``table.json`` anew: the evidence of each alert
that was passed on, or would have been but for its probability, with how many harmed trainings and how many healthy ones had it.
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

from lightning_hooks.alerts.defaults import KINDS
from tests.evidence.population.record import read

TABLE = Path(__file__).with_name("table.json")
WEIGHTS = Path("lightning_hooks/judge/judge.json")
HEALTHY_OVER_HARMED = 4.0
"""Of five trainings one has a fault."""
SINGLE, CLASS = 0.6, 1.5
"""How evidence of single kinds and causes is scaled, and that of all others: the larger, the less it is pulled to 0."""
SIGNS = {
    "goes well": -1, "a part of it": -1, "all of it": 1, "near its limit": -1, "far over its limit": 1,
    "symptom, cause unknown": -1, "symptom, cause known": 1, "outcome, cause unknown": -1, "outcome, cause known": 1,
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
            seen = set[str]()
            for alert in row["alerts"]:
                if alert.get("evidence") and alert["kind"] not in seen:
                    seen.add(alert["kind"])
                    counts[tuple(alert["evidence"])][place] += 1
    seeds = [row["seed"] for row in rows]
    return {
        "commits": sorted({row["versions"]["commit"] for row in rows}), "seeds": [min(seeds), max(seeds)],
        "harmed": len(harmed), "healthy": len(healthy),
        "evidence": [[*number, list(names)] for names, number in sorted(counts.items())],
    }  # fmt: skip


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tables", nargs="*", type=Path)
    parser.add_argument("--date", default="")
    given = parser.parse_args()
    if given.tables:
        table = tabled(row for path in given.tables for row in read(path)) | {"date": given.date}
        evidence = ",\n".join(f"  {json.dumps(entry)}" for entry in table.pop("evidence"))
        TABLE.write_text(json.dumps(table)[:-1] + f', "evidence": [\n{evidence}\n]}}\n', encoding="utf-8")
    WEIGHTS.write_text(text(weights_of(json.loads(TABLE.read_text(encoding="utf-8")))), encoding="utf-8")


if __name__ == "__main__":
    main()
