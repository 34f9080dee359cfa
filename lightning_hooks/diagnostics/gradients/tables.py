"""The tables of gradients: at module outputs, and of parameters at the optimizer step."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.diagnostics.features.table import first_nonfinite, pooled_stats
from lightning_hooks.hooks import GradientRecorder
from lightning_hooks.hooks.tensors import plain_values
from lightning_hooks.statistics.columns import SUM, Columns, RowTable
from lightning_hooks.statistics.histograms import HistogramTable
from lightning_hooks.statistics.kernels import kernels_for
from lightning_hooks.statistics.rows import Clock, Column, ParameterColumn, PendingRecords, empty_table, fixed, merge, scaled
from lightning_hooks.statistics.tables import FirstCalls, Tables


@dataclass(frozen=True, slots=True)
class GradientStats:
    """The gradient of the loss at a module's output, over the sampled batches of an epoch, all ranks pooled.

    It is the gradient of the loss that the optimizer minimises: unscaled under mixed precision, divided by the
    accumulation window (as Lightning divides the loss) and by the number of ranks that DDP averages over. Moments and
    norms are over finite values.

    Attributes:
        calls: Gradients seen.
        count: Finite values.
        mean: Their mean.
        std: Their population standard deviation.
        min: The smallest.
        max: The largest.
        rms: Root mean square per element: comparable between layers of any size.
        norm: Mean over calls of the L2 norm.
        norm_max: The largest L2 norm of a call.
        zero_fraction: Share of values exactly 0, in [0, 1].
        nonfinite_fraction: Share of values NaN or infinite, in [0, 1].
        first_nonfinite_batch: The first sampled training batch of the epoch (``batch_idx``) that gave a NaN or infinite value,
            on any rank; None if all were finite.
    """

    calls: int
    count: int
    mean: float
    std: float
    min: float
    max: float
    rms: float
    norm: float
    norm_max: float
    zero_fraction: float
    nonfinite_fraction: float
    first_nonfinite_batch: int | None = None


def gradient_stats(row: Sequence[float]) -> GradientStats:
    """Name the numbers of a row of a module-gradient table."""
    calls, seen = int(row[Column.CALLS]), row[Column.COUNT] > 0
    return GradientStats(
        calls=calls,
        count=int(row[Column.COUNT]),
        norm=row[Column.NORM] / calls if seen else math.nan,
        norm_max=row[Column.NORM_MAX] if seen else math.nan,
        first_nonfinite_batch=first_nonfinite(row[Column.FIRST_NONFINITE]),
        **pooled_stats(row),
    )


@dataclass(frozen=True, slots=True)
class ParameterGradientStats:
    """A parameter's ``.grad`` at the optimizer step: reduced over ranks, accumulated, unscaled, before clipping.

    Attributes:
        steps: Measured optimizer steps at which the gradient was finite.
        norm: Mean over these steps of its L2 norm.
        norm_max: The largest.
        rms: Root mean square per element over these steps.
        zero_fraction: Share of elements exactly 0, in [0, 1].
        nonfinite_steps: Measured steps at which it held a NaN or an infinite value.
        missing_steps: Measured steps at which it was None though the parameter requires gradients.
        update_ratio: Mean over measured steps of ‖update‖ / ‖weight‖, the learning rate's real effect (healthy runs are
            often near 1e-3, Karpathy 2022); None where no step could be measured, as for a weight of zeros.
        first_nonfinite_step: ``global_step`` before the first measured step at which the gradient held a NaN or an infinite
            value; None if it never did.
        weight_norm: L2 norm of the weight itself before the window's last measured update; None where none was measured. Of a
            parameter with more than ``UPDATE_SAMPLE`` elements it is estimated, as the update ratio is.
        weight_rms: Its root mean square per element.
        update_ratio_max: The largest update ratio of a measured step.
        lost_fraction: Of the elements with a gradient, the share whose value an update left as it was, since it was lost in
            rounding, in [0, 1]. Measured for weights in half precision (float16, bfloat16) under torch's own optimizers with
            a learning rate above 0, which write the update into the weight; None for all others.
        moved: Whether a measured update changed the weight; None where none was measured.
    """

    steps: int
    norm: float
    norm_max: float
    rms: float
    zero_fraction: float
    nonfinite_steps: int
    missing_steps: int
    update_ratio: float | None
    first_nonfinite_step: int | None = None
    weight_norm: float | None = None
    weight_rms: float | None = None
    update_ratio_max: float | None = None
    lost_fraction: float | None = None
    moved: bool | None = None


def parameter_gradient_stats(row: Sequence[float]) -> ParameterGradientStats:
    """Name the numbers of a row of a parameter table."""
    steps = int(row[ParameterColumn.STEPS])
    elements = row[ParameterColumn.ELEMENTS]
    measured = steps + int(row[ParameterColumn.NONFINITE_STEPS])
    ratios = row[ParameterColumn.RATIO_STEPS]
    updates, with_gradient = row[ParameterColumn.UPDATES], row[ParameterColumn.WITH_GRADIENT]
    finite_elements = elements * steps / measured if measured else 0.0
    return ParameterGradientStats(
        steps=steps,
        norm=row[ParameterColumn.NORM] / steps if steps else math.nan,
        norm_max=row[ParameterColumn.NORM_MAX] if steps else math.nan,
        rms=math.sqrt(row[ParameterColumn.SQUARE] / finite_elements) if finite_elements else math.nan,
        zero_fraction=row[ParameterColumn.ZEROS] / elements if elements else math.nan,
        nonfinite_steps=int(row[ParameterColumn.NONFINITE_STEPS]),
        missing_steps=int(row[ParameterColumn.MISSING_STEPS]),
        update_ratio=row[ParameterColumn.RATIO] / ratios if ratios else None,
        first_nonfinite_step=first_nonfinite(row[ParameterColumn.FIRST_NONFINITE]),
        weight_norm=row[ParameterColumn.WEIGHT_NORM] if updates else None,
        weight_rms=row[ParameterColumn.WEIGHT_RMS] if updates else None,
        update_ratio_max=row[ParameterColumn.RATIO_MAX] if ratios else None,
        lost_fraction=row[ParameterColumn.LOST] / with_gradient if with_gradient else None,
        moved=row[ParameterColumn.MOVED] > 0 if updates else None,
    )


class GradientTable(RowTable):
    """Rows of the gradients at module outputs.

    Under a loss scaler gradients arrive times a scale that is known only at the optimizer step, and the step may be
    skipped. Rows then wait as pending until :meth:`commit` or :meth:`discard`; with several optimizers each backward pass for the
    steps of those whose parameters are at the sites it reached.
    """

    columns = Column

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

    def commit(self, scale: Tensor | float, valid: Tensor | None = None, optimizer: int | None = None) -> None:
        """The optimizer took the step, which ``valid`` says as in :class:`ParameterTable`: what is pending counts, unscaled.

        Where there are several optimizers, what waits for others goes on waiting.
        """
        if self.pending is None:
            return
        merged = merge(torch.stack((self.rows, scaled(self.pending.take(optimizer), 1.0 / scale))))
        self.rows.copy_(merged if valid is None else torch.where(valid, merged, self.rows))

    def discard(self, optimizer: int | None = None) -> None:
        """The step was skipped: what is pending never happened."""
        if self.pending is not None:
            self.pending.take(optimizer)

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

    def in_order(self, places: Iterable[int], backward: bool = False) -> tuple[str, ...]:
        """Name the sites in the order of these; the others follow as in the model, or ``backward``."""
        return tuple(dict.fromkeys((*(self.names[place] for place in places), *self.names[:: -1 if backward else 1])))


class GradientArrival(GradientRecorder):
    """Tensor hook at the outputs of one site: records the gradients. No host sync; no tensor is kept."""

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


class NormColumn(Columns):
    """What each number of an optimizer's total norm holds."""

    STEPS = SUM  # with a finite norm
    NORM = SUM


class ParameterTable(Tables):
    """Rows of the parameters' gradients at the optimizer step, and each optimizer's total norm.

    Of each step ``valid`` is a 0-d boolean, False if the optimizer itself skipped the step after all.
    """

    def __init__(self, names: list[str], n_optimizers: int, device: torch.device | str = "cpu") -> None:
        self.parameters = RowTable(len(names), device, ParameterColumn, alike_on_ranks=True)
        self.norms = RowTable(n_optimizers, device, NormColumn, alike_on_ranks=True)
        super().__init__(device, parameters=self.parameters, norms=self.norms)
        self.names = names
        self._kernels = kernels_for(self.rows.device.type)

    @property
    def rows(self) -> Tensor:
        """A row for each parameter, on the device."""
        return self.parameters.rows

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
        """Record one optimizer step: of the parameters that had a gradient the norms, zero elements and sizes, shape ``(k,)``."""
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
        if indices:
            self.rows[fixed(tuple(indices)).to(self.rows.device, non_blocking=True), ParameterColumn.MISSING_STEPS] += 1

    def read(self, packed: Tensor) -> tuple[dict[str, ParameterGradientStats], float]:
        """Name the numbers of a packed table on the host: statistics by parameter, and the total norm."""
        parts = self.split(packed)
        rows, totals = self.parameters.lines(parts["parameters"]), self.norms.lines(parts["norms"])
        column = ParameterColumn.FIRST_NONFINITE  # infinite where nothing was measured
        measured = [(name, row) for name, row in zip(self.names, rows, strict=True) if any(row[:column]) or any(row[column + 1 :])]
        stats = {name: parameter_gradient_stats(row) for name, row in measured}
        means = [norm / steps for steps, norm in totals if steps]
        return stats, math.sqrt(sum(mean * mean for mean in means)) if means else math.nan

    def follow(self, names: list[str], kept: Sequence[int | None]) -> None:
        """Make room for parameters that came later, at the end of the names; optimizers as for :meth:`RowTable.follow`."""
        self.names = names
        self.parameters.grow(len(names))
        self.norms.follow(kept)
