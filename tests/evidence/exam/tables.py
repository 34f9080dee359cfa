"""Tables of scikit-learn, standardised, with rows that are held back."""

from __future__ import annotations

import functools
from typing import Any

import torch
from sklearn import datasets
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

from tests.evidence.exam.pictures import in_batches


def scaled(values: Tensor) -> Tensor:
    """Columns of mean 0 and deviation 1."""
    return (values - values.mean(0)) / values.std(0)


def split(batch_size: int, *tensors: Tensor, share: float = 0.8, **options: Any) -> dict[str, Any]:
    """Rows for training, shuffled, and the rest for validation."""
    order = torch.randperm(len(tensors[0]), generator=torch.Generator().manual_seed(1))
    many = int(share * len(order))
    first, rest = order[:many], order[many:]
    data = in_batches(batch_size, *(tensor[first] for tensor in tensors), **options)
    return {**data, "val_dataloaders": DataLoader(TensorDataset(*(tensor[rest] for tensor in tensors)), 64)}


@functools.cache
def table(name: str) -> tuple[Tensor, Tensor]:
    """Standardised columns of one of scikit-learn's tables, and its target: classes as integers, numbers standardised."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    columns = torch.tensor(x, dtype=torch.float32)
    columns = (columns - columns.mean(0)) / columns.std(0).clamp_min(1e-6)
    if name == "diabetes":
        target = torch.tensor(y, dtype=torch.float32)
        return columns, (target - target.mean()) / target.std()
    return columns, torch.tensor(y).long()


@functools.cache
def friedman(number: int = 2000) -> tuple[Tensor, Tensor]:
    """Friedman's first function of five of ten columns from -1 to 1, standardised."""
    x, y = datasets.make_friedman1(number, noise=0.5, random_state=0)
    target = torch.tensor(y, dtype=torch.float32)
    return torch.tensor(2 * x - 1, dtype=torch.float32), (target - target.mean()) / target.std()
