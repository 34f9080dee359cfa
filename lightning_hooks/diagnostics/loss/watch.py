"""Which loss of a batch is recorded, and which metric is the validation's."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.step import loss_scale
from lightning_hooks.diagnostics.loss.table import LossTable

_VALIDATION = re.compile(r"(?<![a-z])(e?val|valid|validation|evaluation)(?![a-z])", re.IGNORECASE)
_OWN = ("features/", "gradient_flow/", "gradient_clip/")


class LossWatch:
    """Records the loss of every batch, and of every validation.

    Args:
        context: Its collector's part of the session.
    """

    def __init__(self, context: Context) -> None:
        self._context = context
        self.table = LossTable(context.host.setup.device)
        self.table.optimized = context.host.setup.automatic_optimization
        self.table.scaled = context.host.loss_scaling.scaler is not None
        self.before_backward = context.guard(self._before_backward, "the loss")
        self.batch_end = context.guard(self._batch_end, "the loss of a batch")
        self.validation_end = context.guard(self._validation_end, "the loss of a validation")

    def batch_start(self) -> None:
        """A batch starts."""
        self.table.step = self._context.host.position.global_step

    def _before_backward(self, loss: Tensor) -> None:
        if isinstance(loss, Tensor) and loss.is_floating_point():
            # As training_step returned it: the loop divides it by the accumulation, and a loss scaler scales it.
            host = self._context.host
            scaling, divided = host.loss_scaling, host.setup.automatic_optimization
            self.table.add(loss, float(scaling.accumulation) if divided else 1.0, loss_scale(scaling.scaler))

    def _batch_end(self, outputs: Any) -> None:
        returned = None if self._context.host.setup.steps_announced else returned_loss(outputs)
        self.table.end_batch(self._context.batches - 1, self._context.batch, returned)

    def _validation_end(self) -> None:
        metrics = self._context.host.metrics.available
        name = validation_loss(metrics)
        if name is not None:
            self.table.end_validation(torch.as_tensor(metrics[name]))


def returned_loss(outputs: Any) -> Tensor | None:
    """The loss in what ``training_step`` returned; None where there is none."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return loss if isinstance(loss, Tensor) and loss.is_floating_point() else None


def validation_loss(names: Iterable[str]) -> str | None:
    """The metric that is the loss of a validation, by its name, such as ``val_loss``; of several the one with the shortest name."""
    found = [name for name in names if "loss" in name.lower() and _VALIDATION.search(name.replace("_", " "))]
    return min((name for name in found if not name.startswith(_OWN)), key=lambda name: (len(name), name), default=None)
