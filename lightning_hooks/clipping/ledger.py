"""The ledger of one optimizer's steps: norms go in at each step, and are tallied many steps at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_hooks.clipping.stats import N_CLIP_COLUMNS, merge_tallies, tally

PAGE = 32
"""Steps kept before they are tallied, enough that the tally's cost is spread thin; fewer where there are many parameters."""

NUMBERS = 8192
"""Norms that a page holds at most, but for four steps at least: few, so that memory is small."""


class ClipLedger:
    """Keeps norms before and after clipping on the device until a page is full, then tallies it. No host sync.

    Args:
        n_parameters: How many parameters the norms are for.
        device: Where the gradients are.
        dtype: Of the norms.
    """

    def __init__(self, n_parameters: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64) -> None:
        self._page = max(4, min(PAGE, NUMBERS // max(n_parameters, 1)))
        self._before = torch.zeros((self._page, n_parameters), device=device, dtype=dtype)
        self._after = torch.zeros_like(self._before)
        self._taken: list[bool] = []
        self._total = torch.zeros(N_CLIP_COLUMNS + n_parameters, device=device, dtype=dtype)

    def write(self, before: Tensor, after: Tensor, taken: bool, skips_nonfinite: bool = False) -> None:
        """Enter one optimizer step.

        Args:
            before: Norms before clipping, shape ``(n_parameters,)``; 0 for a missing gradient.
            after: Norms at the step.
            taken: Whether the optimizer took it.
            skips_nonfinite: The optimizer itself skips a step whose gradients are not finite (fused optimizers under a
                loss scaler), so ``taken`` is told by the norms.
        """
        line = len(self._taken)
        self._before[line] = before
        self._after[line] = after
        self._taken.append(taken)
        if skips_nonfinite or line + 1 == self._page:
            self._close_page(skips_nonfinite)

    def _close_page(self, skips_nonfinite: bool = False) -> None:
        lines = len(self._taken)
        if not lines:
            return
        before, after = self._before[:lines], self._after[:lines]
        taken = torch.tensor(self._taken).to(before.device, non_blocking=True)
        if skips_nonfinite:
            taken[-1:] &= torch.isfinite(before[-1:].sum(1))
        self._total = merge_tallies(torch.stack((self._total, tally(before, after, taken))))
        self._taken.clear()

    @property
    def total(self) -> Tensor:
        """The tally of every step so far, shape ``(n_clip_columns + n_parameters,)``, on the device."""
        self._close_page()
        return self._total

    def load(self, total: Tensor) -> None:
        """Take up the tally of an earlier run, of the same parameters."""
        self._total = self._total.clone().copy_(total)

    def reset(self) -> None:
        """Start anew."""
        self._taken.clear()
        self._total = torch.zeros_like(self._total)  # a new one: a total already given out stays as it is
