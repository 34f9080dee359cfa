"""Optimizers and schedules by name."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer, lr_scheduler

from tests.evidence.population.recipe import Recipe
from tests.evidence.population.training import Training


class Lion(Optimizer):
    """The sign of an interpolated momentum (Chen et al. 2023)."""

    def __init__(self, params: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0) -> None:
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @torch.no_grad()
    def step(self, closure: Callable[[], Any] | None = None) -> Any:
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            a, b = group["betas"]
            for p in group["params"]:
                if p.grad is not None:
                    average = self.state[p].setdefault("exp_avg", torch.zeros_like(p))
                    p.mul_(1 - group["lr"] * group["weight_decay"]).sub_(average.lerp(p.grad, 1 - a).sign_(), alpha=group["lr"])
                    average.lerp_(p.grad, 1 - b)
        return loss


def make(recipe: Recipe, groups: Any, rate: float) -> Optimizer:
    """The recipe's optimizer of these groups."""
    o, r, decay, adam = torch.optim, recipe, recipe.decay, {"betas": recipe.betas, "eps": recipe.eps}
    makers: dict[str, Callable[[], Optimizer]] = {
        "sgd": lambda: o.SGD(groups, rate, momentum=r.momentum, weight_decay=decay, nesterov=r.nesterov),
        "rmsprop": lambda: o.RMSprop(groups, rate, momentum=r.momentum, weight_decay=decay),
        "adagrad": lambda: o.Adagrad(groups, rate, weight_decay=decay),
        "adadelta": lambda: o.Adadelta(groups, rate, weight_decay=decay),
        "adafactor": lambda: o.Adafactor(groups, rate, weight_decay=decay),
        "lbfgs": lambda: o.LBFGS(groups, rate, 10, line_search_fn="strong_wolfe"),
        "lion": lambda: Lion(groups, rate, r.betas, decay),
        **{
            name: partial(getattr(o, kind), groups, rate, weight_decay=decay, **adam)
            for name, kind in (("adam", "Adam"), ("adamw", "AdamW"), ("nadam", "NAdam"), ("radam", "RAdam"), ("adamax", "Adamax"))
        },
        "amsgrad": lambda: o.Adam(groups, rate, weight_decay=decay, amsgrad=True, **adam),
    }
    return makers[r.optimizer]()


def grouped(recipe: Recipe, parameters: Iterable[tuple[str, nn.Parameter]]) -> list[dict[str, Any]]:
    """Parameter groups as drawn."""
    named = [(name, p) for name, p in parameters if p.requires_grad]
    if recipe.groups == "no_decay":
        halves = [[p for _, p in named if (p.ndim > 1) is flag] for flag in (True, False)]
        return [{"params": part, **extra} for part, extra in zip(halves, ({}, {"weight_decay": 0.0}), strict=True) if part]
    if recipe.groups == "head":
        head = [p for name, p in named if name.startswith("head.")]
        rest = [p for name, p in named if not name.startswith("head.")]
        return [{"params": rest}, {"params": head, "lr": 10 * recipe.rate}] if head and rest else [{"params": rest or head}]
    return [{"params": [p for _, p in named]}]


def build_optimizers(training: Training) -> None:
    """One; two for the two sides of a GAN, or for the head and the rest."""
    recipe, model = training.recipe, training.model
    parts = [list(model.named_parameters())]
    if recipe.model == "gan":
        parts = [list(part.named_parameters()) for part in (model.discriminator, model.generator)]
    elif recipe.optimizers == 2:
        parts = [[(n, p) for n, p in parts[0] if n.startswith(("head.", "critic.")) is head] for head in (False, True)]
    training.optimizers = [make(recipe, grouped(recipe, part), recipe.rate) for part in parts]


def warmed(optimizer: Optimizer, main: Any, warmup: int) -> Any:
    """A linear warm-up, then the schedule."""
    if not warmup:
        return main
    up = lr_scheduler.LinearLR(optimizer, 1 / warmup, total_iters=warmup)
    return up if main is None else lr_scheduler.SequentialLR(optimizer, [up, main], [warmup])


def schedule(recipe: Recipe, optimizer: Optimizer, length: int) -> Any:
    """One schedule over ``length`` steps or epochs, or None."""
    s = lr_scheduler
    warmup = round(recipe.warmup * length)
    rest = max(length - warmup, 1)
    cycles = recipe.optimizer != "sgd" or recipe.momentum > 0
    makers: dict[str, Callable[[], Any]] = {
        "none": lambda: None,
        "cosine": lambda: s.CosineAnnealingLR(optimizer, rest),
        "linear": lambda: s.LinearLR(optimizer, 1.0, 0.01, rest),
        "step": lambda: s.StepLR(optimizer, max(rest // 3, 1), 0.3),
        "multistep": lambda: s.MultiStepLR(optimizer, [rest // 2, 3 * rest // 4], 0.1),
        "exponential": lambda: s.ExponentialLR(optimizer, 0.05 ** (1 / rest)),
        "onecycle": lambda: s.OneCycleLR(optimizer, [g["lr"] for g in optimizer.param_groups], length + 1, cycle_momentum=cycles),
        "plateau": lambda: s.ReduceLROnPlateau(optimizer, patience=3),
    }
    plain = recipe.schedule in ("onecycle", "plateau")
    main = makers[recipe.schedule]()
    return main if plain else warmed(optimizer, main, warmup)


def build_schedulers(training: Training) -> None:
    """One for each optimizer, of as many steps as there are, or epochs."""
    recipe = training.recipe
    length = recipe.steps
    if recipe.interval == "epoch":
        samples = len(training.data.train.inputs[0])
        batches = max(1, samples // recipe.batch_size if recipe.drop_last else -(-samples // recipe.batch_size))
        length = max(1, -(-recipe.steps * recipe.accumulation // batches))
    made = [schedule(recipe, optimizer, length) for optimizer in training.optimizers]
    training.schedulers = [one for one in made if one is not None]
