"""Data that needs no download: scikit-learn's sets and pictures, Python's own documentation, generated series."""

from __future__ import annotations

import inspect
import re
from collections import Counter
from collections.abc import Callable
from functools import cache
from importlib import import_module
from pydoc_data.topics import topics
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from sklearn import datasets
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

LETTERS = " .,\nabcdefghijklmnopqrstuvwxyz"
PROSE = re.sub(f"[^{LETTERS}]", "", "\n".join(topics[k] for k in sorted(topics)).lower())[:200_000]


class Rows(Dataset[Any]):
    def __init__(self, columns: dict[Any, Tensor]) -> None:
        self.columns, self.named = columns, 0 not in columns

    def __len__(self) -> int:
        return len(next(iter(self.columns.values())))

    def __getitem__(self, index: int) -> Any:
        row = {name: column[index] for name, column in self.columns.items()}
        return row if self.named else tuple(row.values())


def rng(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def feed(*columns: Tensor, batch: int = 64, held: float = 0.2, shuffle: bool = True, **named: Tensor) -> dict[str, Any]:
    table: dict[Any, Tensor] = {**named, **dict(enumerate(columns))}
    size = len(next(iter(table.values())))
    order, cut = torch.randperm(size, generator=rng()), int(size * (1 - held))
    train, val = (Rows({k: v[rows] for k, v in table.items()}) for rows in (order[:cut].sort().values, order[cut:]))
    return {"train_dataloaders": DataLoader(train, batch, shuffle, drop_last=True), "val_dataloaders": DataLoader(val, 256)}


def replace(fed: dict[str, Any], column: int | str, change: Callable[[Tensor], Tensor]) -> dict[str, Any]:
    columns = fed["train_dataloaders"].dataset.columns
    columns[column] = change(columns[column])
    return fed


def shuffled(column: Tensor) -> Tensor:
    return column[torch.randperm(len(column), generator=rng(1))]


@cache
def digits(size: int = 8) -> tuple[Tensor, Tensor]:
    pictures, labels = datasets.load_digits(return_X_y=True)
    x = torch.tensor(pictures, dtype=torch.float32).view(-1, 1, 8, 8) / 16
    x = (x - x.mean()) / x.std()
    return x if size == 8 else F.interpolate(x, size, mode="bilinear"), torch.tensor(labels)


def from_zero_to_one() -> Tensor:
    x = digits()[0]
    return (x - x.min()) / (x.max() - x.min())


@cache
def photo(name: str = "china.jpg", size: int = 64) -> Tensor:
    picture = torch.tensor(np.array(datasets.load_sample_image(name))).permute(2, 0, 1)[None].float() / 255
    return F.interpolate(picture, (size, size), mode="area")[0]


def characters(count: int, length: int = 32) -> Tensor:
    return torch.tensor([LETTERS.index(c) for c in PROSE[: count * length]]).view(count, length)


def words(most: int = 300) -> Tensor:
    found = re.findall("[a-z]+", PROSE)
    known = {word: i + 1 for i, (word, _) in enumerate(Counter(found).most_common(most - 1))}
    return torch.tensor([known.get(word, 0) for word in found])


# lines of four modules of Python as word ids (0 pads, 1 is unknown), and which module each is from
def lines(spelling: Callable[[str], str], length: int = 16, most: int = 400) -> tuple[Tensor, Tensor]:
    modules = [inspect.getsource(import_module(name)) for name in ("turtle", "argparse", "_pydecimal", "mailbox")]
    text = [(re.findall("[A-Za-z_]+", line), label) for label, code in enumerate(modules) for line in code.splitlines()]
    text = [(found[:length], label) for found, label in text if len(found) >= 4]
    known = {w: i + 2 for i, (w, _) in enumerate(Counter(w.lower() for f, _ in text for w in f).most_common(most - 2))}
    padded = [[known.get(spelling(w), 1) for w in found] + [0] * (length - len(found)) for found, _ in text]
    return torch.tensor(padded), torch.tensor([label for _, label in text])


@cache
def waves(count: int = 640, length: int = 48) -> Tensor:
    g, t = rng(2), torch.arange(length, dtype=torch.float32)
    a, b, slope = torch.randn(3, count, 1, generator=g)
    phase = torch.rand(count, 2, 1, generator=g) * 6.28
    series = a * torch.sin(t * 6.28 / 12 + phase[:, 0]) + b / 2 * torch.sin(t * 6.28 / 30 + phase[:, 1]) + slope * t / 100
    return series + 0.1 * torch.randn(count, length, generator=g)


def table(name: str) -> tuple[Tensor, Tensor]:
    x, y = getattr(datasets, f"load_{name}")(return_X_y=True)
    return torch.tensor(x, dtype=torch.float32), torch.tensor(y)


def scaled(x: Tensor) -> Tensor:
    return (x - x.mean(0)) / x.std(0)


def moons() -> Tensor:
    return scaled(torch.tensor(datasets.make_moons(1024, noise=0.05, random_state=0)[0], dtype=torch.float32))


def energy_gap(a: Tensor, b: Tensor) -> Tensor:
    return 2 * torch.cdist(a, b).mean() - torch.cdist(a, a).mean() - torch.cdist(b, b).mean()
