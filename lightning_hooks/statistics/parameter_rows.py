"""Rows of parameters' gradients: the table, the rows of one optimizer step, and how they merge."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_hooks.statistics.reduction import by_columns, largest, once, smallest
from lightning_hooks.statistics.rows import N_PARAMETER_COLUMNS, ParameterColumn, row_dtype


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
    """Merge parameter rows along the first dimension: ``(k, n, columns)`` to ``(n, columns)``."""
    merged = rows.sum(0)
    merged[..., ParameterColumn.NORM_MAX] = rows[..., ParameterColumn.NORM_MAX].amax(0)
    merged[..., ParameterColumn.FIRST_NONFINITE] = rows[..., ParameterColumn.FIRST_NONFINITE].amin(0)
    return merged


parameter_rows_of_windows = by_columns(
    ((largest, (ParameterColumn.NORM_MAX,)), (smallest, (ParameterColumn.FIRST_NONFINITE,))), N_PARAMETER_COLUMNS
)
"""How rows of other optimizer steps merge, as :func:`merge_parameter_rows` does."""

parameter_rows_of_ranks = once(parameter_rows_of_windows, N_PARAMETER_COLUMNS)
"""How what ranks measured of the same optimizer steps merges.

Gradients at the optimizer step are most often the same on every rank, and so are the rows: then they count once. Where they are not
(local SGD, ``no_sync``, parameters that DDP ignores) each rank's steps count.
"""
