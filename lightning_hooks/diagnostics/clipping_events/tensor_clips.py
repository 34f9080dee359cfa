"""The events of a clipper that clips each parameter's gradient during backward."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.clipping.policies import norm_factor
from lightning_hooks.declare.context import Context
from lightning_hooks.declare.step import Step, loss_scale
from lightning_hooks.diagnostics.clipping_events.collector import ClipCollector
from lightning_hooks.hooks import Listener
from lightning_hooks.hooks.tensors import as_real, plain_values


class TensorClipCollector(ClipCollector):
    """Clip events whose norms are those that the hooks of the parameters saw.

    Attributes:
        clips: Index of a parameter to its hook.
    """

    def __init__(self, context: Context, state: Mapping[str, Any]) -> None:
        super().__init__(context, state)
        self.clips: dict[int, TensorClip] = {}

    @override
    def on_gradients(self, step: Step) -> None:
        """Nothing is read here: gradients are clipped by now."""

    @override
    def on_clipped(self, step: Step) -> None:
        after = step.norms().clone()
        before = after.clone()
        for index in step.indices:
            if index in self.clips:
                before[index], after[index] = self.clips[index].take()
        if not (step.again and step.optimizer in self.after):
            self.before[step.optimizer], self.after[step.optimizer] = before, after

    @override
    def on_skipped(self, step: Step) -> None:
        self.on_clipped(step)
        super().on_skipped(step)


class TensorClip(Listener):
    """Tensor hook of one parameter: scales its gradient to a norm, and keeps the norms before and after."""

    def __init__(self, max_norm: float, scaler: Any) -> None:
        self.max_norm, self.scaler = max_norm, scaler
        self.squares: Tensor | None = None  # of the norms before and after, summed over a step's micro-batches

    def __call__(self, gradient: Tensor) -> Tensor:
        """Clip the gradient."""
        scale = loss_scale(self.scaler)
        norm = torch.linalg.vector_norm(as_real(plain_values(gradient)), dtype=torch.float32)
        norm = norm if scale is None else norm / scale
        factor = norm_factor(norm, self.max_norm)
        squares = torch.stack((norm, norm * factor)).double() ** 2
        self.squares = squares if self.squares is None else self.squares + squares
        if gradient.layout == torch.sparse_coo:
            gradient = gradient.coalesce()
            values = gradient.values() * factor.to(gradient.dtype)
            return torch.sparse_coo_tensor(gradient.indices(), values, gradient.shape, is_coalesced=True, check_invariants=False)
        return gradient * factor.to(gradient.dtype)

    def take(self) -> Tensor:
        """Return the norms before and after of the step, shape ``(2,)``, and start again."""
        squares, self.squares = self.squares, None
        return torch.zeros(2, dtype=torch.float64) if squares is None else squares.sqrt()
