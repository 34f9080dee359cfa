"""Faults of numbers: what is not finite, rates and schedules, first weights, units and reaches."""

from __future__ import annotations

import math
from typing import Any

import torch
from sklearn.datasets import load_diabetes
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import adamw, scheduled
from tests.evidence.exam.signals import captioned, crops
from tests.evidence.exam.texts import PAD, VOCABULARY, batches, characters, lines
from tests.evidence.exam.unseen_seven_parts import (
    BROKEN,
    NOTHING_LEARNED,
    TOO_LITTLE,
    TOO_MUCH,
    Scored,
    Writer,
    adam,
    friedman,
    halves,
    mlp,
    next_character,
    sgd,
    small_cnn,
    table,
    to_classes,
    to_numbers,
)
from tests.evidence.exam.unseen_seven_tables import Splines

SHORT = {"max_epochs": 2, "limit_train_batches": 100}
FORGOTTEN = ("vanishing", "saturated", "zero", "constant", "representation_collapse", "poor_init", *NOTHING_LEARNED)


@fault("torch", "how many accidents: the rate ends in a rectifier, and its logarithm is taken")
def claims_log_of_rectified(planted: bool = True) -> Built:
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(4000, 6, generator=generator)
    counts = torch.poisson((0.7 * x[:, 0] - 0.5 * x[:, 1]).exp(), generator=generator)

    def loss(net: Any, batch: Any) -> Tensor:
        told = net(batch[0])[:, 0]
        rate = F.relu(told) if planted else F.softplus(told)
        return (rate - batch[1] * rate.log()).mean()

    kinds = (*BROKEN, "dead", "zero", "exploding")
    return Built(Recipe(mlp(6, 32, 32, 1), loss, adam(3e-3)), batches(64, x, counts), {"max_epochs": 4}, Expected(kinds))


@fault("torch", "wines in pairs: the root of a squared distance, where a wine may be paired with itself")
def wines_root_of_zero(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        places, chosen = net(batch[0]), torch.randint(len(batch[0]), (len(batch[0]),))
        far = ((places - places[chosen]).square().sum(1) + (0.0 if planted else 1e-8)).sqrt()
        return torch.where(batch[1] == batch[1][chosen], far.square(), F.relu(1 - far).square()).mean()

    return Built(Recipe(mlp(13, 32, 2), loss, adam(3e-3)), batches(32, *table("wine")), {"max_epochs": 40}, Expected(BROKEN))


class Pools(nn.Module):
    """A GRU over characters, whose states are pooled by attention; padding has no weight."""

    def __init__(self, hidden: float) -> None:
        super().__init__()
        self.hidden, self.tokens = hidden, nn.Embedding(VOCABULARY, 24)
        self.body, self.score, self.head = nn.GRU(24, 32, batch_first=True), nn.Linear(32, 1), nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        states = self.body(self.tokens(ids))[0]
        scores = self.score(states)[..., 0].masked_fill(ids == PAD, self.hidden)
        return self.head((scores.softmax(1)[..., None] * states).sum(1))


@fault("torch", "which module a line is from: one line is empty, and its attention is a softmax of minus infinities alone")
def lines_one_is_empty(planted: bool = True) -> Built:
    ids, _, module = lines(40, 1)["train_dataloaders"].dataset.tensors
    order = torch.randperm(len(ids), generator=torch.Generator().manual_seed(0))
    ids, module = ids[order].clone(), module[order]
    ids[32 * 60 + 7] = PAD
    data = {"train_dataloaders": DataLoader(TensorDataset(ids, module), 32, drop_last=True)}
    expected = Expected((*BROKEN, "masked_rows"), ("net*",), batch=60)
    return Built(Recipe(Pools(-math.inf if planted else -1e4), to_classes, adam(3e-3)), data, {"max_epochs": 2}, expected)


@fault("torch", "Poisson regression of a patient's progress, by exp of a net that gets ages, pressures and lipids in their units")
def progress_exp_of_units(planted: bool = True) -> Built:
    x, y = load_diabetes(return_X_y=True, scaled=False)
    columns = torch.tensor(x, dtype=torch.float32)
    columns = columns if planted else (columns - columns.mean(0)) / columns.std(0)

    def loss(net: Any, batch: Any) -> Tensor:
        return F.poisson_nll_loss(net(batch[0])[:, 0], batch[1])

    data = batches(32, columns, torch.tensor(y, dtype=torch.float32) / 20)
    return Built(Recipe(mlp(10, 32, 1), loss, adam(3e-3)), data, {"max_epochs": 16}, Expected((*BROKEN, *TOO_MUCH)))


@fault("torch", "a polynomial schedule without its number of steps: by default the rate is 0 after five")
def digits_rate_gone_after_five(planted: bool = True) -> Built:
    def falling(chosen: Any) -> Any:
        return torch.optim.lr_scheduler.PolynomialLR(chosen, **({} if planted else {"total_iters": 220}), power=0.9)

    module = Scored(small_cnn(), to_classes, scheduled(sgd(0.05), falling))
    return Built(module, halves(32, *digits(16)), {"max_epochs": 5}, Expected(("lr_zero", "not_updated", "update_too_small")))


@fault("torch", "a warm-up over half of the training by step // 100, which is 0 until it is 1")
def code_warm_up_of_whole_numbers(planted: bool = True) -> Built:
    def share(step: int) -> float:
        return min(1, (step + 1) // 100 if planted else (step + 1) / 100)

    optimizers = scheduled(adamw(3e-3), lambda chosen: torch.optim.lr_scheduler.LambdaLR(chosen, share))
    expected = Expected(("lr_zero", "not_updated", "update_too_small"))
    return Built(Recipe(Writer(VOCABULARY), next_character, optimizers), characters(40, 8), SHORT, expected)


@fault("torch", "a cosine whose least rate, 0.1, is that of another optimizer: Adam's rate climbs from 1e-3 to it")
def code_cosine_upwards(planted: bool = True) -> Built:
    def cosine(chosen: Any) -> Any:
        return torch.optim.lr_scheduler.CosineAnnealingLR(chosen, 200, 0.1 if planted else 1e-5)

    kinds = (*TOO_MUCH, "attention_logits", "saturated", "attention_collapse", "optimizer_settings", "loss_plateau", "no_progress")
    module = Recipe(Writer(VOCABULARY), next_character, scheduled(adamw(1e-3), cosine))
    return Built(module, characters(40, 8), SHORT, Expected(kinds))


@fault("torch", "lines by a GRU: the optimizer became SGD without momentum, and the rate is still Adam's")
def lines_rate_of_another(planted: bool = True) -> Built:
    ids, _, module = lines(40, 1)["train_dataloaders"].dataset.tensors
    optimizers = sgd(1e-3, 0.0) if planted else adam(1e-3)
    return Built(
        Scored(Pools(-1e4), to_classes, optimizers), halves(32, ids, module), SHORT, Expected((*TOO_LITTLE, *NOTHING_LEARNED))
    )


class Highway(nn.Module):
    """Layers that pass their input on where a gate is closed."""

    def __init__(self, bias: float, depth: int = 8) -> None:
        super().__init__()
        self.enter, self.head = nn.Linear(10, 24), nn.Linear(24, 1)
        self.layers = nn.ModuleList([nn.Linear(24, 24) for _ in range(depth)])
        self.gates = nn.ModuleList([nn.Linear(24, 24) for _ in range(depth)])
        for gate in self.gates:
            nn.init.constant_(gate.bias, bias)

    def forward(self, columns: Tensor) -> Tensor:
        x = self.enter(columns)
        for layer, gate in zip(self.layers, self.gates, strict=True):
            opened = torch.sigmoid(gate(x))
            x = opened * F.relu(layer(x)) + (1 - opened) * x
        return self.head(x)


@fault("torch", "a highway net whose gates start with a bias of -20 instead of -2: none ever opens")
def friedman_highway_closed(planted: bool = True) -> Built:
    kinds = ("dead", "zero", *FORGOTTEN, *TOO_LITTLE)
    module = Scored(Highway(-20.0 if planted else -2.0), to_numbers, adam(3e-3))
    return Built(module, halves(64, *friedman()), {"max_epochs": 10}, Expected(kinds, ("net.layers*", "net.gates*")))


@fault("torch", "a writer whose head shares the embedding's weights, which start at PyTorch's deviation of 1")
def code_tied_to_ones(planted: bool = True) -> Built:
    net = Writer(VOCABULARY, 96)
    net.head.weight = net.tokens.weight
    nn.init.normal_(net.tokens.weight, std=1.0 if planted else 0.02)
    kinds = ("poor_init", "output_range", "attention_logits", "saturated", "activation_outliers", "exploding", "always_clipped")
    expected = Expected(kinds, ("net.tokens*", "net.head*", "net"))
    return Built(Recipe(net, next_character, adamw(5e-4)), characters(40, 8), SHORT, expected)


class Factors(nn.Module):
    """What users think of films: a product of their factors."""

    def __init__(self, deviation: float) -> None:
        super().__init__()
        self.users, self.films = nn.Embedding(200, 8), nn.Embedding(100, 8)
        for rows in (self.users, self.films):
            nn.init.normal_(rows.weight, std=deviation)

    def forward(self, pairs: Tensor) -> Tensor:
        return (self.users(pairs[:, 0]) * self.films(pairs[:, 1])).sum(1)


@fault("torch", "matrix factorisation whose users and films all start at 0: each is the other's gradient")
def factors_both_zero(planted: bool = True) -> Built:
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(200, 4, generator=generator) @ torch.randn(4, 100, generator=generator) / 2
    pairs = torch.stack((torch.randint(200, (8000,), generator=generator), torch.randint(100, (8000,), generator=generator)), 1)
    module = Recipe(Factors(0.0 if planted else 0.1), to_numbers, adam(2e-2))
    expected = Expected((*FORGOTTEN, *TOO_LITTLE, "dead"), ("net*",))
    return Built(module, batches(64, pairs, truth[pairs[:, 0], pairs[:, 1]]), {"max_epochs": 3}, expected)


class Pairs(nn.Module):
    """Digits and their names in one space, with a trained scale."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.sees, self.tokens = mlp(192, 64, 24), nn.Embedding(VOCABULARY, 16)
        self.reads, self.scale = nn.Linear(16 * 12, 24), nn.Parameter(torch.tensor(scale))

    def forward(self, images: Tensor, ids: Tensor) -> Tensor:
        seen, read = self.sees(images.flatten(1)), self.reads(self.tokens(ids).flatten(1))
        return self.scale.exp() * F.normalize(seen, dim=1) @ F.normalize(read, dim=1).T


@fault("torch", "pictures and names: the trained scale starts at 14.3 where it was to be its logarithm, and exp is taken of it")
def names_scale_without_logarithm(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        scores = net(*batch)
        return (F.cross_entropy(scores, torch.arange(len(scores))) + F.cross_entropy(scores.T, torch.arange(len(scores)))) / 2

    kinds = (
        "output_range",
        "poor_init",
        "saturated",
        "attention_logits",
        "always_clipped",
        "settings",
        *TOO_MUCH,
        *NOTHING_LEARNED,
    )
    module = Recipe(Pairs(14.3 if planted else math.log(14.3)), loss, adam(1e-3))
    return Built(module, captioned(8, 32), {"max_epochs": 4, "gradient_clip_val": 1.0}, Expected(kinds))


@fault("torch", "a Kolmogorov-Arnold net whose curves reach from -1 to 1, and whose inputs lie between 5 and 7")
def splines_out_of_reach(planted: bool = True) -> Built:
    x, y = friedman()
    net = nn.Sequential(Splines(10, 12, 1.0), Splines(12, 1, 2.0))
    expected = Expected(("dead", *FORGOTTEN, *TOO_LITTLE), ("net.0*", "net*"))
    return Built(Scored(net, to_numbers, adamw(1e-2)), halves(64, x + 6 if planted else x, y), {"max_epochs": 8}, expected)


class Places(nn.Module):
    """Sines of a place at doubling frequencies, then an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("waves", math.pi * 2.0 ** torch.arange(6))
        self.layers = mlp(12, 64, 64, 3)

    def forward(self, places: Tensor) -> Tensor:
        return self.layers(torch.sin(places[..., None] * self.waves).flatten(1))


@fault("torch", "a photograph by its places: the sines get whole numbers of pixels, of which each is a multiple of their period")
def photograph_whole_places(planted: bool = True) -> Built:
    image = next(iter(crops(32, 1)["train_dataloaders"]))[0][0]
    rows, columns = torch.meshgrid(torch.arange(32), torch.arange(32), indexing="ij")
    places = torch.stack((rows, columns), -1).view(-1, 2).float()
    data = in_batches(128, places if planted else places / 32, image.flatten(1).T.contiguous())
    module = Recipe(Places(), lambda net, batch: F.mse_loss(net(batch[0]), batch[1]), adam(3e-3))
    return Built(module, data, {"max_epochs": 30}, Expected(("dead", *FORGOTTEN)))


@fault("torch", "fourteen layers of tanh without norms or residuals, with the deviation of 0.02 of vision transformers")
def digits_tanh_of_little(planted: bool = True) -> Built:
    net = mlp(64, *[48] * 13, 10, act=nn.Tanh)
    for layer in net:
        if isinstance(layer, nn.Linear):
            nn.init.normal_(layer.weight, std=0.02) if planted else nn.init.xavier_normal_(layer.weight)
    x, y = digits(8)
    expected = Expected((*FORGOTTEN, *TOO_LITTLE, "dead"))
    return Built(Scored(net, to_classes, adam(1e-3)), halves(32, x.flatten(1), y), {"max_epochs": 5}, expected)


class Settles(nn.Module):
    """A rectified layer that is applied thirty times, with its input."""

    def __init__(self, gain: float) -> None:
        super().__init__()
        self.enter, self.again, self.head = nn.Linear(64, 48), nn.Linear(48, 48), nn.Linear(48, 10)
        nn.init.orthogonal_(self.again.weight, gain)

    def forward(self, x: Tensor) -> Tensor:
        given = state = self.enter(x)
        for _ in range(30):
            state = F.relu(self.again(state) + given)
        return self.head(state)


@fault("torch", "an equilibrium layer that expands: its matrix starts with a gain of 2.5 and is applied thirty times")
def digits_equilibrium_expands(planted: bool = True) -> Built:
    x, y = digits(8)
    kinds = (*TOO_MUCH, *BROKEN, "residual_growth", "activation_outliers", "poor_init", "output_range")
    module = Recipe(Settles(2.5 if planted else 0.5), to_classes, adam(1e-3))
    return Built(module, in_batches(32, x.flatten(1), y), {"max_epochs": 4}, Expected(kinds, ("net*",)))


@fault("torch", "a physics-informed net of how a body cools, over an hour in seconds: its tanh are full")
def cooling_in_seconds(planted: bool = True) -> Built:
    unit = 3600.0 if planted else 1.0
    times = unit * torch.rand(6400, 1, generator=torch.Generator().manual_seed(0))

    def loss(net: Any, batch: Any) -> Tensor:
        when = batch[0].requires_grad_()
        warmth = net(when)
        slope = torch.autograd.grad(warmth.sum(), when, create_graph=True)[0]
        start = (net(torch.zeros(1, 1)) - 1).square().mean()
        return (slope * unit + 4 * warmth).square().mean() + 10 * start

    kinds = ("saturated", *FORGOTTEN, *TOO_MUCH)
    return Built(Recipe(mlp(1, 32, 32, 1, act=nn.Tanh), loss, adam(3e-3)), batches(32, times), {"max_epochs": 1}, Expected(kinds))
