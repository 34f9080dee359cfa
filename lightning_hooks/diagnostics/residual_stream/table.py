"""The residual stream of a model: how large it is behind each block, in which channels, and what each block adds to it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.diagnostics.features.table import FeatureStats, feature_stats
from lightning_hooks.hooks.attributes import stored
from lightning_hooks.hooks.listener import OutputTo
from lightning_hooks.hooks.selection import clean_name, outwards, repeated_blocks
from lightning_hooks.hooks.tensors import float_tensors, in_memory, plain_values
from lightning_hooks.statistics.columns import MINIMUM_OR_NONE, SUM, Columns, Reduction, RowTable
from lightning_hooks.statistics.kernels import kernels_for
from lightning_hooks.statistics.reduction import of_largest
from lightning_hooks.statistics.rows import Clock, Column
from lightning_hooks.statistics.tables import Tables

# A number and what belongs to it; where several tables have the largest one they are the same in practice.
WITH_THE_LARGEST = Reduction(of_largest)


class StreamColumn(Columns):
    """What each number of a block's line holds. Of finite calls only."""

    CALLS = SUM
    WRITES = SUM  # values of the calls whose input is known
    CHANNEL = SUM  # over calls, of the largest mean square of a channel
    MEDIAN = SUM  # over calls, of the median one
    OUT = SUM  # of squares of the outputs whose input is known
    IN = SUM  # of squares of these inputs
    WRITTEN = SUM  # of squares of output minus input
    LARGEST = WITH_THE_LARGEST  # the largest mean square of a channel in any call
    LARGEST_CHANNEL = WITH_THE_LARGEST  # the channel that has it, plus 1
    LIMIT = MINIMUM_OR_NONE  # the largest number that the output's type holds


@dataclass(frozen=True, slots=True)
class ResidualStats:
    """The residual stream behind one block, over the sampled batches of a window, all ranks pooled.

    Attributes:
        calls: How often the block was called.
        rms: Root mean square of its output.
        largest: The largest magnitude in it.
        nonfinite_fraction: Share of its values that are NaN or infinite, in [0, 1].
        channel_rms: Root mean square of the largest channel of each call: the mean over calls is taken of the squares.
        median_channel_rms: The same of the median channel (the lower one of two).
        channel: The largest channel, from 0, in the call where it is largest; None where nothing finite was measured.
        write_ratio: RMS of output minus input over RMS of the input: what the block adds to the stream. None where the input is
            not known: passed by keyword, or changed in place.
        carried: Sum of input times output over the sum of squared inputs: 1 where the block adds something unrelated to its
            input, 0 where the output is unrelated to it, which is no residual stream. None as above.
        limit: The largest number that the type of the output holds: 65504 in float16.
        stream: What the block is one of: the name of the module that holds its siblings.
        entered_rms: Root mean square of its input; None where that is not known.
    """

    calls: int
    rms: float
    largest: float
    nonfinite_fraction: float
    channel_rms: float
    median_channel_rms: float
    channel: int | None
    write_ratio: float | None
    carried: float | None
    limit: float
    stream: str = ""
    entered_rms: float | None = None

    @property
    def channel_ratio(self) -> float:
        """RMS of the largest channel over that of the median one; NaN where the median channel is zero."""
        return self.channel_rms / self.median_channel_rms if self.median_channel_rms > 0 else math.nan


class ResidualTable(Tables):
    """Lines of the blocks of a model, on the device.

    A call counts if the block's output has the shape of its input; the input is its first floating-point argument. Channels lie
    last, in the output of blocks with convolutions second. Lines may be written with numpy: ``on_host``.
    """

    def __init__(self, blocks: Sequence[tuple[str, nn.Module]], device: torch.device | str, clock: Clock) -> None:
        self.names = [name for name, _ in blocks]
        self._convolutions = [_convolution_dims(module) for _, module in blocks]
        self._values, self._blocks = (RowTable(len(blocks), device, columns) for columns in (Column, StreamColumn))
        super().__init__(device, values=self._values, blocks=self._blocks)
        self._rows, self._lines = self._values.rows, self._blocks.rows
        self._kernels, self._clock = kernels_for(self._rows.device.type), clock
        self._limits = [math.inf] * len(blocks)  # known to the host: of the outputs' types
        self.on_host = self._rows.is_cpu

    def add(self, index: int, args: tuple[Any, ...], output: Any) -> None:
        """Record one call of a block. No host sync; no tensor is kept."""
        out, entered = next(iter(float_tensors(output)), None), next(iter(float_tensors(args)), None)
        if out is None:
            return
        values = plain_values(out)
        # what is given back in the memory that was given says nothing of before
        same = entered is out or (in_memory(entered) and in_memory(out) and entered.data_ptr() == out.data_ptr())
        before = None if entered is None or same else plain_values(entered)
        known = before if before is not None and before.numel() else None  # what was freed has no numbers
        if values.dim() >= 2 and values.numel() and (known is None or known.shape == values.shape):
            self._kernels.record(self._rows, index, values, self._clock)
            dim = 1 if values.dim() - 2 in self._convolutions[index] else values.dim() - 1
            square, totals = self._kernels.stream(values, known, dim)
            self._limits[index] = min(self._limits[index], torch.finfo(values.dtype).max)
            (self._enter_on_host if self.on_host else self._enter)(index, square, totals, values.numel())

    def _enter(self, index: int, square: Tensor, totals: Tensor | None, n: int) -> None:
        line, channels, out = self._lines[index], square / (n / len(square)), square.sum()
        largest, channel = channels.max(0)
        of_input = (torch.zeros_like(out),) * 3 if totals is None else (out, *totals.unbind())
        found = torch.stack((largest, channels.median(), *of_input))
        finite = torch.isfinite(found).all()
        found = torch.where(finite, found, 0)
        line[StreamColumn.CALLS] += finite
        line[StreamColumn.WRITES] += finite * (0 if totals is None else n)
        line[StreamColumn.CHANNEL : StreamColumn.LARGEST] += found
        pair = line[StreamColumn.LARGEST : StreamColumn.LIMIT]
        pair.copy_(torch.where(found[0] > pair[0], torch.stack((found[0], channel + 1)), pair))

    def _enter_on_host(self, index: int, square: Tensor, totals: Tensor | None, n: int) -> None:
        """The same in CPU memory, where numpy's calls are cheaper."""
        line, squares = self._lines.numpy()[index], square.numpy()
        channel, middle = int(squares.argmax()), (len(squares) - 1) // 2
        each = len(squares) / n
        largest, median = each * float(squares[channel]), each * float(np.partition(squares, middle)[middle])
        known = () if totals is None else (float(squares.sum()), *totals.tolist())
        if not all(map(math.isfinite, (largest, median, *known))):
            return
        line[: StreamColumn.OUT] += (1, n if known else 0, largest, median)
        if known:
            line[StreamColumn.OUT : StreamColumn.LARGEST] += known
        if largest > line[StreamColumn.LARGEST]:
            line[StreamColumn.LARGEST : StreamColumn.LIMIT] = (largest, channel + 1)

    @override
    def pack(self) -> Tensor:
        limits = torch.tensor(self._limits, dtype=self._lines.dtype).to(self._lines.device, non_blocking=True)
        self._lines[:, StreamColumn.LIMIT] = torch.minimum(self._lines[:, StreamColumn.LIMIT], limits)
        return super().pack()

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return the field ``residual`` of a report, of a packed table on the host: the blocks that were called, in order."""
        parts = self.split(packed)
        lines = zip(self.names, self._values.lines(parts["values"]), self._blocks.lines(parts["blocks"]), strict=True)
        called = [(name, feature_stats(row), line) for name, row, line in lines if row[Column.CALLS]]
        return {"residual": {name: _stats(row, line, name.rpartition(".")[0]) for name, row, line in called}}

    @override
    def reset(self) -> None:
        super().reset()
        self._limits = [math.inf] * len(self.names)


def _stats(row: FeatureStats, line: Sequence[float], stream: str) -> ResidualStats:
    calls, entered = line[StreamColumn.CALLS], line[StreamColumn.IN]
    out, written = line[StreamColumn.OUT], line[StreamColumn.WRITTEN]
    return ResidualStats(
        calls=row.calls,
        rms=row.rms,
        largest=max(abs(row.min), abs(row.max)),
        nonfinite_fraction=row.nonfinite_fraction,
        channel_rms=math.sqrt(line[StreamColumn.CHANNEL] / calls) if calls else math.nan,
        median_channel_rms=math.sqrt(line[StreamColumn.MEDIAN] / calls) if calls else math.nan,
        channel=int(line[StreamColumn.LARGEST_CHANNEL]) - 1 if line[StreamColumn.LARGEST_CHANNEL] else None,
        write_ratio=math.sqrt(written / entered) if entered > 0 else None,
        carried=(out + entered - written) / (2 * entered) if entered > 0 else None,
        limit=line[StreamColumn.LIMIT],
        stream=stream,
        entered_rms=math.sqrt(entered / line[StreamColumn.WRITES]) if entered > 0 else None,
    )


def _convolution_dims(block: nn.Module) -> tuple[int, ...]:
    """In how many dimensions the convolutions of a block run, where its channels lie second.

    In one dimension they do so only without linear layers: a state-space model moves its channels to the end again.
    """
    linear = any(isinstance(inner, nn.Linear) for inner in block.modules())
    kernels = (stored(inner, "kernel_size") for inner in block.modules() if isinstance(inner, nn.modules.conv._ConvNd))
    found = {len(kernel) for kernel in kernels if isinstance(kernel, tuple)}
    return tuple(dims for dims in found if dims > 1 or not linear)


def blocks_around(model: nn.Module, sites: Sequence[tuple[str, nn.Module]]) -> list[tuple[str, nn.Module]]:
    """The blocks that a model is a stack of, as far as one of the sites that are observed is in them."""
    around = {outer for name, _ in sites for outer in outwards(clean_name(name))}
    return [(name, block) for name, block in repeated_blocks(model) if name in around]


class BlockRecorder(OutputTo):
    """Forward hook of one block: gives what it was called with and what it put out to a function, behind its number."""

    reads_input = True

    def __call__(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        """Record a call."""
        self.record(self.index, args, output)
