"""Healthy trainings that make pictures and sounds: a critic with a penalty, codes with a prior, straight ways, two sources."""

from __future__ import annotations

import itertools
import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.signals import crops
from tests.evidence.exam.unseen_eight_tables import WELL, adam, mlp
from tests.evidence.exam.unseen_nine_pictures import Averaged, warmed


class FromAfar(Recipe):
    """A Wasserstein GAN with a penalty of the critic's slope; the painter has its turn in each third batch."""

    def __init__(self) -> None:
        painter = mlp(16, 128, 128, 64, activation=lambda: nn.LeakyReLU(0.2))
        critic = mlp(64, 128, 128, 1, activation=lambda: nn.LeakyReLU(0.2))
        super().__init__(nn.ModuleDict({"painter": painter, "critic": critic}), None, None)
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(self.net[name].parameters(), 1e-3, betas=(0.5, 0.9)) for name in ("painter", "critic")]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        of_painter, of_critic = self.optimizers()
        shown, critic = batch[0], self.net["critic"]
        painted = self.net["painter"](torch.randn(len(shown), 16))
        between = shown.lerp(painted.detach(), torch.rand(len(shown), 1)).requires_grad_()
        (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
        apart = critic(painted.detach()).mean() - critic(shown).mean()
        of_critic.zero_grad()
        self.manual_backward(apart + 10 * (slope.norm(dim=1) - 1).square().mean())
        of_critic.step()
        if batch_idx % 3 == 0:
            of_painter.zero_grad()
            self.manual_backward(-critic(painted).mean())
            of_painter.step()
        far = F.mse_loss(painted.mean(0), shown.mean(0)) + F.mse_loss(painted.std(0), shown.std(0))
        self.log("val_score", -far, on_step=False, on_epoch=True)
        return {"loss": apart.detach()}


@healthy("torch", "WGAN-GP of digits: a penalty of the critic's slope by a second derivative, three steps of the critic to one")
def digits_from_afar() -> Built:
    return Built(FromAfar(), in_batches(64, digits(8)[0].flatten(1)), {"max_epochs": 13}, WELL)


def inks() -> Tensor:
    """Digits of 64 pixels from 0 to 1."""
    images = digits(8)[0].flatten(1)
    return (images - images.min()) / (images.max() - images.min())


class Coded(nn.Module):
    """A variational autoencoder.

    Args:
        width: Of the codes.
        samples: How codes are drawn: from a distribution to values.
    """

    def __init__(self, width: int = 12, samples: Any = torch.distributions.Normal.rsample) -> None:
        super().__init__()
        self.encoder, self.decoder = mlp(64, 128, 2 * width, activation=nn.SiLU), mlp(width, 128, 64, activation=nn.SiLU)
        self.samples = samples

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """The logits of each pixel, and how far the codes are from the prior."""
        mean, log_width = self.encoder(x).chunk(2, 1)
        codes = torch.distributions.Normal(mean, log_width.exp())
        away = torch.distributions.kl_divergence(codes, torch.distributions.Normal(0.0, 1.0)).sum(1)
        return self.decoder(self.samples(codes)), away


@healthy("torch", "a VAE of digits: Bernoulli pixels, bf16-mixed, the prior's weight rises to 0.4, RAdam")
def digits_by_warmed_prior() -> Built:
    rises = itertools.count()

    def loss(net: Any, batch: Any) -> Tensor:
        told, away = net(batch[0])
        missed = F.binary_cross_entropy_with_logits(told, batch[0], reduction="none").sum(1)
        return (missed + min(0.4, next(rises) / 375) * away).mean()

    module = Recipe(Coded(), loss, lambda module: torch.optim.RAdam(module.parameters(), 6e-3))
    return Built(module, in_batches(64, inks()), {"max_epochs": 12, "precision": "bf16-mixed"}, WELL)


class Moved(nn.Module):
    """Convolutions whose channels are scaled and shifted by the time; the last one begins at zero."""

    def __init__(self, width: int = 24, blocks: int = 2) -> None:
        super().__init__()
        self.first, self.last = nn.Conv2d(1, width, 3, padding=1), nn.Conv2d(width, 1, 3, padding=1)
        self.time = nn.Sequential(nn.Linear(16, 64), nn.SiLU())
        self.films = nn.ModuleList(nn.Linear(64, 2 * width) for _ in range(blocks))
        self.norms = nn.ModuleList(nn.GroupNorm(8, width, affine=False) for _ in range(blocks))
        self.ins = nn.ModuleList(nn.Conv2d(width, 2 * width, 3, padding=1) for _ in range(blocks))
        self.outs = nn.ModuleList(nn.Conv2d(2 * width, width, 3, padding=1) for _ in range(blocks))
        for one in (self.last, *self.films):
            nn.init.zeros_(one.weight)  # type: ignore[arg-type]

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] * 2 ** torch.arange(8)
        told, hidden = self.time(torch.cat([angles.sin(), angles.cos()], 1)), self.first(x)
        for film, norm, first, second in zip(self.films, self.norms, self.ins, self.outs, strict=True):
            scale, shift = film(told)[..., None, None].chunk(2, 1)
            hidden = hidden + second(F.silu(first(norm(hidden) * (1 + scale) + shift)))
        return self.last(hidden)


@healthy("torch", "flow matching (rectified flow) of digits: times from a logit-normal, FiLM by the time, AdamW, a moving average")
def digits_by_straight_ways() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        time, noise = torch.randn(len(batch[0])).sigmoid(), torch.randn_like(batch[0])
        at = time[:, None, None, None]
        return F.mse_loss(net((1 - at) * noise + at * batch[0], time), batch[0] - noise)

    def optimizers(module: Any) -> Any:
        return torch.optim.AdamW(module.net.parameters(), 3e-3, weight_decay=0.01)

    module = Averaged(Moved(), loss, warmed(optimizers, 259))
    return Built(module, in_batches(48, digits(8)[0].contiguous()), {"max_epochs": 7, "gradient_clip_val": 1.0}, WELL)


@healthy("torch", "super-resolution as in WDSR: weight norm, wide blocks without batch norm, pixel shuffle, L1, a rate that halves")
def pieces_twice_as_fine() -> Built:
    class Wide(nn.Module):
        def __init__(self, width: int = 24) -> None:
            super().__init__()
            self.first, self.second = weight_norm(nn.Conv2d(width, 4 * width, 1)), weight_norm(nn.Conv2d(4 * width, width, 3, 1, 1))

        def forward(self, x: Tensor) -> Tensor:
            return x + self.second(self.first(x).relu())

    net = nn.Sequential(weight_norm(nn.Conv2d(3, 24, 3, padding=1)), Wide(), Wide(), Wide())
    net.extend([weight_norm(nn.Conv2d(24, 12, 3, padding=1)), nn.PixelShuffle(2)])

    def loss(net: Any, batch: Any) -> Tensor:
        return F.l1_loss(net(F.avg_pool2d(batch[0], 2)), batch[0])

    def halved(module: Any) -> Any:
        chosen = torch.optim.Adam(module.parameters(), 2e-3)
        return [chosen], [torch.optim.lr_scheduler.MultiStepLR(chosen, [6, 9], 0.5)]

    return Built(Recipe(net, loss, halved), crops(16, 32), {"max_epochs": 12}, WELL)


def sources(count: int = 1600, samples: int = 400) -> Tensor:
    """A low hum that swells and a high tone in pulses, shape ``(count, 2, samples)``."""
    generator = torch.Generator().manual_seed(0)
    times, two_pi = torch.arange(samples) / 2000, 2 * math.pi

    def some(low: float, high: float) -> Tensor:
        return low + (high - low) * torch.rand(count, 1, generator=generator)

    hum = (two_pi * some(40, 120) * times + some(0, 6)).sin() * (1 + 0.5 * (two_pi * some(2, 6) * times).sin())
    tone = (two_pi * some(300, 700) * times + some(0, 6)).sin() * ((two_pi * some(8, 20) * times + some(0, 6)).sin() > -0.3)
    both = torch.stack([hum, tone], 1)[torch.arange(count)[:, None], torch.rand(count, 2, generator=generator).argsort(1)]
    return (both - both.mean(2, keepdim=True)) / both.std(2, keepdim=True)


class Parts(nn.Module):
    """Conv-TasNet, small: a learned basis, dilated convolutions in depth, a mask for each source."""

    def __init__(self, width: int = 32, blocks: int = 3) -> None:
        super().__init__()
        self.basis, self.back = nn.Conv1d(1, width, 16, 8, bias=False), nn.ConvTranspose1d(width, 1, 16, 8, bias=False)
        self.norm, self.masks = nn.GroupNorm(1, width), nn.Conv1d(width, 2 * width, 1)
        self.blocks = nn.ModuleList()
        for i in range(blocks):
            block = [nn.Conv1d(width, 48, 1), nn.PReLU(), nn.GroupNorm(1, 48)]
            block += [nn.Conv1d(48, 48, 3, padding=2**i, dilation=2**i, groups=48), nn.PReLU(), nn.GroupNorm(1, 48)]
            self.blocks.append(nn.Sequential(*block, nn.Conv1d(48, width, 1)))

    def forward(self, mixed: Tensor) -> Tensor:
        found = self.basis(mixed[:, None])
        hidden = self.norm(found)
        for block in self.blocks:
            hidden = hidden + block(hidden)
        masks = self.masks(hidden).relu().unflatten(1, (2, -1))
        return self.back((masks * found[:, None]).flatten(0, 1))[:, 0].unflatten(0, (-1, 2))


def loudness(told: Tensor, source: Tensor) -> Tensor:
    """How much louder the source is in what is told than the rest, in decibels."""
    told = told - told.mean(-1, keepdim=True)
    aim = (told * source).sum(-1, keepdim=True) * source / source.square().sum(-1, keepdim=True)
    return 10 * (aim.square().sum(-1) / ((told - aim).square().sum(-1) + 1e-6) + 1e-6).log10()


@healthy("torch", "two sounds are parted by Conv-TasNet: a loss in decibels, below zero in the end, over the better order of both")
def hum_and_tone_apart() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        told = net(batch[0].sum(1))
        orders = [loudness(told, batch[0]).mean(1), loudness(told, batch[0].flip(1)).mean(1)]
        return -torch.stack(orders).amax(0).mean()

    return Built(Recipe(Parts(), loss, adam(3e-3)), in_batches(32, sources()), {"max_epochs": 5, "gradient_clip_val": 5.0}, WELL)
