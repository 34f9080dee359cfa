"""Inputs for the metrics of lightning_hooks, and their values in float64 with numpy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torchmetrics import Metric

from lightning_hooks.metrics import DeadUnits, GradientNorm, TensorStatistics, UpdateRatio
from tests.support.reference import reference_stats

STATISTICS = ("mean", "std", "min", "max", "rms", "zero_fraction", "nonfinite_fraction")


def tensors() -> list[Tensor]:
    """Batches of four units: the first never fires, the second in the last batch only."""
    generator = torch.Generator().manual_seed(1)
    batches = [torch.randn((size, 4), generator=generator).abs() + 3 for size in (5, 2, 7)]
    for batch in batches:
        batch[:, 0] = 0.0
        batch[0, 2] = 0.0
    for batch in batches[:2]:
        batch[:, 1] = 0.0
    batches[1][1, 3] = torch.inf
    return batches


def statistics(values: list[Tensor]) -> dict[str, float]:
    chunks = [batch.double().numpy() for batch in values]
    found = reference_stats(chunks)
    flat = np.concatenate([chunk.ravel() for chunk in chunks])
    deviations = flat[np.isfinite(flat)] - found["mean"]
    return {name: found[name] for name in STATISTICS} | {"kurtosis": (deviations**4).mean() / (deviations**2).mean() ** 2}


def parameters() -> list[nn.Parameter]:
    generator = torch.Generator().manual_seed(2)
    return [nn.Parameter(torch.randn(shape, generator=generator)) for shape in ((3, 4), (3,), (2, 2, 2))]


def gradient_steps() -> Iterator[list[nn.Parameter]]:
    """Parameters with the gradients of three steps; the last parameter never has one."""
    generator = torch.Generator().manual_seed(3)
    for _ in range(3):
        found = parameters()
        for parameter in found[:2]:
            parameter.grad = torch.randn(parameter.shape, generator=generator)
        yield found


def weight_steps() -> Iterator[list[nn.Parameter]]:
    """The same parameters before the first step, and after each of three."""
    found, generator = parameters(), torch.Generator().manual_seed(4)
    yield found
    for _ in range(3):
        with torch.no_grad():
            for parameter in found:
                parameter.add_(torch.randn(parameter.shape, generator=generator), alpha=0.1)
        yield found


def flat(values: list[Tensor]) -> np.ndarray:
    return np.concatenate([value.detach().double().numpy().ravel() for value in values])


def gradient_norm() -> float:
    return float(np.mean([np.linalg.norm(flat([p.grad for p in step if p.grad is not None])) for step in gradient_steps()]))


def update_ratio() -> float:
    weights = [flat(list(step)) for step in weight_steps()]
    return float(np.mean([np.linalg.norm(after - before) / np.linalg.norm(before) for before, after in pairwise(weights)]))


CASES: dict[str, tuple[Callable[[], Metric], Callable[[], Any], Callable[[], dict[str, float]]]] = {
    "TensorStatistics": (TensorStatistics, tensors, lambda: statistics(tensors())),
    "DeadUnits": (lambda: DeadUnits(4), tensors, lambda: {"": 0.25}),
    "GradientNorm": (GradientNorm, gradient_steps, lambda: {"": gradient_norm()}),
    "UpdateRatio": (UpdateRatio, weight_steps, lambda: {"": update_ratio()}),
}
"""How a metric is made, what it is updated with, and its value of all of that."""
NAMES = list(CASES)
