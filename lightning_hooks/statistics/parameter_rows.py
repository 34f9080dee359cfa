"""Rows of parameters' gradients: the table, the rows of one optimizer step, and how they merge."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_hooks.statistics.reduction import Among, Merging, by_columns, largest, once, smallest
from lightning_hooks.statistics.rows import N_PARAMETER_COLUMNS, ParameterColumn, row_dtype

_WEIGHT = slice(ParameterColumn.WEIGHT_NORM, ParameterColumn.WEIGHT_RMS + 1)


def empty_parameter_table(n_parameters: int, device: torch.device | str = "cpu") -> Tensor:
    """Return a table of ``n_parameters`` identity rows, of shape ``(n_parameters, n_parameter_columns)``."""
    device = torch.device(device)
    table = torch.zeros((n_parameters, N_PARAMETER_COLUMNS), device=device, dtype=row_dtype(device))
    table[:, ParameterColumn.FIRST_NONFINITE] = torch.inf
    return table


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


def merge_parameter_rows(rows: Tensor) -> Tensor:
    """Merge parameter rows along the first dimension, the earliest first: ``(k, n, columns)`` to ``(n, columns)``."""
    merged = rows.sum(0)
    for column in (ParameterColumn.NORM_MAX, ParameterColumn.RATIO_MAX):
        merged[..., column] = rows[..., column].amax(0)
    last = rows[0, ..., _WEIGHT]
    for row in rows[1:]:
        last = torch.where(row[..., ParameterColumn.UPDATES, None] > 0, row[..., _WEIGHT], last)
    merged[..., _WEIGHT] = last
    merged[..., ParameterColumn.FIRST_NONFINITE] = rows[..., ParameterColumn.FIRST_NONFINITE].amin(0)
    return merged


def _last_weight(own: Tensor, among: Among) -> Merging:
    """Measured updates, and the norm and root mean square of the weight: of the last table in which there is an update."""
    place = torch.where(own[..., :1] > 0, among.number + 1.0, 0.0).to(own.dtype)
    last = yield place
    found = yield torch.cat((own[..., :1], torch.where((place == last) & (place > 0), own[..., 1:], 0)), -1)
    yield own.new_zeros(0)
    return found


parameter_rows_of_windows = by_columns(
    (
        (largest, (ParameterColumn.NORM_MAX, ParameterColumn.RATIO_MAX)),
        (smallest, (ParameterColumn.FIRST_NONFINITE,)),
        (_last_weight, (ParameterColumn.UPDATES, ParameterColumn.WEIGHT_NORM, ParameterColumn.WEIGHT_RMS)),
    ),
    N_PARAMETER_COLUMNS,
)
"""How rows of other optimizer steps merge, as :func:`merge_parameter_rows` does."""

parameter_rows_of_ranks = once(parameter_rows_of_windows, N_PARAMETER_COLUMNS)
"""How what ranks measured of the same optimizer steps merges.

Gradients at the optimizer step are most often the same on every rank, and so are the rows: then they count once. Where they are not
(local SGD, ``no_sync``, parameters that DDP ignores) each rank's steps count.
"""
