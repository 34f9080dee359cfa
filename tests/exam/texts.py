"""Text for language models: the docstrings and code of Python's own library, character by character."""

from __future__ import annotations

import argparse
import functools
import inspect
import textwrap
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import DataLoader, TensorDataset


@functools.cache
def corpus() -> Tensor:
    """ASCII codes, shape ``(characters,)``."""
    text = inspect.getsource(argparse) + inspect.getsource(textwrap) + inspect.getsource(functools)
    return torch.tensor([min(ord(character), 127) for character in text])


def characters(length: int, batch_size: int, seed: int = 0) -> dict[str, Any]:
    """Stretches of text, as ``Trainer.fit`` takes them; a batch is a list of one tensor, shape ``(batch_size, length)``."""
    codes = corpus()
    rows = codes[: len(codes) // length * length].view(-1, length)
    generator = torch.Generator().manual_seed(seed)
    loader = DataLoader(TensorDataset(rows), batch_size, shuffle=True, drop_last=True, generator=generator)
    return {"train_dataloaders": loader}
