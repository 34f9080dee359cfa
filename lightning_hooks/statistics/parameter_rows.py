"""Rows of parameters' gradients: the columns, and the rows of one optimizer step."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_hooks.statistics.columns import MAXIMUM, MINIMUM_OR_NONE, SUM, Columns, Reduction
from lightning_hooks.statistics.reduction import Merging, TableIndex


def _last_weight(own: Tensor, among: TableIndex) -> Merging:
    """Updates and moves, which add, and the norm and root mean square of the weight: of the last table with an update."""
    place = torch.where(own[..., :1] > 0, among.number + 1.0, 0.0).to(own.dtype)
    last = yield place
    found = yield torch.cat((own[..., :2], torch.where((place == last) & (place > 0), own[..., 2:], 0)), -1)
    yield own.new_zeros(0)
    return found


def _last_weight_of(rows: Tensor) -> Tensor:
    """The same of rows stacked along the first dimension."""
    last = rows[0, ..., 2:]
    for row in rows[1:]:
        last = torch.where(row[..., :1] > 0, row[..., 2:], last)
    return torch.cat((rows[..., :2].sum(0), last), -1)


LAST_WEIGHT = Reduction(_last_weight, _last_weight_of)


class ParameterColumn(Columns):
    """What each number of a parameter's row holds."""

    STEPS = SUM  # measured optimizer steps with a finite gradient
    NORM = SUM  # its L2 norm over them
    SQUARE = SUM  # its squared norm
    NORM_MAX = MAXIMUM
    ZEROS = SUM  # zero elements, over measured steps
    ELEMENTS = SUM  # elements, over measured steps
    NONFINITE_STEPS = SUM
    MISSING_STEPS = SUM  # the gradient was None
    RATIO = SUM  # |update| / |weight|
    RATIO_STEPS = SUM
    FIRST_NONFINITE = MINIMUM_OR_NONE  # global step of the first measured one with a NaN or an infinite value
    RATIO_MAX = MAXIMUM
    UPDATES = LAST_WEIGHT  # measured updates, those of a weight of zeros among them
    MOVED = LAST_WEIGHT  # those of them that changed the weight
    WEIGHT_NORM = LAST_WEIGHT  # of the weight before the last measured update
    WEIGHT_RMS = LAST_WEIGHT  # its root mean square; as above
    LOST = SUM  # elements with a gradient that kept their value, over measured updates
    WITH_GRADIENT = SUM  # elements that were looked at for that, and had a gradient


N_PARAMETER_COLUMNS = len(ParameterColumn)


def parameter_rows(norms: Tensor, zeros: Tensor, elements: Tensor, global_step: int = 0) -> Tensor:
    """The rows of one optimizer step.

    Args:
        norms: L2 norms, shape ``(n,)``.
        zeros: Zero elements, shape ``(n,)``.
        elements: Sizes, shape ``(n,)``.
        global_step: The trainer's, before the step.

    Returns:
        Shape ``(n, n_parameter_columns)``.
    """
    finite = torch.isfinite(norms)
    kept = torch.where(finite, norms, 0)
    rows = norms.new_zeros((norms.shape[0], N_PARAMETER_COLUMNS))
    rows[:, ParameterColumn.STEPS] = finite
    rows[:, ParameterColumn.NORM] = kept
    rows[:, ParameterColumn.SQUARE] = kept * kept
    rows[:, ParameterColumn.NORM_MAX] = kept
    rows[:, ParameterColumn.ZEROS] = zeros
    rows[:, ParameterColumn.ELEMENTS] = elements
    rows[:, ParameterColumn.NONFINITE_STEPS] = ~finite
    rows[:, ParameterColumn.FIRST_NONFINITE] = torch.where(finite, torch.inf, global_step)
    return rows
