"""torch's kernels, for every device: what the faster ones do, written out."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_hooks.hooks.tensors import all_values, as_real
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.rows import Clock, Column, ParameterColumn, empty_table, merge, parameter_rows


class Bounds(NamedTuple):
    """Where values count as saturated."""

    values: Tensor  # what is compared: the output that is recorded, or the input that it was computed from
    low: float | None  # values at or below it are saturated; None for none
    high: float | None  # values at or above it are saturated; None for none
    total: int  # how many values (or distributions) could be saturated


class Units(NamedTuple):
    """The units of a rectifier's output.

    Attributes:
        n: How many.
        dim: The dimension that they lie in.
        fired: Boolean, shape ``(n,)``: those with a value other than zero are to be marked. None: all have fired already.
    """

    n: int
    dim: int
    fired: Tensor | None


class Norms(NamedTuple):
    """What is read of several tensors.

    Attributes:
        norms: L2 norms, shape ``(n,)``, in the row's dtype; not finite where a tensor holds such a value.
        zeros: How many elements are exactly zero, shape ``(n,)``, in the row's dtype; None where that was not asked for.
        sizes: How many elements each stores.
    """

    norms: Tensor
    zeros: Tensor | None
    sizes: list[int]


class Kernels:
    """Reads tensors and enters what it finds into tables. No host sync, and no tensor is kept.

    This class does it with torch's operators, wherever the tensors are. Its subclasses do the same faster for one kind of device,
    and leave to it what they cannot read.

    Attributes:
        name: ``"torch"``, ``"c"`` or ``"triton"``.
        proves: Whether :meth:`record` itself proves that a plain, strided tensor can be read; others take what
            :func:`~.plain_values` gave.
    """

    name = "torch"
    proves = False

    def record(
        self,
        table: Tensor,
        index: int,
        values: Tensor,
        clock: Clock | None = None,
        new_call: bool = True,
        bounds: Bounds | None = None,
        units: Units | None = None,
        moments: bool = False,
    ) -> bool:
        """Merge the summary of ``values`` into row ``index`` of ``table``, in place.

        Args:
            table: Shape ``(n_sites, n_columns)``, contiguous.
            index: The site.
            values: Floating point, plain and strided, of any shape and device.
            clock: Of the training batch; None for batch 0.
            new_call: False for the second and later tensors of one call's output.
            bounds: Of an activation that has some; ``values`` are not empty then.
            units: Of a rectifier; ``values`` are not empty then.
            moments: Whether the third and fourth moments are recorded too; that costs about a quarter more.

        Returns:
            Whether the host knows that all units have fired.
        """
        row = summarize(values, moments)
        if bounds is not None:
            row[Column.SATURATED] = self.beyond(bounds)
            row[Column.SATURABLE] = bounds.total
        if units is not None:
            row[Column.UNITS] = units.n
            self.mark(values, units)
        if not new_call:
            row[Column.CALLS] = 0
        batch = torch.zeros_like(row[0]) if clock is None else clock.tensor.to(row.device, non_blocking=True)
        row[Column.FIRST_NONFINITE] = torch.where(row[Column.NONFINITE] > 0, batch, math.inf)
        target = table[index]
        target.copy_(merge(torch.stack((target, row.to(target.device, non_blocking=True)))))
        return False

    def stream(self, out: Tensor, entered: Tensor | None, dim: int) -> tuple[Tensor, Tensor | None]:
        """Squares of a block's output by channel, of its input, and of what it adds to that.

        Args:
            out: Floating point, what :func:`~.plain_values` gave; with values.
            entered: The input, of the shape of ``out``; None where it is not known.
            dim: The dimension of the channels.

        Returns:
            The sum of squares of each channel, ``(channels,)``, and the sums of squares of the input and of output minus input,
            ``(2,)``; in the row's dtype.
        """
        out, entered = _computed(out), None if entered is None else _computed(entered)
        dtype, others = row_dtype(out.device), [other for other in range(out.dim()) if other != dim]
        wide = torch.float64 if torch.float64 in (out.dtype, out.dtype if entered is None else entered.dtype) else torch.float32
        square = torch.linalg.vector_norm(out, dim=others, dtype=wide).to(dtype).square()
        if entered is None:
            return square, None
        written = out.to(wide) - entered.to(wide)
        return square, torch.stack([torch.linalg.vector_norm(each, dtype=wide).to(dtype).square() for each in (entered, written)])

    def beyond(self, bounds: Bounds) -> Tensor | int:
        """How many values are at a bound: 0-d, or a number."""
        values, low, high = _computed(bounds.values), bounds.low, bounds.high
        counts = [*([] if low is None else [(values <= low).sum()]), *([] if high is None else [(values >= high).sum()])]
        return counts[0] + counts[-1] if len(counts) == 2 else counts[0]

    def mark(self, values: Tensor, units: Units) -> None:
        """Mark the units with a value other than zero. One with a NaN counts as fired: it has a problem, but it is not dead."""
        if units.fired is not None:
            others = [dim for dim in range(values.dim()) if dim != units.dim]
            values = _computed(values)
            units.fired.logical_or_((values.amax(dim=others) if others else values.reshape(-1)) != 0)

    def norms(self, tensors: Sequence[Tensor], zeros: bool = False, addresses: Sequence[int] | None = None) -> Norms:
        """L2 norms of tensors, and how many of their elements are zero if that is asked for.

        Args:
            tensors: On one device, of any layout or subclass (of a distributed one the shard is read); at least one.
            zeros: Whether to count zeros; of a complex element both parts must be zero.
            addresses: What :func:`~.addresses_of` says of them; None where that has not been asked.
        """
        plain = [*map(Tensor.detach, tensors)] if addresses is not None and 0 not in addresses else all_values(tensors)
        plain = [values if values.itemsize > 1 else values.float() for values in plain]
        real = [*map(as_real, plain)] if any(map(torch.is_complex, plain)) else plain
        # On the CPU in float64, where squares neither overflow nor vanish. The multi-tensor norm is what clip_grad_norm_ itself
        # calls; torch has no public name for it per tensor.
        norms = torch.stack(torch._foreach_norm(real, 2, torch.float64 if real[0].is_cpu else None))
        norms = norms if real[0].is_cpu else norms.to(row_dtype(norms.device))
        found = torch.stack([(values == 0).sum() for values in plain]).to(norms.dtype) if zeros else None
        return Norms(norms, found, [*map(Tensor.numel, plain)])

    def sample(self, tensors: Sequence[Tensor], strides: tuple[int, ...]) -> Any:
        """Copy every ``strides[i]``-th element of each of some real, dense tensors on one device: for :meth:`updates`."""
        return torch._foreach_mul(_spread(tensors, strides), 1.0)  # copies in one call

    def updates(self, taken: Any, tensors: Sequence[Tensor], strides: tuple[int, ...]) -> Tensor:
        """‖now - then‖, ‖then‖ and the root mean square then of each tensor, from the elements that :meth:`sample` took.

        Args:
            taken: What it gave.
            tensors: The same.
            strides: The same.

        Returns:
            Shape ``(3, n)``, in the row's dtype; NaN for what has another shape now.
        """
        gone = taken[0].new_full((1,), math.nan)
        pairs = zip(_spread(tensors, strides), taken, strict=True)
        now, then = zip(*[(a, b) if a.shape == b.shape and a.numel() else (gone, gone) for a, b in pairs], strict=True)
        norms = torch.stack((*torch._foreach_norm(torch._foreach_sub(now, then)), *torch._foreach_norm(then)))
        norms = norms.to(row_dtype(norms.device)).view(2, -1)
        taken_of = [part.numel() for part in then]
        whole = [math.sqrt(tensor.numel() / count) for tensor, count in zip(tensors, taken_of, strict=True)]
        factors = torch.tensor((whole, [1 / math.sqrt(count) for count in taken_of]), dtype=norms.dtype).to(
            norms.device, non_blocking=True
        )
        return torch.cat((norms * factors[0], norms[1:] * factors[1]))

    def enter(
        self,
        rows: Tensor,
        total: Tensor,
        indices: Tensor,
        norms: Tensor,
        zeros: Tensor,
        sizes: Tensor,
        global_step: int,
        valid: Tensor | None = None,
    ) -> None:
        """Enter the gradients of one optimizer step into the rows of their parameters, and into the optimizer's total.

        Args:
            rows: The parameter table.
            total: Finite steps and sum of norms, shape ``(2,)``.
            indices: Which rows, each once, int64, shape ``(k,)``.
            norms: L2 norms, shape ``(k,)``; not finite where a gradient is not.
            zeros: Zero elements, shape ``(k,)``.
            sizes: Elements, shape ``(k,)``.
            global_step: The trainer's, before the step.
            valid: 0-d boolean: False if the optimizer itself skipped the step after all.
        """
        known = rows[indices]
        merged = ParameterColumn.merged(torch.stack((known, parameter_rows(norms, zeros, sizes, global_step))))
        rows[indices] = merged if valid is None else torch.where(valid, merged, known)
        whole = torch.linalg.vector_norm(norms)
        finite = torch.isfinite(whole)
        total += torch.where(finite, torch.stack((finite.to(total.dtype), whole.to(total.dtype))), 0)

    def enter_updates(self, rows: Tensor, indices: Tensor, updates: Tensor, valid: Tensor | None = None) -> None:
        """Enter updates as :meth:`updates` gives them, shape ``(3, k)``; those that are not finite do not count."""
        update, weight, _ = updates
        ratio = update / weight
        finite = torch.isfinite(updates).all(0) if valid is None else torch.isfinite(updates).all(0) & valid
        known, counted = rows[indices], finite & torch.isfinite(ratio)
        ratio = torch.where(counted, ratio, 0)
        for column, more in (
            (ParameterColumn.RATIO, ratio),
            (ParameterColumn.RATIO_STEPS, counted),
            (ParameterColumn.UPDATES, finite),
            (ParameterColumn.MOVED, finite & (update > 0)),
        ):
            known[:, column] += more
        known[:, ParameterColumn.RATIO_MAX] = torch.maximum(known[:, ParameterColumn.RATIO_MAX], ratio)
        last = slice(ParameterColumn.WEIGHT_NORM, ParameterColumn.WEIGHT_RMS + 1)
        known[:, last] = torch.where(finite[:, None], updates[1:].T, known[:, last])
        rows[indices] = known


def _computed(values: Tensor) -> Tensor:
    """The values, of 8 bits as float32: torch neither compares nor adds them as they are."""
    return values if values.itemsize > 1 else values.float()


def _spread(tensors: Sequence[Tensor], strides: Sequence[int]) -> list[Tensor]:
    """Every stride-th element of each tensor, outside autograd and in float32 at least; views where that can be."""
    pairs = zip(all_values(tensors), strides, strict=True)
    flat = [values if stride == 1 else values.reshape(-1)[::stride] for values, stride in pairs]
    return [values if values.dtype in (torch.float32, torch.float64) else values.float() for values in flat]


def summarize(values: Tensor, moments: bool = False) -> Tensor:
    """Summarise one tensor as a row, without a host sync, on any device.

    Two passes: the mean, then the deviations from it, both over finite values and summed in the row's dtype.

    Args:
        values: Floating point, any shape, also empty.
        moments: Whether to take the third and fourth moments too.

    Returns:
        Shape ``(n_columns,)``; the saturation columns are 0, and without ``moments`` theirs are.
    """
    dtype = row_dtype(values.device)
    row = empty_table(1, values.device)[0]
    row[Column.CALLS] = 1
    if values.numel() == 0:
        return row
    x = values if values.dtype in (torch.float32, torch.float64) else values.float()
    finite = torch.isfinite(x)
    count = finite.sum(dtype=dtype)
    safe_count = count.clamp(min=1)
    kept = torch.where(finite, x, 0)
    pivot = (kept.sum(dtype=dtype) / safe_count).to(x.dtype)
    deviation = torch.where(finite, x - pivot, 0)
    shift = deviation.sum(dtype=dtype)
    spread = torch.linalg.vector_norm(deviation, dtype=dtype)
    by = shift / safe_count  # how far the mean is above the pivot
    for column, found in (
        (Column.COUNT, count),
        (Column.MEAN, pivot.to(dtype) + by),
        (Column.M2, (spread * spread - by * shift).clamp(min=0)),
        (Column.MIN, torch.where(finite, x, math.inf).amin()),
        (Column.MAX, torch.where(finite, x, -math.inf).amax()),
        (Column.ZEROS, (x == 0).sum(dtype=dtype)),
        (Column.NONFINITE, values.numel() - count),
    ):
        row[column] = found
    row[Column.NORM : Column.NORM_MAX + 1] = torch.linalg.vector_norm(kept, dtype=dtype)
    if moments:
        row[Column.MOMENT_COUNT : Column.MOMENT_M2 + 1] = row[Column.COUNT : Column.M2 + 1]
        _, third, fourth = about_the_mean(by, shift, spread * spread, *_third_and_fourth(deviation, dtype))
        row[Column.MOMENT_M3] = third
        row[Column.MOMENT_M4] = fourth.clamp(min=0)
    return row


def about_the_mean(by: Any, first: Any, second: Any, third: Any, fourth: Any) -> tuple[Any, Any, Any]:
    """Sums of squared, third and fourth powers of deviations from the mean.

    Args:
        by: How far the mean lies above a pivot.
        first: The sum of deviations from that pivot; numbers or tensors.
        second: The sum of their squares.
        third: Of third powers.
        fourth: Of fourth powers.
    """
    return (
        second - by * first,
        third - by * (3 * second - 2 * by * first),
        fourth - by * (4 * third - by * (6 * second - 3 * by * first)),
    )


def _third_and_fourth(deviation: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
    """Sums of third and fourth powers: taken of numbers between -1 and 1, whose powers do not overflow."""
    scale = deviation.abs().amax()
    unit = deviation / torch.where(scale > 0, scale, 1)
    square = unit * unit
    scale = scale.to(dtype)
    return (square * unit).sum(dtype=dtype) * scale**3, (square * square).sum(dtype=dtype) * scale**4
