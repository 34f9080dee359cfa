"""The ledger of one optimizer's steps: it stores the norms of each step, and tallies many steps at a time."""

from __future__ import annotations

import torch
from torch import Tensor

from lightning_hooks.clipping.stats import N_CLIP_COLUMNS, merge_tallies, tally
from lightning_hooks.clipping.watch import NormHistory

PAGE = 32
"""Steps stored before they are tallied, so that the cost of a tally is shared; fewer with many parameters."""

NUMBERS = 8192
"""The largest number of norms in a page, which holds at least four steps: it limits the memory."""


class ClipLedger:
    """Stores norms before and after clipping on the device, and tallies each full page. No host sync.

    Args:
        n_parameters: Number of parameters.
        device: Device of the gradients.
        dtype: Floating-point type of the norms.
    """

    def __init__(self, n_parameters: int, device: torch.device | str = "cpu", dtype: torch.dtype = torch.float64) -> None:
        self._page = max(4, min(PAGE, NUMBERS // max(n_parameters, 1)))
        self._before: list[Tensor] = []
        self._after: list[Tensor] = []
        self._taken: list[bool] = []
        self._batches: list[int] = []
        self._skips: list[bool] = []
        self.watch = NormHistory(device, dtype)
        self._total = torch.zeros(N_CLIP_COLUMNS + n_parameters, device=device, dtype=dtype)

    def write(self, before: Tensor, after: Tensor, taken: bool, skips_nonfinite: bool = False, batch: int = 0) -> None:
        """Add one optimizer step. The norms are stored without a copy until the page is tallied, so they must not change.

        Args:
            before: L2 norms before clipping, shape ``(n,)``, of all parameters or of the first ``n``; 0 for a missing gradient.
            after: Norms at the step, of the same shape.
            taken: Whether the optimizer took the step.
            skips_nonfinite: The optimizer itself skips a step whose gradients are not finite (fused optimizers under a
                loss scaler): a step with such norms counts as not taken.
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
        """Extend the ledger to ``n_parameters``; the new parameters come last."""
        self._close_page()
        self._total = torch.cat((self._total, self._total.new_zeros(N_CLIP_COLUMNS + n_parameters - self._total.shape[0])))

    def _of_all(self, norms: Tensor) -> Tensor:
        """Norms with 0 appended for the parameters that were added later."""
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
        """The step events so far, shape ``(n_event_columns,)``, on the device."""
        self._close_page()
        return self.watch.events

    def load(self, total: Tensor) -> None:
        """Restore the tally of an earlier run with the same parameters."""
        self._total = self._total.clone().copy_(total)

    def reset(self) -> None:
        """Start an empty ledger."""
        self._clear_page()
        self.watch.reset()
        self._total = torch.zeros_like(self._total)  # a new tensor: the caller may still hold the old one
