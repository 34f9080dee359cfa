"""The ledger of one optimizer's steps: norms go in at each step, and are tallied many steps at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_hooks.clipping.stats import N_CLIP_COLUMNS, merge_tallies, tally
from lightning_hooks.clipping.watch import NormWatch

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
        self._before: list[Tensor] = []
        self._after: list[Tensor] = []
        self._taken: list[bool] = []
        self._batches: list[int] = []
        self._skips: list[bool] = []
        self.watch = NormWatch(device, dtype)
        self._total = torch.zeros(N_CLIP_COLUMNS + n_parameters, device=device, dtype=dtype)

    def write(self, before: Tensor, after: Tensor, taken: bool, skips_nonfinite: bool = False, batch: int = 0) -> None:
        """Enter one optimizer step. The norms are kept as they are until the page is closed; nobody writes into them.

        Args:
            before: Norms before clipping, of all parameters or of the first; 0 for a missing gradient.
            after: Norms at the step.
            taken: Whether the optimizer took it.
            skips_nonfinite: The optimizer itself skips a step whose gradients are not finite (fused optimizers under a
                loss scaler), so ``taken`` is told by the norms.
            batch: The training batch, from 0.
        """
        self._before.append(self._of_all(before))
        self._after.append(self._of_all(after))
        self._taken.append(taken)
        self._batches.append(batch)
        self._skips.append(skips_nonfinite)
        if len(self._taken) == self._page:
            self._close_page()

    def grow(self, n_parameters: int) -> None:
        """More parameters have a place now; the new ones come last."""
        self._close_page()
        self._total = torch.cat((self._total, self._total.new_zeros(N_CLIP_COLUMNS + n_parameters - self._total.shape[0])))

    def _of_all(self, norms: Tensor) -> Tensor:
        """Norms of before the last parameters came, with 0 for these."""
        more = self._total.shape[0] - N_CLIP_COLUMNS - norms.shape[0]
        return torch.cat((norms, norms.new_zeros(more))) if more else norms

    def _close_page(self) -> None:
        if not self._taken:
            return
        before, after = (torch.stack(norms).to(self._total) for norms in (self._before, self._after))
        taken = torch.tensor(self._taken).to(before.device, non_blocking=True)
        if any(self._skips):
            taken &= torch.isfinite(before.sum(1)) | ~torch.tensor(self._skips).to(before.device, non_blocking=True)
        self._total = merge_tallies(torch.stack((self._total, tally(before, after, taken))))
        self.watch.read(before, self._batches, taken)
        self._clear_page()

    def _clear_page(self) -> None:
        for entries in (self._before, self._after, self._taken, self._batches, self._skips):
            entries.clear()

    @property
    def total(self) -> Tensor:
        """The tally of every step so far, shape ``(n_clip_columns + n_parameters,)``, on the device."""
        self._close_page()
        return self._total

    @property
    def events(self) -> Tensor:
        """What happened at single steps so far, shape ``(n_event_columns,)``, on the device."""
        self._close_page()
        return self.watch.events

    def load(self, total: Tensor) -> None:
        """Take up the tally of an earlier run, of the same parameters."""
        self._total = self._total.clone().copy_(total)

    def reset(self) -> None:
        """Start anew."""
        self._clear_page()
        self.watch.reset()
        self._total = torch.zeros_like(self._total)  # a new one: a total already given out stays as it is
