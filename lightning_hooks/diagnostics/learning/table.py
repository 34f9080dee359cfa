"""What a step is predicted to gain, parameter by parameter, and how alike the gradients of successive steps are."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence

import torch
from torch import Tensor

from lightning_hooks.declare.step import Step
from lightning_hooks.hooks.tensors import all_values, as_real
from lightning_hooks.statistics.columns import SUM, Columns, RowTable, row_dtype
from lightning_hooks.statistics.rows import fixed
from lightning_hooks.statistics.weight_sample import joined

SAMPLE = 4096  # up to so many elements of a parameter all count; of a larger one, so many stand for the others
ROWS = 1 << 16  # elements of the rows with the largest gradients that count besides, of an embedding's table
_GOLDEN = (math.sqrt(5) - 1) / 2


class LearningColumn(Columns):
    """What each number of a parameter's row holds, over measured steps. The first row is that of all parameters together."""

    STEPS = SUM
    GAIN = SUM  # minus the dot product of gradient and update
    ERROR = SUM  # its standard error
    PAIRS = SUM  # successive measured steps
    COSINE = SUM  # of their gradients
    DOT = SUM  # the dot product of their gradients
    SQUARE = SUM  # the squared norm of the later one
    BEFORE = SUM  # that of the earlier one


class LearningTable(RowTable):
    """A row for all parameters together, and one for each of them."""

    columns = LearningColumn
    alike_on_ranks = True

    def add(self, places: Tensor, numbers: Tensor, valid: Tensor | None = None) -> None:
        """Record a step. No host sync.

        Args:
            places: Of the parameters, shape ``(k,)``.
            numbers: Their rows, shape ``(k, columns)``; a step in which one is not finite does not count.
            valid: 0-d boolean: False if the optimizer itself skipped the step after all.
        """
        total = numbers.sum(0)
        total[LearningColumn.STEPS] = 1
        total[LearningColumn.ERROR] = numbers[:, LearningColumn.ERROR].square().sum().sqrt()
        total[LearningColumn.PAIRS] = numbers[:, LearningColumn.PAIRS].amax()
        total[LearningColumn.COSINE] = _cosine(*total[LearningColumn.DOT :])
        counted = torch.isfinite(numbers).all()
        rows = torch.cat((total[None], numbers))
        rows = torch.where(counted if valid is None else counted & valid, rows, 0)
        self.rows.index_add_(0, torch.cat((places.new_zeros(1), places + 1)), rows)


class GradientSample:
    """Elements of the gradients before a step, and of the weights, for the predicted gain of the update.

    Of a parameter with up to 4 096 elements all are taken, of a larger one 4 096, one in each of as many stretches of equal length.
    Of the table of an embedding the rows with the largest gradients are taken besides, for a batch touches few of them. Indices are
    kept from step to step in ``known``, by number of elements.

    Attributes:
        places: Of the parameters.
        key: Equal in steps whose elements are the same ones.
        paired: The gradient's elements that are the same ones in every step where :attr:`key` is.
    """

    def __init__(self, step: Step, tables: set[int | None], known: dict[int, Tensor]) -> None:
        self._parameters = step.parameters
        dense: list[tuple[int, Tensor]] = []
        sparse: list[tuple[int, Tensor]] = []
        for place, parameter in enumerate(step.parameters):
            gradient = parameter.grad
            if gradient is not None and gradient.layout == torch.strided:
                dense.append((place, gradient))
            elif gradient is not None and gradient.layout == torch.sparse_coo and gradient.sparse_dim() == 1:
                sparse.append((place, gradient.detach().coalesce()))
        values = all_values([*step.parameters, *[gradient for _, gradient in dense]], real=True)
        weights, gradients = values[: len(step.parameters)], values[len(step.parameters) :]
        # Of each part: the place of its parameter, the elements (None for all), how many these are, and for how many they stand.
        self._parts: list[tuple[int, Tensor | None, int, int]] = []
        rows: list[tuple[int, Tensor, Tensor]] = []
        self._counted: dict[int, Tensor] = {}  # by part, which of its elements count for the gain, where not all do
        taken: list[Tensor] = []
        key: list[int] = []
        for (place, _), gradient in zip(dense, gradients, strict=True):
            numel, shape = gradient.numel(), step.parameters[place].shape
            if not (numel and weights[place].numel()):  # there is nothing, or it was freed
                continue
            flat, index = gradient.reshape(-1), None
            if numel > SAMPLE:
                index = known.get(numel)
                if index is None:
                    index = known[numel] = spread_places(numel).to(flat.device, non_blocking=True)
                if step.indices[place] in tables and len(shape) > 1:
                    by_row = flat.view(shape[0], -1)
                    largest, self._counted[len(taken)] = _largest_rows(by_row, index)
                    elements = _elements(largest, by_row.shape[1])
                    rows.append((place, elements, flat.index_select(0, elements)))
                flat = flat.index_select(0, index)
            taken.append(flat)
            key += step.indices[place], numel
            self._parts.append((place, index, flat.numel(), numel))
        self._n_spread = len(taken)
        self.key: Hashable = tuple(key)
        for place, entries in sparse:
            if weights[place].numel():
                elements = _elements(entries.indices()[0], weights[place].numel() // len(weights[place]))
                rows.append((place, elements, as_real(entries.values()).reshape(-1)))
        for place, elements, flat in rows:
            taken.append(flat)
            self._parts.append((place, elements, flat.numel(), flat.numel()))
        self.places = fixed(tuple(step.indices))
        self._before, self._gradient = self._sampled(weights), joined(taken)
        if step.carries_scale and step.loss_scale is not None:
            self._gradient = self._gradient / step.loss_scale
        self.paired = self._gradient[: sum(map(Tensor.numel, taken[: self._n_spread]))]

    def _sampled(self, weights: Sequence[Tensor]) -> Tensor:
        found = []
        for place, index, *_ in self._parts:
            flat = weights[place].reshape(-1)
            found.append(flat if index is None else flat.index_select(0, index))
        return joined(found)

    def rows(self, before: Tensor | None) -> Tensor:
        """The rows of the step, which was taken, shape ``(k, columns)``.

        ``before`` is what :attr:`paired` was of the measured step before; None where there is none to compare with.
        """
        dtype, device = row_dtype(self._gradient.device), self._gradient.device
        found = torch.zeros((len(self._parameters), len(LearningColumn)), dtype=dtype, device=device)
        if not self._parts:
            return found
        gains = -(self._sampled(all_values(self._parameters, real=True)) - self._before).to(dtype) * self._gradient
        places, indices, sizes, numels = zip(*self._parts, strict=True)
        n = self._n_spread
        if self._counted:
            all_of = [torch.ones(size, dtype=torch.bool, device=device) for size in sizes]
            gains = torch.where(torch.cat([self._counted.get(part, every) for part, every in enumerate(all_of)]), gains, 0)
        total, squares = _summed((gains, gains * gains), sizes)
        sampled = [part < n and index is not None for part, index in enumerate(indices)]
        counts, stand_for, of_sample = torch.tensor((sizes, numels, sampled), dtype=dtype).to(device, non_blocking=True).unbind()
        variance = (squares - total * total / counts).clamp(min=0) / (counts - 1).clamp(min=1)
        error = of_sample * stand_for * (stand_for - counts) * variance / counts  # of a sample without replacement
        owners = fixed(places).to(device, non_blocking=True)
        found[:, LearningColumn.GAIN].index_add_(0, owners, total * stand_for / counts)
        found[:, LearningColumn.ERROR].index_add_(0, owners, error)
        found[:, LearningColumn.ERROR].sqrt_()
        found[:, LearningColumn.STEPS] = 1
        if before is not None and n:
            own, earlier = self.paired.to(dtype), before.to(dtype)
            products = _summed((own * earlier, own * own, earlier * earlier), sizes[:n]) * (stand_for / counts)[:n]
            pairs = torch.stack((torch.ones_like(products[0]), _cosine(*products), *products), 1)
            found[:, LearningColumn.PAIRS :].index_add_(0, owners[:n], pairs)
        return found


def spread_places(numel: int) -> Tensor:
    """The places of ``SAMPLE`` elements among more: one in each stretch of equal length, nowhere in step with rows or columns."""
    each = torch.arange(SAMPLE + 1)
    starts = (each * numel + SAMPLE - 1) // SAMPLE
    return starts[:-1] + ((each[:-1] * _GOLDEN).frac() * starts.diff()).long()


def _elements(rows: Tensor, columns: int) -> Tensor:
    """The places of the elements of some rows."""
    return (rows[:, None] * columns + torch.arange(columns, device=rows.device)).flatten()


def _largest_rows(gradient: Tensor, spread: Tensor) -> tuple[Tensor, Tensor]:
    """The rows with the largest gradients, and which elements spread over the table stand for the others."""
    n_rows, columns = gradient.shape
    rows = torch.linalg.vector_norm(gradient, dim=1).topk(min(n_rows, max(ROWS // columns, 1))).indices
    taken = torch.zeros(n_rows, dtype=torch.bool, device=gradient.device).index_fill_(0, rows, True)
    return rows, ~taken[spread // columns]


def _cosine(dot: Tensor, square: Tensor, other: Tensor) -> Tensor:
    norms = (square * other).sqrt()
    return torch.where(norms > 0, dot / norms, 0)


def _summed(rows: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Sums of consecutive elements, of several rows: shape ``(len(rows), len(sizes))``."""
    stacked = torch.stack(list(rows))
    ids = torch.repeat_interleave(torch.tensor(sizes), output_size=sum(sizes)).to(stacked.device, non_blocking=True)
    return stacked.new_zeros((len(stacked), len(sizes))).index_add_(1, ids, stacked)
