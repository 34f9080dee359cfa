"""Losses by name, as people write them: ``loss(outputs, batch)``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tests.evidence.population.layers import Experts
from tests.evidence.population.scores import first
from tests.evidence.population.training import Batch, Training

Loss = Callable[[Any, Batch], Tensor]


def flat(outputs: Any, batch: Batch) -> tuple[Tensor, Tensor]:
    """Logits and classes, positions as samples; the classes of an image's pixels are the second dimension."""
    logits, targets = first(outputs), batch.targets
    if logits.ndim == 4:
        logits = logits.permute(0, 2, 3, 1)
    if targets.is_floating_point():  # mixed
        return logits, targets
    return logits.flatten(0, -2), targets.flatten()


def cross_entropy(t: Training) -> Loss:
    return lambda outputs, batch: F.cross_entropy(*flat(outputs, batch), label_smoothing=t.recipe.smoothing)


def nll(t: Training) -> Loss:
    def loss(outputs: Any, batch: Batch) -> Tensor:
        logits, targets = flat(outputs, batch)
        return F.nll_loss(F.log_softmax(logits, -1), targets)

    return loss


def hinge(t: Training) -> Loss:
    return lambda outputs, batch: F.multi_margin_loss(*flat(outputs, batch))


def weighted(t: Training) -> Loss:
    """Rare classes count more."""
    counts = t.data.train.targets.flatten().bincount(minlength=t.data.form.answers).clamp(min=1)
    weights = (counts.sum() / (len(counts) * counts)).float()
    return lambda outputs, batch: F.cross_entropy(*flat(outputs, batch), weight=weights)


def focal(t: Training) -> Loss:
    """Lin et al. 2017, of logits, with a gamma of 2."""

    def loss(outputs: Any, batch: Batch) -> Tensor:
        if t.data.kind in ("binary", "multilabel"):
            each = F.binary_cross_entropy_with_logits(first(outputs), batch.targets, reduction="none")
        else:
            each = F.cross_entropy(*flat(outputs, batch), reduction="none")
        return ((1 - (-each).exp()) ** 2 * each).mean()

    return loss


def bce(t: Training) -> Loss:
    return lambda outputs, batch: F.binary_cross_entropy_with_logits(first(outputs), batch.targets)


def against(function: Callable[..., Tensor]) -> Callable[[Training], Loss]:
    """A regression's loss."""
    return lambda t: lambda outputs, batch: function(first(outputs).reshape(batch.targets.shape), batch.targets)


def poisson(t: Training) -> Loss:
    return lambda outputs, batch: F.poisson_nll_loss(first(outputs), batch.targets)


def gaussian(t: Training) -> Loss:
    def loss(outputs: Any, batch: Batch) -> Tensor:
        mean, scale = first(outputs).chunk(2, 1)
        return F.gaussian_nll_loss(mean, batch.targets, F.softplus(scale) + 1e-3)

    return loss


def quantile(t: Training) -> Loss:
    def loss(outputs: Any, batch: Batch) -> Tensor:
        error, q = batch.targets - first(outputs), torch.tensor([0.1, 0.5, 0.9])
        return torch.maximum(q * error, (q - 1) * error).mean()

    return loss


def elbo(t: Training) -> Loss:
    """Squared error and divergence, each summed over a sample."""

    def loss(outputs: Any, batch: Batch) -> Tensor:
        drawn, mean, log_variance = outputs
        error = ((drawn - batch.targets) ** 2).flatten(1).sum(1).mean()
        divergence = -0.5 * (1 + log_variance - mean**2 - log_variance.exp()).sum(1).mean()
        return error + t.recipe.beta * divergence

    return loss


def committed(t: Training) -> Loss:
    return lambda outputs, batch: F.mse_loss(outputs[0], batch.targets) + t.recipe.beta * outputs[1]


def info_nce(t: Training) -> Loss:
    """NT-Xent (Chen et al. 2020) of two views."""

    def loss(outputs: Any, batch: Batch) -> Tensor:
        z = F.normalize(torch.cat(outputs[:2]), dim=-1)
        likeness = (z @ z.T / 0.2).masked_fill(torch.eye(len(z), dtype=torch.bool), -1e9)
        return F.cross_entropy(likeness, torch.arange(len(z)).roll(len(z) // 2))

    return loss


def negative_cosine(t: Training) -> Loss:
    """SimSiam's and BYOL's."""
    return lambda o, batch: -(F.cosine_similarity(o[0], o[3], -1).mean() + F.cosine_similarity(o[1], o[2], -1).mean()) / 2


def vicreg(t: Training) -> Loss:
    """Bardes et al. 2022: variance, invariance, covariance."""

    def loss(outputs: Any, batch: Batch) -> Tensor:
        total = 25 * F.mse_loss(*outputs[:2])
        for z in outputs[:2]:
            z = z - z.mean(0)
            covariance = z.T @ z / (len(z) - 1)
            total = total + 25 * F.relu(1 - (z.var(0) + 1e-4).sqrt()).mean() / 2
            total = total + (covariance.fill_diagonal_(0) ** 2).sum() / z.shape[1]
        return total

    return loss


def clip(t: Training) -> Loss:
    def loss(outputs: Any, batch: Batch) -> Tensor:
        images, texts, log_scale = outputs
        logits, own = log_scale.exp() * images @ texts.T, torch.arange(len(images))
        return (F.cross_entropy(logits, own) + F.cross_entropy(logits.T, own)) / 2

    return loss


def triplet(t: Training) -> Loss:
    """The farthest of its class, the nearest of others (Hermans et al. 2017)."""

    def loss(outputs: Any, batch: Batch) -> Tensor:
        z = F.normalize(first(outputs), dim=-1)
        apart, same = torch.cdist(z, z), batch.targets[:, None] == batch.targets
        near = apart.masked_fill(same, 9).amin(1)
        return F.relu((apart * same).amax(1) - near + 0.3).mean()

    return loss


def margin(t: Training) -> Loss:
    return lambda outputs, batch: F.relu(1 - outputs * (2 * batch.targets - 1)).mean()


def adversarial(t: Training) -> Loss:
    """The non-saturating loss (Goodfellow et al. 2014); ``"adversarial_hinge"`` for the discriminator's hinge."""

    def loss(outputs: Any, batch: Batch) -> Tensor:
        fake, real = outputs
        if t.recipe.loss == "adversarial_hinge":
            return -fake.mean() if real is None else F.relu(1 + fake).mean() + F.relu(1 - real).mean()
        if real is None:
            return F.softplus(-fake).mean()
        return F.softplus(fake).mean() + F.softplus(-real).mean()

    return loss


def actor_critic(t: Training) -> Loss:
    def loss(outputs: Any, batch: Batch) -> Tensor:
        logits, value = outputs
        actions, returns = batch.targets.T
        choice = torch.distributions.Categorical(logits=logits)
        advantage = returns - value.detach()
        gain = (choice.log_prob(actions) * advantage).mean()
        return -gain + 0.5 * F.mse_loss(value, returns) - t.recipe.beta * choice.entropy().mean()

    return loss


def temporal_difference(t: Training) -> Loss:
    def loss(outputs: Any, batch: Batch) -> Tensor:
        values, follows = outputs
        action, reward, goes_on = batch.targets.T
        goal = reward + 0.95 * goes_on * follows.amax(1)
        return F.smooth_l1_loss(values.gather(1, action.long()[:, None])[:, 0], goal)

    return loss


def distillation(t: Training) -> Loss:
    """Hinton et al. 2015 at a temperature of 2."""

    def loss(outputs: Any, batch: Batch) -> Tensor:
        if not isinstance(outputs, tuple):
            return F.cross_entropy(outputs, batch.targets)
        student, teacher = outputs
        soft = F.kl_div(F.log_softmax(student / 2, -1), F.softmax(teacher / 2, -1), reduction="batchmean") * 4
        return t.recipe.beta * soft + (1 - t.recipe.beta) * F.cross_entropy(student, batch.targets)

    return loss


LOSSES: dict[str, Callable[[Training], Loss]] = {
    **{f.__name__: f for f in (cross_entropy, nll, hinge, weighted, focal, bce, poisson, gaussian, quantile, elbo, committed)},
    **{f.__name__: f for f in (info_nce, negative_cosine, vicreg, clip, triplet, margin, adversarial, actor_critic)},
    **{f.__name__: f for f in (temporal_difference, distillation)},
    "adversarial_hinge": adversarial,
    "mse": against(F.mse_loss),
    "l1": against(F.l1_loss),
    "huber": against(F.smooth_l1_loss),
}


def build_loss(t: Training) -> None:
    """The loss, and what experts ask for to be used alike."""
    plain = LOSSES[t.recipe.loss](t)
    experts = [module for module in t.model.modules() if isinstance(module, Experts)]
    if not experts:
        t.loss = plain
    else:
        t.loss = lambda outputs, batch: plain(outputs, batch) + t.recipe.beta * sum(e.balance for e in experts) / len(experts)
