"""Whether a batch, or a sample, is that of another step or rank: hashes, without a copy and without waiting for the device."""

from __future__ import annotations

import functools
from dataclasses import dataclass
from operator import itemgetter

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.diagnostics.batches.inputs import BatchTensors, indices_of
from lightning_hooks.hooks.tensors import all_values, dense
from lightning_hooks.statistics.columns import SUM, Columns, Reduction, RowTable
from lightning_hooks.statistics.reduction import largest, paired
from lightning_hooks.statistics.tables import Tables

SAMPLE = 1024  # numbers of each tensor that are hashed, evenly spread over it
MOST_TENSORS = 8  # tensors of a batch that are hashed: the first ones
FEWEST_NUMBERS = 16  # batches with fewer numbers are not hashed: they may be alike by chance
VARIED = 32  # different numbers from which on a tensor of a batch is compared by itself: it is hardly the same twice by chance
SLOTS = 16  # hashes of a window's sampled batches that are kept: the last ones
MOST_SAMPLES, NUMBERS = 32, 128  # samples of a batch that are hashed: the first ones; numbers of each, evenly spaced in each tensor
FEWEST_OF_SAMPLE = 8  # samples of fewer numbers, or of no more different ones, may well be alike: they are not compared
FEWEST_REAL = 3  # likewise where all of them are floating-point numbers
REMEMBERED = 512  # hashes of samples of a window that later ones are compared with: the last ones
BITS = 24  # of a hash: a whole number that float32 holds too

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ODD, _MIX, _STEP = 0x9E3779B97F4A7C1, 0x2545F4914F6CDD1D, 1_000_003  # any large odd numbers


def batch_hashes(batch: BatchTensors) -> tuple[Tensor, Tensor] | None:
    """Hash a batch: the bits of its tensors, their order in the batch and the order of their numbers. No host sync.

    Returns:
        The hash of the batch, a whole number from 1 to 2 ** 24 - 1, shape ``()``, int64; 0 where all numbers of each tensor are
        equal, as in data that only stand in for some. And those of its tensors, shape ``(MOST_TENSORS,)``: 0 for all that are not
        compared by themselves. None without tensors, or with too few numbers.
    """
    tensors = [*map(itemgetter(1), batch[:MOST_TENSORS])]
    samples: list[tuple[Tensor, Tensor]] = []
    numbers = 0
    for tensor, values in zip(tensors, all_values(tensors, real=True), strict=True):
        if values.numel() and (not samples or values.device == samples[0][1].device):
            samples.append((tensor, _sample(values)))
            numbers += samples[-1][1].numel()
    if numbers < FEWEST_NUMBERS:
        return None
    first = samples[0][1][0]
    total, varies = torch.zeros_like(first), torch.zeros_like(first, dtype=torch.bool)
    alone = [torch.zeros_like(first)] * MOST_TENSORS
    for place, (tensor, bits) in enumerate(samples):
        mixed = bits * _odd_numbers(bits.numel(), bits.device)
        mixed = ((mixed ^ (mixed >> 29)) * _MIX).sum()
        total = total * _STEP + mixed
        varies = varies | (bits != bits[0]).any()
        if tensor.is_floating_point() and bits.numel() >= VARIED:
            alone[place] = torch.where((bits.sort().values.diff() != 0).sum() + 1 >= VARIED, mixed, 0)
    return torch.where(varies, ((total >> 17) & (2**BITS - 1)).clamp_min(1), 0), torch.stack(alone)


@functools.lru_cache(maxsize=32)
def _odd_numbers(count: int, device: torch.device) -> Tensor:
    return torch.arange(1, 2 * count, 2, device=device) * _ODD


def _sample(values: Tensor) -> Tensor:
    """The bits of some of a tensor's numbers as integers, shape ``(n,)``, int64."""
    count, step = values.numel(), max(1, values.numel() // SAMPLE)
    # A batch in another order of dimensions (channels last) is read as it lies in memory, without a copy.
    if values.is_contiguous() or dense(values):
        some = values.as_strided((count,), (1,))[::step].contiguous()
    else:  # such as a mask that is expanded over all queries, whose copy may be as large as the memory
        some = values[indices_of(torch.arange(0, count, step, device=values.device), values.shape)]
    return (some if some.dtype == torch.bool else some.view(_INTEGERS[some.element_size()])).to(torch.int64)


def sample_hashes(batch: BatchTensors) -> tuple[Tensor, Tensor] | None:
    """Hash the first samples of a batch, over all tensors with as many samples as the largest one. No host sync.

    Returns:
        The hashes, shape ``(samples,)``, int64, and whether the samples can be compared, shape ``()``. None where they cannot.
    """
    tensors = [*map(itemgetter(1), batch[:MOST_TENSORS])]
    largest = max(tensors, key=Tensor.numel, default=None)
    size = len(largest) if largest is not None and largest.dim() else 0
    rows: list[Tensor] = []
    for values in all_values(tensors, real=True) if size else ():
        if values.dim() and len(values) == size and (not rows or values.device == rows[0].device):
            some = values[:MOST_SAMPLES].flatten(1) if values.dim() > 1 else values[:MOST_SAMPLES, None]
            some = some[:, :: max(1, some.shape[1] // NUMBERS)]
            rows.append((some if some.dtype == torch.bool else some.view(_INTEGERS[some.element_size()])).to(torch.int64))
    bits = torch.cat(rows, 1) if rows else torch.zeros(0, 0)
    real = all(tensor.is_floating_point() for tensor in tensors)
    if bits.shape[1] < (FEWEST_REAL if real else FEWEST_OF_SAMPLE):
        return None
    mixed = bits * _odd_numbers(bits.shape[1], bits.device)
    different = (bits.flatten().sort().values.diff() != 0).sum() + 1
    return ((mixed ^ (mixed >> 29)) * _MIX).sum(1), different > FEWEST_OF_SAMPLE


def _different(values: Tensor) -> Tensor:
    return (values.sort().values.diff() != 0).sum() + 1


def last_hashes(earlier: Tensor, later: Tensor) -> Tensor:
    """The last hashes of two windows in a row, each ``(SLOTS, 2)``."""
    hashes = torch.cat((earlier, later))
    kept = hashes[hashes[:, HashColumn.HIGHEST] > 0][-SLOTS:]
    return torch.cat((kept, torch.zeros_like(earlier)))[:SLOTS]


class PairColumn(Columns):
    """What is counted of pairs of batches."""

    COMPARED = SUM
    SAME = SUM


class SampleHashColumn(Columns):
    """What is counted of samples, as :class:`BatchCounts` has it; what differs from rank to rank or window to window adds up."""

    SAMPLES = SUM
    SEEN = SUM
    COPIES = SUM
    DISTINCT = SUM


class HashColumn(Columns):
    """What is kept of the hash of a batch: the two are its largest over the ranks, and the largest of its negative."""

    HIGHEST = Reduction(largest, over_windows=paired(last_hashes))
    NEGATIVE = HIGHEST


@dataclass(frozen=True, slots=True)
class BatchCounts:
    """How often batches were the same, by a hash of a sample of their numbers; batches of one number only are not compared.

    Attributes:
        compared: Sampled batches that were compared with the batch after them.
        repeated: Those of them whose next batch was the same, or had the same numbers in a tensor that otherwise changes.
        ranks: How many ranks get data of their own; 1 where all ranks share a batch.
        rank_batches: Sampled batches that were compared over the ranks, of the window's last 16.
        same_on_ranks: Those of them that were the same on all ranks.
        different: How many of these differ from one another.
        samples: Samples that were compared with those of earlier batches of the window: the first 32 of a batch.
        seen: Those of them that are the same as one of these, in all tensors of the batch.
        copies: Those of them that are the same as one before in their own batch.
        distinct: How many samples differ from one another, of the last 512 of them and of the first batch.
    """

    compared: int = 0
    repeated: int = 0
    ranks: int = 1
    rank_batches: int = 0
    same_on_ranks: int = 0
    different: int = 0
    samples: int = 0
    seen: int = 0
    copies: int = 0
    distinct: int = 0


class BatchHashes(Tables):
    """How often a sampled batch was the same as the next one, and the last hashes, to be compared over ranks.

    A batch counts as the same too where one of its tensors of floating-point numbers is, though that tensor is not always the same:
    noise that is drawn by loader workers with equal seeds comes with other images.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._pairs, self._last = RowTable(1, device, PairColumn), RowTable(SLOTS, device, HashColumn)
        self._of_samples = RowTable(1, device, SampleHashColumn)
        super().__init__(device, pairs=self._pairs, last=self._last, samples=self._of_samples)
        self.samples: Tensor | None = None  # hashes of samples of this window
        self._next = 0
        self.before: Tensor | None = None  # the hash of the batch before, if that was sampled
        self._parts: Tensor | None = None  # the hashes of the tensors of the last batch that was hashed
        self._changing: Tensor | None = None  # which of them have been seen to change

    def add(self, batch: BatchTensors, sampled: bool) -> None:
        """Record a sampled batch, or the one after it; others are skipped."""
        if not sampled and self.before is None:
            return
        self._add_samples(batch)
        hashes, before = batch_hashes(batch), self.before
        if hashes is None:
            self.before = self._parts = None
            return
        found, parts = hashes
        self.before = found if sampled else None
        same_part = self._compare_parts(parts)
        if before is not None and before.device == found.device:
            compared = (before > 0) & (found > 0)
            self._pairs.rows[0] += torch.stack((compared, compared & ((before == found) | same_part))).to(self._pairs.rows)
        if sampled:
            self._last.rows[self._next] = torch.stack((found, -found)).to(self._last.rows)
            self._next = (self._next + 1) % SLOTS

    def _add_samples(self, batch: BatchTensors) -> None:
        found, known, column = sample_hashes(batch), self.samples, SampleHashColumn
        if found is None:
            return
        hashes, varied = found
        if known is not None and known.device == hashes.device:
            seen = torch.isin(hashes, known).sum()
            row = torch.stack((torch.full_like(seen, len(hashes)), seen, len(hashes) - _different(hashes))) * varied
            self._of_samples.rows[0, : column.DISTINCT] += row.to(self._of_samples.rows)
            hashes = torch.cat((known, hashes))[-REMEMBERED:]
        self.samples = hashes
        distinct = self._of_samples.rows[0, column.DISTINCT]
        torch.maximum(distinct, _different(hashes).to(distinct), out=distinct)

    def _compare_parts(self, parts: Tensor) -> Tensor:
        """Whether a tensor that changes at times is the same as in the last batch that was hashed, shape ``()``."""
        last, self._parts = self._parts, parts
        if last is None or self._changing is None or last.device != parts.device:
            self._changing = torch.zeros_like(parts, dtype=torch.bool)
            last = torch.zeros_like(parts)
        compared = (parts != 0) & (last != 0)
        self._changing = self._changing | (compared & (parts != last))
        return (compared & self._changing & (parts == last)).any()

    @override
    def unpack(self, packed: Tensor) -> None:
        super().unpack(packed)
        self._next = int((self._last.rows[:, HashColumn.HIGHEST] > 0).sum()) % SLOTS

    @override
    def reset(self) -> None:
        """Start a new window. The first batch of an epoch is not compared with the last one of the epoch before."""
        super().reset()
        self._next = 0
        self.before = self._parts = self.samples = None

    def read(self, packed: Tensor, ranks: int) -> BatchCounts:
        """Name the numbers of a packed table on the host; ``ranks`` get data of their own."""
        parts = self.split(packed)
        hashed = [(high, -negative) for high, negative in self._last.lines(parts["last"]) if high > 0]
        same = [high for high, low in hashed if high == low]
        on_ranks = (len(hashed), len(same), len(set(same))) if ranks > 1 else (0, 0, 0)
        compared, repeated = map(int, parts["pairs"].tolist())
        samples, seen, copies, distinct = map(int, parts["samples"].tolist())
        return BatchCounts(compared, repeated, ranks, *on_ranks, samples, seen, copies, distinct)
