"""Faults of what gets a gradient: parameters that no module knows, and paths that a function or a copy cuts."""

from __future__ import annotations

import copy
import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.expectations import ALIKE, NO_GRADIENT, STILL, UNHELD, UNMOVED
from tests.evidence.exam.graphs import graphs_adam
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import TWICE_40, adam
from tests.evidence.exam.small_nets import Judged, mlp, right, small_cnn, taught, to_classes, to_numbers
from tests.evidence.exam.tables import friedman, split, table
from tests.evidence.exam.texts import lines


class Bits(nn.Module):
    """A picture is written as six bits, which say what it shows; the gradient passes by their rounding, or ends there."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted, self.head = planted, nn.Linear(6, 10)
        self.encoder = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 6))

    def forward(self, x: Tensor) -> Tensor:
        code = self.encoder(x)
        soft = code.tanh()
        return self.head(code.sign() if self.planted else soft + (code.sign() - soft).detach())


@fault("torch", "a code of six bits by torch.sign, without straight-through: the gradient of the encoder is zero")
def bits_by_sign(planted: bool = True) -> Built:
    expected = Expected((*UNMOVED, "loss_plateau"), ("net.encoder*",))
    return Built(Recipe(Bits(planted), to_classes, graphs_adam(5e-3, 0.0)), in_batches(32, *digits(8)), TWICE_40, expected)


@fault("torch", "MAML on sines: the inner steps move a deep copy, and the gradients end there")
def maml_copies(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        total = torch.zeros(())
        for phase, height in batch[0].tolist():
            x = 10 * torch.rand(20, 1) - 5
            y = height * torch.sin(x + phase)
            inner = copy.deepcopy(net) if planted else net
            weights = dict(inner.named_parameters())
            slopes = torch.autograd.grad(F.mse_loss(inner(x[:10]), y[:10]), list(weights.values()), create_graph=True)
            moved = {name: weight - 0.02 * slope for (name, weight), slope in zip(weights.items(), slopes, strict=True)}
            total = total + F.mse_loss(functional_call(inner, moved, (x[10:],)), y[10:]) / len(batch[0])
        return total

    net = nn.Sequential(nn.Linear(1, 40), nn.ReLU(), nn.Linear(40, 40), nn.ReLU(), nn.Linear(40, 1))
    tasks = torch.rand(400, 2, generator=torch.Generator().manual_seed(0)) * torch.tensor([math.pi, 4.0]) + torch.tensor([0.0, 1.0])
    expected = Expected((*UNMOVED, "loss_plateau"), ("net", "net.*"))
    return Built(Recipe(net, loss, graphs_adam(3e-3, 0.0)), in_batches(8, tasks), {"max_epochs": 2}, expected)


class Latent(nn.Module):
    """GLO: a code for each picture, which is learned beside the decoder."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        codes = torch.randn(256, 12, requires_grad=True)
        self.codes: Any = codes if planted else nn.Parameter(codes.detach())
        self.decoder = nn.Sequential(nn.Linear(12, 128), nn.ReLU(), nn.Linear(128, 64))

    def forward(self, rows: Tensor) -> Tensor:
        return self.decoder(self.codes[rows])


@fault("torch", "GLO: the code of each picture is a tensor with requires_grad, not a parameter of the net")
def codes_no_parameter(planted: bool = True) -> Built:
    data = in_batches(32, torch.arange(256), digits(8)[0][:256].flatten(1))
    module = Recipe(Latent(planted), lambda net, batch: F.mse_loss(net(batch[0]), batch[1]), graphs_adam(2e-2, 0.0))
    return Built(module, data, {"max_epochs": 10}, Expected(("unregistered", "not_optimized"), ("net", "net.*")))


class Remembers(nn.Module):
    """A GRU's cell by hand over eight symbols; the last state is to tell the first of them."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted, self.embedding, self.cell, self.head = planted, nn.Embedding(8, 16), nn.GRUCell(16, 48), nn.Linear(48, 8)

    def forward(self, ids: Tensor) -> Tensor:
        state = torch.zeros(len(ids), 48)
        for seen in self.embedding(ids).unbind(1):
            state = self.cell(seen, state.detach() if self.planted else state)
        return self.head(state)


@fault("torch", "the first of twelve symbols is to be told at the end: the state is detached at each symbol, not at each stretch")
def first_symbol_state_detached(planted: bool = True) -> Built:
    ids = torch.randint(0, 8, (3200, 12), generator=torch.Generator().manual_seed(0))
    module = Recipe(Remembers(planted), to_classes, adam(0.01))
    expected = Expected(("vanishing", "zero", "missing", "silent", *STILL), ("net", "net.cell*", "net.embedding*"))
    return Built(module, in_batches(32, ids, ids[:, 0]), {"max_epochs": 4, "gradient_clip_val": 1.0}, expected)


class FromVectors(nn.Module):
    """Reads lines by vectors that were counted beforehand and go on learning."""

    def __init__(self, vectors: Any, planted: bool) -> None:
        super().__init__()
        self.vectors: Any
        if planted:
            self.vectors = nn.Parameter(torch.from_numpy(vectors)).float()
        else:
            self.vectors = nn.Parameter(torch.from_numpy(vectors).float())
        self.body, self.head = nn.GRU(16, 32, batch_first=True), nn.Linear(32, 2)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.vectors[ids])[0].amax(1))


@fault("torch", "letters' vectors come from numpy, in double precision: nn.Parameter(...).float() is a tensor that nobody trains")
def lines_vectors_from_numpy(planted: bool = True) -> Built:
    ids, _, module = lines(40, 1)["train_dataloaders"].dataset.tensors
    counts = np.zeros((128, 128))
    np.add.at(counts, (ids[:, :-1].flatten().numpy(), ids[:, 1:].flatten().numpy()), 1)
    left, sizes, _ = np.linalg.svd(np.log1p(counts))
    vectors = 0.05 * left[:, :16] * sizes[:16] ** 0.5
    recipe = Recipe(FromVectors(vectors, planted), to_classes, adam(2e-3))
    expected = Expected(UNHELD, ("net.vectors", "*vectors*", "net"))
    return Built(recipe, in_batches(32, ids, module), {"max_epochs": 2}, expected)


@fault(
    "torch", "the losses of two answers are put together by torch.tensor([...], requires_grad=True), behind which there is nothing"
)
def progress_losses_anew(planted: bool = True) -> Built:
    columns, progress = table("diabetes")

    def loss(net: Any, batch: Any) -> Tensor:
        told = net(batch[0])
        parts = [F.mse_loss(told[:, 0], batch[1]), F.binary_cross_entropy_with_logits(told[:, 1], (batch[1] > 0).float())]
        return (torch.tensor([part.item() for part in parts], requires_grad=True) if planted else torch.stack(parts)).sum()

    expected = Expected(("missing", "zero", "vanishing", *STILL), ("net", "net.*"))
    return Built(Recipe(mlp(10, 32, 32, 2), loss, adam(2e-3)), in_batches(32, columns, progress), {"max_epochs": 14}, expected)


class Prompted(nn.Module):
    """A trained reader that stays; a few vectors before its inputs and a new head learn."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.embedding, self.body, self.head = nn.Embedding(128, 32), nn.GRU(32, 48, batch_first=True), nn.Linear(48, 2)
        self.prompt: Any = 0.5 * torch.randn(128, 32)
        if planted:
            self.prompt.requires_grad_()
        else:
            self.prompt = nn.Parameter(self.prompt)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embedding(ids) + self.prompt[ids])[0].amax(1))


@fault(
    "torch",
    "a forum on prompt tuning: the vectors that learn are torch.randn(..., requires_grad=True), no nn.Parameter; rest frozen",
    learned_from=False,
)
def lines_prompts_are_no_parameters(planted: bool = True) -> Built:
    ids, _, source = lines(40, 1)["train_dataloaders"].dataset.tensors
    net = Prompted(planted)
    for part in (net.embedding, net.body):
        part.requires_grad_(False)

    def optimizers(module: Any) -> Any:
        return torch.optim.Adam([weight for weight in module.parameters() if weight.requires_grad], 0.01)

    expected = Expected((*UNHELD, "no_progress", "loss_plateau"), ("net", "net.prompt", "*prompt*"))
    return Built(Judged(net, to_classes, optimizers, right), split(32, ids, source), {"max_epochs": 3}, expected)


@fault(
    "torch",
    "an issue on distillation, 'both get worse': Adam has self.parameters(), the teacher's too, and nothing is detached",
)
def digits_teacher_follows(planted: bool = True) -> Built:
    images, shown = digits(8)
    nets = nn.ModuleDict({"teacher": taught(nn.Sequential(nn.Flatten(), *mlp(64, 96, 10)), images, shown)})
    nets["student"] = nn.Sequential(nn.Flatten(), *mlp(64, 32, 10))

    def loss(nets: Any, batch: Any) -> Tensor:
        told, soft = (nets[name](batch[0]).log_softmax(1) for name in ("student", "teacher"))
        return F.kl_div(told, soft if planted else soft.detach(), log_target=True, reduction="batchmean")

    def optimizers(module: Any) -> Any:
        return torch.optim.Adam((module if planted else module.net["student"]).parameters(), 3e-3)

    kinds = ("output_range", "no_progress", "weights_growing", "update_too_large", "validation_shift", *ALIKE, *STILL)
    expected = Expected(kinds, ("net.teacher*", "net.student*"))
    module = Judged(nets, loss, optimizers, lambda nets, batch: right(nets["student"], batch))
    return Built(module, split(32, images, shown), {"max_epochs": 5}, expected)


class Angles(nn.Module):
    """The loss of angles to trained centres, with a margin."""

    def __init__(self) -> None:
        super().__init__()
        self.centres = nn.Parameter(torch.randn(10, 16))

    def forward(self, places: Tensor, shown: Tensor) -> Tensor:
        cosines = F.normalize(places, dim=1) @ F.normalize(self.centres, dim=1).T
        return F.cross_entropy(12 * (cosines - 0.2 * F.one_hot(shown, 10)), shown)


class WithMargin(Recipe):
    """A net, and a loss that has centres."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.criterion = Angles()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.criterion(self.net(batch[0]), batch[1])


@fault("torch", "angles with a margin: the centres are parameters of the loss, and the optimizer was given those of the net")
def digits_centres_left_out(planted: bool = True) -> Built:
    def optimizers(module: Any) -> Any:
        return torch.optim.Adam((module.net if planted else module).parameters(), 2e-3)

    x, y = digits(8)
    expected = Expected(("not_optimized", "not_updated", "missing", "part_not_learning"), ("criterion*",))
    return Built(WithMargin(mlp(64, 64, 16), None, optimizers), in_batches(32, x.flatten(1), y), {"max_epochs": 5}, expected)


class Weighed(Recipe):
    """Two tasks under trained widths."""

    def __init__(self, planted: bool, *parts: Any) -> None:
        super().__init__(*parts)
        start = [torch.zeros(()) for _ in range(2)]
        self.widths: Any = [each.requires_grad_() for each in start] if planted else nn.ParameterList(start)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        told = self.net(batch[0])
        losses = (F.cross_entropy(told[:, :10], batch[1]), 100 * F.mse_loss(told[:, 10], batch[0].mean((1, 2, 3))))
        return sum((loss * (-width).exp() + width for loss, width in zip(losses, self.widths, strict=True)), torch.zeros(()))


@fault("torch", "two tasks weighed by trained widths, which are tensors in a list and no parameters")
def digits_widths_in_a_list(planted: bool = True) -> Built:
    expected = Expected(("unregistered", "not_optimized", "not_updated", "missing"), ("widths*", "*widths*"))
    module = Weighed(planted, small_cnn(12, 11), None, adam(3e-3))
    return Built(module, in_batches(32, *digits(16)), {"max_epochs": 4}, expected)


class Eighths(nn.Linear):
    """Weights rounded to eighths; the gradient goes past the rounding, or is lost in it."""

    planted = True

    def forward(self, x: Tensor) -> Tensor:
        rounded = (8 * self.weight).round() / 8
        return F.linear(x, rounded if self.planted else self.weight + (rounded - self.weight).detach(), self.bias)


@fault("torch", "quantisation-aware training: weights go through torch.round, whose gradient is 0, and only biases learn")
def digits_rounded_weights(planted: bool = True) -> Built:
    net = nn.Sequential(Eighths(64, 64), nn.ReLU(), Eighths(64, 64), nn.ReLU(), Eighths(64, 10))
    for layer in net:
        layer.planted = planted
    x, y = digits(8)
    module = Judged(net, to_classes, adam(3e-3))
    return Built(module, split(32, x.flatten(1), y), {"max_epochs": 5}, Expected(NO_GRADIENT, ("net*",)))


class Mixture(nn.Module):
    """Four experts, of which a router chooses two."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        self.planted, self.router = planted, nn.Linear(10, 4)
        self.experts = nn.ModuleList([mlp(10, 16, 1) for _ in range(4)])

    def forward(self, x: Tensor) -> Tensor:
        chosen = self.router(x).topk(2)
        weights = torch.full_like(chosen.values, 0.5) if self.planted else chosen.values.softmax(1)
        told = torch.cat([expert(x) for expert in self.experts], 1)
        return (weights * told.gather(1, chosen.indices)).sum(1)


@fault("torch", "a mixture of experts: the two chosen ones are averaged, not weighed by the router, which gets no gradient")
def friedman_router_without_gradient(planted: bool = True) -> Built:
    expected = Expected((*NO_GRADIENT, "router_collapse", "dead_experts"), ("net.router*",))
    return Built(Judged(Mixture(planted), to_numbers, adam(5e-3)), split(64, *friedman()), {"max_epochs": 10}, expected)


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


def ink_missed(net: Any, batch: Any) -> Tensor:
    """Of the pixels of a picture, summed."""
    return F.binary_cross_entropy_with_logits(net(batch[0])[0], batch[0], reduction="none").sum(1).mean()


@fault("torch", "a forum on torch.distributions: codes of a VAE come from sample(), behind which no gradient goes")
def digits_codes_by_sample(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return ink_missed(net, batch) + net(batch[0])[1].mean()

    normal = torch.distributions.Normal
    module = Judged(
        Coded(12, normal.sample if planted else normal.rsample), loss, adam(3e-3), lambda net, batch: -ink_missed(net, batch)
    )
    expected = Expected((*ALIKE, *STILL, "missing"), ("net", "net.encoder*", "net.decoder*"))
    return Built(module, split(48, inks()), {"max_epochs": 9}, expected)
