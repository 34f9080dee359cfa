"""Scores of a model on validation samples, and of the best answer that does not look at the input. Larger is better."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tests.evidence.population.training import Batch


def first(outputs: Any) -> Tensor:
    """The answer among outputs."""
    return outputs[0] if isinstance(outputs, tuple) else outputs


def accuracy(model: nn.Module, data: Batch) -> float:
    """Share of right classes."""
    return (first(model(*data.inputs)).argmax(-1) == data.targets).float().mean().item()


def most_frequent(targets: Tensor) -> float:
    return (targets.flatten().bincount().max() / targets.numel()).item()


def binary_accuracy(model: nn.Module, data: Batch) -> float:
    return ((first(model(*data.inputs)).reshape(data.targets.shape) > 0) == (data.targets > 0.5)).float().mean().item()


def explained(answers: Tensor, targets: Tensor) -> float:
    """Explained variance, R²; that of the mean is 0."""
    return 1 - ((answers - targets) ** 2).sum().item() / ((targets - targets.mean(0)) ** 2).sum().item()


def r2(model: nn.Module, data: Batch) -> float:
    answers = first(model(*data.inputs))
    return explained(answers.reshape(data.targets.shape), data.targets)


def mean_r2(model: nn.Module, data: Batch) -> float:
    """Of a mean beside a deviation."""
    return explained(first(model(*data.inputs))[:, 0], data.targets[:, 0])


def tokens(model: Callable[..., Any], data: Batch) -> float:
    """Share of the unigram cross-entropy that is explained."""
    logits, targets = first(model(*data.inputs)).flatten(0, -2), data.targets.flatten()
    known = targets >= 0
    shares = targets[known].bincount(minlength=logits.shape[-1]) / known.sum()
    unigram = -torch.xlogy(shares, shares).sum()
    return 1 - (F.cross_entropy(logits[known], targets[known]) / unigram).item()


def prefixes(model: nn.Module, data: Batch) -> float:
    """The same, each position asked for by what comes before it alone, as where text is written."""
    *given, x = data.inputs
    logits = [first(model(*given, x[:, : i + 1]))[:, -1] for i in range(x.shape[1])]
    return tokens(lambda *_: torch.stack(logits, 1), data)


def masks(model: nn.Module, data: Batch) -> float:
    """Intersection over union, mean of the classes."""
    answers = first(model(*data.inputs)).argmax(1)
    return overlap(answers, data.targets)


def overlap(answers: Tensor, targets: Tensor) -> float:
    of = [((answers == c) & (targets == c)).sum() / ((answers == c) | (targets == c)).sum() for c in targets.unique()]
    return torch.stack(of).mean().item()


def neighbours(train: Batch, labels: Tensor) -> Any:
    """Accuracy of the nearest training samples' labels in the model's embedding."""

    def score(model: nn.Module, data: Batch) -> float:
        bank, query = (F.normalize(model.embed(x), dim=-1) for x in (train.inputs[0][:512], data.inputs[0]))
        near = labels[:512][(query @ bank.T).topk(5, -1).indices]
        return (near.mode(-1).values == data.targets).float().mean().item()

    return score


def sliced(model: nn.Module, data: Batch) -> float:
    """1 - the sliced Wasserstein distance of as many samples to the data, over that of the data's mean."""
    real = data.inputs[0].flatten(1)
    generator = torch.Generator().manual_seed(0)
    lines = F.normalize(torch.randn(real.shape[1], 64, generator=generator), dim=0)
    fake = model.generate(torch.randn(len(real), model.latent, generator=generator)).flatten(1)
    sort = (real @ lines).sort(0).values
    mean = (sort - (real.mean(0) @ lines)).abs().mean()
    return 1 - ((sort - (fake @ lines).sort(0).values).abs().mean() / mean).item()
