"""Healthy trainings of fields, sounds, energies, bags and graphs: fixed points, judges, twins that bootstrap."""

from __future__ import annotations

import copy
import math
from itertools import pairwise
from typing import Any

import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import spectral_norm

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.graphs import of_digits, whole
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import scheduled
from tests.evidence.exam.signals import RATE, melodies
from tests.evidence.exam.texts import batches
from tests.evidence.exam.unseen_seven_parts import Scored, adam, halves, mlp, to_classes


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
    return Built(Scored(net, loss, halved), halves(32, before, after), {"max_epochs": 7}, Expected())


class Equilibrium(nn.Module):
    """A layer that is applied until nothing changes; the gradient is that of one more step."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.again, self.norm, self.head = nn.Linear(64, 64), nn.Linear(64, 64), nn.LayerNorm(64), nn.Linear(64, 10)
        nn.init.orthogonal_(self.again.weight, 0.3)

    def forward(self, x: Tensor) -> Tensor:
        given = self.enter(x)
        with torch.no_grad():
            state = torch.zeros_like(given)
            for _ in range(20):
                state = torch.tanh(self.norm(self.again(state) + given))
        return self.head(torch.tanh(self.norm(self.again(state) + given)))


@healthy("torch", "a deep equilibrium layer for digits: twenty steps to the fixed point without a gradient, one with it, Adam")
def digits_by_equilibrium() -> Built:
    x, y = digits(8)
    return Built(Scored(Equilibrium(), to_classes, adam(2e-3)), halves(32, x.flatten(1), y), {"max_epochs": 5}, Expected())


class Energies(Recipe):
    """A net is to be low at the data and high where a walk down its own slope ends."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        walked = torch.where(torch.rand(len(batch[0]), 1) < 0.5, 1.5 * torch.randn_like(batch[0]), batch[0])
        for _ in range(15):
            walked = walked.detach().requires_grad_()
            slope = torch.autograd.grad(self.net(walked).sum(), walked)[0]
            walked = walked - 0.1 * slope.clamp(-1, 1) + 0.05 * torch.randn_like(walked)
        real, fake = self.net(batch[0]), self.net(walked.detach())
        self.log("distance", torch.cdist(walked.detach(), batch[0]).amin(1).mean())
        return (real - fake).mean() + 0.1 * (real.square() + fake.square()).mean()


@healthy("torch", "an energy model of two moons: fifteen steps of Langevin for each of its own, a loss about 0, Adam's beta1 of 0")
def moons_by_energy() -> Built:
    points = torch.tensor(make_moons(3200, noise=0.05, random_state=0)[0], dtype=torch.float32) - torch.tensor([0.5, 0.25])
    net = mlp(2, 64, 64, 1, act=nn.SiLU)
    return Built(Energies(net, None, adam(1e-3, betas=(0.0, 0.999))), batches(64, points), {"max_epochs": 5}, Expected())


class Separates(nn.Module):
    """Conv-TasNet at a small size: masks over a learned filter bank, by dilated depthwise convolutions."""

    def __init__(self, filters: int = 48, width: int = 32) -> None:
        super().__init__()
        self.encode, self.decode = nn.Conv1d(1, filters, 16, 8, bias=False), nn.ConvTranspose1d(filters, 1, 16, 8, bias=False)
        self.enter, self.masks = nn.Conv1d(filters, width, 1), nn.Conv1d(width, 2 * filters, 1)
        self.blocks = nn.ModuleList([self.block(width, 2**power) for power in range(4)])

    @staticmethod
    def block(width: int, dilation: int) -> nn.Module:
        depthwise = nn.Conv1d(2 * width, 2 * width, 3, padding=dilation, dilation=dilation, groups=2 * width)
        first = (nn.Conv1d(width, 2 * width, 1), nn.PReLU(), nn.GroupNorm(1, 2 * width))
        return nn.Sequential(*first, depthwise, nn.PReLU(), nn.GroupNorm(1, 2 * width), nn.Conv1d(2 * width, width, 1))

    def forward(self, mixed: Tensor) -> Tensor:
        rows = F.relu(self.encode(mixed[:, None]))
        x = self.enter(rows)
        for block in self.blocks:
            x = x + block(x)
        masks = torch.sigmoid(self.masks(x)).unflatten(1, (2, -1))
        return torch.stack([self.decode(rows * masks[:, voice])[:, 0] for voice in range(2)], 1)


def decibels(told: Tensor, true: Tensor) -> Tensor:
    """The scale-invariant ratio of signal to what is wrong."""
    told, true = told - told.mean(-1, keepdim=True), true - true.mean(-1, keepdim=True)
    aim = (told * true).sum(-1, keepdim=True) / true.square().sum(-1, keepdim=True) * true
    return 10 * torch.log10(aim.square().sum(-1) / ((told - aim).square().sum(-1) + 1e-8) + 1e-8)


@healthy(
    "torch",
    "two voices at once are told apart (Conv-TasNet): decibels of the better order, so the loss is below 0, Adam, clipped at 5",
)
def voices_separated() -> Built:
    generator = torch.Generator().manual_seed(0)
    times = torch.arange(400) / RATE
    tones = torch.rand(1000, 2, 1, generator=generator) * torch.tensor([[60.0], [250.0]]) + torch.tensor([[60.0], [350.0]])
    voices = torch.sin(2 * math.pi * tones * times + 6.28 * torch.rand(1000, 2, 1, generator=generator))
    voices = voices * (1 + 0.5 * torch.sin(6.28 * 5 * times * (1 + torch.rand(1000, 2, 1, generator=generator))))

    def loss(net: Any, batch: Any) -> Tensor:
        told = net(batch[0].sum(1))
        orders = [decibels(told, true).mean(1) for true in (batch[0], batch[0].flip(1))]
        return -torch.maximum(*orders).mean()

    return Built(
        Recipe(Separates(), loss, adam(1e-3)), batches(16, voices), {"max_epochs": 3, "gradient_clip_val": 5.0}, Expected()
    )


class Bag(nn.Module):
    """Gated attention over the pictures of a bag."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.tanh, self.gate = mlp(64, 64, 32), nn.Linear(32, 24), nn.Linear(32, 24)
        self.score, self.head = nn.Linear(24, 1), nn.Linear(32, 1)

    def forward(self, bags: Tensor) -> Tensor:
        each = F.relu(self.body(bags))
        weights = self.score(torch.tanh(self.tanh(each)) * torch.sigmoid(self.gate(each))).softmax(1)
        return self.head((weights * each).sum(1))[:, 0]


@healthy("torch", "bags of eight pictures of which some hold a nine: gated attention over each bag, Adam with L2")
def bags_with_a_nine() -> Built:
    x, y = digits(8)
    chosen = torch.randint(len(x), (2400, 8), generator=torch.Generator().manual_seed(0))
    holds = (y[chosen] == 9).any(1).float()

    def loss(net: Any, batch: Any) -> Tensor:
        return F.binary_cross_entropy_with_logits(net(x[batch[0]].flatten(2)), batch[1])

    module = Recipe(Bag(), loss, adam(1e-3, weight_decay=5e-4, betas=(0.9, 0.99)))
    return Built(module, batches(32, chosen, holds), {"max_epochs": 4}, Expected())


class Judged(Recipe):
    """A judge with spectral norms learns faster than the painter; both have hinge losses."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        of_painter, of_judge = self.optimizers()
        painter, judge = self.net["painter"], self.net["judge"]
        painted = painter(torch.randn(len(batch[0]), 16))
        loss = F.relu(1 - judge(batch[0])).mean() + F.relu(1 + judge(painted.detach())).mean()
        of_judge.zero_grad()
        self.manual_backward(loss)
        of_judge.step()
        of_painter.zero_grad()
        cheated = -judge(painted).mean()
        self.manual_backward(cheated)
        of_painter.step()
        return {"loss": loss.detach()}


@healthy(
    "torch", "a GAN with spectral norms and hinge losses on digits: the judge's rate is four times the painter's, Adam's beta1 of 0"
)
def digits_judged_by_hinges() -> Built:
    layers = (nn.Linear(16, 64 * 4), nn.Unflatten(1, (64, 2, 2)), nn.BatchNorm2d(64), nn.ReLU())
    up = (nn.ConvTranspose2d(64, 32, 4, 2, 1), nn.BatchNorm2d(32), nn.ReLU(), nn.ConvTranspose2d(32, 1, 4, 2, 1), nn.Tanh())
    convolutions = [spectral_norm(nn.Conv2d(a, b, 4, 2, 1)) for a, b in pairwise((1, 32, 64))]
    parts = [part for each in convolutions for part in (each, nn.LeakyReLU(0.1))]
    judge = nn.Sequential(*parts, nn.Flatten(), spectral_norm(nn.Linear(256, 1)))

    def optimizers(module: Any) -> Any:
        painter, judge = (module.net[name].parameters() for name in ("painter", "judge"))
        return [torch.optim.Adam(painter, 5e-4, (0.0, 0.9)), torch.optim.Adam(judge, 2e-3, (0.0, 0.9))]

    net = nn.ModuleDict({"painter": nn.Sequential(*layers, *up), "judge": judge})
    x = digits(8)[0]
    scaled = 2 * (x - x.min()) / (x.max() - x.min()) - 1
    return Built(Judged(net, None, optimizers), in_batches(32, scaled), {"max_epochs": 4}, Expected())


class Bootstrapped(Recipe):
    """Two views of one graph: a net foresees what its slow copy says of the other (BGRL)."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.slow = copy.deepcopy(self.net["body"]).requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        from torch_geometric.utils import dropout_edge

        views = []
        for share in (0.2, 0.4):
            kept = torch.rand(batch.x.shape[1]) > share
            views.append((batch.x * kept, dropout_edge(batch.edge_index, share)[0]))
        told = [self.net["foresees"](self.net["body"](*view)) for view in views]
        with torch.no_grad():
            aims = [self.slow(*view) for view in reversed(views)]
        return 2 - sum(F.cosine_similarity(*both).mean() for both in zip(told, aims, strict=True))

    def on_train_batch_end(self, *_: Any) -> None:
        share = 0.01 * (1 + math.cos(math.pi * self.global_step / 200)) / 2
        for slow, fast in zip(self.slow.parameters(), self.net["body"].parameters(), strict=True):
            slow.data.lerp_(fast.data, share)


@healthy("torch_geometric", "BGRL: a graph's two views, without negatives; the slow copy follows ever less, AdamW with a cosine")
def graph_bootstrapped() -> Built:
    from torch_geometric.nn import BatchNorm, GCNConv, Sequential

    parts = [
        (GCNConv(64, 64), "x, edges -> x"),
        BatchNorm(64),
        nn.PReLU(),
        (GCNConv(64, 32), "x, edges -> x"),
        BatchNorm(32),
        nn.PReLU(),
    ]
    net = nn.ModuleDict({"body": Sequential("x, edges", parts), "foresees": mlp(32, 64, 32, act=nn.PReLU)})
    falling = scheduled(
        lambda module: torch.optim.AdamW(module.net.parameters(), 3e-3, weight_decay=1e-5),
        lambda chosen: torch.optim.lr_scheduler.CosineAnnealingLR(chosen, 200),
    )
    return Built(Bootstrapped(net, None, falling), whole(of_digits()), {"max_epochs": 200}, Expected())


class Scattered(nn.Module):
    """A picture by a bank of fixed waves, then attention over what they say."""

    def __init__(self) -> None:
        super().__init__()
        bank = torch.randn(24, 1, 5, 5, generator=torch.Generator().manual_seed(0))
        self.register_buffer("bank", bank - bank.mean((2, 3), keepdim=True))
        self.enter, self.cls = nn.Linear(24, 32), nn.Parameter(torch.zeros(1, 1, 32))
        self.places = nn.Parameter(0.1 * torch.randn(16, 32))
        self.attend, self.head = nn.MultiheadAttention(32, 4, batch_first=True), nn.Sequential(nn.LayerNorm(32), mlp(32, 64, 10))

    def forward(self, images: Tensor) -> Tensor:
        seen = F.max_pool2d(F.conv2d(images, self.bank, padding=2).abs(), 4).flatten(2).transpose(1, 2)
        x = F.relu(self.enter(seen) + self.places)
        asked = self.cls.expand(len(x), -1, -1)
        return self.head(self.attend(asked, x, x, need_weights=False)[0][:, 0])


@healthy(
    "torch", "digits by fixed random kernels, then attention pooling; one cycle of rates and of beta1 (super-convergence), Adam"
)
def digits_one_cycle() -> Built:
    cycle = scheduled(adam(1e-3), lambda chosen: torch.optim.lr_scheduler.OneCycleLR(chosen, 1e-2, total_steps=220))
    return Built(Scored(Scattered(), to_classes, cycle), halves(32, *digits(16)), {"max_epochs": 5}, Expected())


class Foresees(nn.Module):
    """Contrastive predictive coding: what is heard now tells what is heard in one, two and three steps."""

    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Conv1d(1, 24, 8, 4, bias=False), nn.BatchNorm1d(24), nn.ReLU(), nn.Conv1d(24, 24, 10, 10), nn.ReLU())
        self.hears, self.context = nn.Sequential(*layers), nn.GRU(24, 32, batch_first=True)
        self.ahead = nn.ModuleList([nn.Linear(32, 24) for _ in range(3)])

    def forward(self, sounds: Tensor) -> Tensor:
        heard = self.hears(sounds[:, None]).transpose(1, 2)
        states, total = self.context(heard)[0], torch.zeros(())
        place = int(torch.randint(5, heard.shape[1] - 4, ()))
        for steps, layer in enumerate(self.ahead, 1):
            scores = layer(states[:, place]) @ heard[:, place + steps].T / math.sqrt(24)
            total = total + F.cross_entropy(scores, torch.arange(len(scores))) / 3
        return total


@healthy("torch", "contrastive predictive coding of notes: a GRU foresees what is heard next among 32 sounds, Adam")
def notes_foreseen() -> Built:
    module = Recipe(Foresees(), lambda net, batch: net(batch[0]), adam(3e-3))
    return Built(module, melodies(32), {"max_epochs": 8}, Expected())
