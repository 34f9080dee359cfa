"""How good the judge's probabilities are on drawn trainings, and what other judges would have said of the same alerts.

A probability is that of a training in which such an alert is raised being harmed, where one in five is; so each alert of a healthy
training counts ``4 * harmed / healthy`` times as much as one of a harmed training. Each kind of a training counts once.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from matplotlib.figure import Figure

from lightning_hooks.judge.weights import probability
from lightning_hooks.session.settings import Settings
from tests.evidence.judge.fit import HEALTHY_OVER_HARMED, judged

EDGES = (0.0, 0.2, 0.4, 0.6, 0.8, 0.9, 0.95, 1.0)
"""The bins of probabilities."""
LEAST = Settings().min_probability
"""The probability from which on an alert is a warning."""
CERTAIN, LIKELY, DOUBTFUL = 0.97, 0.8, 0.2
"""What the judge without weights says: of a fact; of a symptom that is total or explained; of others."""
Alert = Mapping[str, Any]
Row = Mapping[str, Any]
Judge = Callable[[Alert], float]


class Bin(NamedTuple):
    """The alerts whose probability is within two edges.

    Attributes:
        low: The lower edge.
        high: The upper one.
        alerts: How many.
        weight: How much they count.
        said: The mean probability.
        harmed: The share of them that are of harmed trainings, where one training in five is.
    """

    low: float
    high: float
    alerts: int
    weight: float
    said: float
    harmed: float


def rules_alone(alert: Alert) -> float:
    """Whatever a rule finds is an alert."""
    return 1.0


def classes_alone(alert: Alert) -> float:
    """A fact is certain; a symptom counts if all of a thing has it, or a cause is known that much speaks for."""
    evidence = set(alert["evidence"])
    if "fact" in evidence:
        return CERTAIN
    return LIKELY if "all of it" in evidence or any(name.endswith("cause known") for name in evidence) else DOUBTFUL


def weighed(alert: Alert) -> float:
    """The judge as it is shipped."""
    return probability(alert["evidence"])


JUDGES: dict[str, Judge] = {"rules alone": rules_alone, "classes, without weights": classes_alone, "measured weights": weighed}


def bins(healthy: Sequence[Row], harmed: Sequence[Row], judge: Judge = weighed) -> list[Bin]:
    """The alerts of healthy and of harmed trainings by their probability."""
    each = HEALTHY_OVER_HARMED * len(harmed) / max(1, len(healthy))
    said = [
        (judge(alert), weight, right)
        for rows, weight, right in ((healthy, each, 0.0), (harmed, 1.0, 1.0))
        for row in rows
        for alert in judged(row["alerts"])
    ]
    found = []
    for low, high in itertools.pairwise(EDGES):
        inside = np.array([one for one in said if low <= one[0] < high or one[0] == high == 1.0])
        if len(inside):
            values, weights, right = inside.T
            found.append(
                Bin(low, high, len(inside), float(weights.sum()), *(np.average(x, weights=weights) for x in (values, right)))
            )
    return found


def calibration_error(found: Sequence[Bin]) -> float:
    """The mean distance of what was said from what was so, over the bins by their weight."""
    return sum(one.weight * abs(one.said - one.harmed) for one in found) / sum(one.weight for one in found)


def verdicts(healthy: Sequence[Row], pairs: Sequence[tuple[Row, Row]], judge: Judge, least: float = LEAST) -> tuple[int, int]:
    """In how many healthy trainings a judge warns, and in how many harmed ones of a kind that their twins have no warning of."""

    def warned(row: Row) -> set[str]:
        return {alert["kind"] for alert in judged(row["alerts"]) if judge(alert) >= least}

    return sum(bool(warned(row)) for row in healthy), sum(bool(warned(row) - warned(twin)) for row, twin in pairs)


def draw(found: Sequence[Bin], path: Path) -> None:
    """The reliability diagram: what was said against what was so; the larger a dot, the more alerts."""
    figure = Figure(figsize=(4.2, 4.2), layout="constrained")
    axes = figure.subplots()
    axes.plot([0, 1], [0, 1], color="0.6", linewidth=1)
    axes.scatter([one.said for one in found], [one.harmed for one in found], s=[20 + 2 * one.alerts for one in found], alpha=0.7)
    axes.set(
        xlabel="probability that an alert states", ylabel="share of trainings that were harmed", xlim=(0, 1.03), ylim=(-0.03, 1.03)
    )
    figure.savefig(path, dpi=100)
