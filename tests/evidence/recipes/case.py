"""What a recipe returns, the catalogue of them, and the Lightning module that most recipes share."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from itertools import chain
from typing import Any

import torch.nn.functional as F
from lightning import LightningModule
from torch import Tensor, nn


@dataclass(frozen=True)
class Training:
    """A module with what `Trainer(**trainer).fit(module, **loaders)` needs; built after `torch.manual_seed(0)`."""

    module: LightningModule
    loaders: dict[str, Any]
    trainer: dict[str, Any]


Recipe = Callable[..., Training]
Loss = Callable[[Any, Any], Tensor]
Scores = Callable[[Any, Any], dict[str, Tensor]]


@dataclass(frozen=True)
class Fault:
    """A healthy recipe, and the same with one mistake.

    `measure` is the logged metric that shows the harm, and `lost` the share of the twin's gain on it that is lost (1.0 is
    everything; 9.0 stands for 9 or more). A metric whose name ends in `loss`, `error` or `gap` falls as a net learns; others rise.
    """

    story: str
    healthy: Callable[[], Training]
    planted: Callable[[], Training]
    measure: str
    lost: float


HEALTHY: dict[str, Callable[[], Training]] = {}
FAULTS: dict[str, Fault] = {}


def healthy(recipe: Recipe) -> Recipe:
    HEALTHY[recipe.__name__] = recipe
    return recipe


def fault(name: str, story: str, measure: str, lost: float, **mistake: Any) -> Callable[[Recipe], Recipe]:
    def add(recipe: Recipe) -> Recipe:
        FAULTS[name] = Fault(story, recipe, partial(recipe, **mistake), measure, lost)
        return recipe

    return add


SETS = {
    "first": ("vision", "text", "tabular", "generative", "metric"),
    "second": ("pictures", "language", "series", "synthesis", "control"),
    "third": ("supervised", "sequences", "unusual", "by_hand"),
}


def load() -> None:
    for name in chain.from_iterable(SETS.values()):
        import_module(f"{__package__}.{name}")


def set_of(recipe: Recipe) -> str:
    return next(name for name, modules in SETS.items() if recipe.__module__.rpartition(".")[2] in modules)


class Learner(LightningModule):
    """A net, the loss of a batch, an optimizer and perhaps a schedule."""

    def __init__(self, net: nn.Module, loss: Loss, optimizer: Any, scores: Scores | None, schedule: Any, interval: str) -> None:
        super().__init__()
        self.net, self.loss, self.scores = net, loss, scores
        self.build_optimizer, self.build_schedule, self.interval = optimizer, schedule, interval

    def forward(self, *inputs: Any) -> Any:
        return self.net(*inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss(self.net, batch)
        self.log("train_loss", loss, prog_bar=True, batch_size=1)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.log_dict(self.scores(self.net, batch) if self.scores else {"val_loss": self.loss(self.net, batch)}, batch_size=1)

    def configure_optimizers(self) -> Any:
        optimizer = self.build_optimizer(self.parameters())
        if self.build_schedule is None:
            return optimizer
        return [optimizer], [{"scheduler": self.build_schedule(optimizer), "interval": self.interval}]


def fit(
    net: nn.Module,
    loss: Loss,
    optimizer: Any,
    loaders: Any,
    epochs: int,
    scores: Any = None,
    schedule: Any = None,
    interval: str = "step",
    **trainer: Any,
) -> Training:
    return Training(Learner(net, loss, optimizer, scores, schedule, interval), loaders, {"max_epochs": epochs, **trainer})


def cross_entropy(net: Any, batch: Any) -> Tensor:
    return F.cross_entropy(net(batch[0]), batch[1])


def mse(net: Any, batch: Any) -> Tensor:
    return F.mse_loss(net(batch[0]), batch[1])


def accuracy(net: Any, batch: Any) -> dict[str, Tensor]:
    out = net(batch[0])
    return {"val_loss": F.cross_entropy(out, batch[1]), "val_acc": (out.argmax(1) == batch[1]).float().mean()}


def hf_loss(net: Any, batch: dict[str, Tensor]) -> Any:
    return net(**batch).loss


def hf_accuracy(net: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    out = net(**batch)
    return {"val_loss": out.loss, "val_acc": (out.logits.argmax(-1) == batch["labels"]).float().mean()}
