"""Updates by hand: adversaries, sharpness-aware steps and a scaled loss."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from lightning import LightningModule
from torch import Tensor, nn
from torch.optim import SGD, Adam

from .case import Scores, Training, accuracy, cross_entropy, fault, healthy
from .data import digits, energy_gap, feed, moons
from .nets import convnet, mlp


class ByHand(LightningModule):
    """A net, the updates of one batch, the optimizers for them and the scores of the net."""

    def __init__(self, net: nn.Module, update: Callable[[Any, Any], Any], optimizers: Callable[[Any], Any], scores: Scores) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.net, self.update, self.build, self.scores = net, update, optimizers, scores

    def training_step(self, batch: Any, batch_idx: int) -> None:
        self.log("train_loss", self.update(self, batch), prog_bar=True, batch_size=1)

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log_dict(self.scores(self.net, batch), batch_size=1)

    def configure_optimizers(self) -> Any:
        return self.build(self.net)


@fault("generator_ends_in_a_sigmoid", "A generator of data around 0 ends in a sigmoid.", "val_gap", 0.87, last=nn.Sigmoid())
@healthy
def least_squares_gan(last: nn.Module | None = None) -> Training:
    def update(module: Any, batch: Any) -> Tensor:
        judge, fakes = module.net["critic"], module.net["generator"](torch.randn(len(batch[0]), 4))
        for optimizer, player in zip(module.optimizers(), ("critic", "generator"), strict=True):
            if player == "critic":
                loss = F.mse_loss(judge(batch[0]), torch.ones(64, 1)) + judge(fakes.detach()).square().mean()
            else:
                loss = F.mse_loss(judge(fakes), torch.ones(64, 1))
            optimizer.zero_grad()
            module.manual_backward(loss)
            optimizer.step()
        return loss

    def optimizers(net: Any) -> Any:
        return [Adam(net[player].parameters(), rate, (0.5, 0.9)) for player, rate in (("critic", 2e-3), ("generator", 1e-3))]

    def gap(net: Any, batch: Any) -> dict[str, Tensor]:
        return {"val_gap": energy_gap(net["generator"](torch.randn(len(batch[0]), 4)), batch[0])}

    generator = nn.Sequential(mlp(4, 64, 64, 2), last or nn.Identity())
    net = nn.ModuleDict({"critic": mlp(2, 64, 64, 1, act=partial(nn.LeakyReLU, 0.2)), "generator": generator})
    return Training(ByHand(net, update, optimizers, gap), feed(moons()), {"max_epochs": 60})


@healthy
def sharpness_aware_steps() -> Training:
    def update(module: Any, batch: Any) -> Tensor:
        optimizer, weights = module.optimizers(), list(module.net.parameters())
        optimizer.zero_grad()
        loss = cross_entropy(module.net, batch)
        module.manual_backward(loss)
        norm = torch.stack([p.grad.norm() for p in weights]).norm()
        with torch.no_grad():
            torch._foreach_add_(weights, climbs := [0.1 * p.grad / norm for p in weights])
        optimizer.zero_grad()
        module.manual_backward(cross_entropy(module.net, batch))
        with torch.no_grad():
            torch._foreach_sub_(weights, climbs)
        optimizer.step()
        return loss

    net = nn.Sequential(nn.Flatten(), mlp(64, 64, 64, 10))
    sgd = partial(SGD, lr=0.1, momentum=0.9)
    return Training(ByHand(net, update, lambda n: sgd(n.parameters()), accuracy), feed(*digits()), {"max_epochs": 12})


@fault("clipped_before_unscaling", "Gradients are clipped while they are still scaled by 65536.", "val_acc", 1.04, unscale=False)
@healthy
def half_precision_with_a_scaler(unscale: bool = True) -> Training:
    scaler = torch.amp.GradScaler("cpu")

    def update(module: Any, batch: Any) -> Tensor:
        optimizer = module.optimizers()
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.float16):
            loss = cross_entropy(module.net, batch)
        module.manual_backward(scaler.scale(loss))
        if unscale:
            scaler.unscale_(optimizer)
        nn.utils.clip_grad_norm_(module.net.parameters(), 1.0)
        scaler.step(optimizer)
        scaler.update()
        return loss.detach()

    sgd = partial(SGD, lr=0.05, momentum=0.9)
    return Training(ByHand(convnet(), update, lambda n: sgd(n.parameters()), accuracy), feed(*digits()), {"max_epochs": 6})
