"""Loops by hand that several families share."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.func import functional_call, grad, vmap
from torch.nn import functional as F

from tests.evidence.exam.cases import Recipe


class Manual(Recipe):
    """Manual optimisation, with or without ``zero_grad``, or with gradients clipped too late."""

    def __init__(self, *args: Any, zero_grad: bool) -> None:
        super().__init__(*args)
        self.automatic_optimization = False
        self.zero_grad_before = zero_grad

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        if self.zero_grad_before:
            optimizer.zero_grad()
        loss = self.loss_of_batch(self.net, batch)
        self.manual_backward(loss)
        optimizer.step()
        return loss.detach()


class ByHand(Recipe):
    """Manual optimisation: one optimizer, stepped by hand, unless a class has a ``training_step`` of its own."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        chosen: Any = self.optimizers()
        chosen.zero_grad()
        loss = self.loss_of_batch(self.net, batch)
        self.manual_backward(loss)
        self.before_step(batch)
        chosen.step()
        return {"loss": loss.detach()}

    def before_step(self, batch: Any) -> None:
        """What is done to the gradients."""


class Private(ByHand):
    """The gradient of each sample is cut at norm 1, then noise is added."""

    noise = 0.6

    def before_step(self, batch: Any) -> None:
        weights = {name: value.detach() for name, value in self.net.named_parameters()}

        def of_one(values: Any, x: Tensor, y: Tensor) -> Tensor:
            return F.cross_entropy(functional_call(self.net, values, (x[None],)), y[None])

        found = vmap(grad(of_one), in_dims=(None, 0, 0))(weights, batch[0], batch[1])
        norms = torch.stack([each.flatten(1).norm(dim=1) for each in found.values()]).norm(dim=0)
        share = (1 / norms.clamp_min(1e-6)).clamp_max(1.0)
        for name, value in self.net.named_parameters():
            summed = torch.einsum("n,n...->...", share, found[name])
            value.grad = (summed + self.noise * torch.randn_like(summed)) / len(batch[0])
