"""Weights of classes in a loss: how much its labels weigh, and whether rare positive targets are weighted down."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from lightning_hooks.hooks.tensors import in_memory

LITTLE = 0.5
"""The weight of positive targets below which they are weighted down."""
RARE = 0.25
"""The share of positive targets below which they are rare."""


def class_weights(weight: Any, target: Tensor, ignored: int) -> Tensor | None:
    """The weights of the labels of a cross entropy, added up, and as many times the mean weight of the classes.

    Args:
        weight: Of each class; None without.
        target: The labels; class probabilities are not judged.
        ignored: The label that does not count. Nor does a class of weight 0.
    """
    if not in_memory(weight) or weight.dim() != 1 or target.is_floating_point() or not weight.numel():
        return None
    weights, labels = weight.detach(), target.reshape(-1)
    counts = (labels != ignored) & (labels >= 0) & (labels < len(weights))
    each = weights[labels.clamp(0, len(weights) - 1)] * counts
    mean = weights.sum() / (weights > 0).sum().clamp_min(1)
    return torch.stack((each.sum(), mean * (each > 0).sum()))


def weighted_down(weight: Any, target: Tensor) -> Tensor | None:
    """The share of the columns of a binary cross entropy whose positive targets are rare, and are weighted down.

    Args:
        weight: Of positive targets (``pos_weight``): one number, or one for each column; None without.
        target: The targets, samples first.
    """
    if not in_memory(weight) or not target.numel():
        return None
    targets, weights = target.detach().float(), weight.detach().reshape(-1)
    if len(weights) > 1 and (target.dim() < 2 or target.shape[-1] != len(weights)):
        return None
    shares = targets.mean() if len(weights) == 1 else targets.reshape(-1, len(weights)).mean(0)
    return ((weights < LITTLE) & (shares < RARE)).float().mean()
