"""Whether a training learns: half of the way from the best constant answer to the best known one for its task.

``python -m tests.evidence.population.healthy [--draws 25]`` makes the table of best known scores, ``best.json``: of each task and
source the score that a fifth of so many drawn trainings reach, without operators and monitors, of seeds from 9 000 on.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import multiprocessing
from pathlib import Path

import tests.evidence.exam  # noqa: F401 - before Lightning, which imports torchvision

# isort: split
import torch

from tests.evidence.population.recipe import Recipe, draw
from tests.evidence.population.tasks import TASKS
from tests.evidence.population.training import build, fit

FILE = Path(__file__).with_name("best.json")
WAY = 0.5
"""Share of the way to the best known score that a healthy training goes."""
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


def one(job: tuple[int, str]) -> tuple[str, float]:
    torch.set_num_threads(1)
    recipe = draw(*job)
    try:
        return key(recipe), fit(build(recipe)[0])
    except Exception as error:  # noqa: BLE001 - a training that cannot be is a mistake of the grammar: it is named
        print(job, repr(error)[:120], flush=True)
        return key(recipe), math.nan


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--draws", type=int, default=25, help="of each task and source")
    parser.add_argument("--only", nargs="*", default=list(TASKS), help="these tasks; the others stay")
    parser.add_argument("--processes", type=int, default=2)
    options = parser.parse_args()
    jobs = [(9_000 + i, name) for name in options.only for i in range(options.draws * len(TASKS[name].sources))]
    reached: dict[str, list[float]] = {}
    with multiprocessing.get_context("spawn").Pool(options.processes) as pool:
        for name, score in pool.imap_unordered(one, jobs):
            reached.setdefault(name, []).append(score if math.isfinite(score) else -math.inf)
    best = json.loads(FILE.read_text())["best"] if FILE.exists() else {}
    for name, scores in reached.items():
        best[name] = float(f"{sorted(scores, reverse=True)[len(scores) // 5]:.4g}")
    how = f"the score that a fifth of {options.draws} draws of each task reach, seeds from 9000 on"
    FILE.write_text(json.dumps({"how": how, "best": dict(sorted(best.items()))}, indent=1) + "\n")


if __name__ == "__main__":
    main()
