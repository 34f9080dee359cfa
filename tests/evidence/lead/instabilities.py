"""The instabilities."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests.evidence.faults import data
from tests.evidence.faults.data import VOCABULARY
from tests.evidence.faults.nets_modern import Decoder, PostNorm
from tests.evidence.lead.cases import STEPS, Training, characters, endless, instability


class Learner(LightningModule):
    """A net, its loss, an optimizer, and what the learning rate and the momentum are multiplied by at a step.

    Args:
        net: The net.
        optimizer: Already built, on the net's parameters.
        rate: From the step to the factor of the learning rate.
        loss: Of output and target.
    """

    def __init__(
        self,
        net: nn.Module,
        optimizer: torch.optim.Optimizer,
        rate: Callable[[int], float] = lambda step: 1.0,
        loss: Callable[[Tensor, Tensor], Tensor] | None = None,
    ) -> None:
        super().__init__()
        self.net, self.optimizer, self.rate = net, optimizer, rate
        self.loss = loss or (lambda output, target: F.cross_entropy(output.flatten(0, -2), target.flatten()))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.loss(self.net(batch[0]).float(), batch[1])

    def configure_optimizers(self) -> Any:
        schedule = torch.optim.lr_scheduler.LambdaLR(self.optimizer, self.rate)
        return {"optimizer": self.optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}


class Characters(nn.Module):
    """The next character from the eight before: ``embed, body, head``.

    Args:
        layers: Of the body.
        scale: What each branch of the body is multiplied by before it is added.
        norm: Whether what a branch reads is normalised.
    """

    def __init__(self, layers: int = 3, width: int = 64, scale: float = 1.0, norm: bool = True) -> None:
        super().__init__()
        self.scale = scale
        self.embed = nn.Embedding(VOCABULARY, 8)
        self.stem = nn.Linear(64, width)
        self.norms = nn.ModuleList(nn.LayerNorm(width) if norm else nn.Identity() for _ in range(layers))
        self.layers = nn.ModuleList(nn.Linear(width, width) for _ in range(layers))
        self.head = nn.Linear(width, VOCABULARY)

    def forward(self, x: Tensor) -> Tensor:
        h = self.stem(self.embed(x).flatten(1))
        for norm, layer in zip(self.norms, self.layers, strict=True):
            h = h + self.scale * F.gelu(layer(norm(h)))
        return self.head(h)


def next_character(batch: int = 64) -> DataLoader[Any]:
    """Eight characters and the one after them."""
    x, y, _, _ = data.text(8, n=7000)
    return endless(x, y[:, -1], batch)


def warm_up(steps: int) -> Callable[[int], float]:
    """A learning rate that rises over so many steps and then stays."""
    return lambda step: min(1.0, (step + 1) / steps)


def ramp(per_step: float, until: int = STEPS) -> Callable[[int], float]:
    """A learning rate that is multiplied at each step."""
    return lambda step: per_step ** min(step, until)


@instability("AdamW, whose learning rate a schedule multiplies by 1.02 at each step and does not stop", calibrates=True)
def learning_rate_grows(planted: bool) -> Training:
    net = Characters()
    optimizer = torch.optim.AdamW(net.parameters(), lr=1e-3)
    rate = ramp(1.02) if planted else ramp(1.02, 60)
    return Training(Learner(net, optimizer, rate), next_character(), {})


@instability("SGD with momentum, whose warm-up goes on and on")
def warm_up_does_not_end(planted: bool) -> Training:
    net = Characters(layers=4)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.05, momentum=0.9)
    rate = (lambda step: (step + 1) / 14) if planted else warm_up(20)
    return Training(Learner(net, optimizer, rate), next_character(), {})


@instability("a momentum that is raised towards 1 instead of 0.9")
def momentum_creeps_up(planted: bool) -> Training:
    net = Characters(layers=2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.8)

    def rate(step: int) -> float:
        group = optimizer.param_groups[0]
        group["momentum"] = 0.8 + 0.1 * min(step / 100, 1.0) if not planted else 1 - 0.2 * 0.98**step
        return 1.0

    return Training(Learner(net, optimizer, rate), next_character(), {})


@instability("a weight decay with the wrong sign, in a net without normalisation", calibrates=True)
def decay_with_wrong_sign(planted: bool) -> Training:
    class Decayed(Learner):
        """Multiplies all weights by hand after each step."""

        def on_train_batch_end(self, outputs: Any, batch: Any, batch_idx: int) -> None:
            with torch.no_grad():
                for parameter in self.net.parameters():
                    parameter.mul_(1.005 if planted else 0.9999)

    net = Characters(layers=3, norm=False)
    return Training(Decayed(net, torch.optim.SGD(net.parameters(), lr=0.05)), next_character(), {})


@instability("attention without a norm of queries and keys, under a learning rate that grows", calibrates=True)
def attention_logits(planted: bool) -> Training:
    net = Decoder(layers=1, length=16)
    optimizer = torch.optim.AdamW(net.parameters(), lr=3e-3)
    return Training(Learner(net, optimizer, ramp(1.02) if planted else ramp(1.02, 20)), characters(16, 16), {})


@instability("branches of a deep residual net that are scaled up, without normalisation")
def residual_scale(planted: bool) -> Training:
    net = Characters(layers=12, norm=False, scale=1.0 if planted else 0.2)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01, momentum=0.9)
    return Training(Learner(net, optimizer, ramp(1.015) if planted else warm_up(50)), next_character(32), {})


@instability("scales of norm layers whose weight decay has the wrong sign: activations grow")
def activations_grow(planted: bool) -> Training:
    net = Characters(layers=3)
    scales = [p for name, p in net.named_parameters() if "norms" in name]
    rest = [p for name, p in net.named_parameters() if "norms" not in name]
    groups = [{"params": rest}, {"params": scales, "weight_decay": -8.0 if planted else 0.0}]
    return Training(Learner(net, torch.optim.AdamW(groups, lr=1e-3)), next_character(32), {})


@instability("post-norm layers without a warm-up, at a learning rate that rises later")
def post_norm(planted: bool) -> Training:
    net = PostNorm(layers=2, length=16)
    optimizer = torch.optim.Adam(net.parameters(), lr=3e-3)
    return Training(Learner(net, optimizer, ramp(1.015) if planted else warm_up(40)), characters(16, 16), {})


@instability("Adam with a beta2 of 0.9999 behind bursts of large gradients that become larger")
def bursts(planted: bool) -> Training:
    net = Characters(layers=2)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2, betas=(0.9, 0.9999 if planted else 0.99))

    def loss(output: Tensor, target: Tensor) -> Tensor:
        return F.cross_entropy(output, target)

    class Bursts(Learner):
        """Every 25th batch has a loss that weighs more and more."""

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            value = super().training_step(batch, batch_idx)
            factor = 1.03**batch_idx if planted and batch_idx % 25 == 24 else 1.0
            return value + (factor - 1) * (value - value.detach())  # the loss is as it was, its gradient is not

    return Training(Bursts(net, optimizer, loss=loss), next_character(), {})
