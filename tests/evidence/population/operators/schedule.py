"""Faults of the schedule: its length, its interval, its direction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import lr_scheduler as schedulers

from tests.evidence.population.operators.fault import Sites, between, both, fault, when
from tests.evidence.population.training import Training

plain = when(lambda t: t.recipe.schedule != "plateau" and t.recipe.optimizer not in ("adadelta", "rprop"))


def replaced(t: Training, make: Callable[[Any], Any]) -> Sites:
    """Other schedules, of the rates that the optimizers began with, stepped at each step."""
    for optimizer in t.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.pop("initial_lr", group["lr"])
    t.schedulers = [make(optimizer) for optimizer in t.optimizers]
    return stepped(t, "step")


def stepped(t: Training, interval: str) -> Sites:
    t.loop.interval = interval


def epochs(t: Training) -> float:
    """Steps of an epoch."""
    return max(1.0, len(t.data.train.inputs[0]) / (t.recipe.batch_size * t.recipe.accumulation))


@fault("schedule", "wrong_schedule", "make the schedule as long as the training", where=plain, stage="training",
       code="CosineAnnealingLR(optimizer, T_max=steps)")  # fmt: skip
def schedule_over_too_early(t: Training, _: None) -> Sites:
    length = max(2, round(t.loop.steps * t.pick((0.03, 0.06, 0.1))))
    return replaced(t, lambda optimizer: schedulers.LinearLR(optimizer, 1.0, 1e-8, length))


@fault("schedule", "wrong_schedule", "make the schedule as long as the training", where=plain, stage="training",
       code="CosineAnnealingLR(optimizer, T_max=steps)", harmless="rates that rise again learn too")  # fmt: skip
def cosine_that_rises_again(t: Training, _: None) -> Sites:
    length = max(2, round(t.loop.steps * t.pick((0.1, 0.2, 0.5))))
    return replaced(t, lambda optimizer: schedulers.CosineAnnealingLR(optimizer, length))


@fault("schedule", "wrong_schedule", "step the scheduler once an epoch", stage="training", code="'interval': 'epoch'",
       where=when(lambda t: t.recipe.interval == "epoch" and bool(t.schedulers) and t.recipe.schedule != "plateau"
                  and epochs(t) > 3))  # fmt: skip
def stepped_each_batch(t: Training, _: None) -> Sites:
    return stepped(t, "step")


@fault("schedule", "wrong_schedule", "step the scheduler at each step", stage="training", code="'interval': 'step'",
       where=when(lambda t: t.recipe.interval == "step" and bool(t.schedulers) and epochs(t) > 3),
       harmless="the rate stays where it was")  # fmt: skip
def stepped_each_epoch(t: Training, _: None) -> Sites:
    return stepped(t, "epoch")


@fault("schedule", "wrong_schedule", "warm up for a tenth of the steps", where=plain, stage="training", also=("rate_too_low",))
def warm_up_too_long(t: Training, _: None) -> Sites:
    length = t.loop.steps * between(t, 30, 3000)
    return replaced(t, lambda optimizer: schedulers.LambdaLR(optimizer, lambda i: (i + 1) / length))


@fault(
    "schedule", "wrong_schedule", "divide as floating point numbers", where=plain, stage="training", code="step / warmup  # not //"
)
def warm_up_of_whole_numbers(t: Training, _: None) -> Sites:
    length = t.loop.steps + 1
    return replaced(t, lambda optimizer: schedulers.LambdaLR(optimizer, lambda i: i // length))


@fault("schedule", "wrong_schedule", "set gamma below 1", where=plain, stage="training", also=("rate_too_high",), code="gamma=0.99")
def rate_that_grows(t: Training, _: None) -> Sites:
    gamma = between(t, 100, 1e5) ** (1 / t.loop.steps)
    return replaced(t, lambda optimizer: schedulers.ExponentialLR(optimizer, gamma))


@fault("schedule", "wrong_schedule", "let the rate end at 0", where=plain, stage="training", also=("wrong_sign",),
       code="max(0, 1 - step / steps)")  # fmt: skip
def rate_below_zero(t: Training, _: None) -> Sites:
    length = t.loop.steps * t.pick((0.1, 0.3, 0.5))
    return replaced(t, lambda optimizer: schedulers.LambdaLR(optimizer, lambda i: 1 - i / length))


@fault("schedule", "rate_too_high", "set max_lr to the usual rate", where=plain, stage="training", also=("wrong_schedule",),
       code="OneCycleLR(optimizer, max_lr=1e-3, total_steps=steps)")  # fmt: skip
def cycle_to_a_rate_too_high(t: Training, _: None) -> Sites:
    factor = between(t, 30, 1000)
    cycle = schedulers.OneCycleLR
    return replaced(t, lambda o: cycle(o, [g["lr"] * factor for g in o.param_groups], t.loop.steps + 2, cycle_momentum=False))


@fault("schedule", "wrong_schedule", "lower the rate where the loss does not fall", stage="training", code="mode='min'",
       where=both(when(lambda t: t.recipe.schedule == "plateau"), when(lambda t: bool(t.schedulers))))  # fmt: skip
def plateau_of_a_falling_loss(t: Training, _: None) -> Sites:
    for scheduler in t.schedulers:
        scheduler.mode, scheduler.patience, scheduler.best = "max", 0, float("-inf")
        scheduler._init_is_better(mode="max", threshold=1e-4, threshold_mode="rel")
