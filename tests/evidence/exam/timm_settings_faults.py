"""Faults of rates, schedules and loops under which models of timm train."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from tests.evidence.exam.cases import Built, Recipe, fault
from tests.evidence.exam.expectations import RATE, TOO_LOW, expecting
from tests.evidence.exam.loops import ByHand
from tests.evidence.exam.small_nets import to_classes
from tests.evidence.exam.timm_nets import (
    TIMM_SGD,
    convmixer,
    poolformer,
    repvgg,
    res2net,
    sknet,
    timm_model,
    timm_optimizer,
    timm_resnet_net,
    timm_vit_net,
    trained_on_digits,
    xcit,
)


@fault("timm", "SGD at 20 in a ResNet")
def timm_rate_too_high(planted: bool = True) -> Built:
    built = trained_on_digits(Recipe(timm_resnet_net(), to_classes, timm_optimizer("sgd", 20.0 if planted else 0.05)))
    return expecting(built, *RATE)


@fault("timm", "AdamW at 1e-9")
def timm_rate_too_low(planted: bool = True) -> Built:
    built = trained_on_digits(
        Recipe(timm_vit_net(), to_classes, timm_optimizer("adamw", 1e-9 if planted else 1e-3)), gradient_clip_val=1.0
    )
    return expecting(built, "update_too_small", "not_updated")


class TakeTurns(Recipe):
    """Two optimizers hold the same parameters and take turns."""

    def __init__(self, net: nn.Module, planted: bool) -> None:
        super().__init__(net, to_classes, self._both)
        self.planted, self.automatic_optimization = planted, False

    def _both(self, module: Any) -> Any:
        return [torch.optim.Adam(self.net.parameters(), lr) for lr in ((1e-3, 0.05) if self.planted else (1e-3,))]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        found = self.optimizers()
        optimizer = found[batch_idx % 2] if self.planted else found
        loss = to_classes(self.net, batch)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss


@fault("timm", "two optimizers on the same parameters in turn")
def timm_two_optimizers(planted: bool = True) -> Built:
    return expecting(trained_on_digits(TakeTurns(timm_vit_net(), planted)), "settings", "update_too_large", "update_spike")


@fault("timm", "Adam with an eps of 1")
def timm_eps_one(planted: bool = True) -> Built:
    built = trained_on_digits(Recipe(timm_vit_net(), to_classes, timm_optimizer("adamw", 1e-3, eps=1.0 if planted else 1e-8)))
    return expecting(built, "second_moment_stale", "optimizer_settings", "update_too_small")


@fault("timm", "a schedule made for epochs that is stepped at every batch")
def timm_schedule_per_batch(planted: bool = True) -> Built:
    def optimizers(module: Any) -> Any:
        chosen = TIMM_SGD(module)
        schedule = torch.optim.lr_scheduler.StepLR(chosen, 3, 0.1)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "step" if planted else "epoch"}}

    return expecting(trained_on_digits(Recipe(timm_resnet_net(), to_classes, optimizers)), "lr_zero", "update_too_small")


@fault("timm", "gradients are clipped by a norm of 1e-6 under SGD")
def timm_tiny_clipping(planted: bool = True) -> Built:
    built = trained_on_digits(Recipe(timm_resnet_net(), to_classes, TIMM_SGD), gradient_clip_val=1e-6 if planted else 5.0)
    return expecting(built, "always_clipped", "update_too_small")


class OutOfOrder(Recipe):
    """Steps by manual optimisation: gradients of some batches, of a scaled loss, divided by the scale and clipped.

    ``wrong`` is what comes at the wrong time: "zero" at each batch, "clip" while scaled, or "late", after the step.
    """

    def __init__(self, *parts: Any, gathered: int = 1, scale: float = 1.0, limit: float = 0.0, wrong: str = "") -> None:
        super().__init__(*parts)
        self.automatic_optimization = False
        self.gathered, self.scale, self.limit, self.wrong = gathered, scale, limit, wrong

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        chosen: Any = self.optimizers()
        if self.wrong == "zero" or batch_idx % self.gathered == 0:
            chosen.zero_grad()
        loss = self.loss_of_batch(self.net, batch)
        self.manual_backward(loss * self.scale / self.gathered)
        if (batch_idx + 1) % self.gathered == 0:
            self._clip_if(self.wrong == "clip")
            for parameter in self.net.parameters() if self.scale != 1 else ():
                parameter.grad /= self.scale
            self._clip_if(not self.wrong)
            chosen.step()
            self._clip_if(self.wrong == "late")
        return {"loss": loss.detach()}

    def _clip_if(self, now: bool) -> None:
        if now and self.limit:
            nn.utils.clip_grad_norm_(self.net.parameters(), self.limit)


@fault("timm", "gradients of eight small batches are accumulated by hand, and set to zero before each of them")
def accumulated_and_erased(planted: bool = True) -> Built:
    steps: dict[str, Any] = {"gathered": 8, "wrong": "zero" if planted else ""}
    module = OutOfOrder(timm_model("test_resnet"), to_classes, timm_optimizer("sgd", 0.05, 1e-4), **steps)
    return expecting(trained_on_digits(module, 4, limit_train_batches=64), "not_zeroed", *TOO_LOW)


@fault("timm", "a scaled loss, whose gradients are clipped before they are divided by the scale")
def clipped_while_scaled(planted: bool = True) -> Built:
    steps: dict[str, Any] = {"scale": 2.0**16, "limit": 1.0, "wrong": "clip" if planted else ""}
    module = OutOfOrder(timm_model("test_byobnet"), to_classes, timm_optimizer("sgd", 0.05, 1e-4), **steps)
    return expecting(trained_on_digits(module, 16), "always_clipped", "clip_ineffective", *TOO_LOW, "vanishing")


@fault("timm", "Lion at 0.05, the rate that was made for SGD")
def xcit_lion_rate(planted: bool = True) -> Built:
    built = trained_on_digits(Recipe(xcit(), to_classes, timm_optimizer("lion", 0.05 if planted else 2e-4)), 16)
    return expecting(built, *RATE, "loss_spike", "spike", "loss_plateau")


class Erased(ByHand):
    """``zero_grad`` between the backward pass and the step."""

    planted = True

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        loss = self.loss_of_batch(self.net, batch)
        if not self.planted:
            optimizer.zero_grad()
        self.manual_backward(loss)
        if self.planted:
            optimizer.zero_grad()
        optimizer.step()
        return {"loss": loss.detach()}


@fault("timm", "MetaFormer: zero_grad comes between backward and step")
def poolformer_erased(planted: bool = True) -> Built:
    module = Erased(poolformer(), to_classes, timm_optimizer("sgd", 0.05))
    module.planted = planted
    return expecting(trained_on_digits(module, 16), "not_updated", "update_too_small", "missing", "zero")


@fault("timm", "Res2Net: gradients clipped by value at 1e-6")
def res2net_clipped_by_value(planted: bool = True) -> Built:
    clip = {"gradient_clip_val": 1e-6 if planted else 1.0, "gradient_clip_algorithm": "value"}
    built = trained_on_digits(Recipe(res2net(), to_classes, timm_optimizer("sgd", 0.05)), 16, **clip)
    return expecting(built, "always_clipped", "update_too_small", "not_updated")


@fault("timm", "RepVGG: SGD with a decay of 5")
def repvgg_decay(planted: bool = True) -> Built:
    sgd = lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, weight_decay=5.0 if planted else 1e-4)  # noqa: E731
    kinds = ("optimizer_settings", "settings", "update_too_large", "representation_collapse", "constant", "vanishing")
    return expecting(trained_on_digits(Recipe(repvgg(), to_classes, sgd), 16), *kinds, "weights_growing")


class CopiedBack(Recipe):
    """An average of the weights, which is written into the net after each step."""

    planted = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.average = [p.detach().clone() for p in self.net.parameters()]

    def on_train_batch_end(self, *_: Any) -> None:
        for average, new in zip(self.average, self.net.parameters(), strict=True):
            average.lerp_(new.detach(), 1e-3)
            if self.planted:
                new.data.copy_(average)


@fault("timm", "ConvMixer: the average of the weights is copied back at each step")
def convmixer_copied_back(planted: bool = True) -> Built:
    module = CopiedBack(convmixer(), to_classes, timm_optimizer("adamw", 5e-3))
    module.planted = planted
    return expecting(trained_on_digits(module, 16), "not_updated", "update_too_small", "loss_plateau")


@fault("timm", "the optimizer holds the parameters of a copy of the net")
def sknet_copy_optimized(planted: bool = True) -> Built:
    net = sknet()

    def rates(module: Any) -> Any:
        held = copy.deepcopy(module.net) if planted else module.net
        return torch.optim.SGD(held.parameters(), 0.05, momentum=0.9)

    return expecting(trained_on_digits(Recipe(net, to_classes, rates), 16), "not_optimized", "not_updated", sites=("net*",))
