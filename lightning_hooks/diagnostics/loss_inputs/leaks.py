"""Targets of losses that the model is given: as a column of its input, or as the tokens at the same positions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.functional import CallTable
from lightning_hooks.declare.functional_calls import FunctionalCall, FunctionalCalls
from lightning_hooks.diagnostics.loss_inputs.predictions import CLASSIFICATION, MOST_LOSSES
from lightning_hooks.hooks.functions import BINARY, REGRESSION
from lightning_hooks.hooks.tensors import in_memory, plain_values
from lightning_hooks.statistics.columns import MAXIMUM, SUM, Columns, row_dtype

FEWEST_SAMPLES = 8  # with fewer samples in a batch a column may be as the target by chance
ROUNDING = 1e-6  # how far the squared correlation with a column may be below 1
MOST_COLUMNS = 1024  # inputs of more numbers a sample are not searched
MOST_TOKENS = 4  # inputs of tokens that are kept, as of an encoder and of a decoder


@dataclass(frozen=True, slots=True)
class TargetCopies:
    """Whether the targets of one loss stand in what the first module is given, in the first sampled batches of a window.

    Attributes:
        calls: Calls with one target a sample, not all the same, and an input of several numbers a sample.
        in_column: Those of them in which a column of the input is the target, but for its mean and its unit.
        token_calls: Calls with as many labels as an embedding is given tokens, not all the same.
        as_tokens: Those of them whose labels are the tokens at the same positions, but for those that are ignored.
        targets: Targets of all these calls.
        column: The place of such a column among the numbers of a sample; the largest of several.
        site: The module that is given the input.
        two_ahead: Of the calls with tokens those whose labels are the tokens two places ahead, but for those that are ignored.
    """

    calls: int
    in_column: int
    token_calls: int
    as_tokens: int
    targets: int
    column: int
    site: str = ""
    two_ahead: int = 0


class CopyColumn(Columns):
    """What each number of a row holds, as :class:`TargetCopies` has them."""

    CALLS = SUM
    IN_COLUMN = SUM
    TOKEN_CALLS = SUM
    AS_TOKENS = SUM
    TARGETS = SUM
    TWO_AHEAD = SUM
    COLUMN = MAXIMUM
    SITE = MAXIMUM  # the place of the module, from 1


class TargetCopyTable(CallTable):
    """Compares the target of each loss with what the first modules are given, data and tokens.

    Attributes:
        held: What they are given in the batch under way, each with the module's place: one ``table``, and tokens.
    """

    columns = CopyColumn
    functions: ClassVar[tuple[str, ...]] = (*CLASSIFICATION, *BINARY, *REGRESSION)

    def __init__(self, functional: FunctionalCalls, context: Context, sites: Sequence[str]) -> None:
        super().__init__(functional, MOST_LOSSES, context.host.setup.device)
        self._names = sites
        self.held: dict[str, tuple[int, Tensor]] = {}
        context.on_call(self.functions, self._record)

    def given(self, site: int, args: Sequence[Any]) -> None:
        """Keep what the first module is given that holds data: numbers without a gradient, a few of each sample, or tokens."""
        value = args[0] if args else None
        if not in_memory(value) or value.requires_grad or value.dim() < 2:
            return
        if value.is_floating_point():
            if "table" not in self.held and is_table(value):
                self.held["table"] = site, value
        elif value.dtype == torch.int64 and value.dim() == 2 and len(self.held) <= MOST_TOKENS:
            self.held.setdefault(f"tokens {value.data_ptr()} {value.numel()}", (site, value))

    def _record(self, call: FunctionalCall) -> None:
        given, index = call.arguments.get("target"), self.index_of(call)
        if index is None or not in_memory(given) or given.requires_grad:
            return
        target, ignored = plain_values(given), call.arguments.get("ignore_index", -100)
        table = self.held.get("table")
        if table is not None and target.numel() == len(table[1]) == len(target):
            self._count(index, CopyColumn.CALLS, target, *_in_column(plain_values(table[1]), target))
            row = self.host_row(index)
            row[CopyColumn.SITE] = max(row[CopyColumn.SITE], table[0] + 1)
        elif self.held and not target.is_floating_point():
            kept = [own for name, (_, own) in self.held.items() if name != "table"]
            others = [plain_values(own) for own in kept if own.numel() == target.numel()]
            if others:
                self._count(index, CopyColumn.TOKEN_CALLS, target, *_as_tokens(others, target, ignored))
                self.rows[index, CopyColumn.TWO_AHEAD] += _two_ahead(others, target, ignored).to(self.rows)

    def _count(self, index: int, column: CopyColumn, target: Tensor, varied: Tensor, copied: Tensor, place: Tensor) -> None:
        self.host_row(index)[CopyColumn.TARGETS] += target.numel()
        self.rows[index, column : column + 2] += torch.stack((varied, copied)).to(self.rows)
        of_row = self.rows[index, CopyColumn.COLUMN]
        torch.maximum(of_row, place.to(of_row), out=of_row)

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return fields of the report."""
        found = {}
        for name, row in self.named_lines(packed):
            calls, in_column, token_calls, as_tokens, targets, two_ahead, column, site = map(int, row)
            if in_column or as_tokens or two_ahead:
                module = self._names[site - 1] if site else ""
                found[name] = TargetCopies(calls, in_column, token_calls, as_tokens, targets, column, module, two_ahead)
        return {"copies": found}


def is_table(tensor: Tensor) -> bool:
    """Whether a tensor holds several numbers of each of its samples, few enough to be searched."""
    return len(tensor) >= FEWEST_SAMPLES and len(tensor) < tensor.numel() <= MOST_COLUMNS * len(tensor)


def _in_column(table: Tensor, target: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Whether targets differ, whether a column is the target but for units, and which one, from 0; no host sync."""
    dtype = row_dtype(table.device)
    columns, targets = table.flatten(1).to(dtype), target.reshape(-1).to(table.device, dtype)
    columns, targets = columns - columns.mean(0), targets - targets.mean()
    correlation = (targets @ columns).square() / (columns.square().sum(0) * targets.square().sum())  # squared; NaN of constants
    equal, varied = correlation >= 1 - ROUNDING, targets.abs().amax() > 0
    found = varied & equal.any()
    return varied, found, equal.to(torch.uint8).argmax() * found


def _as_tokens(tokens: Sequence[Tensor], target: Tensor, ignored: int) -> tuple[Tensor, Tensor, Tensor]:
    """Whether labels that count differ, whether they are the tokens of one of several inputs, and 0; no host sync."""
    labels, own = target.reshape(-1), torch.stack([given.reshape(-1).to(target.device) for given in tokens])
    counts = labels != ignored
    varied = (torch.where(counts, labels, -1).amax() != torch.where(counts, labels, labels.amax()).amin()) & counts.any()
    return varied, varied & ((labels == own) | ~counts).all(1).any(), labels.new_zeros(())


def _two_ahead(tokens: Sequence[Tensor], target: Tensor, ignored: int) -> Tensor:
    """Whether labels that count, and differ, are the tokens of one of several inputs two places ahead; no host sync."""
    found = [target.new_zeros((), dtype=torch.bool)]
    for given in [given for given in tokens if given.shape[1] > 2]:
        counts, later, same = labels_ahead(given, target, ignored, 2)
        found.append((counts & (later != given[:, 1:-1].to(later))).any() & same)
    return torch.stack(found).any()


def labels_ahead(tokens: Tensor, target: Tensor, ignored: int, places: int) -> tuple[Tensor, Tensor, Tensor]:
    """Which labels count, the tokens so many places ahead, and whether these labels are those tokens; no host sync.

    Args:
        tokens: Shape ``(samples, length)``.
        target: As many labels, or those of all places but the last.
        ignored: The label that does not count.
        places: How far ahead.

    Returns:
        Two tensors of shape ``(samples, length - places)``, and one of shape ``()``.
    """
    later = tokens[:, places:].to(target.device)
    labels = target.reshape(len(tokens), -1)[:, : later.shape[1]]
    counts = labels != ignored
    return counts, later, ((labels == later) | ~counts).all()
