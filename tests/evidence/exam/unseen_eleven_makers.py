"""Healthy trainings that make pictures, points and pieces: matched codes, hashed grids, slices, few bits, energies, inducing."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.signals import crops
from tests.evidence.exam.unseen_eight_tables import WELL, adam, mlp


def apart(first: Tensor, second: Tensor) -> Tensor:
    """The maximum mean discrepancy of two samples, with inverse multiquadratics of several widths; at times below zero."""
    many, width = len(first), first.shape[1]
    both = torch.cat([first, second])
    squares = (both[:, None] - both).square().sum(2)
    near = sum(2 * width * scale / (2 * width * scale + squares) for scale in (0.2, 0.5, 1.0, 2.0, 5.0))
    assert isinstance(near, Tensor)
    own = near[:many, :many].sum() + near[many:, many:].sum() - near.diagonal().sum()
    return own / (many * (many - 1)) - 2 * near[:many, many:].mean()


@healthy("torch", "a Wasserstein autoencoder: codes of a batch as a whole are like the prior's (MMD), with batch norm; NAdam")
def digits_with_matched_codes() -> Built:
    encoder = nn.Sequential(nn.Linear(64, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 8))
    decoder = nn.Sequential(nn.Linear(8, 96), nn.BatchNorm1d(96), nn.ReLU(), nn.Linear(96, 64))

    def loss(nets: Any, batch: Any) -> Tensor:
        codes = nets["encoder"](batch[0])
        return F.mse_loss(nets["decoder"](codes), batch[0]) + 0.2 * apart(codes, torch.randn_like(codes))

    module = Recipe(nn.ModuleDict({"encoder": encoder, "decoder": decoder}), loss, None)
    module.optimizers_of = lambda module: torch.optim.NAdam(module.parameters(), 3e-3)
    return Built(module, in_batches(64, digits(8)[0].flatten(1)), {"max_epochs": 10}, WELL)


class Hashed(nn.Module):
    """Grids of several widths whose corners share small tables by a hash; a small net reads what lies between corners."""

    def __init__(self, levels: int = 6, size: int = 1024) -> None:
        super().__init__()
        self.widths = [round(6 * 1.6**level) for level in range(levels)]
        self.tables, self.size = nn.ModuleList(nn.Embedding(size, 2) for _ in range(levels)), size
        for table in self.tables:
            nn.init.uniform_(table.weight, -1e-4, 1e-4)  # type: ignore[arg-type]
        self.body = mlp(2 * levels, 32, 32, 3)

    def forward(self, places: Tensor) -> Tensor:
        found = []
        for width, table in zip(self.widths, self.tables, strict=True):
            at = places * width
            corner, share, total = at.floor().long(), at - at.floor(), torch.zeros(len(places), 2)
            for i in (0, 1):
                for j in (0, 1):
                    codes = ((corner[:, 0] + i) ^ ((corner[:, 1] + j) * 2654435761)) % self.size
                    near = (share[:, 0] if i else 1 - share[:, 0]) * (share[:, 1] if j else 1 - share[:, 1])
                    total = total + near[:, None] * table(codes)
            found.append(total)
        return self.body(torch.cat(found, 1))


@healthy("torch", "a photograph by hashed grids as in instant-ngp: tables that begin at 1e-4, Adam at 0.01 with an eps of 1e-15")
def photograph_by_hashed_grids() -> Built:
    pieces = crops(80, 1)["train_dataloaders"].dataset.tensors[0][0]
    y, x = torch.meshgrid(torch.arange(80), torch.arange(80), indexing="ij")
    places = (torch.stack([y, x], 2).flatten(0, 1).float() + 0.5) / 80

    def loss(net: Any, batch: Any) -> Tensor:
        return F.mse_loss(net(batch[0]), batch[1])

    module = Recipe(Hashed(), loss, adam(1e-2, betas=(0.9, 0.99), eps=1e-15))
    return Built(module, in_batches(256, places, pieces.flatten(1).T.contiguous()), {"max_epochs": 12}, WELL)


@healthy("torch", "points of two rings from noise by the sliced Wasserstein distance, without a critic; RMSprop, batches of 256")
def rings_by_slices() -> Built:
    generator = torch.Generator().manual_seed(0)
    angle, radius = 2 * math.pi * torch.rand(12800, 1, generator=generator), torch.randint(1, 3, (12800, 1), generator=generator)
    points = radius * torch.cat([angle.sin(), angle.cos()], 1) + 0.05 * torch.randn(12800, 2, generator=generator)

    def loss(net: Any, batch: Any) -> Tensor:
        made, ways = net(torch.randn(len(batch[0]), 4)), F.normalize(torch.randn(2, 40), dim=0)
        return ((made @ ways).sort(0).values - (batch[0] @ ways).sort(0).values).square().mean()

    net = mlp(4, 96, 96, 2, activation=lambda: nn.LeakyReLU(0.2))
    module = Recipe(net, loss, lambda module: torch.optim.RMSprop(module.parameters(), 1e-3))
    return Built(module, in_batches(256, points), {"max_epochs": 6}, WELL)


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
    "torch", "learned compression (Balle): bits of codes and squared errors in one loss, GDN, uniform noise for rounding; Adam"
)
def pieces_in_few_bits() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        told, bits = net(batch[0])
        return bits.mean() / 256 + 4 * F.mse_loss(told, batch[0])

    module = Recipe(Squeezed(), loss, adam(2e-3))
    return Built(module, crops(16, 32), {"max_epochs": 9, "gradient_clip_val": 1.0}, WELL)


@healthy(
    "torch", "the deep Ritz method: a membrane under a weight by its least energy, which is below zero; points by chance; Adam"
)
def membrane_by_energy() -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        places = batch[0].requires_grad_()
        height = net(places) * (1 - places.square()).prod(1, keepdim=True)
        (slope,) = torch.autograd.grad(height.sum(), places, create_graph=True)
        weight = 20 * (-8 * (places - 0.3).square().sum(1)).exp()
        return (0.5 * slope.square().sum(1) - weight * height[:, 0]).mean()

    def falling(module: Any) -> Any:
        chosen = torch.optim.Adam(module.parameters(), 3e-3)
        schedule = torch.optim.lr_scheduler.ExponentialLR(chosen, 0.99)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    places = 2 * torch.rand(64000, 2, generator=torch.Generator().manual_seed(0)) - 1
    module = Recipe(mlp(2, 48, 48, 1, activation=nn.Tanh), loss, falling)
    return Built(module, in_batches(256, places), {"max_epochs": 1}, WELL)


class Induced(nn.Module):
    """A sparse variational Gaussian process: what is known at twenty places, with its spread, and all else between them."""

    def __init__(self, many: int = 20) -> None:
        super().__init__()
        self.places, self.mean = nn.Parameter(torch.linspace(-2.8, 2.8, many)[:, None]), nn.Parameter(torch.zeros(many))
        self.root, self.log_length = nn.Parameter(torch.eye(many)), nn.Parameter(torch.zeros(()))
        self.log_scale, self.log_noise = nn.Parameter(torch.zeros(())), nn.Parameter(torch.tensor(-1.0))

    def near(self, first: Tensor, second: Tensor) -> Tensor:
        away = (first - second.T) / self.log_length.exp()
        return (2 * self.log_scale - 0.5 * away.square()).exp()

    def forward(self, x: Tensor, y: Tensor, many: int) -> Tensor:
        """Minus the bound of the evidence, per sample."""
        base = torch.linalg.cholesky(self.near(self.places, self.places) + 1e-5 * torch.eye(len(self.mean), dtype=x.dtype))
        shares, root = torch.linalg.solve_triangular(base, self.near(self.places, x), upper=False), self.root.tril()
        told = shares.T @ self.mean
        spread = (2 * self.log_scale).exp() - shares.square().sum(0) + (root.T @ shares).square().sum(0)
        wrong = ((y - told).square() + spread) / (2 * self.log_noise).exp()
        fits = -0.5 * wrong - self.log_noise - 0.5 * math.log(2 * math.pi)
        away = 0.5 * (root.square().sum() + self.mean.square().sum() - len(self.mean)) - root.diagonal().abs().log().sum()
        return -fits.mean() + away / many


@healthy("torch", "a sparse variational Gaussian process: twenty places that move, one bound for all, in double precision; Adam")
def waves_by_inducing_points() -> Built:
    generator = torch.Generator().manual_seed(0)
    x = 6 * torch.rand(3200, 1, generator=generator, dtype=torch.float64) - 3
    y = (3 * x).sin()[:, 0] + 0.5 * x[:, 0].cos() + 0.1 * torch.randn(3200, generator=generator, dtype=torch.float64)

    def loss(net: Any, batch: Any) -> Tensor:
        return net(*batch, 3200)

    options = {"max_epochs": 4, "precision": "64-true"}
    return Built(Recipe(Induced().double(), loss, adam(0.03)), in_batches(50, x, y), options, WELL)
