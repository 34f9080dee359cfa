"""Faults of the training loop: modes, clipping, accumulation, precision, weights set from outside, averages, freezing."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import nn

from tests.evidence.population.operators.fault import Group, Sites, between, both, of, validating, when
from tests.evidence.population.operators.model import BATCH_NORMS, inner
from tests.evidence.population.training import Training

DROPOUTS = (nn.Dropout, *BATCH_NORMS)
fault = Group("training")
modal = when(lambda t: any(isinstance(m, DROPOUTS) and getattr(m, "p", 1) > 0 for m in t.model.modules()))
normed = when(lambda t: any(isinstance(m, BATCH_NORMS) for m in t.model.modules()))
clipped = when(lambda t: bool(t.loop.clip))
bodied = when(lambda t: bool(inner(t)) and not t.recipe.pretrained and hasattr(t.model, "body"))


def put(t: Training, **switches: object) -> Sites:
    """Set these switches of the loop."""
    for name, value in switches.items():
        setattr(t.loop, name, value)


def at_steps(t: Training, call: Callable[[int], object]) -> None:
    """Called after each step with its number, from 1."""
    calls = [0]

    def after(training: Training, _: int) -> None:
        calls[0] += 1
        with torch.no_grad():
            call(calls[0])

    t.loop.after_step.append(after)


def larger(t: Training) -> list[int]:
    """Batches to accumulate, of an epoch, where one optimizer steps."""
    if t.schedulers and t.recipe.interval == "epoch":  # of which there would be more
        return []
    one = t.loop.turns == 1 and t.recipe.schedule != "plateau" and len(t.optimizers) == 1 and t.recipe.optimizer != "lbfgs"
    return [n for n in (4, 8, 16, 32) if one and n <= len(t.data.train.inputs[0]) // t.recipe.batch_size]


def write_back(t: Training, names: list[str], every: int) -> Sites:
    """Write first weights back, now and then."""
    kept = [(p, p.detach().clone()) for name, p in t.model.named_parameters() if name.rpartition(".")[0] in names]

    def write(i: int) -> None:
        for p, first in kept if i % every == 0 else ():
            p.copy_(first)

    at_steps(t, write)
    return of(names) if len(names) == 1 else None


def evaluating(t: Training, after: int) -> Sites:
    """In evaluation mode from a step on."""
    at_steps(t, lambda i: i > after and t.model.eval())


def cut(t: Training, most: float) -> Sites:
    """Hooks that limit each gradient."""
    for p in t.model.parameters():
        if p.requires_grad:
            p.register_hook(lambda g: g.clamp(-most, most))


def freeze(t: Training, part: str) -> Sites:
    put(t, frozen=(*t.loop.frozen, f"{part}.*"))
    return of([part])


# fmt: off
fault.by("train_mode_in_evaluation drops_in_eval", "call model.eval() before evaluation", both(validating, modal),
         evaluated_in_train_mode=lambda t, _: put(t, eval_mode=False))
fault.by("clips_in_vain", "clip between backward and step", clipped,
         clipped_at_another_time=lambda t, _: put(t, clip_at=t.pick(("after_step", "before_backward"))))
fault.by("small_batches", "use larger batches, or a group norm", normed,
         batches_of_two=lambda t, _: put(t, batch_size=2, drop_last=True))
fault.by("left_in_eval_mode", "call model.train() before training", modal,
         trained_in_eval_mode=lambda t, _: put(t, train_mode=False))
fault.by("cut_gradients", "remove the hooks", gradients_cut_by_hooks=lambda t, _: cut(t, between(t, 1e-9, 1e-4)))
fault.by("clip_too_low", "clip at 1",
         clipped_to_nearly_nothing=lambda t, _: put(t, clip=between(t, 1e-6, 1e-3), clip_by=t.pick(("norm", "value"))))
fault.by("average_too_slow", "let the average follow",
         average_that_does_not_follow=lambda t, _: put(t, ema=t.pick((0.9999, 0.99999))))
fault.by("written_back", "do not load weights in the loop", inner, layer_written_back=lambda t, name: write_back(t, [name], 1))
fault.by("written_back", "load the checkpoint once, before training",
         all_weights_written_back=lambda t, _: write_back(t, [name for name, _ in t.model.named_modules()], t.pick((1, 3, 10))))
fault.by("left_in_eval_mode", "call model.train() after validation", modal,
         eval_mode_from_a_step_on=lambda t, _: evaluating(t, round(t.loop.steps * t.pick((0.05, 0.2)))))
fault.by("frozen_by_mistake in_no_optimizer", "train the body", bodied, body_frozen=lambda t, _: freeze(t, "body"))
fault.by("accumulation_summed loss_summed rate_too_high", "divide by the number of batches", larger,
         accumulated_without_dividing=lambda t, _: put(t, manual=True, divide=False, accumulation=t.pick(larger(t))))
