"""What a step is predicted to gain, parameter by parameter, and how alike the gradients of successive steps are."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from lightning_hooks.declare.step import Step
from lightning_hooks.hooks.tensors import as_real, is_freed, plain_values
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


@dataclass(slots=True)
class _Part:
    """Some elements of a parameter that count."""

    place: int  # of the parameter among those of the step
    index: Tensor | None  # of the elements; None for all
    numel: int  # of the parameter
    gradient: Tensor
    counted: Tensor | None = None  # which of them count for the gain; None for all
    whole: bool = True  # whether they stand for themselves alone


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
        self._parameters = step.parameters
        self._known = known
        spread, rows = [], []
        for place, (index, parameter) in enumerate(zip(step.indices, step.parameters, strict=True)):
            gradient = parameter.grad
            if gradient is None or is_freed(parameter) or is_freed(gradient) or not parameter.numel():
                continue
            if gradient.layout == torch.sparse_coo and gradient.sparse_dim() == 1:
                entries = gradient.detach().coalesce()
                rows.append(_row_part(place, parameter, entries.indices()[0], entries.values()))
            elif gradient.layout == torch.strided:
                spread.append(self._spread(place, parameter, gradient))
                if index in tables and parameter.numel() > SAMPLE and parameter.dim() > 1:
                    rows.append(_largest_rows(spread[-1], parameter, gradient))
        self._parts = [*spread, *rows]
        self.places = fixed(tuple(step.indices))
        self.key: Hashable = tuple((step.indices[part.place], part.numel) for part in spread)
        self._n_spread, self._n_paired = len(spread), sum(part.gradient.numel() for part in spread)
        self._before = self._weights()
        self._gradient = _joined(part.gradient for part in self._parts)
        if step.carries_scale and step.loss_scale is not None:
            self._gradient = self._gradient / step.loss_scale

    @property
    def paired(self) -> Tensor:
        """The gradient's elements that are the same ones in every step, where :attr:`key` is the same."""
        return self._gradient[: self._n_paired]

    def _spread(self, place: int, parameter: Tensor, gradient: Tensor) -> _Part:
        flat = as_real(plain_values(gradient)).reshape(-1)
        numel = flat.numel()
        if numel <= SAMPLE:
            return _Part(place, None, numel, flat)
        if numel not in self._known:
            self._known[numel] = spread_places(numel).to(flat.device, non_blocking=True)
        index = self._known[numel]
        return _Part(place, index, numel, flat.index_select(0, index), whole=False)

    def _weights(self) -> Tensor:
        of_parts = ((part.index, as_real(plain_values(self._parameters[part.place])).reshape(-1)) for part in self._parts)
        return _joined(values if index is None else values.index_select(0, index) for index, values in of_parts)

    def rows(self, before: Tensor | None) -> Tensor:
        """The rows of the step, which was taken.

        Args:
            before: What :attr:`paired` was of the measured step before; None where there is none to compare with.

        Returns:
            Shape ``(k, columns)``, of the parameters of the step.
        """
        dtype, device, parts = row_dtype(self._gradient.device), self._gradient.device, self._parts
        found = torch.zeros((len(self._parameters), len(LearningColumn)), dtype=dtype, device=device)
        if not parts:
            return found
        sizes = [part.gradient.numel() for part in parts]
        gains = -(self._weights() - self._before).to(dtype) * self._gradient
        if any(part.counted is not None for part in parts):
            counted = [torch.ones_like(p.gradient, dtype=torch.bool) if p.counted is None else p.counted for p in parts]
            gains = torch.where(torch.cat(counted), gains, 0)
        total, squares = _summed((gains, gains * gains), sizes)
        counts, numels, sampled = (
            torch.tensor(values, dtype=dtype).to(device, non_blocking=True)
            for values in (sizes, [p.gradient.numel() if p.whole else p.numel for p in parts], [not p.whole for p in parts])
        )
        variance = (squares - total * total / counts).clamp(min=0) / (counts - 1).clamp(min=1)
        error = sampled * numels * (numels - counts) * variance / counts  # of a sample without replacement
        owners = torch.tensor([part.place for part in parts]).to(device, non_blocking=True)
        found[:, LearningColumn.GAIN].index_add_(0, owners, total * numels / counts)
        found[:, LearningColumn.ERROR].index_add_(0, owners, error)
        found[:, LearningColumn.ERROR].sqrt_()
        found[:, LearningColumn.STEPS] = 1
        if before is not None and self._n_paired:
            own, earlier, n = self.paired.to(dtype), before.to(dtype), self._n_spread
            products = _summed((own * earlier, own * own, earlier * earlier), sizes[:n]) * (numels / counts)[:n]
            pairs = torch.stack((torch.ones_like(products[0]), _cosine(*products), *products), 1)
            found[:, LearningColumn.PAIRS :].index_add_(0, owners[:n], pairs)
        return found


def spread_places(numel: int) -> Tensor:
    """The places of ``SAMPLE`` elements among more: one in each stretch of equal length, nowhere in step with rows or columns."""
    each = torch.arange(SAMPLE + 1)
    starts = (each * numel + SAMPLE - 1) // SAMPLE
    return starts[:-1] + ((each[:-1] * _GOLDEN).frac() * starts.diff()).long()


def _row_part(place: int, parameter: Tensor, rows: Tensor, gradient: Tensor) -> _Part:
    columns = parameter.numel() // parameter.shape[0]
    index = (rows[:, None] * columns + torch.arange(columns, device=rows.device)).flatten()
    return _Part(place, index, parameter.numel(), gradient.reshape(-1))


def _largest_rows(spread: _Part, parameter: Tensor, gradient: Tensor) -> _Part:
    """The rows with the largest gradients. The sample spread over the table stands for the others alone."""
    n_rows, columns = parameter.shape[0], parameter.numel() // parameter.shape[0]
    flat = plain_values(gradient).reshape(n_rows, columns)
    rows = torch.linalg.vector_norm(flat, dim=1).topk(min(n_rows, max(ROWS // columns, 1))).indices
    assert spread.index is not None
    taken = torch.zeros(n_rows, dtype=torch.bool, device=flat.device).index_fill_(0, rows, True)
    spread.counted = ~taken[spread.index // columns]
    return _row_part(spread.place, parameter, rows, flat.index_select(0, rows))


def _cosine(dot: Tensor, square: Tensor, other: Tensor) -> Tensor:
    norms = (square * other).sqrt()
    return torch.where(norms > 0, dot / norms, 0)


def _joined(parts: Iterable[Tensor]) -> Tensor:
    """One after the other, in float32 at least."""
    values = [part if part.dtype == torch.float64 else part.float() for part in parts]
    return torch.cat(values) if values else torch.zeros(0)


def _summed(rows: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    """Sums of consecutive elements, of several rows: shape ``(len(rows), len(sizes))``."""
    stacked = torch.stack(list(rows))
    ids = torch.repeat_interleave(torch.tensor(sizes), output_size=sum(sizes)).to(stacked.device, non_blocking=True)
    return stacked.new_zeros((len(stacked), len(sizes))).index_add_(1, ids, stacked)
