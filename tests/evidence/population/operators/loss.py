"""Faults of the loss: its sign, size, reduction, pairs, and what it is given."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.evidence.population.losses import flat
from tests.evidence.population.operators.data import classes, targets
from tests.evidence.population.operators.fault import Group, Sites, Where, between, both, when
from tests.evidence.population.scores import first
from tests.evidence.population.training import Batch, Training

fault = Group("loss")


def lossed(*names: str) -> Where:
    """Where the loss is one of these."""
    return when(lambda t: t.recipe.loss in names)


cross_entropy = both(classes, lossed("cross_entropy", "nll"))
numbers = lossed("mse", "l1", "huber")
one_number = both(when(lambda t: t.data.kind == "numbers" and t.data.train.targets.shape[1:] == (1,)), numbers)


def frequencies(t: Training) -> Tensor:
    """How often each class is asked for, and once more."""
    y = t.data.train.targets.flatten()
    return y[y >= 0].bincount(minlength=t.data.form.answers).float() + 1


uneven = both(classes, when(lambda t: bool(frequencies(t).max() >= 2 * frequencies(t).min())))


def put(t: Training, loss: Callable[[Any, Batch], Tensor]) -> Sites:
    """Another loss."""
    t.loss = loss


def made_of(t: Training, change: Callable[[Tensor, Batch], Tensor]) -> Sites:
    """What a function makes of the loss of a batch."""
    own = t.loss
    t.loss = lambda outputs, batch: change(own(outputs, batch), batch)


def times(t: Training, factor: float) -> Sites:
    return made_of(t, lambda loss, _: factor * loss)


def other_batch(t: Training, change: Callable[[Batch], Batch]) -> Sites:
    """The loss of another batch."""
    own = t.loss
    t.loss = lambda outputs, batch: own(outputs, change(batch))


def given(t: Training, change: Callable[[Tensor], Tensor]) -> Sites:
    """The loss of other outputs."""
    own = t.loss
    t.loss = lambda outputs, batch: own(
        (change(outputs[0]), *outputs[1:]) if isinstance(outputs, tuple) else change(outputs), batch
    )


@fault("weights_upside_down", "weigh rare classes more", both(uneven, cross_entropy))
def weights_by_frequency(t: Training, _: None) -> Sites:
    counts = frequencies(t)
    weights = (counts / counts.mean()) ** t.pick((1, 2))
    return put(t, lambda outputs, batch: F.cross_entropy(*flat(outputs, batch), weight=weights))


@fault("nothing_repels", "compare with other samples too", lossed("info_nce"))
def no_negatives(t: Training, _: None) -> Sites:
    return put(t, lambda outputs, batch: 1 - F.cosine_similarity(outputs[0], outputs[1], -1).mean())


def pairs(t: Training, outputs: Any, batch: Batch) -> Tensor:
    """Each output compared with each target."""
    function = {"mse": F.mse_loss, "l1": F.l1_loss, "huber": F.smooth_l1_loss}[t.recipe.loss]
    return function(*torch.broadcast_tensors(first(outputs).reshape(-1, 1), batch.targets.reshape(1, -1)))


def ratio(t: Training) -> int:
    """By what a loss is divided that is divided again."""
    samples = len(t.data.train.inputs[0])
    return t.pick((samples, samples * t.recipe.batch_size, 2**16))


def squashed(t: Training) -> Sites:
    """Probabilities for logits."""
    return given(t, torch.sigmoid if t.recipe.loss == "bce" else lambda x: x.softmax(1 if x.ndim == 4 else -1))


def viewed(logits: Tensor) -> Tensor:
    """Classes where positions are."""
    return logits.reshape(len(logits), logits.shape[-1], -1).transpose(1, 2)


# fmt: off
fault.by("loss_summed loss_multiplied rate_too_high", "average over the batch, without a factor",
         loss_is_a_sum=lambda t, _: made_of(t, lambda loss, batch: len(batch.inputs[0]) * loss),
         loss_multiplied=lambda t, _: times(t, between(t, 100, 30_000)))
fault.by("activation_before_loss no_logits", "give the loss the logits", lossed("cross_entropy", "weighted", "bce"),
         activation_before_the_loss=lambda t, _: squashed(t))
fault.by("no_logits activation_before_loss", "give nll_loss logarithms", cross_entropy,
         nll_of_probabilities=lambda t, _: put(t, lambda o, batch: F.nll_loss((flat(o, batch)[0]).softmax(-1), flat(o, batch)[1])))
fault.by("labels_of_zero", "give the loss -1 for 0", lossed("bce"), labels_of_zero_and_one=lambda t, _: put(
    t, lambda outputs, batch: F.soft_margin_loss(first(outputs), batch.targets)))
fault.by("softmax_of_one activation_before_loss no_logits", "use a sigmoid", lossed("bce"),
         softmax_of_one_number=lambda t, _: given(t, lambda x: x.softmax(-1)))
fault.by("compared_in_pairs", "give outputs and targets one shape", one_number,
         targets_broadcast=lambda t, _: put(t, lambda outputs, batch: pairs(t, outputs, batch)))
fault.by("unrelated_targets", "compare each output with its target", targets,
         targets_of_the_next_sample=lambda t, _: other_batch(t, lambda batch: batch._replace(targets=batch.targets.roll(1, 0))))
fault.by("viewed_classes", "transpose the logits, do not view them", both(when(lambda t: t.data.kind == "tokens"), cross_entropy),
         classes_by_a_view=lambda t, _: given(t, viewed))
fault.by("loss_without_graph", "do not make a new tensor of the loss",
         loss_made_anew=lambda t, _: made_of(t, lambda loss, _: torch.tensor(loss.item(), requires_grad=True)))
fault.by("wrong_sign", "minimise the loss", sign_of_the_loss=lambda t, _: times(t, -1.0))
fault.by("loss_divided rate_too_low", "divide the loss once", loss_divided_by_the_samples=lambda t, _: times(t, 1 / ratio(t)))
fault.by("flat_outputs no_slope loss_without_graph", "leave the outputs as they are", one_number,
         outputs_rounded=lambda t, _: given(t, torch.round))
