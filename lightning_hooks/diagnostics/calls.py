"""The calls of softmax and dropout, and in which precision layers compute where half precision was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.nn.modules.conv import _ConvNd  # the classes have no public base
from typing_extensions import override

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.functional import CallTable
from lightning_hooks.declare.functional_calls import FunctionalCall, FunctionalCalls
from lightning_hooks.diagnostics.batches.inputs import BatchTensors
from lightning_hooks.hooks.attributes import in_training_mode
from lightning_hooks.hooks.functions import dropped
from lightning_hooks.hooks.tensors import plain_values, stored_tensor
from lightning_hooks.statistics.columns import MAXIMUM, SUM, Columns
from lightning_hooks.statistics.reduction import added
from lightning_hooks.statistics.tables import HostNumbers

MASKED = -9e3  # scores at or below this are masked: masks add -inf, the least number of a type, -1e9 or -1e4
COMPARED = 64  # rows and columns of a masked matrix that are compared with one another


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

    @property
    def where(self) -> str:
        """Where it drops something all the same, in words."""
        seen = f"{self.in_eval_mode} of {self.calls} calls seen in training"
        return "in validation" if self.in_validation else f"in a part of the model that is in eval mode ({seen})"


class CallColumn(Columns):
    """What each number of a row holds."""

    SOFTMAX = SUM  # calls
    OVER_BATCH = SUM
    AGAINST_MASK = SUM
    DROPOUT = SUM  # calls
    IN_EVAL_MODE = SUM
    IN_VALIDATION = SUM
    P = MAXIMUM


class CheckedCalls(CallTable):
    """The calls of softmax and of dropout."""

    columns = CallColumn
    functions: ClassVar[tuple[str, ...]] = ("softmax", "log_softmax", "dropout", "sdpa")

    def __init__(self, functional: FunctionalCalls, context: Context) -> None:
        super().__init__(functional, functional.capacity, context.host.setup.device)
        self._samples: int | None = None
        context.on_call(("softmax", "log_softmax"), self._softmax, layers=True)
        context.on_call(("dropout", "sdpa"), self._dropout, layers=True)
        context.on_call(("dropout", "sdpa"), partial(self._dropout, in_validation=True), in_validation=True)

    def batch_start(self, batch: BatchTensors, size: int | None) -> None:
        """A sampled batch starts, of so many samples."""
        self._samples = None
        for _, tensor in batch if size else ():
            if tensor.numel() == size and tensor.dim() and tensor.shape[0] == size:  # one number each, as targets have
                self._samples = size

    def _softmax(self, call: FunctionalCall) -> None:
        given, index = call.arguments.get("input"), self.index_of(call)
        if index is not None and isinstance(given, Tensor):
            self.softmax(index, plain_values(given), call.arguments.get("dim"), self._samples)

    def softmax(self, index: int, values: Tensor, dim: int | None, samples: int | None) -> None:
        """Record a call of softmax. No host sync.

        ``dim`` is None for the one that PyTorch chooses, ``samples`` the size of a batch whose samples have a target each.
        """
        if not values.dim() or not values.is_floating_point():
            return
        along = (0 if values.dim() in (1, 3) else 1) if dim is None else dim % values.dim()
        row = self.host_row(index)
        row[CallColumn.SOFTMAX] += 1
        row[CallColumn.OVER_BATCH] += is_over_batch(values, along, samples)
        if values.dim() > 1 and along != values.dim() - 1 and values.numel():
            self.rows[index, CallColumn.AGAINST_MASK] += is_against_mask(values, along)

    def _dropout(self, call: FunctionalCall, in_validation: bool = False) -> None:
        p, training, index = dropped(call.function, call.arguments), in_training_mode(call.module), self.index_of(call)
        if index is not None and not (in_validation and (training or not p)):
            self.dropout(index, p, training, in_validation)

    def dropout(self, index: int, p: float, training: bool, in_validation: bool = False) -> None:
        """Record a call that drops a share, by a module in training mode or not.

        In validation only what a module in eval mode drops is recorded.
        """
        row = self.host_row(index)
        row[CallColumn.DROPOUT] += not in_validation
        row[CallColumn.IN_EVAL_MODE] += p > 0 and not training and not in_validation
        row[CallColumn.IN_VALIDATION] += in_validation
        row[CallColumn.P] = max(row[CallColumn.P], p)

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return fields of the report."""
        lines, counts, drops = [*self.named_lines(packed)], CallColumn.DROPOUT, CallColumn.P
        softmax = {name: SoftmaxUse(*map(int, row[:counts])) for name, row in lines if row[CallColumn.SOFTMAX]}
        dropout = {name: DropoutUse(row[drops], *map(int, row[counts:drops])) for name, row in lines if row[drops] > 0}
        return {"softmax": softmax, "dropout": dropout}


def is_over_batch(values: Tensor, dim: int, samples: int | None) -> bool:
    """Whether a softmax along a dimension, from 0, normalises over the samples of a batch, where its size is known.

    Similarities of all samples with all others, and numbers of which each sample has one, are meant to be.
    """
    if dim or samples is None or samples < 2 or values.dim() < 2 or values.shape[0] != samples:
        return False
    return values.numel() > samples and values.shape[1] != samples


def is_against_mask(values: Tensor, dim: int) -> Tensor:
    """Whether the mask in the scores of an attention is made for another dimension than the softmax's, which is not the last.

    Of one sample, at most 64 lines each way are compared. A mask of keys hides a key from all queries, a causal one the keys that
    come after a query. Along the queries the first is a line without any score, the second leaves only the queries that come
    later.
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


# Precisions under which linear and convolution layers compute in half precision.
HALF_PRECISION = ("bf16-mixed", "16-mixed", "bf16-true", "16-true")


class PrecisionTable(HostNumbers):
    """Counts the calls of linear and convolution layers and those in full precision, on the host: a tensor's type is known there.

    Attributes:
        calls: By the place of a layer, how often it was called, and how often in full precision.
    """

    def __init__(self, sites: Sequence[tuple[str, nn.Module]], asked: str) -> None:
        self._asked = asked
        self._layers = {
            index: (name, weight.numel())
            for index, (name, module) in enumerate(sites)
            if asked in HALF_PRECISION and isinstance(module, nn.Linear | _ConvNd)
            if (weight := stored_tensor(module, "weight")) is not None
        }
        super().__init__(lambda: [count for counts in self.calls.values() for count in counts], added, load=self._load_calls)
        self.reset()

    def take(self, index: int, output: Any) -> None:
        """Record the output of a module."""
        counts = self.calls.get(index)
        if counts is not None and isinstance(output, Tensor):
            counts[0] += 1
            counts[1] += output.dtype in (torch.float32, torch.float64)

    def _load_calls(self, counts: list[float]) -> None:
        self.calls = {index: counts[2 * line : 2 * line + 2] for line, index in enumerate(self._layers)}

    @override
    def reset(self) -> None:
        self.calls = {index: [0.0, 0.0] for index in self._layers}

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return fields of the report; None where no layer was called."""
        rows = packed.view(-1, 2).tolist()
        called = [
            (name, size, full / calls) for (name, size), (calls, full) in zip(self._layers.values(), rows, strict=True) if calls
        ]
        total = sum(size for _, size, _ in called)
        if not total:
            return {"precision": None}
        share = sum(size * full for _, size, full in called) / total
        full_layers = tuple(name for name, _, full in called if full)
        return {"precision": PrecisionStats(self._asked, share, full_layers, len(called))}
