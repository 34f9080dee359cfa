"""Faults of the schedule: its length, its interval, its direction."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch.optim import lr_scheduler as schedulers

from tests.evidence.population.operators.fault import Group, Sites, Where, between, when
from tests.evidence.population.training import Training

fault = Group("schedule", stage="training")
plain = when(lambda t: t.recipe.schedule != "plateau" and t.recipe.optimizer not in ("adadelta", "lbfgs"))


def replaced(t: Training, make: Callable[..., Any], value: float) -> Sites:
    """Other schedules, of the rates that the optimizers began with, stepped at each step."""
    for optimizer in t.optimizers:
        for group in optimizer.param_groups:
            group["lr"] = group.get("max_lr", group.pop("initial_lr", group["lr"]))
    t.schedulers = [make(optimizer, value) for optimizer in t.optimizers]
    return stepped(t, "step")


def by_step(t: Training, factor: Callable[[int, float], float], value: float) -> Sites:
    """The rate as a function of the step."""
    return replaced(t, lambda optimizer, value: schedulers.LambdaLR(optimizer, lambda i: factor(i, value)), value)


def stepped(t: Training, interval: str) -> Sites:
    t.loop.interval = interval


def stepping(interval: str) -> Where:
    """Where a schedule steps so, and an epoch has several steps."""
    return when(
        lambda t: (
            t.recipe.interval == interval
            and bool(t.schedulers)
            and t.recipe.schedule != "plateau"
            and len(t.data.train.inputs[0]) > 3 * t.recipe.batch_size * t.recipe.accumulation
        )
    )


def early(t: Training, *shares: float) -> int:
    """A share of the steps."""
    return max(2, round(t.loop.steps * t.pick(shares)))


# fmt: off
fault.by("wrong_schedule", "step the scheduler at each step", stepping("step"), stepped_each_epoch=lambda t, _: stepped(t, "epoch"))
fault.by("wrong_schedule", "step the scheduler once an epoch", stepping("epoch"),
         stepped_each_batch=lambda t, _: stepped(t, "step"))
fault.by("wrong_schedule", "make the schedule as long as the training", plain,
         schedule_over_too_early=lambda t, _: by_step(t, lambda i, n: max(1 - i / n, 0), early(t, 0.03, 0.06, 0.1)),
         cosine_that_rises_again=lambda t, _: replaced(t, schedulers.CosineAnnealingLR, early(t, 0.1, 0.2, 0.5)))
fault.by("wrong_schedule rate_too_low", "warm up for a tenth of the steps", plain,
         warm_up_too_long=lambda t, _: by_step(t, lambda i, n: (i + 1) / n, t.loop.steps * between(t, 20, 100)))
fault.by("wrong_schedule", "divide as floating point numbers", plain,
         warm_up_of_whole_numbers=lambda t, _: by_step(t, lambda i, n: i // n, t.loop.steps + 1))
fault.by("wrong_schedule rate_too_high", "set gamma below 1", plain,
         rate_that_grows=lambda t, _: replaced(t, schedulers.ExponentialLR, between(t, 100, 1e5) ** (1 / t.loop.steps)))
fault.by("wrong_schedule wrong_sign", "let the rate end at 0", plain,
         rate_below_zero=lambda t, _: by_step(t, lambda i, n: 1 - i / n, t.loop.steps * t.pick((0.1, 0.3, 0.5))))
