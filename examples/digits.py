"""Train a small CNN on handwritten digits with the monitors on, or with a planted fault that they have to find.

    python examples/digits.py                      # a healthy run
    python examples/digits.py --fault dying-relu   # the same net with a fault: vanishing, dying-relu, exploding or nan

The data are the 1797 real digits of 8 x 8 pixels that are installed with scikit-learn.
"""

from __future__ import annotations

import argparse
import logging
import sys
import textwrap
import time
import warnings
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from lightning.pytorch.utilities.types import OptimizerLRScheduler
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset
from torchmetrics import MetricCollection
from torchmetrics.classification import MulticlassAccuracy, MulticlassF1Score

from lightning_hooks import Alert, TrainingMonitor

BATCH = 64
INDENT = " " * 4


class DigitsNet(LightningModule):
    """Three convolutions with BatchNorm and in-place ReLU, then two linear layers."""

    def __init__(self, learning_rate: float, epochs: int) -> None:
        super().__init__()
        self.learning_rate, self.epochs = learning_rate, epochs
        self.val_scores = MetricCollection(
            {"accuracy": MulticlassAccuracy(10, average="micro"), "f1": MulticlassF1Score(10)}, prefix="val_"
        )
        self.features = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(1, 16, 3, padding=1, bias=False),
                norm1=nn.BatchNorm2d(16),
                relu1=nn.ReLU(inplace=True),
                conv2=nn.Conv2d(16, 32, 3, padding=1, bias=False),
                norm2=nn.BatchNorm2d(32),
                relu2=nn.ReLU(inplace=True),
                pool=nn.MaxPool2d(2),
                conv3=nn.Conv2d(32, 32, 3, padding=1, bias=False),
                norm3=nn.BatchNorm2d(32),
                relu3=nn.ReLU(inplace=True),
                flatten=nn.Flatten(),
            )
        )
        self.head = nn.Sequential(
            OrderedDict(fc1=nn.Linear(32 * 4 * 4, 64), relu=nn.ReLU(inplace=True), stack=nn.Identity(), fc2=nn.Linear(64, 10))
        )

    def forward(self, images: Tensor) -> Tensor:
        return self.head(self.features(images))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, digits = batch
        loss = cross_entropy(self(images), digits)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, digits = batch
        self.val_scores.update(self(images), digits)
        self.log_dict(self.val_scores)

    def configure_optimizers(self) -> OptimizerLRScheduler:
        optimizer = torch.optim.AdamW(self.parameters(), lr=self.learning_rate)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, self.epochs)
        return {"optimizer": optimizer, "lr_scheduler": schedule}


def load_data() -> tuple[TensorDataset, TensorDataset]:
    """The digits, a fifth of them kept for validation."""
    images, digits = load_digits(return_X_y=True)
    split = train_test_split(images / 16.0, digits, test_size=0.2, random_state=0, stratify=digits)
    train_x, val_x = (torch.tensor(part, dtype=torch.float32).view(-1, 1, 8, 8) for part in split[:2])
    train_y, val_y = (torch.tensor(part) for part in split[2:])
    return TensorDataset(train_x, train_y), TensorDataset(val_x, val_y)


# The faults. Each changes the net or the training images.


def plant_vanishing(net: DigitsNet, _: Tensor) -> None:
    """Eight sigmoid layers with PyTorch's own initialisation: each passes on about a seventh of the gradient."""
    net.head.stack = nn.Sequential(*(layer for _ in range(8) for layer in (nn.Linear(64, 64), nn.Sigmoid())))


def plant_dying_relu(net: DigitsNet, _: Tensor) -> None:
    """A bias so negative that no unit of the rectifier after it ever fires."""
    nn.init.constant_(net.get_parameter("head.fc1.bias"), -20.0)


def plant_exploding(net: DigitsNet, _: Tensor) -> None:
    """Eight layers that start from N(0, 1) instead of N(0, 2/64): each makes the gradient nearly six times as large."""
    layers = [nn.Linear(64, 64) for _ in range(8)]
    for layer in layers:
        nn.init.normal_(layer.weight)
    net.head.stack = nn.Sequential(*(part for layer in layers for part in (layer, nn.ReLU())))


def plant_nan(_: DigitsNet, images: Tensor) -> None:
    """One missing pixel in one training image, as a failed measurement leaves it."""
    images[100, 0, 4, 4] = torch.nan


@dataclass(frozen=True)
class Fault:
    """A fault, and what the monitors have to find."""

    plant: Callable[[DigitsNet, Tensor], None]
    what: str
    kind: str
    site: str  # or the part of the net that it is in


FAULTS = {
    "vanishing": Fault(plant_vanishing, "eight sigmoid layers at head.stack, before fc2", "vanishing", "head.stack"),
    "dying-relu": Fault(plant_dying_relu, "a bias of -20 at head.fc1, before head.relu", "dead", "head.relu"),
    "exploding": Fault(plant_exploding, "eight layers with N(0, 1) weights at head.stack", "exploding", "head.stack"),
    "nan": Fault(plant_nan, "a NaN pixel in one training image, which features.conv1 meets first", "nonfinite", "features.conv1"),
}


def train(fault: Fault | None, epochs: int, log_dir: Path, name: str) -> tuple[float, list[Alert], Path]:
    """Train a net, with a fault or without, and return its validation accuracy, the alerts, and where the logs are."""
    seed_everything(0, verbose=False)
    train_set, val_set = load_data()
    net = DigitsNet(learning_rate=3e-3, epochs=epochs)
    if fault is not None:
        fault.plant(net, train_set.tensors[0])

    tensorboard = TensorBoardLogger(log_dir, name=name)
    csv = CSVLogger(log_dir, name=name, version=tensorboard.version)
    alerts: list[Alert] = []
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        gradient_clip_val=1.5,
        callbacks=[TrainingMonitor(every_n_steps=1, on_alert=alerts.append, summary=fault is None)],  # the one line
        logger=[csv, tensorboard],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=sys.stdout.isatty(),
        log_every_n_steps=10,
    )
    trainer.fit(net, DataLoader(train_set, BATCH, shuffle=True), DataLoader(val_set, len(val_set)))
    return trainer.callback_metrics["val_accuracy"].item(), alerts, Path(tensorboard.log_dir)


def lines(alert: Alert) -> str:
    """The lines of an alert, broken at 100 characters."""
    return "\n".join(textwrap.fill(line, width=100, subsequent_indent=INDENT) for line in str(alert).splitlines())


def print_findings(fault: Fault, alerts: list[Alert]) -> bool:
    """Print what was found; return whether the planted fault is among it."""
    wanted = f"{fault.kind} at {fault.site}."
    match = next((a for a in alerts if any(f"{name}.".startswith(wanted) for name in (a.name, *a.consequences))), None)
    print(f"Found:   {f'no {fault.kind} alert at {fault.site}.' if match is None else lines(match)}")
    if others := [f"{alert.kind} at {alert.where}" for alert in alerts if alert is not match]:
        print(f"Also:    {', '.join(dict.fromkeys(others))}.")
    return match is not None


def main() -> int:
    parser = argparse.ArgumentParser(description="A CNN on scikit-learn's digits with lightning_hooks on.")
    parser.add_argument("--fault", choices=FAULTS, help="plant this fault and see whether it is found")
    parser.add_argument("--epochs", type=int, help="training epochs (default 10; 2 with a fault)")
    parser.add_argument("--fast", action="store_true", help="two epochs, enough for a look")
    parser.add_argument("--log-dir", type=Path, default=Path("runs/digits"), help="where the logs go (default runs/digits)")
    options = parser.parse_args()

    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")  # the data are in memory
    warnings.filterwarnings("ignore", ".*LeafSpec.*")  # between Lightning and torch
    torch.set_num_threads(1)  # a second thread does not help with so small a net
    fault = FAULTS[options.fault] if options.fault else None
    epochs = options.epochs or (2 if fault or options.fast else 10)

    if fault is not None:
        print(f"Planted: {fault.what}.\n")
    start = time.perf_counter()
    accuracy, alerts, logs = train(fault, epochs, options.log_dir, options.fault or "healthy")
    seconds = time.perf_counter() - start

    print()
    found = True
    if fault is not None:
        found = print_findings(fault, alerts)
    else:
        for alert in alerts:
            print(lines(alert))
    print(f"Validation accuracy {accuracy:.1%} after {epochs} epochs, {seconds:.1f} s.")
    print(f"Logs: {logs} (events for TensorBoard, and metrics.csv). To look:\n    tensorboard --logdir {options.log_dir}")
    return 0 if found else 1


if __name__ == "__main__":
    sys.exit(main())
