"""Whether a training learns: half of the way from the best constant answer to the best known one for its task.

``python -m tests.evidence.population.healthy runs/population/rows.jsonl.gz`` makes the table of best known scores, ``best.json``,
of rows of development seeds: of each task and source the score that a fifth of all drawn trainings reach (the tenth best of 50),
and how many they were; a task that was drawn less than ten times keeps the score that it has.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
from pathlib import Path

from tests.evidence.population.recipe import Recipe
from tests.evidence.population.record import read

FILE = Path(__file__).with_name("best.json")
WAY = 0.5
"""Share of the way to the best known score that a healthy training goes."""
FEWEST = 10
LOST = 0.25
"""Share of its twin's way that a harmful mutant loses."""


def key(recipe: Recipe) -> str:
    """Of the table."""
    return f"{recipe.task} {recipe.source}".strip()


@functools.cache
def table() -> dict[str, float]:
    """The best known score of each task."""
    return dict(json.loads(FILE.read_text())["best"])


def way(recipe: Recipe, score: float, constant: float) -> float:
    """The share of the way from the constant answer to the best known; of a score that is not finite it is NaN."""
    return (score - constant) / (table()[key(recipe)] - constant)


def learns(recipe: Recipe, score: float, constant: float) -> bool:
    """Whether a training is healthy."""
    return way(recipe, score, constant) >= WAY


def lost(score: float, twin: float, constant: float) -> bool:
    """Whether a mutant is so much worse than its twin; one that breaks is."""
    return not score >= twin - LOST * (twin - constant)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rows", nargs="+", type=Path, help="rows.jsonl.gz of development seeds")
    reached: dict[str, list[float]] = {}
    for row in read(*parser.parse_args().rows):
        if not row["operators"]:
            name = f"{row['recipe']['task']} {row['recipe']['source']}".strip()
            reached.setdefault(name, []).append(row["score"] if isinstance(row["score"], float | int) else -math.inf)
    known = json.loads(FILE.read_text())
    for name, scores in reached.items():
        if len(scores) >= FEWEST:
            known["best"][name] = float(f"{sorted(scores, reverse=True)[len(scores) // 5]:.4g}")
            known["draws"][name] = len(scores)
    lines = [f"  {json.dumps(name)}: {json.dumps(known[name], sort_keys=True)}" for name in ("how", "best", "draws")]
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n")


if __name__ == "__main__":
    main()
