"""Losses by name, as people write them: ``loss(outputs, batch)``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.evidence.population.layers import Experts
from tests.evidence.population.scores import first
from tests.evidence.population.training import Batch, Training


def flat(outputs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits and classes, positions as samples; the classes of an image's pixels are the second dimension."""
    logits, targets = first(outputs), batch.targets
    if logits.ndim == 4:
        logits = logits.permute(0, 2, 3, 1)
    return logits.flatten(0, -2), targets.flatten()


def cross_entropy(t: Training, outputs: Any, batch: Batch) -> Tensor:
    return F.cross_entropy(*flat(outputs, batch), label_smoothing=t.recipe.smoothing)


def nll(t: Training, outputs: Any, batch: Batch) -> Tensor:
    logits, targets = flat(outputs, batch)
    return F.nll_loss(F.log_softmax(logits, -1), targets)


def weighted(t: Training, outputs: Any, batch: Batch) -> Tensor:
    """Rare classes count more."""
    counts = t.data.train.targets.flatten().bincount(minlength=t.data.form.answers).clamp(min=1)
    return F.cross_entropy(*flat(outputs, batch), weight=(counts.sum() / (len(counts) * counts)).float())


def bce(t: Training, outputs: Any, batch: Batch) -> Tensor:
    return F.binary_cross_entropy_with_logits(first(outputs), batch.targets)


def against(function: Callable[..., Tensor]) -> Callable[[Training, Any, Batch], Tensor]:
    """A regression's loss."""
    return lambda t, outputs, batch: function(first(outputs).reshape(batch.targets.shape), batch.targets)


def gaussian(t: Training, outputs: Any, batch: Batch) -> Tensor:
    mean, scale = first(outputs).chunk(2, 1)
    return F.gaussian_nll_loss(mean, batch.targets, F.softplus(scale) + 1e-3)


def elbo(t: Training, outputs: Any, batch: Batch) -> Tensor:
    """Squared error and divergence, each summed over a sample."""
    drawn, mean, log_variance = outputs
    error = ((drawn - batch.targets) ** 2).flatten(1).sum(1).mean()
    divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
    return error + t.recipe.beta * divergence


def committed(t: Training, outputs: Any, batch: Batch) -> Tensor:
    return F.mse_loss(outputs[0], batch.targets) + t.recipe.beta * outputs[1]


def info_nce(t: Training, outputs: Any, batch: Batch) -> Tensor:
    """NT-Xent (Chen et al. 2020) of two views."""
    z = F.normalize(torch.cat(outputs[:2]), dim=-1)
    likeness = (z @ z.T / 0.2).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
    return F.cross_entropy(likeness, torch.arange(len(z)).roll(len(z) // 2))


def negative_cosine(t: Training, outputs: Any, batch: Batch) -> Tensor:
    """SimSiam's."""
    a, b, c, d = outputs
    return -(F.cosine_similarity(a, d, -1).mean() + F.cosine_similarity(b, c, -1).mean()) / 2


def adversarial(t: Training, outputs: Any, batch: Batch) -> Tensor:
    """The non-saturating loss (Goodfellow et al. 2014)."""
    fake, real = outputs
    return F.softplus(-fake).mean() if real is None else F.softplus(fake).mean() + F.softplus(-real).mean()


def actor_critic(t: Training, outputs: Any, batch: Batch) -> Tensor:
    logits, value = outputs
    actions, returns = batch.targets.T
    choice = torch.distributions.Categorical(logits=logits)
    gain = (choice.log_prob(actions) * (returns - value.detach())).mean()
    return -gain + 0.5 * F.mse_loss(value, returns) - t.recipe.beta * choice.entropy().mean()


def temporal_difference(t: Training, outputs: Any, batch: Batch) -> Tensor:
    values, follows = outputs
    action, reward, goes_on = batch.targets.T
    goal = reward + 0.95 * goes_on * follows.amax(1)
    return F.smooth_l1_loss(values.gather(1, action.long()[:, None])[:, 0], goal)


def distillation(t: Training, outputs: Any, batch: Batch) -> Tensor:
    """Hinton et al. 2015 at a temperature of 2."""
    if not isinstance(outputs, tuple):
        return F.cross_entropy(outputs, batch.targets)
    student, teacher = outputs
    soft = F.kl_div(F.log_softmax(student / 2, -1), F.softmax(teacher / 2, -1), reduction="batchmean") * 4
    return t.recipe.beta * soft + (1 - t.recipe.beta) * F.cross_entropy(student, batch.targets)


LOSSES: dict[str, Callable[[Training, Any, Batch], Tensor]] = {
    **{f.__name__: f for f in (cross_entropy, nll, weighted, bce, gaussian, elbo, committed, info_nce, negative_cosine)},
    **{f.__name__: f for f in (adversarial, actor_critic, temporal_difference, distillation)},
    "mse": against(F.mse_loss), "l1": against(F.l1_loss), "huber": against(F.smooth_l1_loss),
}  # fmt: skip


def build_loss(t: Training) -> None:
    """The loss, and what experts ask for to be used alike."""
    plain = partial(LOSSES[t.recipe.loss], t)
    experts = [module for module in t.model.modules() if isinstance(module, Experts)]

    def balanced(outputs: Any, batch: Batch) -> Tensor:
        return plain(outputs, batch) + t.recipe.beta * sum(e.balance for e in experts) / len(experts)

    t.loss = balanced if experts else plain
