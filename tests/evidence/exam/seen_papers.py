"""Healthy trainings of plain nets by recipes of papers that no other module of the exam has."""

from __future__ import annotations

import math
from typing import Any

import torch
from lightning.pytorch import LightningModule
from sklearn.datasets import load_breast_cancer, load_digits
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, healthy
from tests.evidence.exam.pictures import digits, in_batches, pictures
from tests.evidence.exam.schedules import scheduled
from tests.evidence.exam.seen_healthy_recipes import adam, block, photograph, tanh_mlp, trained
from tests.evidence.exam.texts import batches, lines

WELL = Expected()


class Wasserstein(LightningModule):
    """WGAN-GP: five steps of the critic to one of the generator, by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False
        self.generator = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 64), nn.Tanh())
        self.critic = nn.Sequential(nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Linear(128, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))

    def configure_optimizers(self) -> Any:
        return [torch.optim.Adam(part.parameters(), 5e-4, betas=(0.0, 0.9)) for part in (self.generator, self.critic)]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        of_generator, of_critic = self.optimizers()
        made = self.generator(torch.randn(len(batch[0]), 16))
        if batch_idx % 6 == 5:
            loss = -self.critic(made).mean()
            of_generator.zero_grad()
            self.manual_backward(loss)
            of_generator.step()
            return {"loss": loss.detach()}
        share = torch.rand(len(made), 1)
        between = (share * batch[0] + (1 - share) * made.detach()).requires_grad_()
        (slope,) = torch.autograd.grad(self.critic(between).sum(), between, create_graph=True)
        loss = self.critic(made.detach()).mean() - self.critic(batch[0]).mean() + 10 * (slope.norm(dim=1) - 1).square().mean()
        of_critic.zero_grad()
        self.manual_backward(loss)
        of_critic.step()
        return {"loss": loss.detach()}


@healthy(
    "torch", "Wasserstein GAN with a penalty on gradients, five steps of the critic to one of the generator, Adam without momentum"
)
def recipe_wasserstein() -> Built:
    pixels = torch.tensor(load_digits().data, dtype=torch.float32) / 8 - 1
    return Built(Wasserstein(), batches(64, pixels), {"max_epochs": 4}, WELL)


@healthy("torch", "a bag of hashed trigrams as in fastText: sparse gradients, Adagrad whose rate falls to 0 in a line")
def recipe_bag_of_trigrams() -> Built:
    net = nn.Sequential(nn.EmbeddingBag(1024, 16, sparse=True), nn.Linear(16, 2))
    nn.init.uniform_(net[0].weight, -1 / 16, 1 / 16)

    def loss(net: Any, batch: Any) -> Tensor:
        ids = batch[0]
        return F.cross_entropy(net((ids[:, :-2] * 5381 + ids[:, 1:-1] * 33 + ids[:, 2:]) % 1024), batch[2])

    adagrad = scheduled(
        lambda module: torch.optim.Adagrad(module.parameters(), 0.1),
        lambda chosen: torch.optim.lr_scheduler.LinearLR(chosen, 1.0, 0.0, 100),
    )
    return trained(net, loss, adagrad, lines(48, 16), limit_train_batches=50)


@healthy("torch", "CenterNet: digits are peaks in a map, a focal loss that starts in the tens and a bias of -2.19")
def recipe_centres() -> Built:
    head = nn.Conv2d(32, 10, 1)
    nn.init.constant_(head.bias, -2.19)
    net = nn.Sequential(block(1, 16), nn.MaxPool2d(2), block(16, 32), nn.MaxPool2d(2), block(32, 32), block(32, 32), head)
    places = torch.arange(16.0)

    def loss(net: Any, batch: Any) -> Tensor:
        count = len(batch[0])
        canvas, heat = torch.zeros(count, 1, 64, 64), torch.zeros(count, 10, 16, 16)
        for row, (picture, shown) in enumerate(zip(*batch, strict=True)):
            y, x = torch.randint(0, 12, (2,)).tolist()
            canvas[row, :, 4 * y : 4 * y + 16, 4 * x : 4 * x + 16] = picture - picture.min()
            heat[row, shown] = (-((places[:, None] - y - 2).square() + (places - x - 2).square()) / 2).exp()
        logits = net(canvas)
        peaks, share = (heat == 1).float(), logits.sigmoid()
        found = F.logsigmoid(logits) * (1 - share).square() * peaks
        quiet = F.logsigmoid(-logits) * share.square() * (1 - heat).pow(4) * (1 - peaks)
        return -(found + quiet).sum() / peaks.sum()

    return trained(net, loss, adam(2e-3), in_batches(16, *digits(16)), limit_train_batches=30)


@healthy("torch", "snapshot ensemble: mixup, SGD with Nesterov momentum at 0.1, three cosines with warm restarts")
def recipe_snapshots() -> Built:
    pooled = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
    net = nn.Sequential(block(1, 16), nn.MaxPool2d(2), block(16, 32), nn.MaxPool2d(2), block(32, 32), *pooled)
    shares = torch.distributions.Beta(0.4, 0.4)

    def loss(net: Any, batch: Any) -> Tensor:
        share, other = shares.sample(), torch.randperm(len(batch[0]))
        logits = net(share * batch[0] + (1 - share) * batch[0][other])
        return share * F.cross_entropy(logits, batch[1]) + (1 - share) * F.cross_entropy(logits, batch[1][other])

    restarts = scheduled(
        lambda module: torch.optim.SGD(module.parameters(), 0.1, momentum=0.9, nesterov=True, weight_decay=5e-4),
        lambda chosen: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(chosen, 30),
    )
    return trained(net, loss, restarts, pictures(32, 16), limit_train_batches=45)


@healthy("torch", "an autoencoder whose codes are drawn by Gumbel's softmax, its temperature falls from 1 to 0.3, Adam")
def recipe_gumbel() -> Built:
    encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 80))
    net = nn.ModuleList([encoder, nn.Sequential(nn.Linear(80, 128), nn.ReLU(), nn.Linear(128, 64))])
    steps = iter(range(10**9))

    def loss(net: Any, batch: Any) -> Tensor:
        temperature = max(0.3, math.exp(-0.01 * next(steps)))
        logits = net[0](batch[0]).view(-1, 8, 10)
        codes = F.gumbel_softmax(logits, temperature)
        shares = logits.softmax(2)
        apart = (shares * (shares.clamp_min(1e-9).log() + math.log(10))).sum((1, 2))
        seen = F.binary_cross_entropy_with_logits(net[1](codes.flatten(1)), batch[0], reduction="none").sum(1)
        return (seen + apart).mean()

    pixels = torch.tensor(load_digits().data, dtype=torch.float32) / 16
    return trained(net, loss, adam(1e-3), batches(64, pixels), max_epochs=4, limit_train_batches=28)


@healthy("torch", "prototypical net: five kinds of digits an episode, the nearest mean of five examples, a rate that halves")
def recipe_prototypes() -> Built:
    net = nn.Sequential(block(1, 16), nn.MaxPool2d(2), block(16, 32), nn.MaxPool2d(2), block(32, 32), nn.MaxPool2d(2), nn.Flatten())
    images, shown = digits(16)
    kinds = [images[shown == kind][:170] for kind in range(10)]

    def loss(net: Any, batch: Any) -> Tensor:
        episode = torch.stack([kinds[kind][torch.randperm(170)[:15]] for kind in batch[0].tolist()])
        codes = net(episode.flatten(0, 1)).view(5, 15, -1)
        distances = torch.cdist(codes[:, 5:].flatten(0, 1), codes[:, :5].mean(1)).square()
        return F.cross_entropy(-distances, torch.arange(5).repeat_interleave(10))

    def optimizers(module: Any) -> Any:
        chosen = torch.optim.Adam(module.parameters(), 1e-3)
        return [chosen], [torch.optim.lr_scheduler.StepLR(chosen, 1, 0.5)]

    generator = torch.Generator().manual_seed(0)
    episodes = torch.stack([torch.randperm(10, generator=generator)[:5] for _ in range(40)])
    return trained(net, loss, optimizers, _one(episodes))


def _one(rows: Tensor) -> dict[str, Any]:
    """A row after the other, as a batch of one tensor."""
    return {"train_dataloaders": torch.utils.data.DataLoader(torch.utils.data.TensorDataset(rows), batch_size=None)}


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
    return trained(net, loss, adam(1e-3), batches(2048, *rows), max_epochs=10)


@healthy(
    "torch", "DeepSurv: Cox's partial likelihood of who is ill for how long, half of them censored, SELU and Nesterov momentum"
)
def recipe_survival() -> Built:
    x = torch.tensor(load_breast_cancer().data, dtype=torch.float32)
    x = (x - x.mean(0)) / x.std(0)
    generator = torch.Generator().manual_seed(0)
    risk = x[:, 0] + 0.5 * x[:, 1] * x[:, 4]
    times = -torch.rand(len(x), generator=generator).log() * (-risk).exp()
    ends = -torch.rand(len(x), generator=generator).log()
    net = nn.Sequential(nn.Linear(30, 32), nn.SELU(), nn.AlphaDropout(0.1), nn.Linear(32, 32), nn.SELU(), nn.Linear(32, 1))

    def loss(net: Any, batch: Any) -> Tensor:
        order = batch[1].argsort(descending=True)
        score, seen = net(batch[0][order]).squeeze(1), batch[2][order]
        return -((score - score.logcumsumexp(0)) * seen).sum() / seen.sum()

    sgd = lambda module: torch.optim.SGD(module.parameters(), 0.01, momentum=0.9, nesterov=True, weight_decay=1e-3)  # noqa: E731
    return trained(net, loss, sgd, batches(128, x, torch.minimum(times, ends), (times <= ends).float()), max_epochs=20)


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
    return trained(net, loss, sgd, pictures(32, 16))


@healthy("torch", "MAML: sines from ten examples after one step of 0.01 inside the loss, gradients of gradients, Adam")
def recipe_meta() -> Built:
    net = tanh_mlp(1, 40, 40, 1)

    def loss(net: Any, batch: Any) -> Tensor:
        lost = []
        for height, phase in batch[0]:
            x = 10 * torch.rand(20, 1) - 5
            y = height * torch.sin(x + phase)
            with torch.enable_grad():
                known = dict(net.named_parameters())
                first = F.mse_loss(functional_call(net, known, (x[:10],)), y[:10])
                slopes = torch.autograd.grad(first, list(known.values()), create_graph=True)
                moved = {name: value - 0.01 * slope for (name, value), slope in zip(known.items(), slopes, strict=True)}
                lost.append(F.mse_loss(functional_call(net, moved, (x[10:],)), y[10:]))
        return torch.stack(lost).mean()

    generator = torch.Generator().manual_seed(0)
    tasks = torch.rand(1120, 2, generator=generator) * torch.tensor([4.9, math.pi]) + torch.tensor([0.1, 0.0])
    return trained(net, loss, adam(2e-3), batches(16, tasks), max_epochs=1, limit_train_batches=70)
