"""Small models, data and trainers for the tests."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import lightning.pytorch as pl
import torch
from lightning.pytorch.loggers import Logger
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(pl.LightningModule):
    """Any net under cross entropy; keeps the loss of each step."""

    def __init__(self, net: nn.Module, lr: float = 0.1, optimizer: Callable[..., Any] = torch.optim.SGD) -> None:
        super().__init__()
        self.net = net
        self.lr = lr
        self.optimizer = optimizer
        self.losses: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        loss = nn.functional.cross_entropy(self.net(x), y)
        self.losses.append(loss.item())
        return loss

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        self.net(batch[0])

    def configure_optimizers(self) -> Any:
        return self.optimizer(self.parameters(), lr=self.lr)


class ResidualCNN(nn.Module):
    """In-place ReLU, ``+=``, batch norm, dropout: what breaks module backward hooks."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(1, 4, 3, padding=1)
        self.bn = nn.BatchNorm2d(4)
        self.act = nn.ReLU(inplace=True)
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.act2 = nn.ReLU(inplace=True)
        self.drop = nn.Dropout(0.2)
        self.head = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.act(self.bn(self.stem(x)))
        y = self.conv(x)
        y += x
        y = self.act2(y)
        return self.head(self.drop(y.mean((2, 3))))


class TinyTransformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(6, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(self.embed(x)).mean(1))


class TinyLSTM(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm = nn.LSTM(6, 8, batch_first=True)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.lstm(x)[0][:, -1])


def mlp(width: int = 16, depth: int = 2) -> nn.Sequential:
    layers: list[nn.Module] = [nn.Linear(8, width), nn.ReLU()]
    for _ in range(depth - 1):
        layers += [nn.Linear(width, width), nn.Tanh()]
    return nn.Sequential(*layers, nn.Linear(width, 3))


# name -> how to build it, the shape of one input, its sites
NETS = {
    "mlp": (mlp, (8,), ["net.0", "net.1", "net.2", "net.3", "net.4"]),
    "cnn": (ResidualCNN, (1, 6, 6), ["net.stem", "net.bn", "net.act", "net.conv", "net.act2", "net.head"]),
    "lstm": (TinyLSTM, (5, 6), ["net.lstm", "net.head"]),
}


def loader(
    shape: tuple[int, ...] = (8,), n: int = 50, batch_size: int = 8, seed: int = 0, dtype: torch.dtype | None = None, **kwargs: Any
) -> DataLoader[Any]:
    """Fixed random data; 50 in batches of 8 leaves a short last batch. Processors agree on six digits of it, in float64 on 15."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn((n, *shape), generator=generator, dtype=dtype)
    y = torch.randint(0, 3, (n,), generator=generator)
    return DataLoader(TensorDataset(x, y), batch_size=batch_size, **kwargs)


def trainer(callbacks: Any = (), **kwargs: Any) -> pl.Trainer:
    """A quiet trainer on the CPU."""
    defaults: dict[str, Any] = {
        "max_epochs": 1,
        "accelerator": "cpu",
        "devices": 1,
        "logger": False,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "enable_model_summary": False,
    }
    return pl.Trainer(callbacks=list(callbacks), **{**defaults, **kwargs})


def hook_counts(model: nn.Module) -> dict[str, int]:
    """How many hooks of each kind each module and parameter of a model holds."""
    counts = {}
    for name, module in model.named_modules():
        for attribute, value in vars(module).items():
            if attribute.endswith("_hooks") or "_hooks_" in attribute:
                counts[f"{name}.{attribute}"] = len(value)
    for name, parameter in model.named_parameters():
        counts[f"{name}:tensor"] = len(parameter._backward_hooks or ())
        counts[f"{name}:accumulate"] = len(parameter._post_accumulate_grad_hooks or ())
    return counts


class Collecting(Logger):
    """A logger of a user's own: no experiment, keeps what it is given."""

    name, version = "collecting", 0

    def __init__(self) -> None:
        super().__init__()
        self.rows: list[tuple[int | None, dict[str, float]]] = []

    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append((step, metrics))

    def log_hyperparams(self, *args: Any, **kwargs: Any) -> None:
        pass


def is_attached(callback: Any) -> bool:
    """Whether a callback of lightning_hooks has hooks in a model now."""
    members = getattr(callback, "members", ())
    alive = getattr(getattr(callback, "hooks", None), "alive", ())
    return bool(alive) or any(member.session is not None for member in members)
