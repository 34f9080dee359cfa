"""Faults of wiring and settings from users' questions: parameters that are none, samplers, schedules, clamps, a lone last row."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils.parametrizations import weight_norm
from torch.utils.data import DataLoader, TensorDataset, WeightedRandomSampler

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.signals import melodies
from tests.evidence.exam.texts import lines
from tests.evidence.exam.unseen_eight_tables import adam, mlp, table

JUMPS = ("loss_spike", "update_spike", "spike")
RATE = ("update_too_large", "exploding", "weights_growing", "loss_diverging", "step_too_long", *JUMPS)
BROKEN = ("nonfinite", "loss_nonfinite")
STILL = ("not_updated", "update_too_small", "no_progress", "step_too_short", "updates_lost", "loss_plateau", "part_not_learning")
UNHELD = ("unregistered", "not_optimized", "missing", "not_updated", "part_not_learning")
ALIKE = ("constant", "representation_collapse", "vanishing", "zero", "poor_init", "dead", "saturated")


def tells(net: Any, batch: Any) -> Tensor:
    return F.cross_entropy(net(batch[0]), batch[1])


class Judged(Recipe):
    """Logs a score of validation batches."""

    def __init__(self, net: nn.Module, loss: Any, optimizers: Any, score: Callable[[Any, Any], Tensor] | None = None) -> None:
        super().__init__(net, loss, optimizers)
        self.score = score

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log("val_loss", self.loss_of_batch(self.net, batch))
        if self.score is not None:
            self.log("val_score", self.score(self.net, batch))


def split(batch_size: int, *tensors: Tensor, share: float = 0.8, **options: Any) -> dict[str, Any]:
    """Rows for training, shuffled, and the rest for validation."""
    order = torch.randperm(len(tensors[0]), generator=torch.Generator().manual_seed(1))
    many = int(share * len(order))
    first, rest = order[:many], order[many:]
    data = in_batches(batch_size, *(tensor[first] for tensor in tensors), **options)
    return {**data, "val_dataloaders": DataLoader(TensorDataset(*(tensor[rest] for tensor in tensors)), 64)}


def convolutions() -> nn.Sequential:
    """Two convolutions with batch norm and a hidden layer, for digits of 16 pixels."""
    net = nn.Sequential(nn.Conv2d(1, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU(), nn.Conv2d(16, 32, 3, 2, 1), nn.BatchNorm2d(32))
    return net.extend([nn.ReLU(), nn.Flatten(), nn.Linear(512, 64), nn.ReLU()])


class Bag(nn.Module):
    """PyTorch's tutorial on topics: the mean of embeddings, here of pairs of letters, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.EmbeddingBag(1024, 32), nn.Linear(32, 2)
        for weight in (self.embedding.weight, self.head.weight):
            nn.init.uniform_(weight, -0.5, 0.5)
        nn.init.zeros_(self.head.bias)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.embedding((ids[:, :-1] * 31 + ids[:, 1:]) % 1024))


@fault(
    "torch", "topics by a bag of embeddings as in PyTorch's tutorial, whose rate of 5 for SGD was kept as the optimizer became Adam"
)
def topics_adam_at_five(planted: bool = True) -> Built:
    def optimizers(module: Any) -> Any:
        kind = torch.optim.Adam if planted else torch.optim.SGD
        chosen = kind(module.parameters(), lr=5.0)
        return [chosen], [torch.optim.lr_scheduler.StepLR(chosen, 1, 0.5)]

    ids, _, module = lines(40, 1)["train_dataloaders"].dataset.tensors
    recipe = Recipe(Bag(), tells, optimizers)
    return Built(recipe, in_batches(32, ids, module), {"max_epochs": 2, "gradient_clip_val": 0.1}, Expected(RATE))


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
    recipe = Recipe(FromVectors(vectors, planted), tells, adam(2e-3))
    expected = Expected(UNHELD, ("net.vectors", "*vectors*", "net"))
    return Built(recipe, in_batches(32, ids, module), {"max_epochs": 2}, expected)


@fault("torch", "an autoencoder of standardised pictures ends in a rectifier, and half of all pixels are below 0")
def pixels_behind_a_rectifier(planted: bool = True) -> Built:
    net = mlp(64, 64, 16, 64, 64)
    if planted:
        net.append(nn.ReLU())
    module = Recipe(net, lambda net, batch: F.mse_loss(net(batch[0]), batch[0]), adam(2e-3))
    expected = Expected(("output_range", "dead", "zero", "constant", "loss_plateau"), ("net", "net.*"))
    return Built(module, in_batches(32, digits(8)[0].flatten(1)), {"max_epochs": 5}, expected)


@fault("torch", "WeightedRandomSampler is given the weights of the ten classes, not of all samples: it draws the first ten only")
def digits_sampler_of_classes(planted: bool = True) -> Built:
    data = split(32, *digits(16))
    rows = data["train_dataloaders"].dataset
    weights = 1 / rows.tensors[1].bincount()
    sampler = WeightedRandomSampler((weights if planted else weights[rows.tensors[1]]).tolist(), len(rows))
    data["train_dataloaders"] = DataLoader(rows, 32, sampler=sampler, drop_last=True)
    net = convolutions().append(nn.Linear(64, 10))
    expected = Expected(("batch_repeated", "overfitting", "validation_shift"), None, batch=None)
    return Built(Judged(net, tells, adam()), data, {"max_epochs": 4}, expected)


@fault(
    "torch",
    "OneCycleLR is made for each batch and stepped once an epoch, as Lightning does by default: its rate stays where it began",
)
def digits_one_cycle_by_epochs(planted: bool = True) -> Built:
    def cycle(module: Any) -> Any:
        chosen = torch.optim.SGD(module.parameters(), 0.01, 0.9)
        schedule = torch.optim.lr_scheduler.OneCycleLR(chosen, 0.05, total_steps=224, div_factor=100)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "epoch" if planted else "step"}}

    net = mlp(256, 64, 64, 64, 10)
    expected = Expected(("lr_zero", "settings", "optimizer_settings", *STILL))
    images, shown = digits(16)
    return Built(Recipe(net, tells, cycle), in_batches(32, images.flatten(1), shown), {"max_epochs": 4}, expected)


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


@fault(
    "torch", "net.parameters() is looped over to count them; then the optimizer gets what is left of the generator, beside the head"
)
def digits_generator_used_up(planted: bool = True) -> Built:
    def optimizers(module: Any) -> Any:
        body = module.net.body.parameters() if planted else list(module.net.body.parameters())
        assert sum(weight.numel() for weight in body) > 1000
        return torch.optim.AdamW([{"params": body}, {"params": module.net.head.parameters(), "lr": 3e-3}], lr=1e-3)

    net = nn.Sequential()
    net.add_module("body", convolutions())
    net.add_module("head", nn.Linear(64, 10))
    expected = Expected(("not_optimized", "not_updated", "settings", "optimizer_settings", "part_not_learning"), ("net.body*",))
    return Built(Recipe(net, tells, optimizers), in_batches(32, *digits(16)), {"max_epochs": 3}, expected)


class Clamped(Recipe):
    """The first Wasserstein GAN: four steps of the critic, whose weights are cut, to one of the painter."""

    def __init__(self, planted: bool) -> None:
        nets = nn.ModuleDict({"painter": mlp(4, 48, 48, 2), "critic": mlp(2, 48, 48, 1)})
        super().__init__(nets, None, None)
        self.planted, self.automatic_optimization = planted, False

    def configure_optimizers(self) -> Any:
        return [torch.optim.RMSprop(self.net[name].parameters(), 1e-3) for name in ("painter", "critic")]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        of_painter, of_critic = self.optimizers()
        real = batch[0]
        for turn in range(5):
            chosen = of_critic if turn < 4 else of_painter
            painted = self.net["painter"](torch.randn(len(real), 4))
            chosen.zero_grad()
            liked = self.net["critic"](painted).mean()
            loss = liked - self.net["critic"](real).mean() if turn < 4 else -liked
            self.manual_backward(loss)
            chosen.step()
            for weight in (self if self.planted else self.net["critic"]).parameters():
                weight.data.clamp_(-0.1, 0.1)
        self.log("far", ((painted.mean(0) - real.mean(0)).square().sum() + (painted.std(0) - real.std(0)).square().sum()).sqrt())
        return {"loss": loss.detach()}


@fault(
    "torch", "a Wasserstein GAN for a ring: the loop that cuts the critic's weights runs over self.parameters(), the painter's too"
)
def ring_all_weights_clamped(planted: bool = True) -> Built:
    angles = 6.2832 * torch.rand(6400, generator=torch.Generator().manual_seed(0))
    ring = 3 * torch.stack([angles.cos(), angles.sin()], 1) + torch.tensor([4.0, -4.0])
    kinds = (*ALIKE, "updates_lost", "not_updated", "weights_growing", "no_progress", "part_not_learning", "update_too_large")
    return Built(Clamped(planted), in_batches(32, ring), {"max_epochs": 1}, Expected(kinds, ("net.painter*",)))


class StandardisesBatch(nn.Module):
    """Puts each batch to mean 0 and deviation 1, then an MLP."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(10, 32, 32, 1)

    def forward(self, x: Tensor) -> Tensor:
        return self.net((x - x.mean(0)) / x.std(0))[:, 0]


def misses(net: Any, batch: Any) -> Tensor:
    return F.mse_loss(net(batch[0]), batch[1])


@fault("torch", "each batch is standardised by itself, and the last one of an epoch has a single row, whose deviation is NaN")
def progress_last_row_alone(planted: bool = True) -> Built:
    data = in_batches(63, *table("diabetes"))
    rows = data["train_dataloaders"].dataset
    data["train_dataloaders"] = DataLoader(rows, 63, shuffle=True, drop_last=not planted)
    expected = Expected(BROKEN, ("net*",), batch=7)
    return Built(Recipe(StandardisesBatch(), misses, adam(2e-3)), data, {"max_epochs": 24}, expected)


@fault(
    "torch", "what is not known of a patient was filled in with -9999 after the columns were standardised, one value in a hundred"
)
def progress_unknown_is_minus_9999(planted: bool = True) -> Built:
    columns, progress = table("diabetes")
    unknown = torch.rand(columns.shape, generator=torch.Generator().manual_seed(0)) < 0.01
    columns = columns.masked_fill(unknown, -9999.0 if planted else 0.0)
    net = nn.Sequential(mlp(10, 32, 32, 1), nn.Flatten(0))
    kinds = (*RATE, *BROKEN, "activation_outliers", "dead", "settings", "poor_init")
    return Built(Recipe(net, misses, adam(2e-3)), in_batches(32, columns, progress), {"max_epochs": 14}, Expected(kinds))


@fault("torch", "benign or malign: one output goes through a softmax along itself, and is 1 for all")
def tumours_softmax_of_one(planted: bool = True) -> Built:
    columns, kinds = table("breast_cancer")
    net = nn.Sequential(mlp(30, 32, 16, 1), nn.Softmax(dim=1) if planted else nn.Sigmoid())
    module = Recipe(net, lambda net, batch: F.binary_cross_entropy(net(batch[0])[:, 0], batch[1]), adam(2e-3))
    names = ("softmax_dim", "output_range", "double_softmax", *ALIKE, *STILL)
    return Built(module, in_batches(32, columns, kinds.float()), {"max_epochs": 12}, Expected(names, ("net", "net.*")))


class NormsWeights(Recipe):
    """Weight normalisation of all convolutions, before the optimizer is made or after it."""

    def __init__(self, net: nn.Module, loss: Any, optimizers: Any, planted: bool) -> None:
        super().__init__(net, loss, optimizers)
        self.planted = planted
        if not planted:
            self.norm()

    def norm(self) -> None:
        for layer in self.net.modules():
            if isinstance(layer, nn.Conv1d):
                weight_norm(layer)

    def on_train_start(self) -> None:
        if self.planted:
            self.norm()


@fault("torch", "weight_norm is put on the convolutions in on_train_start: the optimizer has the weights that were there before")
def notes_normed_after_the_optimizer(planted: bool = True) -> Built:
    net = nn.Sequential(nn.Conv1d(1, 16, 40, 4), nn.ReLU(), nn.Conv1d(16, 24, 5, 2), nn.ReLU(), nn.Conv1d(24, 24, 5, 2), nn.ReLU())
    net.extend([nn.AdaptiveMaxPool1d(3), nn.Flatten(), nn.Linear(72, 11)])

    def loss(net: Any, batch: Any) -> Tensor:
        return F.cross_entropy(net(batch[0][:, None]), batch[1][:, 0])

    expected = Expected((*UNHELD, "settings", "optimizer_settings"), ("net.0*", "net.2*", "net.4*"))
    return Built(NormsWeights(net, loss, adam(2e-3), planted), melodies(32), {"max_epochs": 5}, expected)
