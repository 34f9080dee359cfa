"""Trainings that tests of several kinds run: two networks by hand, one bad batch, a dead layer, a loss scaler."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn

from tests.support.models import Classifier
from tests.support.reference import grad_norm


class Gan(Classifier):
    """Generator and discriminator in one batch, with stale gradients of the other in between; G is clipped by hand."""

    def __init__(self, toggle: bool = False) -> None:
        super().__init__(nn.Identity())
        self.automatic_optimization = False
        self.toggle = toggle
        self.g = nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8))
        self.d = nn.Sequential(nn.Linear(8, 8), nn.LeakyReLU(), nn.Linear(8, 1))
        self.pairs: dict[str, list[tuple[float, float]]] = {"0-Adam": [], "1-SGD": []}

    def training_step(self, batch: Any, batch_idx: int) -> None:
        real = batch[0]
        opt_d, opt_g = self.optimizers()
        if self.toggle:
            self.toggle_optimizer(opt_d)
        fake = self.g(torch.ones_like(real))
        loss = nn.functional.softplus(-self.d(real)).mean() + nn.functional.softplus(self.d(fake.detach())).mean()
        opt_d.zero_grad()
        self.manual_backward(loss)
        norm = grad_norm(self.d.parameters())
        self.pairs["0-Adam"].append((norm, norm))
        opt_d.step()
        if self.toggle:
            self.untoggle_optimizer(opt_d)
            self.toggle_optimizer(opt_g)
        opt_g.zero_grad()
        self.manual_backward(nn.functional.softplus(-self.d(self.g(torch.ones_like(real)))).mean())
        before = grad_norm(self.g.parameters())
        torch.nn.utils.clip_grad_norm_(self.g.parameters(), 0.02)
        self.pairs["1-SGD"].append((before, grad_norm(self.g.parameters())))
        opt_g.step()
        if self.toggle:
            self.untoggle_optimizer(opt_g)

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(self.d.parameters(), lr=0.01), torch.optim.SGD(self.g.parameters(), lr=0.1)]


class BadBatch(Classifier):
    """One loss is multiplied by something."""

    def __init__(self, net: nn.Module, factor: float, at: int = 2) -> None:
        super().__init__(net)
        self.factor, self.at = factor, at

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = super().training_step(batch, batch_idx)
        return loss * self.factor if batch_idx == self.at else loss


def dying() -> Classifier:
    net = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 3))
    nn.init.constant_(net[0].bias, -100.0)
    return Classifier(net, lr=0.0)


class Plain(Classifier):
    """Without the list of losses, which a compiled step would have to guard."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return nn.functional.cross_entropy(self.net(batch[0]), batch[1])


def amp(init_scale: float, growth_interval: int = 2000) -> Any:
    scaler = torch.amp.GradScaler("cpu", init_scale=init_scale, growth_interval=growth_interval)
    return MixedPrecision("16-mixed", "cpu", scaler)
