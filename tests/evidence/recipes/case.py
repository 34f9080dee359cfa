"""What a recipe returns, the catalogue of them, and the Lightning module that most recipes share."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from lightning import LightningModule
from torch import Tensor, nn


@dataclass(frozen=True)
class Training:
    """A module with what `Trainer(**trainer).fit(module, **loaders)` needs; built after `torch.manual_seed(0)`."""

    module: LightningModule
    loaders: dict[str, Any]
    trainer: dict[str, Any]


@dataclass(frozen=True)
class Fault:
    """A healthy recipe and the same with one mistake.

    `measure` is the logged metric that shows the harm (names that end in `loss`, `error` or `gap` fall as a net learns,
    others rise), and `lost` the share of what the twin gained on it that the mistake costs (1 means everything).
    """

    story: str
    healthy: Callable[[], Training]
    planted: Callable[[], Training]
    measure: str
    lost: float


HEALTHY: dict[str, Callable[[], Training]] = {}
FAULTS: dict[str, Fault] = {}
Recipe = Callable[..., Training]
Loss = Callable[[Any, Any], Tensor]
Scores = Callable[[Any, Any], dict[str, Tensor]]


def healthy(recipe: Recipe) -> Recipe:
    """Put a recipe in the catalogue under its name."""
    HEALTHY[recipe.__name__] = recipe
    return recipe


def fault(name: str, story: str, measure: str, lost: float, **mistake: Any) -> Callable[[Recipe], Recipe]:
    """Put a recipe in the catalogue once more, with a mistake in its arguments."""

    def add(recipe: Recipe) -> Recipe:
        FAULTS[name] = Fault(story, recipe, partial(recipe, **mistake), measure, lost)
        return recipe

    return add


class Learner(LightningModule):
    """A net, the loss of a batch, an optimizer and perhaps a schedule."""

    def __init__(
        self,
        net: nn.Module,
        loss: Loss,
        optimizer: Callable[..., Any],
        scores: Scores | None = None,
        schedule: Callable[..., Any] | None = None,
        interval: str = "step",
        trained: Callable[[Any], Iterator[nn.Parameter]] | None = None,
    ) -> None:
        super().__init__()
        self.net, self.loss, self.scores, self.trained = net, loss, scores, trained
        self.build_optimizer, self.build_schedule, self.interval = optimizer, schedule, interval

    def forward(self, *inputs: Any) -> Any:
        return self.net(*inputs)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss = self.loss(self.net, batch)
        self.log("train_loss", loss, prog_bar=True, batch_size=1)
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        scores = self.scores(self.net, batch) if self.scores else {"val_loss": self.loss(self.net, batch)}
        self.log_dict(scores, batch_size=1)

    def configure_optimizers(self) -> Any:
        optimizer = self.build_optimizer(self.trained(self.net) if self.trained else self.parameters())
        if self.build_schedule is None:
            return optimizer
        return [optimizer], [{"scheduler": self.build_schedule(optimizer), "interval": self.interval}]


def cross_entropy(net: Any, batch: Any) -> Tensor:
    x, y = batch
    return F.cross_entropy(net(x), y)


def mse(net: Any, batch: Any) -> Tensor:
    x, y = batch
    return F.mse_loss(net(x), y)


def val_mse(net: Any, batch: Any) -> dict[str, Tensor]:
    return {"val_loss": mse(net, batch)}


def accuracy(net: Any, batch: Any) -> dict[str, Tensor]:
    x, y = batch
    out = net(x)
    return {"val_loss": F.cross_entropy(out, y), "val_acc": (out.argmax(1) == y).float().mean()}


def hf_loss(net: Any, batch: dict[str, Tensor]) -> Tensor:
    return net(**batch).loss


def hf_val(net: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    return {"val_loss": net(**batch).loss}


def hf_accuracy(net: Any, batch: dict[str, Tensor]) -> dict[str, Tensor]:
    out = net(**batch)
    return {"val_loss": out.loss, "val_acc": (out.logits.argmax(-1) == batch["labels"]).float().mean()}


def neighbours(features: Tensor, labels: Tensor) -> Tensor:
    """Share of the samples whose nearest other sample has the same label."""
    distances = torch.cdist(features, features).fill_diagonal_(float("inf"))
    return (labels[distances.argmin(1)] == labels).float().mean()
