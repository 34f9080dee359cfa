"""Nets that are fields, or that obey equations: places, operators, ordinary and partial differential equations."""

from __future__ import annotations

import math
from typing import Any

import torch
from sklearn.datasets import load_sample_images
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.schedules import adam, scheduled, warmed
from tests.evidence.exam.signals import crops
from tests.evidence.exam.small_nets import Judged, by_recipe, mlp
from tests.evidence.exam.tables import split


def photograph() -> dict[str, Any]:
    """Places and colours of the pixels of a photograph; a batch is ``[places, colours]``."""
    colours = torch.tensor(load_sample_images().images[0])[::4, ::4].float() / 255
    axes = [torch.linspace(-1, 1, size) for size in colours.shape[:2]]
    places = torch.stack(torch.meshgrid(*axes, indexing="ij"), -1)
    return in_batches(256, places.view(-1, 2), colours.view(-1, 3))


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
    return by_recipe(net, loss, optimizers, photograph(), max_epochs=4, limit_train_batches=60)


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
    net = mlp(2, 50, 2, activation=nn.Tanh)
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.1)
            nn.init.zeros_(layer.bias)
    rmsprop = lambda module: torch.optim.RMSprop(module.parameters(), 1e-3)  # noqa: E731
    loss = lambda net, batch: (rolled(net, batch[0][:, 0], 8) - batch[0][:, 1:]).abs().mean()  # noqa: E731
    return by_recipe(net, loss, rmsprop, in_batches(20, rows), max_epochs=12)


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
    return by_recipe(
        mlp(1, 32, 32, 1, activation=nn.Tanh), loss, adam(1e-3), in_batches(64, points), max_epochs=5, limit_train_batches=60
    )


class Sines(nn.Module):
    """A layer of SIREN, with its own initial weights."""

    def __init__(self, fan_in: int, fan_out: int, first: bool = False) -> None:
        super().__init__()
        self.linear = nn.Linear(fan_in, fan_out)
        width = 1 / fan_in if first else math.sqrt(6 / fan_in) / 30
        nn.init.uniform_(self.linear.weight, -width, width)

    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(30 * self.linear(x))


@healthy("torch", "SIREN: sines with a frequency of 30 learn a photograph, Adam at 1e-4 times ten, batches of 2048 places")
def recipe_sines() -> Built:
    last = nn.Linear(64, 3)
    nn.init.uniform_(last.weight, -math.sqrt(6 / 64) / 30, math.sqrt(6 / 64) / 30)
    net = nn.Sequential(Sines(2, 64, first=True), Sines(64, 64), Sines(64, 64), last)
    rows = photograph()["train_dataloaders"].dataset.tensors
    loss = lambda net, batch: F.mse_loss(net(batch[0]), 2 * batch[1] - 1)  # noqa: E731
    return by_recipe(net, loss, adam(1e-3), in_batches(2048, *rows), max_epochs=10)


class Epidemic(nn.Module):
    """How many are ill from day to day; all that is learned are three numbers."""

    def __init__(self, infects: float, recovers: float, first: float) -> None:
        super().__init__()
        self.infects, self.recovers = nn.Parameter(torch.tensor(infects).log()), nn.Parameter(torch.tensor(recovers).log())
        self.first = nn.Parameter(torch.tensor(first).logit())

    def forward(self, days: int) -> Tensor:
        ill = self.first.sigmoid()
        well, course = 1 - ill, []
        for _ in range(days):
            new, over = self.infects.exp() * well * ill, self.recovers.exp() * ill
            well, ill = well - new, ill + new - over
            course.append(ill)
        return torch.stack(course)


@healthy("torch", "an epidemic's two rates and its beginning, three numbers in all, through forty steps of Euler, Adam at 0.03")
def epidemic_of_three_numbers() -> Built:
    with torch.no_grad():
        course = Epidemic(0.5, 0.15, 0.01)(40)
    seen = course.log() + 0.2 * torch.randn(320, 40, generator=torch.Generator().manual_seed(0))

    def loss(net: Any, batch: Any) -> Tensor:
        return F.mse_loss(net(40).log().expand_as(batch[0]), batch[0])

    module = Recipe(Epidemic(0.25, 0.05, 0.002), loss, adam(0.03))
    return Built(module, in_batches(16, seen), {"max_epochs": 10}, WELL)


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


@healthy(
    "torch",
    "a photograph by hashed grids as in instant-ngp: tables that begin at 1e-4, Adam at 0.01 with an eps of 1e-15",
    learned_from=False,
)
def photograph_by_hashed_grids() -> Built:
    pieces = crops(80, 1)["train_dataloaders"].dataset.tensors[0][0]
    y, x = torch.meshgrid(torch.arange(80), torch.arange(80), indexing="ij")
    places = (torch.stack([y, x], 2).flatten(0, 1).float() + 0.5) / 80

    def loss(net: Any, batch: Any) -> Tensor:
        return F.mse_loss(net(batch[0]), batch[1])

    module = Recipe(Hashed(), loss, adam(1e-2, betas=(0.9, 0.99), eps=1e-15))
    return Built(module, in_batches(256, places, pieces.flatten(1).T.contiguous()), {"max_epochs": 12}, WELL)


@healthy(
    "torch",
    "the deep Ritz method: a membrane under a weight by its least energy, which is below zero; points by chance; Adam",
    learned_from=False,
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


class Particles(nn.Module):
    """EGNN: messages from distances and charges; places move along what lies between them, whichever way they are turned."""

    def __init__(self, width: int = 32, layers: int = 3) -> None:
        super().__init__()
        self.first = nn.Linear(2, width)
        self.messages = nn.ModuleList(mlp(2 * width + 2, width, width, activation=nn.SiLU) for _ in range(layers))
        self.moves = nn.ModuleList(mlp(width, width, 1, activation=nn.SiLU) for _ in range(layers))
        self.states = nn.ModuleList(mlp(2 * width, width, width, activation=nn.SiLU) for _ in range(layers))
        self.speeds = nn.ModuleList(mlp(width, width, 1, activation=nn.SiLU) for _ in range(layers))
        for move in self.moves:
            nn.init.xavier_uniform_(move[-1].weight, 0.001)  # type: ignore[index, arg-type]

    def forward(self, places: Tensor, speed: Tensor, charge: Tensor) -> Tensor:
        many, products = places.shape[1], charge[:, :, None] * charge[:, None]
        hidden = self.first(torch.stack([speed.norm(dim=2), charge], 2))
        for message, move, state, pace in zip(self.messages, self.moves, self.states, self.speeds, strict=True):
            between = places[:, :, None] - places[:, None]
            both = [hidden[:, :, None].expand(-1, -1, many, -1), hidden[:, None].expand(-1, many, -1, -1)]
            said = message(torch.cat([*both, between.square().sum(3, keepdim=True), products[..., None]], 3))
            said = F.silu(said) * (1 - torch.eye(many))[..., None]
            places = places + pace(hidden) * speed + (between * move(said)).mean(2)
            hidden = hidden + state(torch.cat([hidden, said.sum(2)], 2))
        return places


@healthy(
    "torch",
    "EGNN: where five charged particles are some time later, by messages that know distances alone; Adam, a cosine",
    learned_from=False,
)
def particles_by_distances() -> Built:
    generator = torch.Generator().manual_seed(0)
    start, speed = 1.5 * torch.randn(4800, 5, 2, generator=generator), 0.7 * torch.randn(4800, 5, 2, generator=generator)
    charge = torch.randint(0, 2, (4800, 5), generator=generator) * 2.0 - 1
    places, now = start.clone(), speed.clone()
    for _ in range(60):
        between = places[:, :, None] - places[:, None]
        away = between.square().sum(3, keepdim=True) + 0.3
        now = now + 0.02 * (between * (charge[:, :, None] * charge[:, None])[..., None] / away**1.5).sum(2)
        places = places + 0.02 * now

    def loss(net: Any, batch: Any) -> Tensor:
        return F.mse_loss(net(*batch[:3]), batch[3])

    module = Recipe(Particles(), loss, warmed(lambda module: torch.optim.Adam(module.parameters(), 3e-3), 384))
    return Built(module, in_batches(50, start, speed, charge, places), {"max_epochs": 4, "gradient_clip_val": 1.0}, WELL)


@healthy("torch", "a Hamiltonian net: a pendulum's ways are the gradient of a learned energy: the loss has two derivatives")
def pendulum_by_energy() -> Built:
    generator = torch.Generator().manual_seed(0)
    state = 4 * torch.rand(4000, 2, generator=generator) - 2
    way = torch.stack([state[:, 1], -3 * state[:, 0].sin()], 1) + 0.05 * torch.randn(4000, 2, generator=generator)

    def loss(net: Any, batch: Any) -> Tensor:
        where = batch[0].requires_grad_()
        (slope,) = torch.autograd.grad(net(where).sum(), where, create_graph=True)
        return F.mse_loss(torch.stack([slope[:, 1], -slope[:, 0]], 1), batch[1])

    module = Recipe(mlp(2, 64, 64, 1, activation=nn.Tanh), loss, adam(3e-3))
    return Built(module, in_batches(64, state, way), {"max_epochs": 5, "inference_mode": False}, WELL)


class Waves(nn.Module):
    """A Fourier layer: the lowest waves are mixed by complex weights, beside a pointwise layer."""

    def __init__(self, width: int, modes: int) -> None:
        super().__init__()
        self.modes, self.pointwise = modes, nn.Conv1d(width, width, 1)
        self.weights = nn.Parameter(torch.randn(width, width, modes, dtype=torch.cfloat) / width)

    def forward(self, x: Tensor) -> Tensor:
        spectrum = torch.fft.rfft(x)
        kept = torch.einsum("bim,iom->bom", spectrum[..., : self.modes], self.weights)
        mixed = F.pad(kept, (0, spectrum.shape[-1] - self.modes))
        return F.gelu(torch.fft.irfft(mixed, x.shape[-1]) + self.pointwise(x))


@healthy("torch", "a Fourier neural operator learns how heat and drift change a curve, relative error, Adam whose rate halves")
def heat_by_fourier_operator() -> Built:
    generator = torch.Generator().manual_seed(0)
    places, waves = torch.linspace(0, 2 * math.pi, 65)[:-1], torch.arange(1, 7)
    sizes, phases = (
        torch.randn(1200, 6, 1, generator=generator) / waves[:, None],
        6.28 * torch.rand(1200, 6, 1, generator=generator),
    )
    before = (sizes * torch.sin(waves[:, None] * places + phases)).sum(1)
    after = (sizes * torch.sin(waves[:, None] * (places - 0.5) + phases) * torch.exp(-0.05 * waves[:, None] ** 2)).sum(1)

    def loss(net: Any, batch: Any) -> Tensor:
        wrong = (net(torch.stack((batch[0], places.expand(len(batch[0]), -1)), 1))[:, 0] - batch[1]).norm(dim=1)
        return (wrong / batch[1].norm(dim=1)).mean()

    net = nn.Sequential(nn.Conv1d(2, 24, 1), Waves(24, 10), Waves(24, 10), nn.Conv1d(24, 48, 1), nn.GELU(), nn.Conv1d(48, 1, 1))
    halved = scheduled(adam(3e-3), lambda chosen: torch.optim.lr_scheduler.StepLR(chosen, 2, 0.5), "epoch")
    return Built(Judged(net, loss, halved), split(32, before, after), {"max_epochs": 7}, Expected())


class Functions(nn.Module):
    """A conditional neural process: what is known of a function is a mean over its points."""

    def __init__(self) -> None:
        super().__init__()
        self.reader = nn.Sequential(nn.Linear(2, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 64))
        self.teller = nn.Sequential(nn.Linear(65, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))

    def forward(self, x: Tensor, y: Tensor, wanted: Tensor) -> tuple[Tensor, Tensor]:
        known = self.reader(torch.stack([x, y], -1)).mean(1, keepdim=True).expand(-1, wanted.shape[1], -1)
        mean, width = self.teller(torch.cat([wanted[..., None], known], -1)).unbind(-1)
        return mean, 0.1 + 0.9 * F.softplus(width)


@healthy(
    "torch",
    "conditional neural process: curves from a few of their points, with a width that is at least 0.1, Adam",
    learned_from=False,
)
def study_neural_process() -> Built:
    generator = torch.Generator().manual_seed(0)
    x = 4 * torch.rand(1600, 24, generator=generator) - 2
    size, phase = (torch.rand(2, 1600, 1, generator=generator) * 3 + 0.5).unbind(0)
    y = size * torch.sin(2 * x + 2 * phase)

    def loss(net: Any, batch: Any) -> Tensor:
        known = int(torch.randint(3, 12, ()))
        mean, width = net(batch[0][:, :known], batch[1][:, :known], batch[0])
        return -torch.distributions.Normal(mean, width).log_prob(batch[1]).mean()

    return by_recipe(Functions(), loss, adam(1e-3), in_batches(32, x, y), limit_train_batches=40)
