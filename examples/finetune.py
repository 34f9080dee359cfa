"""Fine-tune a net: the backbone, trained on the digits 0 to 4, is frozen at first, while a new head learns the digits 5 to 9.

    python examples/finetune.py                    # watch the gradient reach the backbone once it is unfrozen
    python examples/finetune.py --fault detached   # a forgotten detach(): unfrozen, but it does not learn

Freezing and unfreezing is Lightning's BackboneFinetuning. GradientFlowMonitor follows it: a frozen layer is listed without a
gradient, not as zero, and an unfrozen layer without a gradient raises an alert.
"""

from __future__ import annotations

import argparse
import logging
import sys
import textwrap
import time
import warnings
from collections import OrderedDict
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback, LightningModule, Trainer, seed_everything
from lightning.pytorch.callbacks import BackboneFinetuning
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import Alert, FeatureStatsMonitor, GradientFlowMonitor

BATCH = 32


class DigitsNet(LightningModule):
    """A backbone of two convolutions, and a head that sees its features."""

    def __init__(self, backbone: nn.Module | None = None, detached: bool = False) -> None:
        super().__init__()
        self.detached = detached
        self.backbone = backbone or nn.Sequential(
            OrderedDict(
                conv1=nn.Conv2d(1, 16, 3, padding=1),
                relu1=nn.ReLU(),
                pool1=nn.MaxPool2d(2),
                conv2=nn.Conv2d(16, 32, 3, padding=1),
                relu2=nn.ReLU(),
                pool2=nn.AdaptiveAvgPool2d(2),
                flatten=nn.Flatten(),
            )
        )
        self.head = nn.Linear(32 * 2 * 2, 5)

    def forward(self, images: Tensor) -> Tensor:
        features = self.backbone(images)
        return self.head(features.detach() if self.detached else features)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, digits = batch
        return cross_entropy(self(images), digits)

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, digits = batch
        self.log("val_accuracy", (self(images).argmax(1) == digits).float().mean())

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam([p for p in self.parameters() if p.requires_grad], lr=3e-3)


class EpochLines(Callback):
    """Prints a line per epoch: the accuracy, and how much gradient the backbone got."""

    def __init__(self, flow: GradientFlowMonitor) -> None:
        self.flow = flow

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        report = self.flow.report  # made by the monitor, which comes earlier in the list
        frozen = not any(p.requires_grad for p in pl_module.backbone.parameters())
        norms = {name: stats.norm for name, stats in report.parameters.items() if name.endswith("weight") and stats.steps}
        accuracy = trainer.callback_metrics["val_accuracy"].item()
        print(
            f"Epoch {report.epoch}, backbone {'frozen' if frozen else 'free'}: accuracy {accuracy:.1%}; "
            f"gradients at {', '.join(f'{name} ({norm:.2g})' for name, norm in norms.items())}; "
            f"no gradient at: {', '.join(report.silent) or 'none'}."
        )


def load_data(digits: range) -> tuple[TensorDataset, TensorDataset]:
    """The pictures of five digits, numbered from 0, a quarter of them for validation."""
    images, labels = load_digits(return_X_y=True)
    wanted = (labels >= digits.start) & (labels < digits.stop)
    split = train_test_split(images[wanted] / 16.0, labels[wanted] - digits.start, test_size=0.25, random_state=0)
    train_x, val_x = (torch.tensor(part, dtype=torch.float32).view(-1, 1, 8, 8) for part in split[:2])
    train_y, val_y = (torch.tensor(part) for part in split[2:])
    return TensorDataset(train_x, train_y), TensorDataset(val_x, val_y)


def fit(model: DigitsNet, digits: range, epochs: int, **settings: Any) -> Trainer:
    """Train and validate on some of the digits."""
    train_set, val_set = load_data(digits)
    trainer = Trainer(
        max_epochs=epochs,
        accelerator="cpu",
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=False,
        log_every_n_steps=10,
        **{"logger": False, **settings},
    )
    trainer.fit(model, DataLoader(train_set, BATCH, shuffle=True), DataLoader(val_set, len(val_set)))
    return trainer


def main() -> int:
    parser = argparse.ArgumentParser(description="Fine-tuning with a frozen backbone, with lightning_hooks on.")
    parser.add_argument("--fault", choices=["detached"], help="a detach() between backbone and head")
    parser.add_argument("--fast", action="store_true", help="four epochs instead of twelve, enough for a look")
    parser.add_argument("--log-dir", type=Path, default=Path("runs/finetune"), help="where the logs go (default runs/finetune)")
    options = parser.parse_args()

    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")  # the data are in memory
    warnings.filterwarnings("ignore", ".*LeafSpec.*")  # between Lightning and torch
    warnings.filterwarnings("ignore", ".*initialized the optimizer with only.*")  # the backbone's parameters join it later
    torch.set_num_threads(1)  # a second thread does not help with so small a net
    seed_everything(0, verbose=False)
    epochs = 4 if options.fast else 12

    start = time.perf_counter()
    pretrained = DigitsNet()
    before = fit(pretrained, range(5), epochs).callback_metrics["val_accuracy"]
    print(f"The backbone was trained on the digits 0 to 4 (accuracy {before:.1%}). Now 5 to 9:")

    alerts: list[Alert] = []
    flow = GradientFlowMonitor(every_n_steps=5, on_alert=alerts.append, summary=False)
    features = FeatureStatsMonitor(every_n_steps=5, on_alert=alerts.append, summary=False)
    unfreezing = BackboneFinetuning(unfreeze_backbone_at_epoch=epochs // 2, backbone_initial_ratio_lr=0.3)
    tensorboard = TensorBoardLogger(options.log_dir, name="")
    fit(
        DigitsNet(pretrained.backbone, detached=options.fault == "detached"),
        range(5, 10),
        epochs,
        callbacks=[unfreezing, features, flow, EpochLines(flow)],
        logger=[CSVLogger(options.log_dir, name="", version=tensorboard.version), tensorboard],
    )
    for alert in alerts:
        print("", *(textwrap.fill(line, width=100, subsequent_indent=" " * 4) for line in str(alert).splitlines()), sep="\n")
    print(f"\nAlerts: {len(alerts) or 'none'}. {time.perf_counter() - start:.1f} s.")
    print(f"Logs: {tensorboard.log_dir}. To look:\n    tensorboard --logdir {options.log_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
