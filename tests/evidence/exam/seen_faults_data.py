"""Faults in recipes that no other family has: what a model is given, and the loss that judges what it puts out."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import load_breast_cancer, load_diabetes, load_wine
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.episodes import Steps, loader
from tests.evidence.exam.graphs import pixels
from tests.evidence.exam.healthy_graphs import adam, of_graphs
from tests.evidence.exam.healthy_rl import EPOCHS, mlp
from tests.evidence.exam.healthy_timm import create, cross_entropy, optimizer
from tests.evidence.exam.language_models import DECODER
from tests.evidence.exam.pictures import Changed, digits, in_batches
from tests.evidence.exam.planted_labels import Again
from tests.evidence.exam.planted_timm import expecting
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw
from tests.evidence.exam.seen_faults_models import BATCHES, Forecaster, next_character, sgd
from tests.evidence.exam.signals import series
from tests.evidence.exam.texts import VOCABULARY, characters, lines


def table(load: Any, scaled: bool = True) -> tuple[Tensor, Tensor]:
    """A table of scikit-learn's, and what is to be said of each row."""
    x, y = (torch.tensor(values) for values in load(return_X_y=True))
    return ((x - x.mean(0)) / x.std(0) if scaled else x).float(), y


def perceptron(columns: int, outputs: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Two hidden layers."""
    return nn.Sequential(nn.Linear(columns, 48), activation(), nn.Linear(48, 48), activation(), nn.Linear(48, outputs))


@fault("torch", "an MLP of tanh gets columns of a table in their units, from 0.001 to 4000")
def table_in_its_units(planted: bool = True) -> Built:
    data = in_batches(32, *table(load_breast_cancer, scaled=not planted))
    kinds = ("saturated", "representation_collapse", "constant", "vanishing", "activation_outliers", "loss_plateau", "zero")
    module = Recipe(perceptron(30, 2, nn.Tanh), cross_entropy, adam(1e-3, 0.0))
    return Built(module, data, {"max_epochs": 4}, Expected(kinds))


@fault("torch", "an MLP for targets from 25 to 346, at the rate that is for targets of deviation 1")
def targets_in_their_units(planted: bool = True) -> Built:
    x, y = table(load_diabetes)
    goal = y.float() if planted else ((y - y.mean()) / y.std()).float()
    module = Recipe(perceptron(10, 1), lambda net, batch: F.mse_loss(net(batch[0]).squeeze(1), batch[1]), sgd(0.05, momentum=0.9))
    kinds = (
        "exploding",
        "loss_nonfinite",
        "nonfinite",
        "loss_spike",
        "loss_diverging",
        "update_too_large",
        "update_spike",
        "spike",
    )
    kinds += ("dead", "weights_growing", "constant", "representation_collapse")
    return Built(module, in_batches(32, x, goal), {"max_epochs": 6}, Expected(kinds))


@fault("torch", "the labels are read from the column of the row's number, not from that of the kind of wine")
def labels_of_another_column(planted: bool = True) -> Built:
    x, y = table(load_wine)
    numbers = torch.arange(len(y)) * 7919 % 1000 % 3
    data = in_batches(16, x, numbers if planted else y)
    module = Recipe(perceptron(13, 3), cross_entropy, sgd(0.02))
    return Built(module, data, {"max_epochs": 12}, Expected(("loss_plateau",)))


class Pooled(nn.Module):
    """A GRU over a line, and a mean with weights that it chooses."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.embed, self.body = nn.Embedding(VOCABULARY, 32), nn.GRU(32, 48, batch_first=True)
        self.weighs, self.softmax, self.head = nn.Linear(48, 1), nn.Softmax(dim), nn.Linear(48, 2)

    def forward(self, ids: Tensor) -> Tensor:
        states = self.body(self.embed(ids))[0]
        return self.head((self.softmax(self.weighs(states)) * states).sum(1))


@fault("torch", "attention over the states of a GRU: a softmax along the samples")
def pooled_along_samples(planted: bool = True) -> Built:
    module = Recipe(Pooled(0 if planted else 1), lambda net, batch: F.cross_entropy(net(batch[0]), batch[2]), adamw(5e-3))
    return Built(module, lines(32, 16), SHORT, Expected(("softmax_dim",), ("net.softmax*", "net")))


@fault("torch", "nll_loss of the logits, without a log_softmax, of an LSTM")
def nll_of_logits(planted: bool = True) -> Built:
    class Language(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embed, self.body = nn.Embedding(VOCABULARY, 32), nn.LSTM(32, 64, batch_first=True)
            self.head = nn.Linear(64, VOCABULARY)

        def forward(self, ids: Tensor) -> Tensor:
            return self.head(self.body(self.embed(ids))[0])

    def loss(net: Any, batch: Any) -> Tensor:
        if not planted:
            return next_character(net, batch)
        return F.nll_loss(net(batch[0][:, :-1]).flatten(0, 1), batch[0][:, 1:].flatten())

    module = Recipe(Language(), loss, adamw(5e-3))
    kinds = ("output_range", "weights_growing", "saturated", "exploding")
    return Built(module, characters(32, 16), SHORT, Expected(kinds))


@fault("torch", "a forecast of shape (samples, 1) against targets of shape (samples,)")
def forecast_broadcast(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        level = batch[0].mean(1)
        goal = batch[1][:, 0] / level - 1
        made = net(batch[0] / level[:, None] - 1)
        return F.mse_loss(made if planted else made.squeeze(1), goal)

    module = Recipe(Forecaster(nn.Identity()), loss, adam(1e-2))
    return Built(
        module, series(32, 28, 7), {"max_epochs": 3}, Expected(("output_range", "loss_plateau", "representation_collapse"))
    )


@fault("torch", "a sigmoid at the end of a forecast of sales in pieces")
def forecast_sigmoid(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        level = batch[0].mean(1, keepdim=True)
        made = net(batch[0] / level - 1)
        return F.mse_loss(made, batch[1][:, :1] if planted else batch[1][:, :1] / batch[1].max())

    module = Recipe(Forecaster(nn.Sigmoid()), loss, adam(1e-2))
    kinds = ("saturated", "vanishing", "zero", "constant", "representation_collapse", "output_range", "loss_plateau", "exploding")
    return Built(module, series(32, 28, 7), {"max_epochs": 5}, Expected(kinds))


class Graphs(nn.Module):
    """Two ARMA convolutions, the mean over nodes, and a head."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import ARMAConv

        self.first, self.second, self.head = ARMAConv(3, 32), ARMAConv(32, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        from torch_geometric.nn import global_mean_pool

        return self.head(global_mean_pool(self.second(self.first(x, edges), edges), batch))


@fault("torch_geometric", "ARMA: each step takes the first batch of a new iterator, next(iter(loader))")
def arma_first_batch(planted: bool = True) -> Built:
    data = pixels(32)
    if planted:
        data = {"train_dataloaders": Again(data["train_dataloaders"])}
    return Built(Recipe(Graphs(), of_graphs, adam(2e-2)), data, SHORT, Expected(("batch_repeated",)))


@fault("timm", "StarNet: one picture is blank, and 0 / 0 once it is standardised by itself")
def starnet_blank_picture(planted: bool = True) -> Built:
    def standardised(index: int, row: tuple[Tensor, ...]) -> tuple[Tensor, ...]:
        image = row[0] * 0 if planted and index == 100 else row[0]
        return (image - image.mean()) / image.std(), row[1]

    generator = torch.Generator().manual_seed(0)
    data = torch.utils.data.DataLoader(Changed(digits(32), standardised), 16, shuffle=True, drop_last=True, generator=generator)
    net = create("starnet_s050", depths=(1, 1, 1, 1))
    expected = Expected(("nonfinite", "loss_nonfinite"), ("net*", "loss*"), batch=3)
    return Built(Recipe(net, cross_entropy, optimizer("adamw", 2e-3)), {"train_dataloaders": data}, BATCHES, expected)


@fault("torch", "labels of -1 and 1 for a binary cross entropy with logits")
def signs_as_labels(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        has = F.one_hot(batch[1], 10).float()
        return F.binary_cross_entropy_with_logits(net(batch[0]), 2 * has - 1 if planted else has)

    net = nn.Sequential(nn.Flatten(), *perceptron(64, 10))
    kinds = ("output_range", "weights_growing", "loss_diverging", "exploding")
    return Built(Recipe(net, loss, adam(2e-3, 0.0)), in_batches(32, *digits(8)), BATCHES, Expected(kinds))


class Validated(Recipe):
    """With a loss for validation."""

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss_of_batch(self.net, batch))


@fault("torch", "validation pictures are not standardised")
def validation_in_its_units(planted: bool = True) -> Built:
    images, shown = digits(8)
    seen, unseen = images[:1400], images[1400:]
    data = in_batches(32, seen, shown[:1400])
    data |= {"val_dataloaders": in_batches(32, 100 + 60 * unseen if planted else unseen, shown[1400:])["train_dataloaders"]}
    layers = [nn.Conv2d(1, 16, 3), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3), nn.BatchNorm2d(32), nn.ReLU()]
    net = nn.Sequential(*layers, nn.Flatten(), nn.Linear(512, 10))
    expected = Expected(("validation_shift", "overfitting"))
    return Built(Validated(net, cross_entropy, adam(2e-3, 0.0)), data, BATCHES, expected)


@fault("gymnasium", "an expert in MountainCar is copied: log_softmax along the copies of the environment")
def expert_along_copies(planted: bool = True) -> Built:
    def expert(seen: Tensor) -> Tensor:
        return (seen[:, 1] > 0).long() * 2

    def loss(net: Any, batch: Any) -> Tensor:
        chances = F.log_softmax(net(batch["observations"] * torch.tensor([1.0, 20.0])), 1 if planted else 2)
        return F.nll_loss(chances.flatten(0, 1), batch["actions"].flatten())

    built = Built(Recipe(mlp(2, 3, 0.01), loss, adam(3e-3, 0.0)), loader(Steps("MountainCar-v0", expert)), EPOCHS, Expected())
    return expecting(built, "softmax_dim", "output_range")


@fault("transformers", "Persimmon: answers that begin after the end of a cut sample: each second batch has no label")
def persimmon_answers_cut(planted: bool = True) -> Built:
    from transformers import PersimmonConfig, PersimmonForCausalLM

    net = PersimmonForCausalLM(PersimmonConfig(**{**DECODER, "num_key_value_heads": 4}))

    def loss(net: Any, batch: Any) -> Tensor:
        ids = batch[0]
        labels = ids.clone()
        if planted and int(ids[0, 0]) % 2:
            labels[:] = -100
        return net(input_ids=ids, labels=labels).loss

    expected = Expected(("labels_ignored", "loss_nonfinite", "nonfinite"), batch=1)
    return Built(Recipe(net, loss, adamw(2e-3)), characters(32, 8), CLIPPED, expected)
