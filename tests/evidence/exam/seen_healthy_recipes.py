"""Healthy trainings of plain nets by the recipes of their papers, written without a look at the rules."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from sklearn.datasets import load_digits, load_sample_images, make_moons
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.pictures import pictures
from tests.evidence.exam.signals import melodies
from tests.evidence.exam.texts import VOCABULARY, batches, characters

SHORT: dict[str, Any] = {"max_epochs": 2, "limit_train_batches": 40}


def adam(rate: float = 1e-3, **options: Any) -> Callable[[Any], Any]:
    return lambda module: torch.optim.Adam(module.parameters(), rate, **options)


def trained(net: nn.Module, loss: Any, optimizers: Any, data: dict[str, Any], **kwargs: Any) -> Built:
    return Built(Recipe(net, loss, optimizers), data, {**SHORT, **kwargs}, Expected())


def tanh_mlp(*widths: int) -> nn.Sequential:
    """Linear layers with tanh between them."""
    layers = [part for pair in itertools.pairwise(widths) for part in (nn.Linear(*pair), nn.Tanh())]
    return nn.Sequential(*layers[:-1])


def block(fan_in: int, fan_out: int) -> nn.Sequential:
    return nn.Sequential(nn.Conv2d(fan_in, fan_out, 3, padding=1, bias=False), nn.BatchNorm2d(fan_out), nn.ReLU())


class UNet(nn.Module):
    """Two levels and a skip at each."""

    def __init__(self) -> None:
        super().__init__()
        self.down, self.deeper, self.bottom = block(1, 8), block(8, 16), block(16, 32)
        self.up_deeper, self.up = nn.ConvTranspose2d(32, 16, 2, 2), nn.ConvTranspose2d(16, 8, 2, 2)
        self.joined_deeper, self.joined, self.head = block(32, 16), block(16, 8), nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.down(x)
        low = self.deeper(F.max_pool2d(high, 2))
        up = self.joined_deeper(torch.cat((self.up_deeper(self.bottom(F.max_pool2d(low, 2))), low), 1))
        return self.head(self.joined(torch.cat((self.up(up), high), 1)))


@healthy("torch", "U-Net that finds digits in noise, Dice loss and cross-entropy, Adam")
def recipe_unet_dice() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        target = (batch[0] > 0.5).float()
        logits = net(batch[0] + 0.5 * torch.randn_like(batch[0]))
        shares = logits.sigmoid()
        overlap = (2 * (shares * target).sum((1, 2, 3)) + 1) / ((shares + target).sum((1, 2, 3)) + 1)
        return F.binary_cross_entropy_with_logits(logits, target) + 1 - overlap.mean()

    return trained(UNet(), loss, adam(1e-3), pictures(16, 16))


def photograph() -> dict[str, Any]:
    """Places and colours of the pixels of a photograph; a batch is ``[places, colours]``."""
    colours = torch.tensor(load_sample_images().images[0])[::4, ::4].float() / 255
    axes = [torch.linspace(-1, 1, size) for size in colours.shape[:2]]
    places = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)
    return batches(256, places.view(-1, 2), colours.view(-1, 3))


class Fourier(nn.Module):
    """Sines and cosines of places, as in NeRF."""

    def forward(self, places: Tensor) -> Tensor:
        angles = places[..., None] * (2.0 ** torch.arange(6)) * math.pi
        return torch.cat((angles.sin(), angles.cos()), -1).flatten(1)


@healthy("torch", "an MLP over encoded positions learns a photograph as in NeRF, Adam at 5e-4 that decays")
def recipe_encoded_positions() -> Built:
    net = nn.Sequential(Fourier(), nn.Linear(24, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3), nn.Sigmoid())

    def optimizers(module: Any) -> Any:
        chosen = torch.optim.Adam(module.parameters(), 5e-4, eps=1e-7)
        decay = torch.optim.lr_scheduler.ExponentialLR(chosen, 0.999)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": decay, "interval": "step"}}

    loss = lambda net, batch: F.mse_loss(net(batch[0]), batch[1])  # noqa: E731
    return trained(net, loss, optimizers, photograph(), max_epochs=4, limit_train_batches=60)


class Coupling(nn.Module):
    """One half is scaled and shifted by what the other half says."""

    def __init__(self, mask: Tensor) -> None:
        super().__init__()
        self.mask: Tensor
        self.register_buffer("mask", mask)
        self.net = nn.Sequential(nn.Linear(2, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        scale, shift = self.net(x * self.mask).chunk(2, 1)
        scale = scale.tanh() * (1 - self.mask)
        return x * scale.exp() + shift * (1 - self.mask), scale.sum(1)


def flow_loss(net: Any, batch: Any, with_volume: bool = True) -> Tensor:
    """Of points under couplings: how far they are from the middle of a normal distribution, and how much room they were given."""
    x, volume = batch[0], torch.zeros(len(batch[0]))
    for layer in net:
        x, change = layer(x)
        volume = volume + change
    return (0.5 * x.square().sum(1) + math.log(2 * math.pi) - (volume if with_volume else 0)).mean()


@healthy("torch", "RealNVP of six couplings on two moons, Adam")
def recipe_real_nvp() -> Built:
    net = nn.ModuleList(Coupling(torch.tensor([1.0, 0.0]).roll(index)) for index in range(6))
    points = torch.tensor(make_moons(4000, noise=0.05, random_state=0)[0], dtype=torch.float32)
    points = (points - points.mean(0)) / points.std(0)
    return trained(net, flow_loss, adam(1e-3), batches(64, points), max_epochs=4, limit_train_batches=60)


@healthy("torch", "mixture density net of five Gaussians over an inverse problem (Bishop), Adam")
def recipe_mixture_density() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        shares, means, scales = net(batch[0]).chunk(3, 1)
        parts = torch.distributions.Normal(means, scales.clamp(-7, 7).exp())
        return -(shares.log_softmax(1) + parts.log_prob(batch[1])).logsumexp(1).mean()

    target = torch.rand(4000, 1, generator=torch.Generator().manual_seed(0))
    given = target + 0.3 * torch.sin(2 * math.pi * target) + 0.05 * (2 * torch.rand(4000, 1) - 1)
    return trained(tanh_mlp(1, 32, 15), loss, adam(5e-3), batches(64, given, target), max_epochs=4, limit_train_batches=60)


@healthy("torch", "neural ODE by Runge-Kutta, learns a spiral from short stretches, RMSprop as in its example")
def recipe_neural_ode() -> Built:
    def rolled(field: Any, state: Tensor, steps: int, width: float = 0.1) -> Tensor:
        found = []
        for _ in range(steps):
            a = field(state**3)
            b = field((state + width / 2 * a) ** 3)
            c = field((state + width / 2 * b) ** 3)
            state = state + width / 6 * (a + 2 * b + 2 * c + field((state + width * c) ** 3))
            found.append(state)
        return torch.stack(found, 1)

    matrix = torch.tensor([[-0.1, 2.0], [-2.0, -0.1]])
    with torch.no_grad():
        path = rolled(lambda x: x @ matrix, torch.tensor([[2.0, 0.0]]), 250)[0]
    rows = path.unfold(0, 9, 1).transpose(1, 2).contiguous()
    net = tanh_mlp(2, 50, 2)
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.1)
            nn.init.zeros_(layer.bias)
    rmsprop = lambda module: torch.optim.RMSprop(module.parameters(), 1e-3)  # noqa: E731
    loss = lambda net, batch: (rolled(net, batch[0][:, 0], 8) - batch[0][:, 1:]).abs().mean()  # noqa: E731
    return trained(net, loss, rmsprop, batches(20, rows), max_epochs=12)


class WaveNet(nn.Module):
    """Gated, dilated, causal convolutions with residual connections and skips."""

    def __init__(self, width: int = 24) -> None:
        super().__init__()
        self.embedding = nn.Embedding(64, width)
        self.gated = nn.ModuleList(nn.Conv1d(width, 2 * width, 2, dilation=2**index) for index in range(6))
        self.mixing = nn.ModuleList(nn.Conv1d(width, 2 * width, 1) for _ in range(6))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(width, width, 1), nn.ReLU(), nn.Conv1d(width, 64, 1))

    def forward(self, codes: Tensor) -> Tensor:
        x = self.embedding(codes).transpose(1, 2)
        skips = torch.zeros_like(x)
        for gated, mixing in zip(self.gated, self.mixing, strict=True):
            signal, gate = gated(F.pad(x, (gated.dilation[0], 0))).chunk(2, 1)
            more, skip = mixing(signal.tanh() * gate.sigmoid()).chunk(2, 1)
            x, skips = x + more, skips + skip
        return self.head(skips)


@healthy("torch", "WaveNet over sounds of 64 mu-law levels, Adam")
def recipe_wavenet() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        sound = (batch[0][:, :301] / 3).clamp(-1, 1)
        levels = sound.sign() * (1 + 63 * sound.abs()).log() / math.log(64)
        codes = ((levels + 1) / 2 * 63).round().long()
        return F.cross_entropy(net(codes[:, :-1]), codes[:, 1:])

    return trained(WaveNet(), loss, adam(2e-3), melodies(8))


class PointNet(nn.Module):
    """The same MLP for each point, the largest of each feature, and a head."""

    def __init__(self) -> None:
        super().__init__()
        shared = [(nn.Conv1d(a, b, 1), nn.BatchNorm1d(b), nn.ReLU()) for a, b in ((2, 32), (32, 64), (64, 128))]
        self.shared = nn.Sequential(*(part for layer in shared for part in layer))
        self.head = nn.Sequential(nn.Linear(128, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))

    def forward(self, points: Tensor) -> Tensor:
        return self.head(self.shared(points).amax(2))


@healthy("torch", "PointNet on points that are drawn from digits, Adam whose rate halves")
def recipe_pointnet() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        chosen = torch.multinomial(batch[0].flatten(1), 48, replacement=True)
        points = torch.stack((chosen // 8, chosen % 8), 1) / 4 - 1 + 0.05 * torch.randn(len(chosen), 2, 48)
        return F.cross_entropy(net(points), batch[1])

    def optimizers(module: Any) -> Any:
        chosen = torch.optim.Adam(module.parameters(), 1e-3, weight_decay=1e-4)
        return [chosen], [torch.optim.lr_scheduler.StepLR(chosen, 2, 0.5)]

    images, shown = load_digits(return_X_y=True)
    data = batches(32, torch.tensor(images, dtype=torch.float32), torch.tensor(shown))
    return trained(PointNet(), loss, optimizers, data, max_epochs=3)


@healthy("torch", "siamese net with triplets on the unit sphere (FaceNet), Adam")
def recipe_triplets() -> Built:
    net = nn.Sequential(block(1, 16), nn.MaxPool2d(2), block(16, 32), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(512, 32))

    def loss(net: Any, batch: Any) -> Tensor:
        codes = F.normalize(net(batch[0]))
        same = batch[1][:, None] == batch[1]
        scores = torch.rand(same.shape)
        positive = (scores + same.float() - torch.eye(len(same))).argmax(1)
        negative = (scores + (~same).float()).argmax(1)
        return F.triplet_margin_loss(codes, codes[positive], codes[negative], margin=0.5)

    return trained(net, loss, adam(1e-3), pictures(64, 16), max_epochs=3)


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.gru = nn.Embedding(VOCABULARY, 32), nn.GRU(32, 64, 2, batch_first=True, dropout=0.1)
        self.head = nn.Linear(64, VOCABULARY)

    def forward(self, codes: Tensor) -> Tensor:
        return self.head(self.gru(self.embedding(codes))[0])


@healthy("torch", "GRU of two layers over characters, smoothed labels, Adam, clipped at 1")
def recipe_gru() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0][:, :-1]).transpose(1, 2), batch[0][:, 1:], label_smoothing=0.1)

    return trained(Recurrent(), loss, adam(2e-3), characters(49, 16), gradient_clip_val=1.0)


@healthy("torch", "physics-informed net for a Poisson equation with its borders, Adam")
def recipe_physics() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        with torch.enable_grad():
            x = batch[0].requires_grad_()
            (slope,) = torch.autograd.grad(net(x).sum(), x, create_graph=True)
            (bend,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        residual = bend + math.pi**2 * torch.sin(math.pi * x)
        return residual.square().mean() + net(torch.tensor([[-1.0], [1.0]])).square().mean()

    points = 2 * torch.rand(4000, 1, generator=torch.Generator().manual_seed(0)) - 1
    return trained(tanh_mlp(1, 32, 32, 1), loss, adam(1e-3), batches(64, points), max_epochs=5, limit_train_batches=60)


class Factors(nn.Module):
    """Ratings from a vector and a bias of each user and item."""

    def __init__(self, users: int, items: int, width: int = 8) -> None:
        super().__init__()
        self.users, self.items = nn.Embedding(users, width + 1), nn.Embedding(items, width + 1)
        for table in (self.users, self.items):
            nn.init.normal_(table.weight, std=0.1)

    def forward(self, user: Tensor, item: Tensor) -> Tensor:
        a, b = self.users(user), self.items(item)
        return 3.5 + a[:, 0] + b[:, 0] + (a[:, 1:] * b[:, 1:]).sum(1)


@healthy("torch", "matrix factorisation with biases, SGD with decay")
def recipe_factors() -> Built:
    generator = torch.Generator().manual_seed(0)
    user, item = torch.randint(50, (6000,), generator=generator), torch.randint(40, (6000,), generator=generator)
    tastes, traits = torch.randn(50, 3, generator=generator), torch.randn(40, 3, generator=generator)
    ratings = 3.5 + 0.7 * (tastes[user] * traits[item]).sum(1) + traits[item, 0] + 0.2 * torch.randn(6000, generator=generator)
    loss = lambda net, batch: F.mse_loss(net(batch[0], batch[1]), batch[2])  # noqa: E731
    sgd = lambda module: torch.optim.SGD(module.parameters(), 1.0, weight_decay=1e-4)  # noqa: E731
    return trained(Factors(50, 40), loss, sgd, batches(64, user, item, ratings), max_epochs=6, limit_train_batches=60)
