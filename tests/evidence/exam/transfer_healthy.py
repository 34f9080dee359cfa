"""Pictures of few kinds, of other brightness, of growing size, and bodies that are thawed later on."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.pytorch.utilities import CombinedLoader
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.pictures import digits, in_batches, pictures
from tests.evidence.exam.small_nets import block, by_recipe, convolutions, taught


class Reversed(torch.autograd.Function):
    """What it is given; going backward, the opposite, times a weight."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: float) -> Tensor:
        ctx.weight = weight
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> Any:
        return -ctx.weight * slopes[0], None


@healthy("torch", "DANN: a reversed gradient, whose weight grows, makes dark digits and bright ones look alike; SGD")
def recipe_domains() -> Built:
    body = nn.Sequential(block(1, 16), nn.MaxPool2d(2), block(16, 32), nn.MaxPool2d(2), nn.Flatten())
    heads = [nn.Sequential(nn.Linear(512, 64), nn.ReLU(), nn.Linear(64, kinds)) for kinds in (10, 2)]
    net, steps = nn.ModuleList([body, *heads]), iter(range(10**9))

    def loss(net: Any, batch: Any) -> Tensor:
        weight = 2 / (1 + math.exp(-10 * next(steps) / 80)) - 1
        other = batch[0].flip(0)
        codes = net[0](torch.cat((batch[0], 0.5 - 0.7 * other + 0.2 * torch.randn_like(other))))
        of_domain = torch.arange(2).repeat_interleave(len(other))
        digit = F.cross_entropy(net[1](codes[: len(other)]), batch[1])
        return digit + F.cross_entropy(net[2](Reversed.apply(codes, weight)), of_domain)

    sgd = lambda module: torch.optim.SGD(module.parameters(), 0.01, momentum=0.9)  # noqa: E731
    return by_recipe(net, loss, sgd, pictures(32, 16))


class Grows(Recipe):
    """Pictures of 12, 16, 20 and 24 pixels, epoch by epoch."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        size = (12, 16, 20, 24)[min(self.current_epoch, 3)]
        images = F.interpolate(batch[0], size=(size, size), mode="bilinear") if size != 24 else batch[0]
        return F.cross_entropy(self.net(images), batch[1])


@healthy("torch", "progressive resizing: digits of 12 pixels first, of 24 in the end; one cycle of AdamW's rate over it all")
def digits_ever_larger() -> Built:
    layers: list[nn.Module] = []
    for before, after, stride in ((1, 16, 1), (16, 24, 2), (24, 32, 2)):
        layers += [nn.Conv2d(before, after, 3, stride, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(32, 10))

    def cycle(module: Any) -> Any:
        chosen = torch.optim.AdamW(module.parameters(), 1e-3)
        schedule = torch.optim.lr_scheduler.OneCycleLR(chosen, 0.01, total_steps=220)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    module = Grows(net, None, cycle)
    return Built(module, in_batches(32, *digits(24)), {"max_epochs": 4, "limit_train_batches": 55}, WELL)


class TakesTurns(Recipe):
    """Which digit in one batch, how it is turned in the next."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        images, shown = batch["shown"] if batch_idx % 2 == 0 else batch["turned"]
        if batch_idx % 2 == 0:
            return F.cross_entropy(self.net["shown"](self.net["body"](images)), shown)
        turns = torch.randint(0, 4, (len(images),))
        turned = torch.stack([image.rot90(int(turn), (1, 2)) for image, turn in zip(images, turns, strict=True)])
        return F.cross_entropy(self.net["turned"](self.net["body"](turned)), turns)


@healthy("torch", "two tasks batch by batch: which digit it is, then how it is turned; each head rests in every second step, AdamW")
def digits_in_turns() -> Built:
    body = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.GroupNorm(4, 16), nn.GELU(), nn.Conv2d(16, 32, 3, 2, 1), nn.GELU())
    body.extend([nn.Flatten(), nn.Linear(512, 64), nn.GELU()])
    net = nn.ModuleDict({"body": body, "shown": nn.Linear(64, 10), "turned": nn.Linear(64, 4)})
    module = TakesTurns(net, None, lambda module: torch.optim.AdamW(module.parameters(), 2e-3))
    loaders = {name: in_batches(32, *digits(16), seed=i)["train_dataloaders"] for i, name in enumerate(("shown", "turned"))}
    return Built(module, {"train_dataloaders": CombinedLoader(loaders, "min_size")}, {"max_epochs": 5}, WELL)


class ThawsLater(Recipe):
    """A head learns over a trained body that stays; then the body joins at a tenth of the rate, its norms as they are."""

    def __init__(self, body: nn.Module, head: nn.Module, since: int) -> None:
        nets = nn.ModuleDict({"body": body.requires_grad_(False), "head": head})
        super().__init__(nets, self.tells, lambda module: torch.optim.Adam(module.net["head"].parameters(), 3e-3))
        self.since = since

    @staticmethod
    def tells(nets: Any, batch: Any) -> Tensor:
        return F.cross_entropy(nets["head"](nets["body"](batch[0])), batch[1])

    def on_train_epoch_start(self) -> None:
        self.net["body"].eval()
        if self.current_epoch == self.since:
            body = list(self.net["body"].requires_grad_(True).parameters())
            chosen: Any = self.optimizers()
            chosen.param_groups[0]["lr"] = 1e-3
            chosen.add_param_group({"params": body, "lr": 3e-4})


@healthy("torch", "transfer in two stages: a head learns over a frozen body in eval mode, then the body joins at a lower rate")
def digits_thawed_in_stages() -> Built:
    images, shown = digits(16)
    small = shown < 5
    body = convolutions()
    taught(nn.Sequential(body, nn.Linear(64, 5)), images[small], shown[small])
    module = ThawsLater(body, nn.Linear(64, 5), 5)
    return Built(module, in_batches(32, images[~small], shown[~small] - 5), {"max_epochs": 9}, WELL)
