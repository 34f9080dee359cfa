"""``python -m lightning_hooks demo``: a small training on generated images, with a planted fault that the monitors find."""

from __future__ import annotations

import logging
import warnings
from collections import OrderedDict
from contextlib import ExitStack
from pathlib import Path

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks.callbacks import TrainingMonitor
from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.warn import LIGHTNINGS, LOGGER

CLASSES = ("a horizontal bar", "a vertical bar", "a cross", "a square")
EPOCHS = 3


def images(count: int, seed: int) -> TensorDataset:
    """Return noisy images of 16 x 16 pixels, from 0 to 1, with one of four shapes each, and their labels."""
    generator = torch.Generator().manual_seed(seed)
    labels = torch.randint(0, len(CLASSES), (count,), generator=generator)
    centers = torch.randint(3, 13, (count, 2), generator=generator).tolist()
    pixels = torch.rand(count, 1, 16, 16, generator=generator) * 0.3
    for image, label, (row, column) in zip(pixels, labels.tolist(), centers, strict=True):
        if label in (0, 2):
            image[0, row] += 0.6
        if label in (1, 2):
            image[0, :, column] += 0.6
        if label == 3:
            image[0, row - 2 : row + 3, column - 2 : column + 3] += 0.6
    return TensorDataset(pixels.clamp(0, 1), labels)


class ShapesNet(LightningModule):
    """Two convolutions and two linear layers, trained with SGD.

    Args:
        bias: The initial bias of the second convolution. At -2 no unit of the rectifier behind it is ever above zero.
    """

    def __init__(self, bias: float = 0.0) -> None:
        super().__init__()
        self.net = nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(1, 16, 3, padding=1),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(16, 32, 3, padding=1),
                relu2=nn.ReLU(),
                pool2=nn.AdaptiveAvgPool2d(4),
                flatten=nn.Flatten(),
                fc1=nn.Linear(512, 64),
                relu3=nn.ReLU(),
                fc2=nn.Linear(64, len(CLASSES)),
            )
        )
        nn.init.constant_(self.net.get_parameter("conv2.bias"), bias)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        """Return the cross entropy."""
        loss = cross_entropy(self.net(batch[0]), batch[1])
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        """Log the accuracy."""
        self.log("val_accuracy", (self.net(batch[0]).argmax(1) == batch[1]).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """SGD with momentum."""
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


def run(folder: Path, healthy: bool = False) -> tuple[Path, list[Alert], float]:
    """Train with the monitors on; return the path of the health report, the alerts and the validation accuracy.

    Where the training is not ``healthy``, the second convolution's bias starts at -2, which is the planted fault.
    """
    alerts: list[Alert] = []
    with ExitStack() as stack:
        stack.callback(torch.set_num_threads, torch.get_num_threads())
        torch.set_num_threads(1)  # for so small a net a second thread only waits
        for logger in (LIGHTNINGS, LOGGER):  # the command prints what they would log
            stack.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        stack.enter_context(warnings.catch_warnings())
        warnings.filterwarnings("ignore", ".*does not have many workers.*")  # the data are in memory
        warnings.filterwarnings("ignore", ".*LeafSpec.*")  # between Lightning and torch
        seed_everything(0, verbose=False)
        tracker = CSVLogger(folder, name="healthy" if healthy else "faulty")
        trainer = Trainer(
            max_epochs=EPOCHS,
            accelerator="cpu",
            callbacks=[TrainingMonitor(on_alert=alerts.append, summary=False)],
            logger=tracker,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            log_every_n_steps=10,
        )
        trainer.fit(
            ShapesNet(0.0 if healthy else -2.0),
            DataLoader(images(2048, 0), 64, shuffle=True),
            DataLoader(images(512, 1), 512),
        )
    report = Path(tracker.log_dir) / "lightning_hooks" / "report.html"
    return report, [alert for alert in alerts if alert.severity != "info"], trainer.callback_metrics["val_accuracy"].item()


def lines(folder: Path, healthy: bool = False) -> list[str]:
    """Run the demo and return what the command prints."""
    report, alerts, accuracy = run(folder, healthy)
    planted = "no fault is planted" if healthy else "the planted fault: conv2's bias starts at -2"
    found = [line for alert in alerts for line in f"Found: {alert}".splitlines()]
    return [
        f"A small CNN on generated images of {', '.join(CLASSES)}; {planted}.",
        f"Validation accuracy after {EPOCHS} epochs: {accuracy:.0%} (chance is {1 / len(CLASSES):.0%}).",
        *(found or ["Found: nothing. No alert was raised."]),
        f"Health report: {report}",
        *([] if healthy else ["The same training without the fault: python -m lightning_hooks demo --healthy"]),
    ]
