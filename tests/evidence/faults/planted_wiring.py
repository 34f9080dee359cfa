"""Faults of wiring: paths that are cut, layers that are forgotten, steps that are wrong."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from torch import Tensor, nn

from tests.evidence.faults import data, nets
from tests.evidence.faults.tasks import Adversarial, Manual, Supervised, adam, sgd
from tests.evidence.faults.zoo import Built, Expected, fault, worse

EPOCHS = {"max_epochs": 3}
SIX_EPOCHS = {"max_epochs": 6}


@fault("ResNet", "a detach() between two blocks", reaches=0.85, hurts=None)
def detach_in_the_middle(seed: int, planted: bool = True) -> Built:
    net, at = nets.ResNet(), 1 + seed % 2
    net.detached_before = at if planted else None
    before = ("net.stem*", "net.norm*", "net.act", *(f"net.blocks.{i}.*" for i in range(at)))
    return Built(Supervised(net, adam()), data.loaders(data.images(), 64, seed), EPOCHS, Expected(("missing",), before))


class TwoBranches(nn.Module):
    """A local and a global look at the image, joined before the head: ``local.*, whole.*, head``."""

    def __init__(self, forgotten: str | None) -> None:
        super().__init__()
        self.local = nn.Sequential(
            OrderedDict(conv=nn.Conv2d(1, 16, 3, padding=1), act=nn.ReLU(), pool=nn.AdaptiveMaxPool2d(2), flat=nn.Flatten())
        )
        self.whole = nn.Sequential(OrderedDict(flat=nn.Flatten(), fc=nn.Linear(64, 64), act=nn.ReLU()))
        self.head = nn.Linear(64, 10)
        self.forgotten = forgotten

    def forward(self, x: Tensor) -> Tensor:
        branches = [branch(x) for name, branch in (("local", self.local), ("whole", self.whole)) if name != self.forgotten]
        return self.head(sum(branches))


@fault("CNN", "a branch that forward forgets", reaches=0.7, hurts=None)
def unused_branch(seed: int, planted: bool = True) -> Built:
    forgotten = ("local", "whole")[seed % 2]
    module = Supervised(TwoBranches(forgotten if planted else None), adam())
    expected = Expected(("missing", "silent"), (f"net.{forgotten}.*",))
    return Built(module, data.loaders(data.images(), 64, seed), EPOCHS, expected)


@fault("LSTM", "a layer that no optimizer holds", reaches=0.25, hurts=None)
def not_in_optimizer(seed: int, planted: bool = True) -> Built:
    forgotten = ("embed", "rnn", "head")[seed % 3]

    def optimizer(module: nn.Module) -> torch.optim.Optimizer:
        held = [p for name, p in module.named_parameters() if not (planted and name.startswith(f"net.{forgotten}."))]
        return torch.optim.Adam(held, lr=1e-2)

    expected = Expected(("not_optimized",), (f"net.{forgotten}*",))
    return Built(Supervised(nets.Recurrent(), optimizer), data.loaders(data.text(), 32, seed), EPOCHS, expected)


class Unfreezing(Supervised):
    """Its body is frozen for the first epoch; the optimizer was made of what required a gradient then."""

    def __init__(self, net: nn.Module, joins: bool) -> None:
        super().__init__(net, lambda module: torch.optim.Adam((p for p in module.parameters() if p.requires_grad), lr=3e-3))
        self.joins = joins
        self.body = [p for name, p in net.named_parameters() if not name.startswith("head")]
        for parameter in self.body:
            parameter.requires_grad_(False)

    def on_train_epoch_start(self) -> None:
        if self.current_epoch == 1:
            for parameter in self.body:
                parameter.requires_grad_(True)
            if self.joins:
                self.optimizers().add_param_group({"params": self.body})  # type: ignore[union-attr]


@fault("ResNet", "a body that is unfrozen in the second epoch, but not given to the optimizer", reaches=0.8, hurts=worse(0.05))
def frozen_by_mistake(seed: int, planted: bool = True) -> Built:
    expected = Expected(("not_optimized",), ("net.stem*", "net.norm*", "net.blocks.*"), batch=22, epoch=1)
    net = nets.ResNet()
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.05 * torch.randn_like(parameter))  # no longer as PyTorch does it: it stands for a body that was loaded
    return Built(Unfreezing(net, joins=not planted), data.loaders(data.images(), 64, seed), EPOCHS, expected)


@fault("MLP", "one layer four times, by [layer] * 4, where four layers were meant", reaches=0.8, hurts=None)
def shared_weights(seed: int, planted: bool = True) -> Built:
    def stack(layers: list[nn.Module]) -> nn.Sequential:
        hidden = [module for layer in layers for module in (layer, nn.ReLU())]
        names = OrderedDict(fc0=nn.Linear(64, 64), act0=nn.ReLU(), hidden=nn.Sequential(*hidden), head=nn.Linear(64, 10))
        return nn.Sequential(names)

    net = nets.initialise(stack([nn.Linear(64, 64)] * 4 if planted else [nn.Linear(64, 64) for _ in range(4)]))
    return Built(
        Supervised(net, adam(1e-3)), data.loaders(data.digits(), 64, seed), EPOCHS, Expected(("shared",), ("net.hidden.*",))
    )


@fault("GAN", "the generator's own loss is taken of detached samples", reaches=0.3, hurts=worse(0.1))
def gan_generator_detached(seed: int, planted: bool = True) -> Built:
    expected = Expected(("missing",), ("net.generator.*",))
    return Built(Adversarial(detach=planted), data.loaders(data.digits(), 64, seed), SIX_EPOCHS, expected)


@fault("MLP", "a softmax before the cross entropy", reaches=0.8, hurts=worse(0.05))
def softmax_before_cross_entropy(seed: int, planted: bool = True) -> Built:
    net = nets.mlp(init=nn.init.kaiming_normal_)
    if planted:
        net.softmax = nn.Softmax(-1)
    expected = Expected(("saturated", "vanishing", "double_softmax"), ("net.softmax", "net.head*"))
    return Built(Supervised(net, sgd(0.1)), data.loaders(data.digits(), 64, seed), EPOCHS, expected)


@fault("MLP", "a manual loop without zero_grad", reaches=0.8, hurts=worse(0.05))
def no_zero_grad(seed: int, planted: bool = True) -> Built:
    module = Manual(nets.mlp(init=nn.init.kaiming_normal_), sgd(0.5), zero_grad=not planted)
    expected = Expected(("not_zeroed", "exploding", "update_too_large", "spike"))
    return Built(module, data.loaders(data.digits(), 64, seed), EPOCHS, expected)


@fault("MLP", "a clipping threshold of 1e-4", reaches=0.8, hurts=worse(0.3))
def clip_threshold_tiny(seed: int, planted: bool = True) -> Built:
    module = Supervised(nets.mlp(init=nn.init.kaiming_normal_), sgd(0.1))
    kwargs = {**EPOCHS, "gradient_clip_val": 1e-4 if planted else 5.0}
    return Built(module, data.loaders(data.digits(), 64, seed), kwargs, Expected(("always_clipped",)))


class ClipsTooEarly(Supervised):
    """Clips in training_step, before there is a gradient to clip."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        torch.nn.utils.clip_grad_norm_(self.parameters(), 0.1)
        return loss


@fault("LSTM", "clip_grad_norm_ inside training_step, before backward: it does nothing", reaches=0.2, hurts=None)
def clip_in_training_step(seed: int, planted: bool = True) -> Built:
    net = nets.Recurrent()
    module = ClipsTooEarly(net, sgd(1.0, 0.9)) if planted else Supervised(net, sgd(1.0, 0.9))
    kwargs = EPOCHS if planted else {**EPOCHS, "gradient_clip_val": 0.1}
    return Built(module, data.loaders(data.text(), 32, seed), kwargs, Expected(("clip_ineffective",)))
