"""What a step is predicted to gain, parameter by parameter, and how alike the gradients of successive steps are."""

from __future__ import annotations

import math
from collections.abc import Hashable, Sequence
from typing import ClassVar

import torch
from torch import Tensor

from lightning_hooks.declare.step import Step
from lightning_hooks.hooks.tensors import all_values, as_real
from lightning_hooks.statistics.columns import SUM, Columns, RowTable, row_dtype
from lightning_hooks.statistics.rows import fixed

SAMPLE = 4096
"""Up to so many elements of a parameter all count; of a larger one, so many stand for the others."""
ROWS = 1 << 16
"""Elements of the rows with the largest gradients that count besides, of an embedding's table."""
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
    """A row for all parameters together, and one for each of them.

    Args:
        n_parameters: How many there are.
        device: Where the rows live.
    """

    columns: ClassVar[type[Columns]] = LearningColumn
    alike_on_ranks: ClassVar[bool] = True

    def __init__(self, n_parameters: int, device: torch.device | str = "cpu") -> None:
        super().__init__(n_parameters + 1, device)

    def grow(self, n_parameters: int) -> None:
        """Add rows for new parameters."""
        now = len(self.rows)
        self.follow([place if place < now else None for place in range(n_parameters + 1)])

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
    Of the table of an embedding the rows with the largest gradients are taken besides, for a batch touches few of them.

    Args:
        step: The step, unclipped, of parameters that are not spread over processes.
        tables: The places of the tables of embeddings.
        known: Index tensors by number of elements, kept from step to step.
    """

    def __init__(self, step: Step, tables: set[int | None], known: dict[int, Tensor]) -> None:
        self._parameters, self._known = step.parameters, known
        # Of each part: the place of its parameter, the elements (None for all), for how many they stand, and their gradient.
        spread: list[tuple[int, Tensor | None, int, Tensor]] = []
        rows: list[tuple[int, Tensor | None, int, Tensor]] = []
        self._counted: dict[int, Tensor] = {}  # by part, which of its elements count for the gain, where not all do
        weights = all_values(step.parameters, real=True)
        gradients = [(place, parameter.grad) for place, parameter in enumerate(step.parameters) if parameter.grad is not None]
        dense = [(place, gradient) for place, gradient in gradients if gradient.layout == torch.strided]
        for (place, _), values in zip(dense, all_values([gradient for _, gradient in dense], real=True), strict=True):
            numel, parameter = values.numel(), step.parameters[place]
            if not (numel and weights[place].numel()):  # there is nothing, or it was freed
                continue
            flat, index = values.reshape(-1), None
            if numel > SAMPLE:
                index = self._spread(numel, flat.device)
                if step.indices[place] in tables and parameter.dim() > 1:
                    by_row = flat.view(parameter.shape[0], -1)
                    largest, self._counted[len(spread)] = _largest_rows(by_row, index)
                    elements = _elements(largest, by_row.shape[1])
                    rows.append((place, elements, elements.numel(), flat.index_select(0, elements)))
                flat = flat.index_select(0, index)
            spread.append((place, index, numel, flat))
        for place, gradient in gradients:
            if gradient.layout == torch.sparse_coo and gradient.sparse_dim() == 1 and weights[place].numel():
                entries = gradient.detach().coalesce()
                elements = _elements(entries.indices()[0], weights[place].numel() // len(weights[place]))
                rows.append((place, elements, elements.numel(), as_real(entries.values()).reshape(-1)))
        self.places = fixed(tuple(step.indices))
        self.key: Hashable = tuple([(step.indices[place], numel) for place, _, numel, _ in spread])
        self._parts, taken = [*spread, *rows], [flat for *_, flat in (*spread, *rows)]
        self._sizes, self._n_spread = [*map(Tensor.numel, taken)], len(spread)
        self._before, self._gradient = self._sampled(weights), _joined(taken)
        if step.carries_scale and step.loss_scale is not None:
            self._gradient = self._gradient / step.loss_scale

    @property
    def paired(self) -> Tensor:
        """The gradient's elements that are the same ones in every step, where :attr:`key` is the same."""
        return self._gradient[: sum(self._sizes[: self._n_spread])]

    def _spread(self, numel: int, device: torch.device) -> Tensor:
        if numel not in self._known:
            self._known[numel] = spread_places(numel).to(device, non_blocking=True)
        return self._known[numel]

    def _sampled(self, weights: Sequence[Tensor]) -> Tensor:
        found = []
        for place, index, *_ in self._parts:
            flat = weights[place].reshape(-1)
            found.append(flat if index is None else flat.index_select(0, index))
        return _joined(found)

    def rows(self, before: Tensor | None) -> Tensor:
        """The rows of the step, which was taken.

        Args:
            before: What :attr:`paired` was of the measured step before; None where there is none to compare with.

        Returns:
            Shape ``(k, columns)``, of the parameters of the step.
        """
        dtype, device = row_dtype(self._gradient.device), self._gradient.device
        found = torch.zeros((len(self._parameters), len(LearningColumn)), dtype=dtype, device=device)
        sizes, n = self._sizes, self._n_spread
        if not sizes:
            return found
        gains = -(self._sampled(all_values(self._parameters, real=True)) - self._before).to(dtype) * self._gradient
        if self._counted:
            all_of = [torch.ones(size, dtype=torch.bool, device=device) for size in sizes]
            counted = [self._counted.get(part, all_of[part]) for part in range(len(sizes))]
            gains = torch.where(torch.cat(counted), gains, 0)
        total, squares = _summed((gains, gains * gains), sizes)
        sampled = [part < n and index is not None for part, (_, index, *_) in enumerate(self._parts)]
        counts, numels, of_sample = (
            torch.tensor(values, dtype=dtype).to(device, non_blocking=True)
            for values in (sizes, [numel for _, _, numel, _ in self._parts], sampled)
        )
        variance = (squares - total * total / counts).clamp(min=0) / (counts - 1).clamp(min=1)
        error = of_sample * numels * (numels - counts) * variance / counts  # of a sample without replacement
        owners = fixed(tuple([place for place, *_ in self._parts])).to(device, non_blocking=True)
        found[:, LearningColumn.GAIN].index_add_(0, owners, total * numels / counts)
        found[:, LearningColumn.ERROR].index_add_(0, owners, error)
        found[:, LearningColumn.ERROR].sqrt_()
        found[:, LearningColumn.STEPS] = 1
        if before is not None and n:
            own, earlier = self.paired.to(dtype), before.to(dtype)
            products = _summed((own * earlier, own * own, earlier * earlier), sizes[:n]) * (numels / counts)[:n]
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


def _joined(parts: Sequence[Tensor]) -> Tensor:
    """One after the other, in float32 at least."""
    values = [part if part.dtype == torch.float64 else part.float() for part in parts]
    return torch.cat(values) if values else torch.zeros(0)


def _summed(rows: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Sums of consecutive elements, of several rows: shape ``(len(rows), len(sizes))``."""
    stacked = torch.stack(list(rows))
    ids = torch.repeat_interleave(torch.tensor(sizes), output_size=sum(sizes)).to(stacked.device, non_blocking=True)
    return stacked.new_zeros((len(stacked), len(sizes))).index_add_(1, ids, stacked)
