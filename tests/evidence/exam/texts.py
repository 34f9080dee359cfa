"""Text for language models: the docstrings and code of Python's own library, character by character."""

from __future__ import annotations

import argparse
import functools
import inspect
import re
import textwrap
import typing
from pydoc_data.topics import topics
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.evidence.exam.pictures import in_batches

PAD, MASK, START, END = 0, 1, 2, 3
"""Tokens that no text holds: their codes are control characters."""
VOCABULARY = 128


@functools.cache
def corpus() -> Tensor:
    """ASCII codes, shape ``(characters,)``."""
    return codes_of(inspect.getsource(argparse) + inspect.getsource(textwrap) + inspect.getsource(functools))


def codes_of(text: str) -> Tensor:
    """The ASCII codes of a text."""
    return torch.tensor([min(ord(character), 127) for character in text])


def stretches(length: int) -> Tensor:
    """The corpus cut into rows, shape ``(rows, length)``."""
    codes = corpus()
    return codes[: len(codes) // length * length].view(-1, length)


def characters(length: int, batch_size: int, seed: int = 0) -> dict[str, Any]:
    """Stretches of text, as ``Trainer.fit`` takes them; a batch is a list of one tensor, shape ``(batch_size, length)``."""
    return in_batches(batch_size, stretches(length), seed=seed)


@functools.cache
def _lines(length: int) -> tuple[Tensor, Tensor, Tensor]:
    texts, sources = [], []
    for source, module in enumerate((argparse, typing)):
        lines = [line.strip() for line in inspect.getsource(module).splitlines()]
        long = [codes_of(line)[:length] for line in lines if len(line) > 8]
        texts += long
        sources += [source] * len(long)
    ids = torch.stack([F.pad(codes, (0, length - len(codes)), value=PAD) for codes in texts])
    return ids, (ids != PAD).long(), torch.tensor(sources)


def lines(length: int, batch_size: int, seed: int = 0) -> dict[str, Any]:
    """Lines of two modules' code, filled up with ``PAD``; a batch is ``[ids, attention_mask, which module]``."""
    return in_batches(batch_size, *_lines(length), seed=seed)


def masked(ids: Tensor, share: float = 0.15) -> tuple[Tensor, Tensor]:
    """Inputs and labels as in BERT: of the tokens that are to be found 80 % are hidden, 10 % are others, 10 % stay."""
    chosen = torch.rand(ids.shape) < share
    chosen[:, 0] = True  # at least one in each row
    chosen &= ids != PAD
    how = torch.rand(ids.shape)
    inputs = torch.where(chosen & (how < 0.8), MASK, ids)
    inputs = torch.where(chosen & (how > 0.9), torch.randint_like(ids, 32, 127), inputs)
    return inputs, torch.where(chosen, ids, -100)


def pairs(length: int, batch_size: int, reverse: bool = False, seed: int = 0) -> dict[str, Any]:
    """A stretch of text and what is to be written: the same, or in reverse; a batch is ``[ids, labels]``."""
    rows = stretches(length)
    ends = torch.full((len(rows), 1), END)
    target = rows.flip(1) if reverse else rows
    return in_batches(batch_size, torch.cat([rows, ends], 1), torch.cat([target, ends], 1), seed=seed)


@functools.cache
def manual() -> str:
    """Python's own manual as it is shown by ``help()``: English, with some code."""
    return re.sub(r"[ *=-]{3,}", " ", "".join(topics[name] for name in sorted(topics))[:200_000])


def pieces(length: int) -> Tensor:
    """The manual in rows of characters."""
    codes = codes_of(manual())
    return codes[: len(codes) // length * length].view(-1, length)
