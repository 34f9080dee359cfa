"""Healthy trainings on pictures: views without labels, codes, noise, a painter and a critic, regions."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm
from torch.optim.swa_utils import AveragedModel, get_ema_multi_avg_fn
from typing_extensions import override

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.optimizers import ByWeight
from tests.evidence.exam.pictures import digits, in_batches, views
from tests.evidence.exam.signals import crops
from tests.evidence.exam.unseen_eight_tables import WELL, adam, mlp
from tests.evidence.exam.unseen_eight_wiring import convolutions


def warmed(make: Callable[[Any], Any], steps: int, warm: int = 20) -> Callable[[Any], Any]:
    """An optimizer whose rate rises in a line, then falls as a cosine, batch by batch."""

    def optimizers(module: Any) -> Any:
        def share(step: int) -> float:
            return min((step + 1) / warm, 1.0) * 0.5 * (1 + math.cos(math.pi * min(step / steps, 1.0)))

        chosen = make(module)
        return {
            "optimizer": chosen,
            "lr_scheduler": {"scheduler": torch.optim.lr_scheduler.LambdaLR(chosen, share), "interval": "step"},
        }

    return optimizers


class Lion(ByWeight):
    """Each weight goes a step of one size, in the direction of an average of momentum and gradient."""

    def __init__(self, parameters: Any, lr: float, betas: tuple[float, float] = (0.9, 0.99), weight_decay: float = 0.0) -> None:
        super().__init__(parameters, {"lr": lr, "betas": betas, "weight_decay": weight_decay})

    @override
    def update(self, weight: Tensor, group: dict[str, Any], state: dict[str, Any]) -> None:
        first, second = group["betas"]
        momentum = state.setdefault("momentum", torch.zeros_like(weight))
        weight.mul_(1 - group["lr"] * group["weight_decay"])
        weight.sub_(group["lr"] * momentum.lerp(weight.grad, 1 - first).sign())
        momentum.lerp_(weight.grad, 1 - second)


class OwnGuesses(Recipe):
    """BYOL: one net predicts what a slow copy of it says of another view."""

    def __init__(self) -> None:
        encoder = convolutions().extend([nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32)])
        predictor = nn.Sequential(nn.Linear(32, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 32))
        nets = nn.ModuleDict({"quick": encoder, "slow": copy.deepcopy(encoder).requires_grad_(False), "predictor": predictor})
        super().__init__(nets, None, warmed(self.with_decay, 224))

    def with_decay(self, module: Any) -> Any:
        trained = [*module.net["quick"].parameters(), *module.net["predictor"].parameters()]
        return torch.optim.SGD(trained, 0.1, 0.9, weight_decay=5e-4)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        first, second = batch
        with torch.no_grad():
            goals = [self.net["slow"](view) for view in (second, first)]
        told = [self.net["predictor"](self.net["quick"](view)) for view in (first, second)]
        return torch.stack([1 - F.cosine_similarity(a, b).mean() for a, b in zip(told, goals, strict=True)]).sum()

    def on_train_batch_end(self, *_: Any) -> None:
        for slow, quick in zip(self.net["slow"].parameters(), self.net["quick"].parameters(), strict=True):
            slow.data.lerp_(quick.data, 0.03)


@healthy("torch", "BYOL by hand: a predictor foresees what a slow copy says of another view, SGD with warm-up and cosine")
def digits_by_own_guesses() -> Built:
    return Built(OwnGuesses(), views(64), {"max_epochs": 8}, WELL)


def unlike(first: Tensor, second: Tensor) -> Tensor:
    """VICReg's loss: views alike, columns that vary, columns that differ."""
    loss = 25 * F.mse_loss(first, second)
    for codes in (first, second):
        centred = codes - codes.mean(0)
        products = (centred.T @ centred / (len(codes) - 1)).square()
        loss = loss + 25 * F.relu(1 - (codes.var(0) + 1e-4).sqrt()).mean()
        loss = loss + (products.sum() - products.diagonal().sum()) / codes.shape[1]
    return loss


@healthy("torch", "VICReg: two views of pieces of photographs lie near each other, their columns vary and differ; Lion")
def pieces_by_variance() -> Built:
    net = nn.Sequential(nn.Conv2d(3, 24, 3, 2, 1), nn.BatchNorm2d(24), nn.ReLU(), nn.Conv2d(24, 48, 3, 2, 1), nn.BatchNorm2d(48))
    net.extend([nn.ReLU(), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(192, 96), nn.BatchNorm1d(96), nn.ReLU()])
    net.append(nn.Linear(96, 64))

    def seen(pieces: Tensor) -> Tensor:
        mirrored = torch.where(torch.rand(len(pieces), 1, 1, 1) < 0.5, pieces.flip(3), pieces)
        return mirrored * (0.8 + 0.4 * torch.rand(len(pieces), 1, 1, 1)) + 0.1 * torch.randn_like(pieces)

    def loss(net: Any, batch: Any) -> Tensor:
        return unlike(net(seen(batch[0])), net(seen(batch[0])))

    module = Recipe(net, loss, lambda module: Lion(module.parameters(), 3e-4, weight_decay=0.01))
    return Built(module, crops(16, 32), {"max_epochs": 12}, WELL)


class Quantised(nn.Module):
    """An autoencoder whose codes are put to the nearest of 48, which follow by moving averages.

    Args:
        width: Of a code.
        codes: How many there are.
        straight: Whether the encoder gets the decoder's gradient.
    """

    codebook: Tensor
    counts: Tensor
    sums: Tensor

    def __init__(self, width: int = 12, codes: int = 48, straight: bool = True) -> None:
        super().__init__()
        self.straight = straight
        self.encoder = nn.Sequential(nn.Conv2d(1, 24, 4, 2, 1), nn.ReLU(), nn.Conv2d(24, 32, 4, 2, 1), nn.ReLU())
        self.encoder.append(nn.Conv2d(32, width, 1))
        self.decoder = nn.Sequential(nn.ConvTranspose2d(width, 32, 4, 2, 1), nn.ReLU(), nn.ConvTranspose2d(32, 24, 4, 2, 1))
        self.decoder.extend([nn.ReLU(), nn.Conv2d(24, 1, 3, padding=1)])
        self.register_buffer("codebook", 0.1 * torch.randn(codes, width))
        self.register_buffer("counts", torch.ones(codes))
        self.register_buffer("sums", self.codebook.clone())

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        found = self.encoder(x).movedim(1, -1)
        nearest = torch.cdist(found.detach().flatten(0, 2), self.codebook).argmin(1)
        put = self.codebook[nearest].view_as(found)
        if self.training:
            self.follow(found.detach().flatten(0, 2), nearest)
        passed = found + (put - found).detach() if self.straight else put
        return self.decoder(passed.movedim(-1, 1)), F.mse_loss(found, put.detach())

    def follow(self, found: Tensor, nearest: Tensor) -> None:
        chosen = F.one_hot(nearest, len(self.codebook)).float()
        self.counts.lerp_(chosen.sum(0), 0.05)
        self.sums.lerp_(chosen.T @ found, 0.05)
        fresh = found[torch.randint(len(found), (len(self.codebook),))]
        self.codebook.copy_(torch.where(self.counts[:, None] < 0.05, fresh, self.sums / self.counts[:, None].clamp_min(1e-3)))


@healthy("torch", "VQ-VAE of digits: straight-through, a codebook of moving averages, codes that nobody takes begin anew; Adam")
def digits_by_codebook() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        again, away = net(batch[0])
        return F.mse_loss(again, batch[0]) + 0.25 * away

    return Built(Recipe(Quantised(), loss, adam(2e-3)), in_batches(48, digits(16)[0]), {"max_epochs": 6}, WELL)


class Denoiser(nn.Module):
    """A residual MLP that tells the noise in a picture of 64 pixels at a time."""

    def __init__(self, width: int = 160, blocks: int = 3) -> None:
        super().__init__()
        self.first, self.time = nn.Linear(64, width), nn.Sequential(nn.Linear(32, width), nn.SiLU(), nn.Linear(width, width))
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.LayerNorm(width), nn.Linear(width, 2 * width), nn.SiLU(), nn.Linear(2 * width, width))
            for _ in range(blocks)
        )
        self.last = nn.Linear(width, 64)
        nn.init.zeros_(self.last.weight)

    def forward(self, x: Tensor, time: Tensor) -> Tensor:
        angles = time[:, None] * 1000 ** (-torch.arange(16) / 16) * 100
        told = self.time(torch.cat([angles.sin(), angles.cos()], 1))
        hidden = self.first(x)
        for block in self.blocks:
            hidden = hidden + block(hidden + told)
        return self.last(hidden)


class Averaged(Recipe):
    """Keeps a moving average of its net."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.average = AveragedModel(self.net, multi_avg_fn=get_ema_multi_avg_fn(0.98))

    def on_train_batch_end(self, *_: Any) -> None:
        self.average.update_parameters(self.net)


@healthy("torch", "DDPM of digits by a residual MLP: a cosine schedule of noise, min-SNR weights, AdamW, a moving average")
def digits_out_of_noise() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        time = torch.rand(len(batch[0]))
        signal, noise = (time * math.pi / 2).cos()[:, None], torch.randn_like(batch[0])
        spread = (time * math.pi / 2).sin()[:, None].clamp_min(0.02)
        ratio = (signal / spread).square()
        missed = (net(signal * batch[0] + spread * noise, time) - noise).square().mean(1, keepdim=True)
        return (missed * ratio.clamp_max(5.0) / ratio.clamp_min(0.05)).mean()

    def optimizers(module: Any) -> Any:
        return torch.optim.AdamW(module.net.parameters(), 2e-3, betas=(0.9, 0.99))

    module = Averaged(Denoiser(), loss, warmed(optimizers, 280))
    return Built(module, in_batches(64, digits(8)[0].flatten(1)), {"max_epochs": 10, "gradient_clip_val": 1.0}, WELL)


class Paints(Recipe):
    """A GAN under the hinge loss; the critic's layers have spectral norm."""

    def __init__(self) -> None:
        critic = mlp(64, 96, 96, 1, activation=lambda: nn.LeakyReLU(0.2))
        for i in (0, 2, 4):
            spectral_norm(critic[i])
        painter = nn.Sequential(nn.Linear(16, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 96), nn.BatchNorm1d(96), nn.ReLU())
        painter.append(nn.Linear(96, 64))
        super().__init__(nn.ModuleDict({"painter": painter, "critic": critic}), None, None)
        self.automatic_optimization = False

    def configure_optimizers(self) -> Any:
        rates = {"painter": 5e-4, "critic": 2e-3}
        return [torch.optim.Adam(self.net[name].parameters(), rate, betas=(0.0, 0.9)) for name, rate in rates.items()]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        of_painter, of_critic = self.optimizers()
        painted = self.net["painter"](torch.randn(len(batch[0]), 16))
        critic = self.net["critic"]
        judged = F.relu(1 - critic(batch[0])).mean() + F.relu(1 + critic(painted.detach())).mean()
        of_critic.zero_grad()
        self.manual_backward(judged)
        of_critic.step()
        liked = -critic(painted).mean()
        of_painter.zero_grad()
        self.manual_backward(liked)
        of_painter.step()
        far = F.mse_loss(painted.mean(0), batch[0].mean(0)) + F.mse_loss(painted.std(0), batch[0].std(0))
        self.log("val_score", -far, on_step=False, on_epoch=True)
        return {"loss": judged.detach()}


@healthy("torch", "a GAN of digits under the hinge loss: spectral norm, a critic four times as fast, Adam's beta1 of 0")
def digits_painted() -> Built:
    return Built(Paints(), in_batches(64, digits(8)[0].flatten(1)), {"max_epochs": 12}, WELL)


class Across(nn.Module):
    """A U-Net of two levels."""

    def __init__(self, kinds: int = 3) -> None:
        super().__init__()
        self.first, self.second, self.bottom = block(1, 12), block(12, 24), block(24, 32)
        self.up, self.upper = block(32 + 24, 24), block(24 + 12, 12)
        self.last = nn.Conv2d(12, kinds, 1)

    def forward(self, x: Tensor) -> Tensor:
        first = self.first(x)
        second = self.second(F.max_pool2d(first, 2))
        bottom = self.bottom(F.max_pool2d(second, 2))
        up = self.up(torch.cat([F.interpolate(bottom, scale_factor=2.0), second], 1))
        return self.last(self.upper(torch.cat([F.interpolate(up, scale_factor=2.0), first], 1)))


def block(before: int, after: int) -> nn.Sequential:
    """A convolution with group norm."""
    return nn.Sequential(nn.Conv2d(before, after, 3, padding=1), nn.GroupNorm(4, after), nn.SiLU())


def regions(size: int = 16) -> tuple[Tensor, Tensor]:
    """Noisy digits, and which pixels are background, strokes, or the margin between them."""
    images = digits(size)[0]
    inside = (images > 0.3).float()
    near = F.max_pool2d(inside, 3, 1, 1) > 0
    kinds = torch.where(inside > 0, 1, torch.where(near, 2, 0))[:, 0]
    return images + 0.4 * torch.randn(images.shape, generator=torch.Generator().manual_seed(0)), kinds


@healthy("torch", "U-Net in bf16-mixed: strokes, margins, background; weighted cross-entropy and Dice, two batches a step")
def strokes_by_unet() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        told = net(batch[0]).float()
        shares, shown = told.softmax(1), F.one_hot(batch[1], 3).movedim(-1, 1).float()
        dice = (2 * (shares * shown).sum((0, 2, 3)) + 1) / ((shares + shown).sum((0, 2, 3)) + 1)
        return F.cross_entropy(told, batch[1], weight=torch.tensor([0.5, 1.0, 1.5])) + 1 - dice.mean()

    module = Recipe(Across(), loss, lambda module: torch.optim.AdamW(module.parameters(), 4e-3))
    options = {"max_epochs": 3, "precision": "bf16-mixed", "accumulate_grad_batches": 2}
    return Built(module, in_batches(24, *regions()), options, WELL)
