"""What is in a tensor of a checkpoint, read a part at a time: a checkpoint may be larger than the memory."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

CHUNK = 1 << 22
"""Numbers that are looked at together."""


@dataclass(frozen=True, slots=True)
class TensorNumbers:
    """What is in a tensor.

    Attributes:
        nans: How many numbers are NaN.
        infinite: How many are infinite.
        first: The index of the first that is not finite; None where all are.
        constant: The number that all are; None where they differ or are not finite, and for a single number.
        zero_rows: How many rows (along the first dimension) are zero; 0 for a tensor of fewer than two dimensions.
        rows: How many rows it has.
    """

    nans: int
    infinite: int
    first: tuple[int, ...] | None
    constant: float | None
    zero_rows: int
    rows: int


def unread(tensor: Tensor) -> str:
    """Why a tensor is not looked at; empty if it is."""
    if tensor.layout != torch.strided or tensor.is_quantized:
        return "it is sparse or quantized"
    if tensor.is_meta:
        return "it has no numbers"
    if tensor.numel() * tensor.element_size() > tensor.untyped_storage().nbytes():
        return "it repeats the numbers that the file holds"
    return ""


@torch.no_grad()
def read_numbers(tensor: Tensor) -> TensorNumbers:
    """Read a strided floating-point or complex tensor that is not empty."""
    nans = infinite = done = 0
    first: int | None = None
    low, high = float("inf"), float("-inf")
    rows = len(tensor) if tensor.dim() > 1 else 1
    used = torch.zeros(rows, dtype=torch.bool)
    for start, part in _parts(tensor):
        finite = part.isfinite()
        if not bool(finite.all()):
            bad = ~finite
            nans += int(part.isnan().sum())
            infinite += int(part.isinf().sum())
            first = done + int(bad.flatten().nonzero()[0]) if first is None else first
        low, high = min(low, float(part.min())), max(high, float(part.max()))
        used[start : start + len(part)] |= (part != 0).any(-1)
        done += part.numel()
    sound = not nans and not infinite and tensor.numel() > 1 and not tensor.is_complex()
    constant = low if sound and low == high else None
    index = None if first is None else _index(first, tensor.shape)
    return TensorNumbers(nans, infinite, index, constant, int((~used).sum()) if tensor.dim() > 1 else 0, rows)


def _parts(tensor: Tensor) -> Iterator[tuple[int, Tensor]]:
    """Rows of a tensor as matrices of float32 or float64, each with its first row, or parts of rows longer than a chunk."""
    rows = tensor.reshape(len(tensor), -1) if tensor.dim() > 1 else tensor.reshape(1, -1)
    height = max(1, CHUNK // rows.shape[1])
    for start in range(0, len(rows), height):
        for left in range(0, rows.shape[1], CHUNK):
            part = rows[start : start + height, left : left + CHUNK]
            if part.is_complex():
                yield start, torch.view_as_real(part.to(torch.complex128)).abs().amax(-1)
            else:
                yield start, part.to(torch.float64 if part.dtype == torch.float64 else torch.float32)


def _index(place: int, shape: torch.Size) -> tuple[int, ...]:
    """The index of a number by its place in the order of memory."""
    index: list[int] = []
    for size in reversed(shape):
        place, rest = divmod(place, size)
        index.append(rest)
    return tuple(reversed(index))
