"""Faults of arithmetic and of data: NaN, infinite, constant or very large values."""

from __future__ import annotations

from collections import OrderedDict
from typing import Any

import torch
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn

from tests.evidence.faults import data, nets
from tests.evidence.faults.tasks import Adversarial, OneBadBatch, Supervised, Variational, adam, sgd
from tests.evidence.faults.zoo import Built, Expected, broken, fault, worse

EPOCHS = {"max_epochs": 3}
SIX_EPOCHS = {"max_epochs": 6}


def amp() -> Any:
    """Half precision on the CPU, with a loss scaler."""
    return MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=2.0**16))


@fault("CNN", "one NaN pixel in one batch of the second epoch", reaches=0.9, hurts=broken)
def nan_in_one_batch(seed: int, planted: bool = True) -> Built:
    at = 22 + 5 + 3 * seed

    def spoil(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
        x[7, 0, 4, 4] = torch.nan
        return x, y

    module = OneBadBatch(at if planted else -1, spoil, nets.cnn(), adam())
    expected = Expected(("nonfinite",), ("net.conv0*",), batch=at, epoch=1)
    return Built(module, data.loaders(data.images(), 64, seed), EPOCHS, expected)


class Log(nn.Module):
    """The logarithm of each measurement, with or without a guard, standardised by what the training data give."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return (x + self.eps).log()


@fault("MLP", "the logarithm of measurements that are 0 in 3 % of the patients", reaches=0.85, hurts=broken)
def log_of_zero(seed: int, planted: bool = True) -> Built:
    net = nets.mlp((30, 32, 32, 2))
    net = nn.Sequential(OrderedDict(log=Log(0.0 if planted else 0.01), norm=nn.BatchNorm1d(30), **dict(net.named_children())))
    loaders = data.loaders(data.cancer(standardised=False), 16, seed)
    first = next(i for i, (x, _) in enumerate(data.loaders(data.cancer(False), 16, seed)["train_dataloaders"]) if (x == 0).any())
    return Built(Supervised(net, adam()), loaders, EPOCHS, Expected(("nonfinite",), ("net.log",), batch=first))


@fault("GAN", "the paper's log(1 - D) where the discriminator is certain", reaches=0.3, hurts=broken)
def gan_log_of_zero(seed: int, planted: bool = True) -> Built:
    module = Adversarial(loss="paper" if planted else "stable", discriminator_lr=0.2 if planted else 5e-3)
    expected = Expected(("nonfinite",), ("net.discriminator.head*",), batch=None)
    return Built(module, data.loaders(data.digits(), 64, seed), SIX_EPOCHS, expected)


class RootMeanSquarePool(nn.Module):
    """The root of the mean square of each 2 x 2 patch; its slope at 0 is infinite."""

    def __init__(self, eps: float) -> None:
        super().__init__()
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        return (nn.functional.avg_pool2d(x.square(), 2) + self.eps).sqrt()


@fault("CNN", "the root of the mean square of patches that are 0: finite forward, NaN backward", reaches=0.8, hurts=broken)
def sqrt_of_zero(seed: int, planted: bool = True) -> Built:
    stem = OrderedDict(conv0=nn.Conv2d(1, 16, 3, padding=1, bias=False), pool=RootMeanSquarePool(0.0 if planted else 1e-4))
    net = nn.Sequential(stem | OrderedDict(flat=nn.Flatten(), fc=nn.Linear(256, 32), act=nn.ReLU(), head=nn.Linear(32, 10)))
    expected = Expected(("nonfinite",), ("net.pool", "net.conv0*"))
    return Built(Supervised(net, adam()), data.loaders(data.images(), 64, seed), EPOCHS, expected)


@fault("transformer", "LayerNorm without eps on the zero rows of padding", reaches=0.25, hurts=broken)
def layernorm_without_eps(seed: int, planted: bool = True) -> Built:
    net = nets.Transformer(embed_norm=nn.LayerNorm(32, eps=0.0 if planted else 1e-5))
    expected = Expected(("nonfinite",), ("net.embed_norm*",))
    return Built(Supervised(net, adam()), data.loaders(data.text(), 32, seed), EPOCHS, expected)


@fault("MLP", "one layer's outputs pass the largest number of half precision", reaches=0.7, hurts=worse(0.3))
def fp16_overflow(seed: int, planted: bool = True) -> Built:
    net, layer = nets.mlp((64, 64, 64, 64, 10), init=nn.init.kaiming_normal_), seed % 3
    if planted:
        with torch.no_grad():
            net.get_submodule(f"fc{layer}").weight.mul_(2e5)  # type: ignore[union-attr,operator]
    expected = Expected(("nonfinite", "steps_skipped"), (f"net.fc{layer}*",))
    return Built(Supervised(net, sgd(0.1)), data.loaders(data.digits(), 64, seed), {**EPOCHS, "plugins": amp()}, expected)


@fault("VAE", "pixels of 0 to 255: the exponential of the log-variance overflows", reaches=0.4, hurts=broken)
def vae_exp_overflow(seed: int, planted: bool = True) -> Built:
    module = Variational(nets.VAE(), adam(5e-3))
    expected = Expected(("nonfinite",), ("net", "net.log_variance*", "net.decoder.fc0*"), batch=None)
    return Built(module, data.loaders(data.digits(255 / 4 if planted else 1 / 16), 64, seed), SIX_EPOCHS, expected)


@fault(
    "MLP",
    "one batch of the second epoch is a thousand times too large: Adam's second moment keeps it",
    reaches=0.8,
    hurts=worse(0.05),
)
def huge_batch(seed: int, planted: bool = True) -> Built:
    at = 22 + 10 + 2 * seed
    module = OneBadBatch(at if planted else -1, lambda x, y: (x * 1e3, y), nets.mlp(), adam(2e-3))
    expected = Expected(("spike", "exploding"), batch=at, epoch=1)
    return Built(module, data.loaders(data.digits(), 64, seed), EPOCHS, expected)


@fault("CNN", "integer division by 255 makes every image black", reaches=0.9, hurts=worse(0.5))
def black_images(seed: int, planted: bool = True) -> Built:
    split = data.images()
    if planted:
        split = (split[0] * 0, split[1], split[2] * 0, split[3])
    expected = Expected(("constant", "zero"), ("net.conv0*", "net.norm0*"))
    return Built(Supervised(nets.cnn(), adam()), data.loaders(split, 64, seed), EPOCHS, expected)


@fault("MLP", "an index that stands still: every input is the first image", reaches=0.8, hurts=worse(0.5))
def same_image(seed: int, planted: bool = True) -> Built:
    x, y, v, w = data.digits()
    split = (x[seed].expand_as(x).clone(), y, v, w) if planted else (x, y, v, w)
    expected = Expected(("constant",), ("net.fc0*", "net.act0"))
    return Built(Supervised(nets.mlp(), adam()), data.loaders(split, 64, seed), EPOCHS, expected)


@fault("MLP", "all labels are the same", reaches=0.8, hurts=worse(0.5))
def constant_labels(seed: int, planted: bool = True) -> Built:
    x, y, v, w = data.digits()
    split = (x, torch.full_like(y, seed % 10), v, w) if planted else (x, y, v, w)
    return Built(Supervised(nets.mlp(), adam()), data.loaders(split, 64, seed), EPOCHS, Expected(("constant",)))


@fault("CNN", "validation images of 0 to 255, training images of 0 to 1", reaches=0.9, hurts=worse(0.03))
def validation_not_normalised(seed: int, planted: bool = True) -> Built:
    x, y, v, w = data.images()
    split = (x, y, v * 255 if planted else v, w)
    expected = Expected(("shift", "validation_shift"), ("net.conv0*",))
    return Built(Supervised(nets.cnn(), adam()), data.loaders(split, 64, seed), EPOCHS, expected)
