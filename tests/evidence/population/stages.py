"""What builds each stage."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from tests.evidence.population.loops import build_loop
from tests.evidence.population.losses import build_loss
from tests.evidence.population.models import build_model
from tests.evidence.population.optimizers import build_optimizers, build_schedulers
from tests.evidence.population.tasks import TASKS
from tests.evidence.population.training import Training


def build_data(training: Training) -> None:
    """The task's samples; some training labels wrong, some classes rare, as drawn."""
    recipe = training.recipe
    data = training.data = TASKS[recipe.task].make(recipe)
    targets = data.train.targets
    if recipe.label_noise and targets is not None:
        wrong = torch.rand(targets.shape) < recipe.label_noise
        other = 1 - targets if data.kind == "binary" else torch.randint_like(targets, data.form.answers)
        data.train = data.train._replace(targets=torch.where(wrong, other, targets))
    if recipe.imbalance < 1 and targets is not None:
        share = torch.logspace(0, torch.tensor(recipe.imbalance).log10().item(), int(targets.max()) + 1)
        keep = torch.rand(len(targets)) < share[targets.flatten().long()]
        data.train = type(data.train)(tuple(x[keep] for x in data.train.inputs), data.train.targets[keep])
    training.healthy = replace(data)


BUILDERS: dict[str, Callable[[Training], None]] = {
    "data": build_data,
    "model": build_model,
    "loss": build_loss,
    "optimizer": build_optimizers,
    "schedule": build_schedulers,
    "training": build_loop,
}
