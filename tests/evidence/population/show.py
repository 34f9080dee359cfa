"""Look at one drawn training: its recipe, its model, its score, and what the monitors say of it.

``python -m tests.evidence.population.show 17 [rate_too_high …] [--mutant]``; ``--mutant`` plants the operators that are drawn for
the seed.
"""

from __future__ import annotations

import argparse

import torch

from tests.evidence.population import healthy
from tests.evidence.population.grammar import draw
from tests.evidence.population.operators import OPERATORS
from tests.evidence.population.pairs import drawn_operators, train
from tests.evidence.population.training import build


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("seed", type=int)
    parser.add_argument("operators", nargs="*", metavar="operator")
    parser.add_argument("--mutant", action="store_true")
    options = parser.parse_args()
    torch.set_num_threads(1)
    recipe = draw(options.seed)
    print(", ".join(f"{name}={value!r}" for name, value in recipe.plain().items()))
    operators = tuple(OPERATORS[name] for name in options.operators) or (drawn_operators(recipe) if options.mutant else ())
    print(build(recipe, operators)[0].model)
    outcome = train(recipe, operators)
    share = f"{healthy.way(recipe, outcome.score, outcome.constant):.0%} of the way to the best known"
    print(f"Score {outcome.score:.3g}; that of the best constant answer is {outcome.constant:.3g}: {share}. {outcome.raised}")
    for operator in operators:
        print(f"Planted: {operator.name}, {', '.join(operator.causes)}, at {outcome.sites}. Undone by: {operator.undo}")
    for alert in outcome.kept["alerts"]:
        causes = ", ".join(f"{name} ({score:.2f})" for name, score in alert["causes"])
        value = f"{alert['value']} (limit {alert['limit']})"
        print(f"[{alert['severity']}] batch {alert['batches']}: {alert['kind']} at {alert['site']}, {value}. {causes}")


if __name__ == "__main__":
    main()
