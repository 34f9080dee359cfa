"""Faults of the loss: its sign, size, reduction, pairs, and what it is given."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.evidence.population.losses import LOSSES, flat
from tests.evidence.population.operators.data import classes, targets
from tests.evidence.population.operators.fault import Sites, Where, between, both, fault, when
from tests.evidence.population.scores import first
from tests.evidence.population.training import Batch, Training

Answer = Callable[[Any], Any]


def lossed(*names: str) -> Where:
    """Where the loss is one of these."""
    return when(lambda t: t.recipe.loss in names)


cross_entropy = both(classes, lossed("cross_entropy", "nll"))
numbers = lossed("mse", "l1", "huber")


def times(t: Training, factor: float) -> Sites:
    """The loss, multiplied."""
    own = t.loss
    t.loss = lambda outputs, batch: factor * own(outputs, batch)


def given(t: Training, change: Callable[[Tensor], Tensor]) -> Sites:
    """The loss of other outputs."""
    own = t.loss
    t.loss = lambda outputs, batch: own(
        (change(outputs[0]), *outputs[1:]) if isinstance(outputs, tuple) else change(outputs), batch
    )


@fault("loss", "wrong_sign", "minimise the loss", code="loss = criterion(output, target)  # not -criterion")
def sign_of_the_loss(t: Training, _: None) -> Sites:
    return times(t, -1.0)


@fault("loss", "loss_summed", "average over the batch", code="reduction='mean'", also=("loss_multiplied",),
       harmless="an optimizer that normalises its steps undoes it")  # fmt: skip
def loss_is_a_sum(t: Training, _: None) -> Sites:
    own = t.loss
    t.loss = lambda outputs, batch: len(batch.inputs[0]) * own(outputs, batch)


@fault("loss", "loss_multiplied", "leave out the factor", also=("loss_summed", "rate_too_high"),
       harmless="an optimizer that normalises its steps undoes it")  # fmt: skip
def loss_multiplied(t: Training, _: None) -> Sites:
    return times(t, between(t, 100, 30_000))


@fault("loss", "loss_divided", "divide the loss once", also=("rate_too_low",), code="loss = criterion(output, target)",
       harmless="an optimizer that normalises its steps undoes it")  # fmt: skip
def loss_divided_by_the_samples(t: Training, _: None) -> Sites:
    n = len(t.data.train.inputs[0])
    return times(t, 1 / t.pick((n, n * t.recipe.batch_size, 2.0**16)))


@fault("loss", "activation_before_loss", "give the loss the logits", where=lossed("cross_entropy", "hinge", "weighted", "bce"),
       also=("no_logits",), code="F.cross_entropy(logits, target)")  # fmt: skip
def activation_before_the_loss(t: Training, _: None) -> Sites:
    return given(t, torch.sigmoid if t.recipe.loss == "bce" else lambda x: x.softmax(1 if x.ndim == 4 else -1))


@fault("loss", "no_change", "leave out the first logarithm", where=cross_entropy,
       harmless="cross_entropy of log-probabilities is that of logits")  # fmt: skip
def log_softmax_before_cross_entropy(t: Training, _: None) -> Sites:
    return given(t, lambda x: x.log_softmax(1 if x.ndim == 4 else -1))


@fault("loss", "no_logits", "give nll_loss logarithms", where=both(classes, lossed("nll", "cross_entropy")),
       also=("activation_before_loss",), code="F.nll_loss(logits.log_softmax(-1), target)")  # fmt: skip
def nll_of_probabilities(t: Training, _: None) -> Sites:
    def loss(outputs: Any, batch: Batch) -> Tensor:
        logits, y = flat(outputs, batch)
        return F.nll_loss(logits.softmax(-1), y)

    t.loss = loss


@fault("loss", "compared_in_pairs", "give outputs and targets one shape", code="criterion(output.squeeze(1), target)",
       where=both(when(lambda t: t.data.kind == "numbers" and t.data.train.targets.shape[1:] == (1,)), numbers))  # fmt: skip
def targets_broadcast(t: Training, _: None) -> Sites:
    function = {"mse": F.mse_loss, "l1": F.l1_loss, "huber": F.smooth_l1_loss}[t.recipe.loss]

    def loss(outputs: Any, batch: Batch) -> Tensor:
        answers, y = first(outputs), batch.targets.reshape(1, -1)
        return function(*torch.broadcast_tensors(answers.reshape(-1, 1), y))

    t.loss = loss


@fault("loss", "unrelated_targets", "compare each output with its target", where=targets)
def targets_of_the_next_sample(t: Training, _: None) -> Sites:
    own = t.loss
    t.loss = lambda outputs, batch: own(outputs, batch._replace(targets=batch.targets.roll(1, 0)))


@fault("loss", "weights_upside_down", "weigh rare classes more", where=cross_entropy, code="weight=1 / counts")
def weights_by_frequency(t: Training, _: None) -> Sites:
    y = t.data.train.targets.flatten()
    counts = y[y >= 0].bincount(minlength=t.data.form.answers).float() + 1
    weights = (counts / counts.mean()) ** t.pick((1, 2))

    def loss(outputs: Any, batch: Batch) -> Tensor:
        return F.cross_entropy(*flat(outputs, batch), weight=weights)

    t.loss = loss


@fault("loss", "flat_outputs", "leave the outputs as they are", where=numbers, also=("no_slope", "loss_without_graph"))
def outputs_rounded(t: Training, _: None) -> Sites:
    return given(t, torch.round)


@fault("loss", "loss_without_graph", "do not make a new tensor of the loss", code="return loss  # not torch.tensor(loss.item())")
def loss_made_anew(t: Training, _: None) -> Sites:
    own = t.loss
    t.loss = lambda outputs, batch: torch.tensor(own(outputs, batch).item(), requires_grad=True)


def weighed(t: Training, factor: float) -> Sites:
    """Another weight of the loss's second term."""
    recipe = replace(t.recipe, beta=max(t.recipe.beta, 0.01) * factor)
    t.loss = LOSSES[t.recipe.loss](SimpleNamespace(recipe=recipe, data=t.data, model=t.model))  # type: ignore[arg-type]


two_terms = lossed("elbo", "committed", "actor_critic")


@fault("loss", "second_term", "weigh the second term less", also=("loss_multiplied",), where=two_terms)
def second_term_weighs_too_much(t: Training, _: None) -> Sites:
    return weighed(t, between(t, 30, 3000))


@fault("loss", "wrong_sign", "add the second term", where=two_terms)
def second_term_with_another_sign(t: Training, _: None) -> Sites:
    return weighed(t, -t.pick((1, 10, 100)))


@fault("loss", "nothing_repels", "compare with other samples too", where=lossed("info_nce", "vicreg", "clip", "triplet"))
def no_negatives(t: Training, _: None) -> Sites:
    def loss(outputs: Any, batch: Batch) -> Tensor:
        if t.recipe.loss != "triplet":
            return 1 - F.cosine_similarity(outputs[0], outputs[1], -1).mean()
        z = F.normalize(first(outputs), dim=-1)
        return (torch.cdist(z, z) * (batch.targets[:, None] == batch.targets)).amax(1).mean()

    t.loss = loss


@fault("loss", "viewed_classes", "transpose the logits, do not view them", code="F.cross_entropy(logits.transpose(1, 2), target)",
       where=both(when(lambda t: t.data.kind == "tokens"), lossed("cross_entropy", "nll")))  # fmt: skip
def classes_by_a_view(t: Training, _: None) -> Sites:
    def loss(outputs: Any, batch: Batch) -> Tensor:
        logits = first(outputs)
        return F.cross_entropy(logits.reshape(len(logits), logits.shape[-1], -1), batch.targets)

    t.loss = loss


@fault("loss", "labels_of_zero", "make labels of -1 and 1", where=lossed("margin"), code="2 * target - 1")
def margin_of_zero_and_one(t: Training, _: None) -> Sites:
    t.loss = lambda outputs, batch: F.relu(1 - outputs * batch.targets).mean()
