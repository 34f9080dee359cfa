"""Faults of how a model and its data are set up: modes, frozen parts, settings, plain lists, labels, repeated batches.

Ranks that get the same batch cannot be planted here, where each training is one process: tests/callbacks/ranks has them.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, IterableDataset

from tests.evidence.faults import data, nets
from tests.evidence.faults.tasks import Supervised, adam, explained, pretrained
from tests.evidence.faults.zoo import Built, Expected, broken, fault, healthy, worse

EPOCHS = {"max_epochs": 3}
WELL = Expected()


def dropout_net() -> nn.Sequential:
    """A body with dropout, and a head: ``body.fc0, body.drop0, …, head``."""
    layers: OrderedDict[str, nn.Module] = OrderedDict()
    for i in range(2):
        layers |= {f"fc{i}": nn.Linear(64, 64), f"act{i}": nn.ReLU(), f"drop{i}": nn.Dropout(0.5)}
    return nn.Sequential(OrderedDict(body=nn.Sequential(layers), head=nn.Linear(64, 10)))


@fault("MLP", "a pretrained body that was loaded in eval mode: its dropout does nothing", reaches=0.75, hurts=None)
def body_in_eval_mode(seed: int, planted: bool = True) -> Built:
    net = dropout_net()
    net.body.train(not planted)
    return Built(
        Supervised(net, adam()), data.loaders(data.digits(), 64, seed), EPOCHS, Expected(("eval_mode",), ("net.body*", "net"))
    )


class NeverBack(Supervised):
    """Switches its net to eval mode to log an accuracy, and forgets to switch it back."""

    def __init__(self, net: nn.Module, forgets: bool) -> None:
        super().__init__(net, adam())
        self.forgets = forgets

    def on_train_epoch_start(self) -> None:
        self.net.eval()
        self.net(torch.zeros(4, 1, 8, 8))
        if not self.forgets or self.current_epoch == 0:
            self.net.train()


@fault("CNN", "a net that is switched to eval mode in the second epoch and not back", reaches=0.85, hurts=None)
def never_back_in_train_mode(seed: int, planted: bool = True) -> Built:
    expected = Expected(("eval_mode",), ("net", "net.norm*"), batch=22, epoch=1)
    return Built(NeverBack(nets.cnn(), planted), data.loaders(data.images(), 64, seed), EPOCHS, expected)


class Frozen(Supervised):
    """Everything but the head is frozen; in eval mode, as it should be, or not."""

    def __init__(self, net: nn.Module, train_mode: bool) -> None:
        for parameter in net.parameters():
            parameter.requires_grad_(False)
        net.head = nn.Linear(net.head.in_features, 5)  # type: ignore[union-attr,arg-type]
        super().__init__(net, lambda module: torch.optim.Adam([p for p in module.parameters() if p.requires_grad], lr=1e-2))
        self.train_mode = train_mode

    def on_train_epoch_start(self) -> None:
        self.net.train(self.train_mode)


def high_digits(scale: float = 1.0, shift: float = 0.0) -> data.Split:
    """The digits 5 to 9, of another brightness."""
    x, y, v, w = data.images(scale / 16)
    return x[y >= 5] + shift, y[y >= 5] - 5, v[w >= 5] + shift, w[w >= 5] - 5


FROZEN = Expected(("frozen_statistics",), ("net.conv*", "net.norm*", "net.stem*", "net.blocks*", "net", "net.norm"))


@fault("CNN", "a frozen body in training mode, on brighter images: its batch norms follow them", reaches=0.55, hurts=None)
def frozen_body_follows(seed: int, planted: bool = True) -> Built:
    module = Frozen(pretrained(nets.cnn()), planted)
    return Built(module, data.loaders(high_digits(2.0 if planted else 1.0), 32, seed), EPOCHS, FROZEN)


@fault("ResNet", "a frozen residual body in training mode, on shifted images", reaches=0.55, hurts=None)
def frozen_resnet_follows(seed: int, planted: bool = True) -> Built:
    module = Frozen(pretrained(nets.ResNet()), planted)
    return Built(module, data.loaders(high_digits(1.0, 0.5 if planted else 0.0), 32, seed), EPOCHS, FROZEN)


@fault("MLP", "batch norm over batches of two", reaches=0.6, hurts=None)
def batchnorm_of_two(seed: int, planted: bool = True) -> Built:
    layers = OrderedDict(fc0=nn.Linear(30, 16), norm=nn.BatchNorm1d(16), act0=nn.ReLU(), fc1=nn.Linear(16, 16), act1=nn.ReLU())
    net = nn.Sequential(OrderedDict(**layers, head=nn.Linear(16, 2)))
    x, y, v, w = data.cancer()
    loaders = data.loaders((x[:120], y[:120], v, w), 2 if planted else 16, seed)
    expected = Expected(("settings",), ("net.norm",))
    return Built(Supervised(net, adam()), loaders, EPOCHS, expected)


@fault("CNN", "batch norm with momentum 0: validation sees statistics of 0 and 1", reaches=0.85, hurts=worse(0.05))
def batchnorm_momentum_zero(seed: int, planted: bool = True) -> Built:
    net = nets.cnn()
    for i in range(3):
        getattr(net, f"norm{i}").momentum = 0.0 if planted else 0.1
    return Built(Supervised(net, adam()), data.loaders(data.images(), 64, seed), EPOCHS, Expected(("settings",), ("net.norm*",)))


@fault("MLP", "dropout of 0.95, the share that was to be kept", reaches=0.75, hurts=worse(0.05))
def dropout_keeps_nothing(seed: int, planted: bool = True) -> Built:
    net = dropout_net()
    net.body.drop0.p = 0.95 if planted else 0.05  # type: ignore[union-attr,assignment]
    expected = Expected(("settings",), ("net.body.drop0",))
    return Built(Supervised(net, adam()), data.loaders(data.digits(), 64, seed), EPOCHS, expected)


@fault("transformer", "layer norm with eps=1e5 instead of 1e-5", reaches=0.2, hurts=None)
def layernorm_eps(seed: int, planted: bool = True) -> Built:
    net = nets.Transformer()
    net.blocks[seed % 2].norm0.eps = 1e5 if planted else 1e-5  # type: ignore[union-attr,assignment]
    expected = Expected(("settings",), (f"net.blocks.{seed % 2}.norm0",))
    return Built(Supervised(net, adam()), data.loaders(data.text(), 32, seed), EPOCHS, expected)


class PlainList(nn.Module):
    """Residual blocks in a list or in a ModuleList."""

    def __init__(self, kind: type[Any]) -> None:
        super().__init__()
        self.embed = nn.Linear(64, 64)
        self.blocks = kind([nn.Sequential(nn.Linear(64, 64), nn.ReLU()) for _ in range(3)])
        self.norm, self.head = nn.LayerNorm(64), nn.Linear(64, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(self.norm(x))


@fault("MLP", "blocks in a plain list", reaches=0.8, hurts=None)
def blocks_in_a_list(seed: int, planted: bool = True) -> Built:
    net = PlainList(list if planted else nn.ModuleList)
    expected = Expected(("unregistered",), None)
    return Built(Supervised(net, adam()), data.loaders(data.digits(), 64, seed), EPOCHS, expected)


class Heads(nn.Module):
    """Two heads by name, in a dictionary or a ModuleDict."""

    def __init__(self, kind: type[Any]) -> None:
        super().__init__()
        self.body = nets.mlp((64, 64, 64, 32))
        self.heads = kind({"plain": nn.Linear(32, 10), "rectified": nn.Linear(32, 10)})

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.body(x)
        return self.heads["plain"](hidden) + self.heads["rectified"](hidden.relu())  # type: ignore[no-any-return]


@fault("MLP", "heads in a plain dictionary, which the optimizer was given", reaches=0.7, hurts=None)
def heads_in_a_dictionary(seed: int, planted: bool = True) -> Built:
    net = Heads(dict if planted else nn.ModuleDict)

    def optimizer(module: nn.Module) -> torch.optim.Optimizer:
        hidden = [p for head in net.heads.values() for p in head.parameters()] if planted else []
        return torch.optim.Adam([*module.parameters(), *hidden], lr=3e-3)

    expected = Expected(("unregistered",), None)
    return Built(Supervised(net, optimizer), data.loaders(data.digits(), 64, seed), EPOCHS, expected)


@healthy("MLP", "a frozen teacher in a plain list, so that checkpoints do not hold it", reaches=0.8)
def hidden_teacher(seed: int) -> Built:
    return Built(Distilled(), data.loaders(data.digits(), 64, seed), EPOCHS, WELL)


class Distilled(Supervised):
    """Follows a teacher a little; the teacher is frozen, in eval mode and not registered."""

    def __init__(self) -> None:
        super().__init__(nets.mlp(), adam())
        self.teacher = [nets.mlp().requires_grad_(False).eval()]

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        goal = self.teacher[0](batch[0])
        return super().training_step(batch, batch_idx) + 0.01 * (self.net(batch[0]) - goal).square().mean()


class Labelled(Supervised):
    """Batches are dictionaries, as a tokenizer's; a share of the labels is -100."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        output = self.net(batch["input_ids"])
        return self.note(F.cross_entropy(output.flatten(0, -2), batch["labels"].flatten()))

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.note_score(self.score(self.net(batch["input_ids"]), batch["labels"]))


def as_dictionaries(loaders: dict[str, Any], masked: Any) -> dict[str, Any]:
    """The loaders with batches as dictionaries; labels of training batches go through ``masked``."""

    def keyed(loader: DataLoader[Any], change: Any) -> DataLoader[Any]:
        collate = loader.collate_fn

        def changed(samples: Any) -> dict[str, Tensor]:
            x, y = collate(samples)
            return {"input_ids": x, "labels": change(y)}

        return DataLoader(
            loader.dataset, loader.batch_size, shuffle=change is masked, drop_last=change is masked, generator=loader.generator,
            collate_fn=changed,
        )  # fmt: skip

    return {
        "train_dataloaders": keyed(loaders["train_dataloaders"], masked),
        "val_dataloaders": keyed(loaders["val_dataloaders"], lambda y: y),
    }


@fault("transformer", "labels that are masked as a whole, where half of each was meant", reaches=0.15, hurts=broken)
def labels_masked(seed: int, planted: bool = True) -> Built:
    def masked(y: Tensor) -> Tensor:
        y = y.clone()
        y[:, : None if planted else 16] = -100
        return y

    loaders = as_dictionaries(data.loaders(data.text(), 32, seed), masked)
    return Built(Labelled(nets.Transformer(), adam()), loaders, EPOCHS, Expected(("labels_ignored", "nonfinite")))


@fault("MLP", "an ignore_index that is the class of every sample in a batch", reaches=0.6, hurts=worse(0.05))
def ignored_class(seed: int, planted: bool = True) -> Built:
    x, y, v, w = data.digits()
    binary = (x, (y > 4).long(), v, (w > 4).long())
    if planted:  # the ignored class alone, from some batch on, as in data that are sorted by class
        order = torch.argsort(binary[1], stable=True)
        binary = (x[order], binary[1][order], v, binary[3])
    loaders = data.loaders(binary, 64, seed)
    if planted:
        loaders["train_dataloaders"] = DataLoader(loaders["train_dataloaders"].dataset, 64, drop_last=True)
    module = Supervised(nets.mlp((64, 64, 64, 2)), adam(), nn.CrossEntropyLoss(ignore_index=0 if planted else -100))
    return Built(module, loaders, EPOCHS, Expected(("labels_ignored", "nonfinite")))


@fault("MLP", "a table whose target was not taken out, next to ten measurements", reaches=0.3, hurts=None)
def target_in_the_table(seed: int, planted: bool = True) -> Built:
    x, y, v, w = data.diabetes()
    if planted:
        x, v = torch.cat((x, y), 1), torch.cat((v, w), 1)
    module = Supervised(nets.mlp((x.shape[1], 32, 32, 1)), adam(3e-3), F.mse_loss, explained)
    return Built(module, data.loaders((x, y, v, w), 32, seed), {"max_epochs": 10}, Expected(("target_leak",)))


class Stream(IterableDataset[Any]):
    """Batches of the digits, one after the other; each one, or one alone, comes several times."""

    def __init__(self, seed: int, times: int, only: int | None = None) -> None:
        self.x, self.y, _, _ = data.digits()
        self.seed, self.times, self.only = seed, times, only

    def __iter__(self) -> Iterator[Any]:
        order = torch.randperm(len(self.x), generator=torch.Generator().manual_seed(self.seed))
        for number, batch in enumerate(order.split(64)[:-1]):
            chosen = order.split(64)[self.only] if self.only is not None and number >= self.only else batch
            for _ in range(self.times):
                yield self.x[chosen], self.y[chosen]


def stream(seed: int, times: int = 1, only: int | None = None) -> dict[str, Any]:
    """Loaders of a stream, with the digits' validation data."""
    return {
        "train_dataloaders": DataLoader(Stream(seed, times, only), batch_size=None),
        "val_dataloaders": data.loaders(data.digits(), 64, seed)["val_dataloaders"],
    }


@fault("MLP", "a stream of which each of three workers yields all: every batch comes three times", reaches=0.8, hurts=None)
def workers_repeat(seed: int, planted: bool = True) -> Built:
    return Built(Supervised(nets.mlp(), adam()), stream(seed, 3 if planted else 1), EPOCHS, Expected(("batch_repeated",)))


@fault("MLP", "a buffer that is filled once: the same batch again and again", reaches=0.8, hurts=None)
def buffer_not_filled(seed: int, planted: bool = True) -> Built:
    loaders = stream(seed, only=0 if planted else None)
    kwargs = {"max_epochs": 3}
    expected = Expected(("batch_repeated", "constant", "update_too_small", "vanishing"))
    return Built(Supervised(nets.mlp(), adam()), loaders, kwargs, expected)


@healthy("MLP", "one batch alone, on purpose: overfit_batches=1", reaches=0.1)
def overfit_one_batch(seed: int) -> Built:
    x, y, v, w = data.digits()
    loaders = data.loaders((x, y, v, w), 64, seed)
    loaders["train_dataloaders"] = DataLoader(loaders["train_dataloaders"].dataset, 64)
    return Built(Supervised(nets.mlp(), adam()), loaders, {"max_epochs": 20, "overfit_batches": 1}, WELL)


@healthy("CNN", "a few layers frozen with their batch norms in eval mode, the rest trains", reaches=0.6)
def frozen_in_eval_mode(seed: int) -> Built:
    return Built(Frozen(pretrained(nets.cnn()), train_mode=False), data.loaders(high_digits(), 32, seed), EPOCHS, WELL)
