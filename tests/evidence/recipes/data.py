"""Data that needs no download: scikit-learn's sets and pictures, Python's own documentation, generated series."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from functools import cache
from importlib import import_module
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn import datasets
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, TensorDataset


class Rows(Dataset[dict[str, Tensor]]):
    """Samples as dictionaries, as Hugging Face's models take them."""

    def __init__(self, columns: dict[str, Tensor]) -> None:
        self.columns = columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {name: column[index] for name, column in self.columns.items()}


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def feed(*columns: Tensor, batch: int = 64, held: float = 0.2, shuffle: bool = True, **named: Tensor) -> dict[str, Any]:
    """Loaders of random training and validation parts; named columns give dictionaries."""
    size = len(columns[0] if columns else next(iter(named.values())))
    order, cut = torch.randperm(size, generator=rng()), int(size * (1 - held))
    parts: list[Any] = []
    for rows in (order[:cut] if shuffle else order[:cut].sort().values, order[cut:]):
        parts.append(Rows({k: v[rows] for k, v in named.items()}) if named else TensorDataset(*(c[rows] for c in columns)))
    return loaders(*parts, batch=batch, shuffle=shuffle)


def loaders(train: Any, val: Any, batch: int = 64, shuffle: bool = True) -> dict[str, Any]:
    return {
        "train_dataloaders": DataLoader(train, batch, shuffle=shuffle, drop_last=True),
        "val_dataloaders": DataLoader(val, 256),
    }


def replace(fed: dict[str, Any], column: int | str, change: Any) -> dict[str, Any]:
    """Change one column of the training part only."""
    data = fed["train_dataloaders"].dataset
    if isinstance(column, str):
        data.columns[column] = change(data.columns[column])
    else:
        data.tensors = tuple(change(t) if i == column else t for i, t in enumerate(data.tensors))
    return fed


def shuffled(column: Tensor) -> Tensor:
    return column[torch.randperm(len(column), generator=rng(1))]


@cache
def digits(size: int = 8) -> tuple[Tensor, Tensor]:
    """The 1797 pictures of digits, with mean 0 and deviation 1."""
    pictures, labels = datasets.load_digits(return_X_y=True)
    x = torch.tensor(pictures, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    x = (x - x.mean()) / x.std()
    return x if size == 8 else F.interpolate(x, size, mode="bilinear"), torch.tensor(labels)


@cache
def photo(name: str = "china.jpg", size: int = 64) -> Tensor:
    """A sample picture, 3 x size x size, from 0 to 1."""
    picture = torch.tensor(np.array(datasets.load_sample_image(name))).permute(2, 0, 1)[None].float() / 255
    return F.interpolate(picture, (size, size), mode="area")[0]


@cache
def prose() -> str:
    return re.sub(r"[^a-z .,\n]", "", "\n".join(topics[k] for k in sorted(topics)).lower())[:200_000]


@cache
def characters(blocks: int = 600, length: int = 33, skip: int = 0) -> Tensor:
    """Pieces of Python's documentation as character ids below 30."""
    ids = torch.tensor([" .,\nabcdefghijklmnopqrstuvwxyz".index(c) for c in prose()])
    return ids[skip : skip + blocks * length].view(blocks, length)


@cache
def words(most: int = 300) -> Tensor:
    """The documentation's words as ids, 0 for rare ones."""
    found = re.findall("[a-z]+", prose())
    known = {word: i + 1 for i, (word, _) in enumerate(Counter(found).most_common(most - 1))}
    return torch.tensor([known.get(word, 0) for word in found])


@cache
def names() -> list[str]:
    return sorted({word for word in re.findall("[a-z]+", prose()) if 4 <= len(word) <= 10})


@cache
def lines(length: int = 16, most: int = 400, case: bool = False) -> tuple[Tensor, Tensor]:
    """Lines of four modules of Python as word ids (0 pads, 1 is unknown), and which module each line is from."""
    text = [
        (re.findall("[A-Za-z_]+", line), label)
        for label, name in enumerate(("turtle", "argparse", "_pydecimal", "mailbox"))
        for line in inspect.getsource(import_module(name)).splitlines()
    ]
    text = [(found, label) for found, label in text if len(found) >= 4]
    known = {w: i + 2 for i, (w, _) in enumerate(Counter(w.lower() for f, _ in text for w in f).most_common(most - 2))}
    rows = [[known.get(w.upper() if case else w.lower(), 1) for w in found[:length]] for found, _ in text]
    padded = torch.tensor([row + [0] * (length - len(row)) for row in rows])
    return padded, torch.tensor([label for _, label in text])


@cache
def waves(count: int = 640, length: int = 48) -> Tensor:
    """Noisy sums of two sines with a period of 12 and of 30 steps and a trend."""
    g = rng(2)
    t = torch.arange(length, dtype=torch.float32)
    a, b, slope = (torch.randn(3, count, 1, generator=g) * torch.tensor([1.0, 0.5, 0.01]).view(3, 1, 1)).unbind(0)
    phase = torch.rand(count, 2, generator=g) * 6.28
    series = a * torch.sin(t * 6.28 / 12 + phase[:, :1]) + b * torch.sin(t * 6.28 / 30 + phase[:, 1:]) + slope * t
    return series + 0.1 * torch.randn(count, length, generator=g)


@cache
def table(name: str = "wine") -> tuple[Tensor, Tensor]:
    """A table of scikit-learn's as it comes."""
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def scaled(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / x.std(0)


@cache
def moons(count: int = 1024) -> Tensor:
    return scaled(torch.tensor(datasets.make_moons(count, noise=0.05, random_state=0)[0], dtype=torch.float32))


def energy_gap(a: Tensor, b: Tensor) -> Tensor:
    """The energy distance between two samples."""
    return 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()
