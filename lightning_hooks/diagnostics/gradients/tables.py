"""The tables of gradients: at module outputs, and of parameters at the optimizer step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.diagnostics.gradients.stats import (
    GradientStats,
    ParameterGradientStats,
    gradient_stats,
    parameter_gradient_stats,
)
from lightning_hooks.hooks import GradientRecorder
from lightning_hooks.hooks.tensors import plain_values
from lightning_hooks.statistics.columns import SUM, Columns, RowTable
from lightning_hooks.statistics.histograms import HistogramTable
from lightning_hooks.statistics.kernels import kernels_for
from lightning_hooks.statistics.rows import Clock, Column, ParameterColumn, PendingRecords, empty_table, merge, scaled
from lightning_hooks.statistics.tables import FirstCalls, Tables


class GradientTable(RowTable):
    """Rows of the gradients at module outputs.

    Under a loss scaler gradients arrive times a scale that is known only at the optimizer step, and the step may be
    skipped. Rows then wait as pending until :meth:`commit` or :meth:`discard`; with several optimizers each backward pass for the
    steps of those whose parameters are at the sites it reached.

    Args:
        names: The sites, in order.
        device: Where the rows live.
        loss_scaled: Whether a loss scaler is at work.
    """

    columns: ClassVar[type[Columns]] = Column

    def __init__(self, names: list[str], device: torch.device | str = "cpu", loss_scaled: bool = False) -> None:
        super().__init__(len(names), device)
        self.names = names
        self.kernels = kernels_for(self.rows.device.type)
        empty = partial(empty_table, len(names), device)
        self.pending = PendingRecords(empty, lambda *both: merge(torch.stack(both))) if loss_scaled else None
        self.owners: list[frozenset[int]] | None = None  # of each site, where there are several optimizers
        self.reached: set[int] = set()  # sites, in the backward pass under way
        self.clock = Clock(device)
        self.order = FirstCalls()  # sites, as gradients first arrived
        self.calls = FirstCalls()  # sites, as they were first called
        self.recording: set[int] = set()  # those of them whose output required a gradient
        self.histograms: HistogramTable | None = None
        self.listening = True

    def backward_ends(self) -> None:
        """A backward pass is over: take up the calls, and note which optimizers have gradients from it."""
        for calls in (self.calls, self.order):
            if calls.called:
                calls.take()
        if self.pending is None or self.owners is None:
            return
        owners = frozenset[int]().union(*(self.owners[index] for index in self.reached))
        self.reached.clear()
        self.pending.set_aside(owners)
        if self.histograms is not None and self.histograms.pending is not None:
            self.histograms.pending.set_aside(owners)

    def commit(self, scale: Tensor | float, valid: Tensor | None = None, optimizer: int | None = None) -> None:
        """The optimizer took the step: what is pending counts, divided by the loss scale.

        Args:
            scale: The loss scale in force.
            valid: 0-d boolean: False if the optimizer itself skipped the step after all.
            optimizer: Which, where there are several: what waits for others goes on waiting.
        """
        if self.pending is None:
            return
        merged = merge(torch.stack((self.rows, scaled(self.pending.take(optimizer), 1.0 / scale))))
        self.rows.copy_(merged if valid is None else torch.where(valid, merged, self.rows))
        if self.histograms is not None:
            self.histograms.commit(scale, valid, optimizer)

    def discard(self, optimizer: int | None = None) -> None:
        """The step was skipped: what is pending never happened."""
        if self.pending is not None:
            self.pending.take(optimizer)
        if self.histograms is not None:
            self.histograms.discard(optimizer)

    def read(self, packed: Tensor, factor: float = 1.0) -> tuple[dict[str, GradientStats], tuple[str, ...]]:
        """Name the numbers of a packed table on the host, multiplied by a factor.

        Returns:
            The statistics by site, and the names of the sites where no gradient arrived.
        """
        rows = packed.view(self.rows.shape)
        named = list(zip(self.names, (rows if factor == 1.0 else scaled(rows, factor)).tolist(), strict=True))
        found = {name: gradient_stats(row) for name, row in named if row[Column.CALLS]}
        return found, tuple(name for name, row in named if not row[Column.CALLS])

    @override
    def reset(self) -> None:
        super().reset()
        self.discard()
        if self.histograms is not None:
            self.histograms.reset()

    def arrived(self, order: Iterable[int]) -> tuple[str, ...]:
        """Name the sites in the order in which gradients first arrived.

        Args:
            order: The sites at which one arrived, first first, on whichever rank.
        """
        return tuple(dict.fromkeys((*(self.names[index] for index in order), *reversed(self.names))))

    def called(self, order: Iterable[int]) -> tuple[str, ...]:
        """Name the sites in the order of their first call."""
        return tuple(dict.fromkeys((*(self.names[index] for index in order), *self.names)))


class GradientArrival(GradientRecorder):
    """Tensor hook at the outputs of one site: records the gradients. No host sync; no tensor is kept."""

    __slots__ = ("index", "table")

    def __init__(self, table: GradientTable, index: int) -> None:
        self.table, self.index = table, index

    def __call__(self, gradient: Tensor) -> None:
        """Record a gradient."""
        table, index = self.table, self.index
        if not table.listening:
            return
        table.order.called.append(index)
        if table.owners is not None:
            table.reached.add(index)
        values = gradient if table.kernels.proves else plain_values(gradient)
        table.kernels.record(table.rows if table.pending is None else table.pending.now, index, values, table.clock)
        if table.histograms is not None:
            table.histograms.add(index, plain_values(values))


class ParameterRows(RowTable):
    """A row for each parameter, which grows with them."""

    columns: ClassVar[type[Columns]] = ParameterColumn
    alike_on_ranks: ClassVar[bool] = True

    def __init__(self, n_rows: int, device: torch.device | str = "cpu") -> None:
        super().__init__(n_rows, device)
        self.missing = [0] * n_rows  # known to the host: no need to ask the device

    @override
    def pack(self) -> Tensor:
        rows = self.rows.clone()
        rows[:, ParameterColumn.MISSING_STEPS] = torch.tensor(self.missing, dtype=rows.dtype).to(rows.device, non_blocking=True)
        return rows.flatten()

    @override
    def unpack(self, packed: Tensor) -> None:
        super().unpack(packed)
        self.missing = [int(steps) for steps in self.rows[:, ParameterColumn.MISSING_STEPS].tolist()]

    @override
    def reset(self) -> None:
        super().reset()
        self.missing = [0] * len(self.rows)

    def grow(self, n_rows: int) -> None:
        """Make room for parameters that came later."""
        more = n_rows - len(self.rows)
        self.rows = torch.cat((self.rows, self.columns.empty(more, self.rows.device)))
        self.missing += [0] * more


class NormColumn(Columns):
    """What each number of an optimizer's total norm holds."""

    STEPS = SUM  # with a finite norm
    NORM = SUM


class NormRows(RowTable):
    """A row for each optimizer, which may be exchanged."""

    columns: ClassVar[type[Columns]] = NormColumn
    alike_on_ranks: ClassVar[bool] = True


class ParameterTable(Tables):
    """Rows of the parameters' gradients at the optimizer step, and each optimizer's total norm.

    Args:
        names: The parameters, in order.
        n_optimizers: How many optimizers step.
        device: Where the rows live.
    """

    def __init__(self, names: list[str], n_optimizers: int, device: torch.device | str = "cpu") -> None:
        self.parameters, self.norms = ParameterRows(len(names), device), NormRows(n_optimizers, device)
        super().__init__(device, parameters=self.parameters, norms=self.norms)
        self.names = names
        self._kernels = kernels_for(self.rows.device.type)

    @property
    def rows(self) -> Tensor:
        """A row for each parameter, on the device."""
        return self.parameters.rows

    @property
    def totals(self) -> Tensor:
        """Finite steps of each optimizer, and the sum of their norms."""
        return self.norms.rows

    def add(
        self,
        optimizer: int,
        indices: Tensor,
        norms: Tensor,
        zeros: Tensor,
        sizes: Tensor,
        global_step: int = 0,
        valid: Tensor | None = None,
    ) -> None:
        """Record one optimizer step.

        Args:
            optimizer: Which optimizer.
            indices: The parameters that had a gradient, each once, shape ``(k,)``.
            norms: L2 norms of their gradients, shape ``(k,)``.
            zeros: How many of their elements are zero, shape ``(k,)``.
            sizes: How many elements they have, shape ``(k,)``.
            global_step: The trainer's, before the step.
            valid: 0-d boolean: False if the optimizer itself skipped the step after all.
        """
        self._kernels.enter(self.parameters.rows, self.norms.rows[optimizer], indices, norms, zeros, sizes, global_step, valid)

    def add_updates(self, indices: Tensor, updates: Tensor, valid: Tensor | None = None) -> None:
        """Record norms of updates, norms and RMS of weights, shape ``(3, k)``; those that are not finite do not count."""
        self._kernels.enter_updates(self.parameters.rows, indices, updates, valid)

    def add_lost(self, indices: Tensor, lost: Tensor, valid: Tensor | None = None) -> None:
        """Record how many elements kept their value, and of how many with a gradient, shape ``(2, k)``."""
        columns = slice(ParameterColumn.LOST, ParameterColumn.WITH_GRADIENT + 1)
        self.rows[indices, columns] += lost.T if valid is None else torch.where(valid, lost.T, 0)

    def add_missing(self, indices: list[int]) -> None:
        """Note parameters whose gradient was None at a measured step."""
        for index in indices:
            self.parameters.missing[index] += 1

    def read(self, packed: Tensor) -> tuple[dict[str, ParameterGradientStats], float]:
        """Name the numbers of a packed table on the host: statistics by parameter, and the total norm."""
        parts = self.split(packed)
        rows, totals = self.parameters.lines(parts["parameters"]), self.norms.lines(parts["norms"])
        stats = {name: parameter_gradient_stats(row) for name, row in zip(self.names, rows, strict=True) if _measured(row)}
        means = [norm / steps for steps, norm in totals if steps]
        return stats, math.sqrt(sum(mean * mean for mean in means)) if means else math.nan

    def follow(self, names: list[str], kept: Sequence[int | None]) -> None:
        """Make room for parameters that came later, and for other optimizers.

        Args:
            names: All parameters; those that are known come first, in their order.
            kept: Of each optimizer, which one it was before; None for a new one.
        """
        self.names = names
        self.parameters.grow(len(names))
        self.norms.follow(kept)


def _measured(row: list[float]) -> bool:
    return any(row[: ParameterColumn.FIRST_NONFINITE]) or any(row[ParameterColumn.FIRST_NONFINITE + 1 :])
