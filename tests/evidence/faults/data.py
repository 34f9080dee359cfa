"""Real data that come with scikit-learn and with Python, small enough to train on in a second."""

from __future__ import annotations

import functools
from pydoc_data.topics import topics
from typing import Any

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset

Split = tuple[Tensor, Tensor, Tensor, Tensor]  # training inputs and targets, validation inputs and targets
CHARACTERS = "\n abcdefghijklmnopqrstuvwxyz0123456789.,:;()[]{}'\"-_*=<>+/|`#%&!?@$^~\\"
VOCABULARY = len(CHARACTERS)


def loaders(split: Split, batch: int, seed: int, **options: Any) -> dict[str, Any]:
    """The loaders of a fit; training data in an order that the seed fixes, without a short last batch."""
    train_x, train_y, val_x, val_y = split
    generator = torch.Generator().manual_seed(1000 + seed)
    train = DataLoader(TensorDataset(train_x, train_y), batch, shuffle=True, drop_last=True, generator=generator, **options)
    return {"train_dataloaders": train, "val_dataloaders": DataLoader(TensorDataset(val_x, val_y), 512)}


@functools.cache
def _digits() -> tuple[Any, ...]:
    images, digits = load_digits(return_X_y=True)
    return tuple(train_test_split(images, digits, test_size=360, random_state=0, stratify=digits))


def digits(scale: float = 1 / 16, shape: tuple[int, ...] = (64,)) -> Split:
    """1437 and 360 images of 8 x 8 pixels, 0 to 16 times ``scale``."""
    train_x, val_x, train_y, val_y = _digits()
    x, v = ((torch.tensor(part, dtype=torch.float32) * scale).reshape(-1, *shape) for part in (train_x, val_x))
    return x, torch.tensor(train_y), v, torch.tensor(val_y)


def images(scale: float = 1 / 16) -> Split:
    """The digits as images of one channel."""
    return digits(scale, (1, 8, 8))


@functools.cache
def _table(load: Any) -> tuple[Any, ...]:
    x, y = load(return_X_y=True)
    return tuple(train_test_split(x, y, test_size=0.25, random_state=0))


def _tabular(load: Any, standardised: bool) -> tuple[Tensor, Any, Tensor, Any]:
    train_x, val_x, train_y, val_y = _table(load)
    x, v = (torch.tensor(part, dtype=torch.float32) for part in (train_x, val_x))
    if standardised:
        mean, std = x.mean(0), x.std(0)
        x, v = (x - mean) / std, (v - mean) / std
    return x, train_y, v, val_y


def cancer(standardised: bool = True) -> Split:
    """426 and 143 tumours of 30 measurements, benign or malignant."""
    x, train_y, v, val_y = _tabular(load_breast_cancer, standardised)
    return x, torch.tensor(train_y), v, torch.tensor(val_y)


def diabetes() -> Split:
    """331 and 111 patients of 10 measurements, and the standardised progress of their disease, shape ``(n, 1)``."""
    x, train_y, v, val_y = _tabular(load_diabetes, standardised=True)
    y, w = (torch.tensor(part, dtype=torch.float32)[:, None] for part in (train_y, val_y))
    return x, (y - y.mean()) / y.std(), v, (w - y.mean()) / y.std()


@functools.cache
def _text() -> Tensor:
    text = "".join(topics.values())[:60_000].lower()
    index = {character: i for i, character in enumerate(CHARACTERS)}
    return torch.tensor([index.get(character, 1) for character in text])


def text(length: int = 32, n: int = 960) -> Split:
    """``n`` and 128 pieces of Python's own documentation, ``length`` characters each, and the same one character on."""
    data = _text()
    starts = torch.arange(n + 128) * length
    x = torch.stack([data[s : s + length] for s in starts])
    y = torch.stack([data[s + 1 : s + length + 1] for s in starts])
    return x[:n], y[:n], x[n:], y[n:]
