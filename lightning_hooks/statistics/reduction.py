"""Packed tables of several ranks, or of several windows, merged by three reductions of fixed size: a maximum and two sums.

How each number of a table merges is a :data:`Merge`, written once: over ranks its reductions are collectives, in one process they
run over the tables that are there. What is sent does not grow with the number of ranks.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Generator, Sequence
from dataclasses import dataclass
from typing import Any, Literal, TypeVar

import torch
import torch.distributed
from torch import Tensor

T = TypeVar("T")
Numbers = TypeVar("Numbers", float, Tensor)
Reduction = Literal["max", "sum"]

# In this order: a second sum can use the result of the first, as that of squared deviations does the mean.
REDUCTIONS: tuple[Reduction, ...] = ("max", "sum", "sum")

AllReduce = Callable[[Tensor, Reduction], Any]  # replaces a tensor by the maximum or the sum of those of all ranks, in place

# Yields what goes into the first, second and third of REDUCTIONS, gets the result of each, and returns the merged numbers.
Merging = Generator[Tensor, Tensor, Tensor]


@dataclass(frozen=True, slots=True)
class TableIndex:
    """Which table this is: that of the first rank, or of the first window, has number 0."""

    number: int
    count: int


# Merges one table's numbers with those of the others; they have the same shape in each.
Merge = Callable[[Tensor, TableIndex], Merging]


@dataclass(frozen=True, slots=True)
class Span:
    """Consecutive numbers of a packed table that merge alike."""

    length: int  # how many, along the last dimension; ``REST`` for what the others leave
    over_ranks: Merge  # how those of several ranks merge
    over_windows: Merge | None = None  # how those of consecutive windows merge; None for the same way


REST = -1  # the length of one span of a table: what the others leave

Spans = tuple[Span, ...]  # the spans of a packed table, in order


# How numbers merge.


def largest(own: Tensor, _among: TableIndex) -> Merging:
    """The largest of each number."""
    found = yield own
    yield _nothing(own)
    yield _nothing(own)
    return found


def smallest(own: Tensor, among: TableIndex) -> Merging:
    """The smallest of each number."""
    return -(yield from largest(-own, among))


def added(own: Tensor, _among: TableIndex) -> Merging:
    """The sum of each number."""
    yield _nothing(own)
    found = yield own
    yield _nothing(own)
    return found


def of_largest(own: Tensor, _among: TableIndex) -> Merging:
    """Rows, ``(…, columns)``, of the table whose first number is the largest; the mean of several that have it."""
    highest = yield own[..., 0]
    has_it = (own[..., 0] == highest)[..., None]
    found = yield torch.cat((torch.where(has_it, own, 0), has_it.to(own.dtype)), -1)
    yield _nothing(own)
    return found[..., :-1] / found[..., -1:]


def latest(own: Tensor, among: TableIndex) -> Merging:
    """The numbers of the last table."""
    return (yield from added(own if among.number == among.count - 1 else torch.zeros_like(own), among))


def moved(count: Numbers, by: Numbers, sums: Sequence[Numbers]) -> list[Numbers]:
    """Take sums of powers of deviations from another centre.

    After Pébay, "Formulas for robust, one-pass parallel computation of covariances and arbitrary-order statistical moments" (2008):
    ``Σ (x - c)^p = Σ_k C(p, k) (mean - c)^k Σ (x - mean)^(p - k)``.

    Args:
        count: How many values each table has; numbers or tensors.
        by: How far their mean lies above the new centre.
        sums: Their sums of squared deviations from their mean; then of third powers, and so on.

    Returns:
        The same sums of deviations from the new centre.
    """
    moved_sums = []
    for power, own in enumerate(sums, start=2):
        found = own + count * by**power
        for k in range(1, power - 1):
            found = found + math.comb(power, k) * by**k * sums[power - k - 2]
        moved_sums.append(found)
    return moved_sums


def pool(count: Tensor, mean: Tensor, *sums: Tensor) -> tuple[Tensor, ...]:
    """Pool counts, means and sums of powers of deviations along the first dimension.

    By the k-way form of the pairwise update of Chan, Golub and LeVeque, "Updating formulae and a pairwise algorithm for computing
    sample variances" (1979), and of its extension to higher powers by Pébay (2008), which do not cancel.

    Args:
        count: How many values each has, ``(k, …)``.
        mean: Their means.
        sums: Their sums of squared deviations from it; then of third powers, and so on.

    Returns:
        The same of all values together, ``(…)``.
    """
    total = count.sum(0)
    pooled = (count * mean).sum(0) / total.clamp(min=1)
    return total, pooled, *(each.sum(0) for each in moved(count, mean - pooled, sums))


def pooled(own: Tensor, _among: TableIndex) -> Merging:
    """What :func:`pool` does, ``(…, 3)`` up to squares: each table's deviations are moved to the common mean and then added."""
    count, mean, *sums = own.unbind(-1)
    yield _nothing(own)
    total, weighted = yield torch.stack((count, count * mean))
    common = weighted / total.clamp(min=1)
    powers = yield torch.stack(moved(count, mean - common, sums))
    return torch.stack((total, common, *powers), -1)


def flagged(own: Tensor, among: TableIndex) -> Merging:
    """1 where a number is not 0 in any table, 0 elsewhere: several counts of tables are added in one float, exactly."""
    bits, n = among.count.bit_length(), own.shape[-1]
    each = (52 if own.dtype == torch.float64 else 23) // bits
    shifts = bits * torch.arange(each, device=own.device)
    padded = torch.nn.functional.pad((own != 0).to(torch.int64), (0, -n % each))
    yield _nothing(own)
    counts = yield (_rows(padded, each) << shifts).sum(-1).to(own.dtype)
    yield _nothing(own)
    found = (counts.to(torch.int64)[..., None] >> shifts) & ((1 << bits) - 1)
    return (found.flatten(-2)[..., :n] > 0).to(own.dtype)


def by_columns(columns: Sequence[tuple[Merge, Sequence[int]]], width: int | None = None) -> Merge:
    """Merge rows of which each column has its own way.

    Args:
        columns: A way and the columns that it takes together; the others are added.
        width: The number of columns, where the rows lie one behind the other along the last dimension.
    """
    taken = {column for _, some in columns for column in some}

    def merging(own: Tensor, among: TableIndex) -> Merging:
        rows = own if width is None else _rows(own, width)
        parts = [*columns, (added, [column for column in range(rows.shape[-1]) if column not in taken])]
        found = yield from together([merge(rows[..., list(some)], among) for merge, some in parts])
        merged = torch.empty_like(rows)
        for (_, some), values in zip(parts, found, strict=True):
            merged[..., list(some)] = values
        return merged.reshape(own.shape)

    return merging


def once(merge: Merge, width: int) -> Merge:
    """Rows that are the same in every table count once, others merge. Where all are the same, they are not sent.

    Args:
        merge: How the others merge.
        width: The number of columns of a row; rows lie one behind the other along the last dimension.
    """

    def merging(own: Tensor, among: TableIndex) -> Merging:
        rows = _rows(own, width)
        marks, others = _marks(rows), merge(own, among)
        sent = next(others)
        found = yield torch.cat((sent.flatten(), marks.flatten(), -marks.flatten()))
        high, low = found[sent.numel() :].view(2, *marks.shape)
        same = high == -low
        if bool(same.all()):  # as each table knows: nothing more is sent
            yield _nothing(own)
            yield _nothing(own)
            return own
        sums = yield others.send(found[: sent.numel()].view_as(sent))
        more = yield others.send(sums)
        (merged,) = _ended([others], [more])
        return torch.where(same[..., None], rows, merged.view_as(rows)).reshape(own.shape)

    return merging


def _marks(rows: Tensor) -> Tensor:
    """A number for each row by its bits: two that differ have another one, but for a chance of 2⁻⁵²."""
    bits = (rows + 0.0).view(torch.int64 if rows.dtype == torch.float64 else torch.int32).to(torch.int64)  # no -0.0
    factors = torch.arange(1, rows.shape[-1] + 1, device=rows.device) * 0x1E3779B97F4A7C15 | 1
    return ((bits * factors).sum(-1) >> 12).to(rows.dtype)


def paired(merge: Callable[[Tensor, Tensor], Tensor]) -> Merge:
    """Two windows' numbers, by a function of the earlier ones and the later ones."""

    def merging(own: Tensor, among: TableIndex) -> Merging:
        both = own.new_zeros((among.count, *own.shape))
        both[among.number] = own
        yield _nothing(own)
        both = yield both
        yield _nothing(own)
        return merge(*both)

    return merging


def together(mergings: Sequence[Merging]) -> Generator[Tensor, Tensor, list[Tensor]]:
    """Several merges that share their reductions."""
    sent = [next(merging) for merging in mergings]
    for _ in REDUCTIONS[:-1]:
        answers = _split((yield _joined(sent)), sent)
        sent = [merging.send(answer) for merging, answer in zip(mergings, answers, strict=True)]
    return _ended(mergings, _split((yield _joined(sent)), sent))


def _joined(sent: Sequence[Tensor]) -> Tensor:
    return torch.cat([tensor.reshape(-1) for tensor in sent])


def _split(reduced: Tensor, sent: Sequence[Tensor]) -> list[Tensor]:
    parts = torch.split(reduced, [tensor.numel() for tensor in sent])
    return [part.view(tensor.shape) for part, tensor in zip(parts, sent, strict=True)]


def _ended(mergings: Sequence[Generator[Tensor, Tensor, T]], answers: Sequence[Tensor]) -> list[T]:
    """What merges return for the results of the last reduction."""
    merged: list[T] = []
    for merging, answer in zip(mergings, answers, strict=True):
        try:
            merging.send(answer)
        except StopIteration as done:
            merged.append(done.value)
    return merged


def _nothing(like: Tensor) -> Tensor:
    return like.new_empty(0)


def _rows(numbers: Tensor, width: int) -> Tensor:
    return numbers.reshape(*numbers.shape[:-1], numbers.shape[-1] // width, width)


# Tables.


def _merging(spans: Spans, packed: Tensor, among: TableIndex, windows: bool = False) -> Merging:
    lengths = [span.length for span in spans]
    if REST in lengths:
        lengths[lengths.index(REST)] += packed.shape[-1] - sum(lengths)
    ways = [span.over_windows if windows and span.over_windows else span.over_ranks for span in spans]
    merged = yield from together([merge(part, among) for merge, part in zip(ways, torch.split(packed, lengths, -1), strict=True)])
    return torch.cat(merged, -1)


def merge_tables(merge: Merge, tables: Sequence[Tensor] | Tensor) -> Tensor:
    """Merge the numbers of several tables, in order, in this process."""
    mergings = [merge(table, TableIndex(number, len(tables))) for number, table in enumerate(tables)]
    sent = [next(merging) for merging in mergings]
    for reduction in REDUCTIONS[:-1]:
        reduced = _reduced(sent, reduction)
        sent = [merging.send(reduced) for merging in mergings]
    return _ended(mergings[:1], [_reduced(sent, REDUCTIONS[-1])])[0]


def merge_ranks(spans: Spans, tables: Sequence[Tensor]) -> Tensor:
    """Merge the packed tables of several ranks, in rank order, in this process."""
    return merge_tables(lambda packed, table: _merging(spans, packed, table), tables)


def merge_windows(spans: Spans, earlier: Tensor, later: Tensor) -> Tensor:
    """Merge the packed tables of two consecutive windows."""
    return merge_tables(lambda packed, table: _merging(spans, packed, table, windows=True), (earlier, later))


def _reduced(tensors: Sequence[Tensor], reduction: Reduction) -> Tensor:
    stacked = torch.stack(list(tensors))
    return stacked.amax(0) if reduction == "max" else stacked.sum(0)


def over_ranks(tables: Sequence[tuple[Spans, Tensor]], among: TableIndex, all_reduce: AllReduce) -> list[Tensor]:
    """Merge this rank's packed tables with those of the other ranks: at most three collectives for all of them.

    Args:
        tables: Each with its spans; the same ones in the same order on every rank.
        among: This rank, and how many there are.
        all_reduce: Reduces over all ranks.
    """
    merging = together([_merging(spans, packed, among) for spans, packed in tables])
    sent = next(merging)
    for turn, reduction in enumerate(REDUCTIONS, start=1):
        if sent.numel():
            all_reduce(sent, reduction)
        if turn < len(REDUCTIONS):
            sent = merging.send(sent)
    return _ended([merging], [sent])[0]


def all_ranks() -> TableIndex | None:
    """This rank among those of the process group; None where this process trains alone."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return None
    world = torch.distributed.get_world_size()
    return TableIndex(torch.distributed.get_rank(), world) if world > 1 else None


@torch.no_grad()
def merged_over_ranks(*tables: tuple[Spans, Tensor]) -> list[Tensor]:
    """The packed tables of all ranks together; as they are where this process trains alone."""
    among = all_ranks()
    return [packed for _, packed in tables] if among is None else over_ranks(tables, among, all_reduce)


def all_reduce(tensor: Tensor, reduction: Reduction) -> None:
    """Reduce a tensor over the ranks of the process group, in place."""
    torch.distributed.all_reduce(tensor, torch.distributed.ReduceOp.MAX if reduction == "max" else torch.distributed.ReduceOp.SUM)
