"""Faults of updates and optimizers: lost in rounding, written back, a jump, growth, schedules, settings. Some healthy schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim import lr_scheduler as schedulers

from tests.evidence.faults import data, nets
from tests.evidence.faults.tasks import Manual, Optimizers, Supervised, adam, sgd
from tests.evidence.faults.zoo import Built, Expected, fault, healthy, worse

BATCHES = 22
"""Training batches of an epoch of the digits, 64 in each."""
SIX_EPOCHS = {"max_epochs": 6}
WELL = Expected()


def digits(module: LightningModule, seed: int, expected: Expected, images: bool = False, **kwargs: Any) -> Built:
    """A training on the digits, of six epochs unless said otherwise."""
    return Built(module, data.loaders(data.images() if images else data.digits(), 64, seed), {**SIX_EPOCHS, **kwargs}, expected)


def scheduled(optimizers: Optimizers, schedule: Callable[[torch.optim.Optimizer], Any], interval: str = "step") -> Optimizers:
    """The same optimizer under a schedule."""

    def configure(module: nn.Module) -> Any:
        optimizer = optimizers(module)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule(optimizer), "interval": interval}}

    return configure


# Updates that are lost.


@fault("MLP", "weights kept in bfloat16, and a fine-tuning's learning rate", reaches=0.8, hurts=worse(0.3))
def bfloat16_small_steps(seed: int, planted: bool = True) -> Built:
    module = Supervised(nets.mlp(), adam(1e-6 if planted else 3e-3))
    return digits(module, seed, Expected(("updates_lost",)), max_epochs=3, precision="bf16-true")


@fault("CNN", "weights kept in bfloat16 under plain SGD with a small learning rate", reaches=0.8, hurts=worse(0.3))
def bfloat16_small_gradients(seed: int, planted: bool = True) -> Built:
    module = Supervised(nets.cnn(), sgd(1e-6 if planted else 0.1))
    return digits(module, seed, Expected(("updates_lost",)), images=True, max_epochs=3, precision="bf16-true")


class Restored(Manual):
    """A body and a head with an optimizer each; after each step the body gets back what a copy of it holds."""

    def __init__(self, net: nn.Sequential, planted: bool, parts: int) -> None:
        super().__init__(net, _two_parts(parts))
        self.planted, self.kept = planted, [p.detach().clone() for p in net[:parts].parameters()]
        self.parts = parts

    def training_step(self, batch: Any, batch_idx: int) -> None:  # type: ignore[override]
        one, two = self.optimizers()  # type: ignore[misc]
        for optimizer in (one, two):
            optimizer.zero_grad()
        self.manual_backward(self.note(self.loss(self.net(batch[0]), batch[1])))
        for optimizer in (one, two):
            optimizer.step()


def _two_parts(parts: int) -> Optimizers:
    def configure(module: Any) -> Any:
        body = [*module.net[:parts].parameters()]
        first = WritesBack(body, lr=3e-3, kept=module.kept if module.planted else None)
        return [first, torch.optim.Adam(module.net[parts:].parameters(), lr=3e-3)]

    return configure


class WritesBack(torch.optim.Adam):
    """Adam with a target copy that is written over the weights, where it should be the other way round."""

    def __init__(self, parameters: list[Tensor], lr: float, kept: list[Tensor] | None) -> None:
        super().__init__(parameters, lr=lr)
        self.kept = kept

    def step(self, closure: Any = None) -> Any:
        loss = super().step(closure)
        if self.kept is not None:
            with torch.no_grad():
                for parameter, kept in zip(self.param_groups[0]["params"], self.kept, strict=True):
                    parameter.copy_(kept)
        return loss


@fault("MLP", "an encoder whose own optimizer writes an old copy over it, next to a decoder that trains", reaches=0.8, hurts=None)
def encoder_written_back(seed: int, planted: bool = True) -> Built:
    return digits(Restored(nets.mlp(), planted, 4), seed, Expected(("not_updated",), ("net.fc0*", "net.fc1*", "net")), max_epochs=4)


@fault("CNN", "the first convolutions are written back after each step, the head trains", reaches=0.8, hurts=None)
def stem_written_back(seed: int, planted: bool = True) -> Built:
    expected = Expected(("not_updated",), ("net.conv*",))
    return digits(Restored(nets.cnn(), planted, 9), seed, expected, images=True, max_epochs=4)


# Jumps and growth.


class OneJump(torch.optim.Adam):
    """Its trust ratio is the wrong way round where a step's count reaches ``at``: that step is 100 times too large."""

    def __init__(self, parameters: Any, lr: float, at: int, factor: float) -> None:
        super().__init__(parameters, lr=lr)
        self.at, self.factor, self.count = at, factor, 0

    def step(self, closure: Any = None) -> Any:
        rates = [group["lr"] for group in self.param_groups]
        if self.count == self.at:
            for group in self.param_groups:
                group["lr"] *= self.factor
        loss = super().step(closure)
        for group, rate in zip(self.param_groups, rates, strict=True):
            group["lr"] = rate
        self.count += 1
        return loss


@fault("MLP", "an optimizer of one's own that makes one step 100 times too large", reaches=0.8, hurts=None)
def one_large_step(seed: int, planted: bool = True) -> Built:
    at = 4 * BATCHES
    module = Supervised(nets.mlp(), lambda net: OneJump(net.parameters(), 1e-3, at if planted else -1, 100.0))
    return digits(module, seed, Expected(("update_spike",), ("net.*.weight",), batch=at, epoch=4))


@fault("transformer", "a schedule whose table has one wrong entry: one step at a rate of 0.2", reaches=0.22, hurts=None)
def wrong_entry_in_schedule(seed: int, planted: bool = True) -> Built:
    at = 4 * 30
    rates = scheduled(adam(1e-3), lambda o: schedulers.LambdaLR(o, lambda step: 200.0 if planted and step == at else 1.0))
    expected = Expected(("update_spike", "spike", "update_too_large"), ("net.*.weight",), batch=at, epoch=4)
    return Built(Supervised(nets.Transformer(), rates), data.loaders(data.text(), 32, seed), SIX_EPOCHS, expected)


class Growing(Supervised):
    """From epoch ``at`` on the penalty on one layer's weights has the wrong sign."""

    def __init__(self, *args: Any, layer: str, at: int, penalty: float, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.layer, self.at, self.penalty = layer, at, penalty

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        if self.current_epoch < self.at:
            return loss
        weight = self.net.get_submodule(self.layer).weight
        return loss - self.penalty * weight.square().sum()  # type: ignore[operator,union-attr]


@fault("CNN", "a weight penalty with the wrong sign, from the fourth epoch on", reaches=0.8, hurts=None)
def penalty_with_wrong_sign(seed: int, planted: bool = True) -> Built:
    layer, at = f"conv{seed % 3}", 3
    module = Growing(nets.cnn(), sgd(0.1), layer=layer, at=at if planted else 99, penalty=0.3)
    return digits(module, seed, Expected(("weights_growing",), (f"net.{layer}*",), batch=at * BATCHES, epoch=at), images=True)


@fault("ResNet", "a layer that is scaled up by 5 % at each step, where it was to be normalised", reaches=0.8, hurts=None)
def scaled_at_each_step(seed: int, planted: bool = True) -> Built:
    at, name = 3, "net.stem.weight"

    class Scaled(Supervised):
        def on_train_batch_end(self, *args: Any) -> None:
            if planted and self.current_epoch >= at:
                with torch.no_grad():
                    dict(self.named_parameters())[name].mul_(1.05)

    expected = Expected(("weights_growing",), (name,), batch=at * BATCHES, epoch=at)
    return digits(Scaled(nets.ResNet(), sgd(0.1)), seed, expected, images=True)


# Second moments.


class Divided(Supervised):
    """Divides the loss by what it was divided by already."""

    def __init__(self, *args: Any, by: float) -> None:
        super().__init__(*args)
        self.by = by

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return super().training_step(batch, batch_idx) / self.by


@fault("MLP", "a loss that is divided by 1e9 more: Adam's eps decides the steps", reaches=0.8, hurts=worse(0.3))
def loss_divided_too_often(seed: int, planted: bool = True) -> Built:
    module = Divided(nets.mlp(), adam(3e-3), by=1e9 if planted else 1.0)
    return digits(module, seed, Expected(("second_moment_stale",)), max_epochs=3)


@fault("transformer", "gradients divided by 1e10 in a hook of one's own, as for a sum over workers", reaches=0.22, hurts=worse(0.1))
def gradients_divided_in_a_hook(seed: int, planted: bool = True) -> Built:
    net = nets.Transformer()
    for parameter in net.parameters():
        parameter.register_hook(lambda gradient: gradient / (1e10 if planted else 1.0))
    return Built(
        Supervised(net, adam()), data.loaders(data.text(), 32, seed), {"max_epochs": 3}, Expected(("second_moment_stale",))
    )


# Learning rates.


@fault("MLP", "a decay of 0.5 an epoch that is applied at every batch", reaches=0.8, hurts=None)
def scheduler_at_every_batch(seed: int, planted: bool = True) -> Built:
    rates = scheduled(adam(3e-3), lambda o: schedulers.ExponentialLR(o, 0.5), "step" if planted else "epoch")
    return digits(Supervised(nets.mlp(), rates), seed, Expected(("lr_zero",)))


@fault("CNN", "a cosine that is over after a third of the training, and stays at zero", reaches=0.8, hurts=None)
def cosine_is_over(seed: int, planted: bool = True) -> Built:
    steps = 2 * BATCHES if planted else 6 * BATCHES

    def half_cosine(step: int) -> float:
        return 0.5 + 0.5 * float(torch.cos(torch.tensor(min(step / steps, 1.0) * torch.pi)))

    rates = scheduled(adam(3e-3), lambda o: schedulers.LambdaLR(o, half_cosine))
    return digits(Supervised(nets.cnn(), rates), seed, Expected(("lr_zero",), batch=2 * BATCHES, epoch=2), images=True)


@fault("MLP", "a warm-up of 100 000 steps in a training of 132", reaches=0.8, hurts=worse(0.3))
def warm_up_too_long(seed: int, planted: bool = True) -> Built:
    warm_up = 100_000 if planted else 20
    rates = scheduled(sgd(0.3), lambda o: schedulers.LambdaLR(o, lambda step: min(step / warm_up, 1.0)))
    return digits(Supervised(nets.mlp(), rates), seed, Expected(("lr_zero",), batch=3 * BATCHES, epoch=3))


# Settings.


@fault("MLP", "Adam's betas in the wrong order", reaches=0.8, hurts=None)
def betas_in_wrong_order(seed: int, planted: bool = True) -> Built:
    betas = (0.999, 0.9) if planted else (0.9, 0.999)
    module = Supervised(nets.mlp(), lambda net: torch.optim.Adam(net.parameters(), lr=3e-3, betas=betas))
    return digits(module, seed, Expected(("optimizer_settings",)), max_epochs=3)


@fault("CNN", "a momentum of 0.9995, an average's decay", reaches=0.8, hurts=None)
def momentum_next_to_one(seed: int, planted: bool = True) -> Built:
    module = Supervised(nets.cnn(), sgd(0.02, 0.9995 if planted else 0.9))
    return digits(module, seed, Expected(("optimizer_settings",)), images=True, max_epochs=3)


# Healthy ones.


@healthy("MLP", "weights kept in bfloat16", reaches=0.8)
def bfloat16_weights(seed: int) -> Built:
    return digits(Supervised(nets.mlp(), adam(1e-3)), seed, WELL, precision="bf16-true")


@healthy("MLP", "a cosine with warm restarts, each down to zero", reaches=0.8)
def warm_restarts(seed: int) -> Built:
    rates = scheduled(adam(3e-3), lambda o: schedulers.CosineAnnealingWarmRestarts(o, BATCHES))
    return digits(Supervised(nets.mlp(), rates), seed, WELL)


@healthy("CNN", "a cyclic learning rate from zero and back, every two epochs", reaches=0.8)
def cyclic_rate(seed: int) -> Built:
    rates = scheduled(sgd(0.1, 0.9), lambda o: schedulers.CyclicLR(o, 0.0, 0.1, step_size_up=BATCHES))
    return digits(Supervised(nets.cnn(), rates), seed, WELL, images=True)


@healthy("MLP", "a learning rate that falls to a thousandth in three steps", reaches=0.8)
def step_decay(seed: int) -> Built:
    rates = scheduled(adam(3e-3), lambda o: schedulers.MultiStepLR(o, [2, 4, 5]), "epoch")
    return digits(Supervised(nets.mlp(), rates), seed, WELL)


@healthy("transformer", "one cycle: up from a 25th, down to next to nothing at the very end", reaches=0.22)
def one_cycle(seed: int) -> Built:
    rates = scheduled(adam(1e-3), lambda o: schedulers.OneCycleLR(o, 5e-3, total_steps=4 * 30))
    return Built(Supervised(nets.Transformer(), rates), data.loaders(data.text(), 32, seed), {"max_epochs": 4}, WELL)


@healthy("MLP", "a body that its schedule freezes after two epochs, while the head goes on", reaches=0.8)
def frozen_by_schedule(seed: int) -> Built:
    def configure(module: Any) -> Any:
        groups = [{"params": module.net[:4].parameters()}, {"params": module.net[4:].parameters()}]
        optimizer = torch.optim.Adam(groups, lr=3e-3)
        rates = [lambda epoch: float(epoch < 2), lambda epoch: 1.0]
        return {"optimizer": optimizer, "lr_scheduler": schedulers.LambdaLR(optimizer, rates)}

    return digits(Supervised(nets.mlp(), configure), seed, WELL)
