"""Train one drawn training, healthy or with faults, and print its recipe and what the monitors say of it.

``python -m tests.evidence.population.show 17 [rate_too_high …]``
"""

from __future__ import annotations

import sys

import tests.evidence.exam  # noqa: F401 - before Lightning, which imports torchvision

# isort: split
import torch

from tests.evidence.population.operators import OPERATORS
from tests.evidence.population.recipe import draw
from tests.evidence.population.record import recording
from tests.evidence.population.training import build, fit


def main() -> None:
    torch.set_num_threads(1)
    seed, names = int(sys.argv[1]), sys.argv[2:]
    recipe = draw(seed)
    print(", ".join(f"{name}={value!r}" for name, value in recipe.plain().items()))
    training, sites = build(recipe, tuple(OPERATORS[name] for name in names))
    print(training.model)
    recorder, callbacks = recording(**training.loop.watched)
    score = fit(training, callbacks)
    data = training.data
    print(f"Score {score:.3g}; that of the best constant answer is {data.constant:.3g}. Planted: {sites or 'nothing'}.")
    for alert in recorder.alerts:
        causes = ", ".join(f"{name} ({share:.2f})" for name, share in alert["causes"])
        value = f"{alert['value']} (limit {alert['limit']})"
        print(f"[{alert['severity']}] batch {alert['batches']}: {alert['kind']} at {alert['site']}, {value}. {causes}")


if __name__ == "__main__":
    main()
