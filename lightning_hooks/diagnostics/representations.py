"""How much the outputs of a site differ from sample to sample, against how much they vary within one."""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import repeat
from operator import itemgetter
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.diagnostics.batches.inputs import BatchTensors
from lightning_hooks.hooks.tensors import float_tensors, in_memory
from lightning_hooks.statistics.columns import MAXIMUM, SUM, Columns, RowTable
from lightning_hooks.statistics.rows import fixed

MOST_SAMPLES = 8  # samples of a batch that are compared, evenly spaced
MOST_ELEMENTS = 128  # elements of a sample that are compared, on an evenly spaced grid
TINY = 1e-60  # a sample whose mean square is smaller counts as 0
# With a smaller variance within samples, of mean square 1, an output is constant but for roundings, and says nothing.
LEAST_WITHIN = 1e-9
FEWEST_SAMPLES = 4
FEWEST_ELEMENTS = 8  # with fewer of either, a site is not measured: one spread of two is by chance much smaller than the other
MOST_VIEWS = 8  # views of each sample that come in one call, at most: self-supervised learning concatenates two to eight crops


@dataclass(frozen=True, slots=True)
class RepresentationStats:
    """How much the outputs of a site differ between the samples of a batch; over the first sampled batches of a window.

    Each sample is divided by its root mean square first: samples that differ in size only count as the same, as they do for losses
    that compare directions.

    Attributes:
        calls: How often that was measured.
        ratio: Variance over the samples of a batch, over that of the elements of a sample; both are means over all calls. 0 where
            all samples of a batch give the same, about 1 where numbers are independent.
        largest_ratio: The largest of a single call.
    """

    calls: int
    ratio: float
    largest_ratio: float


class RepresentationColumn(Columns):
    """What each number of a row holds."""

    CALLS = SUM
    BETWEEN = SUM  # over calls, of the mean over elements of the variance over samples
    WITHIN = SUM  # over calls, of the mean over samples of the variance over elements; above 0 where CALLS is
    LARGEST = MAXIMUM  # BETWEEN / WITHIN of a call


class RepresentationTable(RowTable):
    """A row for each site. Some numbers of each output are copied; variances are computed for all sites at once.

    Attributes:
        size: How many samples the batch under way has; None where that is not known.
        labelled: Whether it holds one number a sample, which says that samples lie along the first dimension.
        over_samples: The modules with ``batch_first=False`` that were given samples first then, by their outputs.
    """

    columns = RepresentationColumn

    def __init__(self, names: Sequence[str], device: torch.device | str = "cpu", time_first: Collection[int] = ()) -> None:
        super().__init__(len(names), device)
        self._names, self._time_first = names, time_first
        self.size: int | None = None
        self.labelled, self.over_samples = False, dict[str, None]()
        self._waiting: dict[tuple[int, ...], tuple[list[int], list[Tensor]]] = {}

    def take(self, index: int, output: Any) -> None:
        """Record the output of a module if the samples of the batch lie along its first dimension."""
        found = output if type(output) is Tensor else next(iter(float_tensors(output)), None)
        if self.size is None or not in_memory(found) or not found.is_floating_point():
            return
        if index in self._time_first and self.labelled and found.dim() == 3 and len(found) == self.size != found.shape[1] > 1:
            self.over_samples[self._names[index]] = None
        grid = sample_grid(tuple(found.shape), self.size)
        if grid is None:
            return
        taken = found.detach()[grid].to(torch.float32, copy=True)  # a later operation may write into the output
        indices, samples = self._waiting.setdefault(tuple(taken.shape), ([], []))
        indices.append(index)
        samples.append(taken)

    def finish(self) -> None:
        """Compute the variances of the numbers that were copied. No host sync."""
        for indices, samples in self._waiting.values():
            stacked = torch.stack(samples).flatten(2).to(self.rows.device, self.rows.dtype)
            squares = stacked.square().mean(2)
            scale = squares.clamp_min(TINY).rsqrt()
            # Of samples with mean square 1 a variance is 1 minus a squared mean, exact enough in float64: these are of that size.
            size = (squares * scale.square()).mean(1)
            between = size - (scale[:, None] @ stacked).squeeze(1).div(stacked.shape[1]).square().mean(1)
            within = size - (scale * stacked.mean(2)).square().mean(1)
            usable = (between.isfinite() & (within > LEAST_WITHIN)).to(between.dtype)
            between = between.nan_to_num(0.0, 0.0, 0.0).clamp_min(0.0) * usable
            within = within.nan_to_num(0.0, 0.0, 0.0).clamp_min(0.0) * usable
            ratio = between / within.clamp_min(LEAST_WITHIN)
            found = torch.stack((usable, between, within), 1)
            lines = fixed(tuple(indices)).to(self.rows.device, non_blocking=True)
            self.rows[:, : RepresentationColumn.LARGEST].index_add_(0, lines, found)
            self.rows[:, RepresentationColumn.LARGEST].scatter_reduce_(0, lines, ratio, "amax")
        self._waiting.clear()

    @override
    def reset(self) -> None:
        super().reset()
        self._waiting.clear()

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return fields of the report."""
        named = zip(self._names, self.lines(packed), strict=True)
        stats = {name: RepresentationStats(int(n), over / within, most) for name, (n, over, within, most) in named if n}
        return {"representations": stats, "over_samples": tuple(self.over_samples)}


@functools.lru_cache(maxsize=256)
def sample_grid(shape: tuple[int, ...], batch_size: int) -> tuple[slice, ...] | None:
    """Slices, one for each dimension, that take an evenly spaced grid of an output, samples first: a view, without a copy.

    It has at most ``MOST_SAMPLES`` samples, and of these at most ``MOST_ELEMENTS`` elements. None where the samples of a batch do
    not lie along the first dimension, or there are too few to compare. Several views of each may come in one call: ``MOST_VIEWS``.
    """
    samples = shape[0] if len(shape) > 1 else 0
    enough = samples >= FEWEST_SAMPLES and math.prod(shape) >= FEWEST_ELEMENTS * samples
    if not enough or samples % batch_size or samples > MOST_VIEWS * batch_size:
        return None
    left, steps = MOST_ELEMENTS, {0: max(1, -(-shape[0] // MOST_SAMPLES))}
    inner = sorted(range(1, len(shape)), key=shape.__getitem__)
    for position, dim in enumerate(inner):  # what a small dimension does not use is left to the larger ones
        allowed = max(1, int(left ** (1 / (len(inner) - position)) + 1e-9))
        steps[dim] = max(1, -(-shape[dim] // allowed))
        left //= max(1, -(-shape[dim] // steps[dim]))
    return tuple(map(slice, repeat(None), repeat(None), map(steps.__getitem__, range(len(shape)))))


def batch_size_of(batch: BatchTensors) -> int | None:
    """The number of samples in a batch: the size of the first dimension of all its tensors; None where they differ, or are 0."""
    sizes = {*map(len, filter(Tensor.dim, map(itemgetter(1), batch)))}
    return sizes.pop() or None if len(sizes) == 1 else None
