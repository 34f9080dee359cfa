"""Rows of numbers about calls, some counted on the device and some known on the host, as one vector that merges.

One of them is in which precision matrix products run, where half precision was asked for.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd  # the classes have no public base
from typing_extensions import override

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.functional import Functional, FunctionalCall
from lightning_hooks.diagnostics.batches.inputs import tensors_in
from lightning_hooks.hooks.attributes import in_training_mode
from lightning_hooks.hooks.functions import dropped
from lightning_hooks.hooks.tensors import plain_values, stored_tensor
from lightning_hooks.statistics.columns import MAXIMUM, SUM, Columns, RowTable
from lightning_hooks.statistics.reduction import added
from lightning_hooks.statistics.tables import HostNumbers


class CallRows(RowTable):
    """A row for each site of a call.

    Args:
        n_rows: How many there can be.
        device: Where the rows live.

    Attributes:
        rows: What is counted on the device.
    """

    def __init__(self, n_rows: int, device: torch.device | str = "cpu") -> None:
        super().__init__(n_rows, device)
        self._known: dict[int, list[float]] = {}  # what the host knows of the window; of few sites, and cheaper than a tensor

    def row(self, index: int) -> list[float]:
        """What the host knows of a site, to be changed in place."""
        return self._known.setdefault(index, [0.0] * self.rows.shape[1])

    @override
    def pack(self) -> Tensor:
        known = torch.zeros(self.rows.shape, dtype=self.rows.dtype)
        for index, row in self._known.items():
            known[index] = torch.tensor(row, dtype=known.dtype)
        return (self.rows + known.to(self.rows.device, non_blocking=True)).flatten()

    @override
    def unpack(self, packed: Tensor) -> None:
        self._known = {index: row for index, row in enumerate(self.lines(packed)) if any(row)}
        self.rows.zero_()

    @override
    def reset(self) -> None:
        super().reset()
        self._known.clear()


MASKED = -9e3
"""Scores at or below this are masked: masks add -inf, the least number of a type, -1e9 or -1e4."""
COMPARED = 64
"""Rows and columns of a masked matrix that are compared with one another."""


@dataclass(frozen=True, slots=True)
class SoftmaxUse:
    """The calls of one softmax in the sampled batches of a window.

    Attributes:
        calls: How often it was called.
        over_batch: Calls that normalise over the samples of the batch.
        against_mask: Calls along a dimension in which the mask hides whole lines, or all but what comes later.
    """

    calls: int
    over_batch: int
    against_mask: int


@dataclass(frozen=True, slots=True)
class DropoutUse:
    """The calls of one dropout, or of an attention with dropout.

    Attributes:
        p: The largest share that it drops.
        calls: Calls in the sampled training batches of a window.
        in_eval_mode: Those of them, made by a module in eval mode, that dropped something.
        in_validation: Such calls in the first batch of each validation of the window.
    """

    p: float
    calls: int
    in_eval_mode: int
    in_validation: int


class CallColumn(Columns):
    """What each number of a row holds."""

    SOFTMAX = SUM  # calls
    OVER_BATCH = SUM
    AGAINST_MASK = SUM
    DROPOUT = SUM  # calls
    IN_EVAL_MODE = SUM
    IN_VALIDATION = SUM
    P = MAXIMUM


class CallChecks(CallRows):
    """A row for each site of a call.

    Args:
        n_rows: How many there can be.
        device: Where the rows live.
    """

    columns: ClassVar[type[Columns]] = CallColumn

    def softmax(self, index: int, values: Tensor, dim: int | None, samples: int | None) -> None:
        """Record a call of softmax. No host sync.

        Args:
            index: Of its site.
            values: Its input.
            dim: Along which dimension; None for the one that PyTorch chooses.
            samples: The size of the batch, where every sample is known to have a target of its own; else None.
        """
        if not values.dim() or not values.is_floating_point():
            return
        along = (0 if values.dim() in (0, 1, 3) else 1) if dim is None else dim % values.dim()
        row = self.row(index)
        row[CallColumn.SOFTMAX] += 1
        row[CallColumn.OVER_BATCH] += is_over_batch(values, along, samples)
        if values.dim() > 1 and along != values.dim() - 1 and values.numel():
            self.rows[index, CallColumn.AGAINST_MASK] += is_against_mask(values, along)

    def dropout(self, index: int, p: float, training: bool) -> None:
        """Record a call in training.

        Args:
            index: Of its site.
            p: The share that it drops; 0 where it drops nothing.
            training: Whether the module that makes it is in training mode.
        """
        row = self.row(index)
        row[CallColumn.DROPOUT] += 1
        row[CallColumn.IN_EVAL_MODE] += p > 0 and not training
        row[CallColumn.P] = max(row[CallColumn.P], p)

    def dropout_in_validation(self, index: int, p: float) -> None:
        """Record a call in validation that drops something, made by a module in eval mode.

        Args:
            index: Of its site.
            p: The share that it drops.
        """
        row = self.row(index)
        row[CallColumn.IN_VALIDATION] += 1
        row[CallColumn.P] = max(row[CallColumn.P], p)


class CheckedCalls(CallChecks):
    """The calls of softmax and of dropout.

    Args:
        functional: The calls of the run.
        context: Of the collector.
    """

    def __init__(self, functional: Functional, context: Context) -> None:
        super().__init__(functional.capacity, context.host.setup.device)
        self._functional = functional
        self._samples: int | None = None
        context.on_call(("softmax", "log_softmax"), self._softmax, layers=True)
        context.on_call(("dropout", "sdpa"), self._dropout, layers=True)
        context.on_call(("dropout", "sdpa"), self._in_validation, in_validation=True)

    def batch_start(self, batch: Any, size: int | None) -> None:
        """A sampled batch starts, of so many samples."""
        self._samples = size if size and any(_one_per_sample(tensor, size) for _, tensor in tensors_in(batch)) else None

    def _softmax(self, call: FunctionalCall) -> None:
        given = call.arguments.get("input")
        if isinstance(given, Tensor):
            self.softmax(call.site.index, plain_values(given), call.arguments.get("dim"), self._samples)

    def _dropout(self, call: FunctionalCall) -> None:
        self.dropout(call.site.index, dropped(call.function, call.arguments), in_training_mode(call.module))

    def _in_validation(self, call: FunctionalCall) -> None:
        p = dropped(call.function, call.arguments)
        if p and not in_training_mode(call.module):
            self.dropout_in_validation(call.site.index, p)

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return fields of the report."""
        softmax, dropout = {}, {}
        for site, row in zip(self._functional.sites, self.lines(packed), strict=False):
            if (use := softmax_use(row)) is not None:
                softmax[site.name] = use
            if (dropped := dropout_use(row)) is not None:
                dropout[site.name] = dropped
        return {"softmax": softmax, "dropout": dropout}

    def renumbered(self) -> None:
        """Ranks have changed the numbers of the sites."""
        self.reset()


def _one_per_sample(tensor: Tensor, size: int) -> bool:
    """Whether a tensor of a batch holds one number for each of its samples, as targets do."""
    return tensor.numel() == size == tensor.shape[0] if tensor.dim() else False


def softmax_use(row: list[float]) -> SoftmaxUse | None:
    """Name the numbers of a row, if softmax was called there."""
    calls = int(row[CallColumn.SOFTMAX])
    return SoftmaxUse(calls, int(row[CallColumn.OVER_BATCH]), int(row[CallColumn.AGAINST_MASK])) if calls else None


def dropout_use(row: list[float]) -> DropoutUse | None:
    """Name the numbers of a row, if something was to be dropped there."""
    counts = [int(number) for number in row[CallColumn.DROPOUT : CallColumn.P]]
    return DropoutUse(row[CallColumn.P], *counts) if row[CallColumn.P] > 0 else None


def is_over_batch(values: Tensor, dim: int, samples: int | None) -> bool:
    """Whether a softmax normalises over the samples of a batch.

    Similarities of all samples with all others, and numbers of which each sample has one, are meant to be.

    Args:
        values: The input of the softmax.
        dim: Along which dimension, from 0.
        samples: The size of the batch; None where that is not known.
    """
    if dim or samples is None or samples < 2 or values.dim() < 2 or values.shape[0] != samples:
        return False
    return values.numel() > samples and values.shape[1] != samples


def is_against_mask(values: Tensor, dim: int) -> Tensor:
    """Whether the mask in the scores of an attention is made for another dimension than the softmax's, shape ``()``.

    Of one sample, at most 64 lines each way are compared. A mask of keys hides a key from all queries, a causal one the keys that
    come after a query. Along the queries the first is a line without any score, the second leaves only the queries that come
    later.

    Args:
        values: The input of the softmax, of two dimensions or more.
        dim: Along which dimension, from 0; not the last.
    """
    first = tuple(slice(None) if place in (dim, values.dim() - 1) else 0 for place in range(values.dim()))
    hidden = values[first] <= MASKED
    rows, columns = hidden.shape
    square = rows == columns and rows > 2
    backward = hidden[0, 1:].all() & ~(hidden[:, 0].any() | hidden[-1].any()) if square else hidden.new_zeros(())
    some = hidden[:: -(-rows // COMPARED), :: -(-columns // COMPARED)]
    return backward | (some.all(0).any() & ~some.all(1).any())


@dataclass(frozen=True, slots=True)
class PrecisionStats:
    """The outputs of linear and convolution layers under a precision that computes these in half precision.

    Attributes:
        asked: The precision asked for, such as ``bf16-mixed``.
        full_share: Share of the numbers in the weights of the layers called whose outputs were in float32 or float64, in [0, 1].
        full: These layers, in the order of the model.
        layers: How many layers were called.
    """

    asked: str
    full_share: float
    full: tuple[str, ...]
    layers: int


HALF_PRECISION = ("bf16-mixed", "16-mixed", "bf16-true", "16-true")
"""Precisions under which linear and convolution layers compute in half precision."""


class PrecisionTable(HostNumbers):
    """Counts the calls of linear and convolution layers and those in full precision, on the host: a tensor's type is known there.

    Args:
        sites: (name, module) of all modules; those of other kinds are left out.
        asked: The precision asked for.
    """

    def __init__(self, sites: Sequence[tuple[str, nn.Module]], asked: str) -> None:
        self._asked = asked
        layers = {
            index: (name, weight.numel())
            for index, (name, module) in enumerate(sites)
            if asked in HALF_PRECISION and (weight := _multiplied(module)) is not None
        }
        self._lines = {index: line for line, index in enumerate(layers)}
        self._layers = list(layers.values())
        super().__init__(lambda: [count for line in self._calls for count in line], added, load=self._load_calls)
        self.reset()

    def take(self, index: int, output: Any) -> None:
        """Record the output of a module."""
        line = self._lines.get(index)
        if line is not None and isinstance(output, Tensor):
            self._calls[line][0] += 1
            self._calls[line][1] += output.dtype in (torch.float32, torch.float64)

    def _load_calls(self, counts: list[float]) -> None:
        self._calls = [counts[place : place + 2] for place in range(0, len(counts), 2)]

    @override
    def reset(self) -> None:
        self._calls = [[0.0, 0.0] for _ in self._layers]

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return fields of the report; None where no layer was called."""
        rows = packed.view(-1, 2).tolist()
        called = [(name, size, full / calls) for (name, size), (calls, full) in zip(self._layers, rows, strict=True) if calls]
        total = sum(size for _, size, _ in called)
        if not total:
            return {"precision": None}
        share = sum(size * full for _, size, full in called) / total
        full_layers = tuple(name for name, _, full in called if full)
        return {"precision": PrecisionStats(self._asked, share, full_layers, len(called))}


def _multiplied(module: nn.Module) -> Tensor | None:
    """What a linear or convolution layer multiplies with."""
    return stored_tensor(module, "weight") if isinstance(module, nn.Linear | _ConvNd) else None
