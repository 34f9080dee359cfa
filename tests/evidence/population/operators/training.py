"""Faults of the training loop: modes, clipping, accumulation, precision, weights set from outside, averages, freezing."""

from __future__ import annotations

import torch
from torch import nn

from tests.evidence.population.operators.fault import Sites, between, fault, of, when
from tests.evidence.population.operators.model import BATCH_NORMS, inner
from tests.evidence.population.training import Training

DROPOUTS = (nn.Dropout, nn.BatchNorm1d, nn.BatchNorm2d)
automatic = when(lambda t: not t.loop.manual)


def modal(t: Training) -> list[None]:
    """Where the mode makes a difference."""
    return [None] if any(isinstance(m, DROPOUTS) for m in t.model.modules()) else []


def normed(t: Training) -> list[None]:
    return [None] if any(isinstance(m, BATCH_NORMS) for m in t.model.modules()) else []


@fault("training", "left_in_eval_mode", "call model.train() before training", where=modal, code="model.train()",
       harmless="without dropout a short training fits the better")  # fmt: skip
def trained_in_eval_mode(t: Training, _: None) -> Sites:
    t.loop.train_mode = False


@fault("training", "left_in_eval_mode", "call model.train() after validation", where=modal, code="model.train()",
       harmless="without dropout a short training fits the better")  # fmt: skip
def eval_mode_from_a_step_on(t: Training, _: None) -> Sites:
    after = round(t.loop.steps * t.pick((0.05, 0.2)))
    calls = [0]

    def evaluate(training: Training, _: int) -> None:
        calls[0] += 1
        if calls[0] > after:
            training.model.eval()

    t.loop.after_step.append(evaluate)


@fault("training", "train_mode_in_evaluation", "call model.eval() before evaluation", where=modal, code="model.eval()",
       also=("drops_in_eval",), harmless="statistics of a whole set are as good")  # fmt: skip
def evaluated_in_train_mode(t: Training, _: None) -> Sites:
    t.loop.eval_mode = False


@fault("training", "clip_too_low", "clip at 1", code="gradient_clip_val=1.0",
       harmless="an optimizer that normalises its steps undoes it")  # fmt: skip
def clipped_to_nearly_nothing(t: Training, _: None) -> Sites:
    t.loop.clip, t.loop.clip_by, t.loop.clip_at = between(t, 1e-7, 1e-3), t.pick(("norm", "value")), "before_step"


@fault("training", "clips_in_vain", "clip between backward and step", code="loss.backward(); clip_grad_norm_(…); optimizer.step()",
       harmless="most trainings do without clipping", where=when(lambda t: bool(t.loop.clip)))  # fmt: skip
def clipped_at_another_time(t: Training, _: None) -> Sites:
    t.loop.clip_at = t.pick(("after_step", "before_backward"))


def batches(t: Training) -> int:
    """Of an epoch."""
    return len(t.data.train.inputs[0]) // t.recipe.batch_size


@fault("training", "accumulation_summed", "divide by the number of batches", also=("loss_summed", "rate_too_high"),
       where=when(lambda t: t.loop.turns == 1 and t.recipe.schedule != "plateau" and len(t.optimizers) == 1 and batches(t) >= 4),
       code="loss = loss / accumulation", harmless="an optimizer that normalises its steps undoes it")  # fmt: skip
def accumulated_without_dividing(t: Training, _: None) -> Sites:
    t.loop.manual, t.loop.divide = True, False
    t.loop.accumulation = t.pick([n for n in (4, 8, 16, 32) if n <= batches(t)])


def write_back(t: Training, names: list[str], every: int) -> None:
    """Write first weights back, now and then."""
    kept = {name: p.detach().clone() for name, p in t.model.named_parameters() if name.rpartition(".")[0] in names}
    calls = [0]

    def write(training: Training, _: int) -> None:
        calls[0] += 1
        if calls[0] % every == 0:
            with torch.no_grad():
                for name, p in training.model.named_parameters():
                    if name in kept:
                        p.copy_(kept[name])

    t.loop.after_step.append(write)


@fault("training", "written_back", "do not load weights in the loop", where=inner, harmless="one layer as it started may do")
def layer_written_back(t: Training, name: str) -> Sites:
    write_back(t, [name], 1)
    return of([name])


@fault(
    "training", "written_back", "load the checkpoint once, before training", code="model.load_state_dict(state)  # before the loop"
)
def all_weights_written_back(t: Training, _: None) -> Sites:
    every = t.pick((1, 3, 10))
    write_back(t, [name for name, _ in t.model.named_modules()], every)


@fault("training", "weights_clamped", "clip the gradients, not the weights", also=("written_back",), code="clip_grad_value_(…)")
def weights_clamped(t: Training, _: None) -> Sites:
    limit = between(t, 0.002, 0.03)

    def clamp(training: Training, _: int) -> None:
        with torch.no_grad():
            for p in training.model.parameters():
                p.clamp_(-limit, limit)

    t.loop.after_step.append(clamp)


@fault("training", "average_too_slow", "let the average follow", code="ema_decay=0.999")
def average_that_does_not_follow(t: Training, _: None) -> Sites:
    t.loop.ema = t.pick((0.9999, 0.99999, 1.0))


@fault("training", "frozen_by_mistake", "train the body", also=("in_no_optimizer",), code="model.body.requires_grad_(True)",
       where=when(lambda t: bool(inner(t)) and not t.recipe.pretrained and hasattr(t.model, "body")),
       harmless="random features and a trained head may do")  # fmt: skip
def body_frozen(t: Training, _: None) -> Sites:
    t.loop.frozen = (*t.loop.frozen, "body.*")
    return of(["body"])


@fault("training", "cut_gradients", "clip at a usual size", also=("clip_too_low",), code="clip_grad_value_(parameters, 1.0)",
       harmless="an optimizer that normalises its steps undoes it")  # fmt: skip
def gradients_cut(t: Training, _: None) -> Sites:
    limit = between(t, 1e-9, 1e-6)

    def cut(training: Training, _: int) -> None:
        for p in training.model.parameters():
            if p.grad is not None:
                p.grad.clamp_(-limit, limit)

    t.loop.before_step.append(cut)


@fault(
    "training", "loss_divided", "unscale once", also=("rate_too_low",), harmless="an optimizer that normalises its steps undoes it"
)
def gradients_unscaled_twice(t: Training, _: None) -> Sites:
    factor = t.pick((2.0**-16, 2.0**-20, 2.0**-32))

    def divide(training: Training, _: int) -> None:
        for p in training.model.parameters():
            if p.grad is not None:
                p.grad.mul_(factor)

    t.loop.before_step.append(divide)


@fault("training", "small_batches", "use larger batches, or a group norm", where=normed, code="batch_size=32")
def batches_of_two(t: Training, _: None) -> Sites:
    t.loop.batch_size, t.loop.drop_last = 2, True
