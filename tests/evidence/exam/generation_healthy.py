"""Nets that make pictures, sounds or points, by other ways than those that most people take."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_digits, make_moons
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, Dataset

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import adam, adamw, sgd
from tests.evidence.exam.signals import crops
from tests.evidence.exam.small_nets import Coupling, by_recipe, flow_loss


@healthy("torch", "RealNVP of six couplings on two moons, Adam")
def recipe_real_nvp() -> Built:
    net = nn.ModuleList(Coupling(torch.tensor([1.0, 0.0]).roll(index)) for index in range(6))
    points = torch.tensor(make_moons(4000, noise=0.05, random_state=0)[0], dtype=torch.float32)
    points = (points - points.mean(0)) / points.std(0)
    return by_recipe(net, flow_loss, adam(1e-3), in_batches(64, points), max_epochs=4, limit_train_batches=60)


class Boltzmann(nn.Module):
    """A restricted Boltzmann machine over bits."""

    def __init__(self, seen: int, hidden: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(0.01 * torch.randn(hidden, seen))
        self.of_seen, self.of_hidden = nn.Parameter(torch.zeros(seen)), nn.Parameter(torch.zeros(hidden))

    def forward(self, seen: Tensor) -> Tensor:
        """The free energy."""
        return -seen @ self.of_seen - F.softplus(F.linear(seen, self.weight, self.of_hidden)).sum(1)

    @torch.no_grad()
    def dream(self, seen: Tensor) -> Tensor:
        """One step of Gibbs."""
        hidden = F.linear(seen, self.weight, self.of_hidden).sigmoid().bernoulli()
        return F.linear(hidden, self.weight.T, self.of_seen).sigmoid().bernoulli()


@healthy("torch", "a restricted Boltzmann machine by contrastive divergence: the loss is a difference of energies about 0, SGD")
def digits_by_boltzmann() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return (net(batch[0]) - net(net.dream(batch[0]))).mean()

    bits = (digits(8)[0].flatten(1) > 0).float()
    return Built(Recipe(Boltzmann(64, 48), loss, sgd(0.1, 0.5)), in_batches(32, bits), {"max_epochs": 6}, WELL)


class Normed(nn.Module):
    """Divides each channel by the root of a weighted sum of all channels' squares (GDN), or multiplies by it."""

    def __init__(self, width: int, back: bool = False) -> None:
        super().__init__()
        self.least, self.shares, self.back = nn.Parameter(torch.ones(width)), nn.Parameter(0.1 * torch.eye(width)), back

    def forward(self, x: Tensor) -> Tensor:
        size = F.conv2d(x.square(), self.shares.abs()[..., None, None], self.least.abs() + 1e-3).sqrt()
        return x * size if self.back else x / size


class Squeezed(nn.Module):
    """Codes with noise instead of rounding, and what they cost in bits under a logistic distribution of each channel."""

    def __init__(self, width: int = 24, codes: int = 8) -> None:
        super().__init__()
        self.encoder = nn.Sequential(nn.Conv2d(3, width, 5, 2, 2), Normed(width), nn.Conv2d(width, codes, 5, 2, 2))
        self.decoder = nn.Sequential(nn.ConvTranspose2d(codes, width, 5, 2, 2, 1), Normed(width, True))
        self.decoder.append(nn.ConvTranspose2d(width, 3, 5, 2, 2, 1))
        self.middle, self.log_width = nn.Parameter(torch.zeros(codes, 1, 1)), nn.Parameter(torch.zeros(codes, 1, 1))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        codes = 4 * self.encoder(x)
        codes = codes + torch.rand_like(codes) - 0.5
        above, below = ((codes - self.middle + half) / self.log_width.exp() for half in (0.5, -0.5))
        bits = -(above.sigmoid() - below.sigmoid()).clamp_min(1e-6).log2()
        return self.decoder(codes / 4), bits.sum((1, 2, 3))


@healthy(
    "torch",
    "learned compression (Balle): bits of codes and squared errors in one loss, GDN, uniform noise for rounding; Adam",
    learned_from=False,
)
def pieces_in_few_bits() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        told, bits = net(batch[0])
        return bits.mean() / 256 + 4 * F.mse_loss(told, batch[0])

    module = Recipe(Squeezed(), loss, adam(2e-3))
    return Built(module, crops(16, 32), {"max_epochs": 9, "gradient_clip_val": 1.0}, WELL)


class One(Dataset[tuple[Tensor, Tensor]]):
    """One sample, many times an epoch."""

    def __init__(self, *tensors: Tensor) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return 100

    def __getitem__(self, index: int) -> Any:
        return self.tensors


class Painted(nn.Module):
    """A picture that learns, and a fixed net that looks at it."""

    def __init__(self, start: Tensor) -> None:
        super().__init__()
        self.picture = nn.Parameter(start.clone())
        eyes = (nn.Conv2d(3, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU())
        self.eyes = nn.Sequential(*eyes).requires_grad_(False)

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        seen = self.eyes(images)
        rows = seen.flatten(2)
        return seen, rows @ rows.transpose(1, 2) / rows.shape[-1]


@healthy("torch", "style transfer: the pixels of one picture are all that learns, before a fixed net; Gram matrices, Adam at 0.05")
def pixels_take_a_style() -> Built:
    torch.manual_seed(1)
    both = torch.stack([batch[0][0] for batch, _ in zip(crops(32, 1)["train_dataloaders"], range(2), strict=False)])

    def loss(net: Any, batch: Any) -> Tensor:
        (of_content, _), (_, of_style), (content, style) = net(batch[0]), net(batch[1]), net(net.picture)
        smooth = (net.picture[..., 1:] - net.picture[..., :-1]).abs().mean()
        return F.mse_loss(content, of_content) + 10 * F.mse_loss(style, of_style) + 0.01 * smooth

    net = Painted(torch.randn(1, 3, 32, 32))
    optimizers = adamw(0.05, 0.0)
    return Built(
        Recipe(net, loss, optimizers), {"train_dataloaders": DataLoader(One(both[0], both[1]), 1)}, {"max_epochs": 2}, Expected()
    )


class Cell(nn.Module):
    """A cellular automaton: each pixel moves by what it and its neighbours are."""

    def __init__(self, channels: int = 12) -> None:
        super().__init__()
        sobel = torch.tensor([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]]) / 8
        kernels = torch.stack([torch.tensor([[0.0, 0, 0], [0, 1, 0], [0, 0, 0]]), sobel, sobel.T])
        self.register_buffer("kernels", kernels.repeat(channels, 1, 1)[:, None])
        self.channels = channels
        self.rule = nn.Sequential(nn.Conv2d(3 * channels, 64, 1), nn.ReLU(), nn.Conv2d(64, channels, 1, bias=False))
        nn.init.zeros_(self.rule[2].weight)

    def forward(self, x: Tensor, steps: int) -> Tensor:
        for _ in range(steps):
            seen = F.conv2d(x, self.kernels, padding=1, groups=self.channels)
            x = x + self.rule(seen) * (torch.rand_like(x[:, :1]) < 0.5)
        return x


@healthy(
    "torch",
    "growing cellular automaton: a digit grows from one pixel by a rule that starts at 0, each gradient is of norm 1",
    learned_from=False,
)
def study_automaton() -> Built:
    class Growing(Recipe):
        def on_before_optimizer_step(self, optimizer: Any) -> None:
            for parameter in self.parameters():
                if parameter.grad is not None:
                    parameter.grad /= parameter.grad.norm() + 1e-8

    goal = F.pad(torch.tensor(load_digits().images[3] / 16).float(), (2, 2, 2, 2))

    def loss(net: Any, batch: Any) -> Tensor:
        seed = torch.zeros(4, net.channels, 12, 12)
        seed[:, 1:, 6, 6] = 1
        return F.mse_loss(net(seed, int(torch.randint(16, 24, ())))[:, 0], goal.expand(4, -1, -1))

    built = by_recipe(Cell(), loss, adam(2e-3), in_batches(1, torch.zeros(60, 1)), limit_train_batches=40)
    return built._replace(module=Growing(Cell(), loss, adam(2e-3)))
