"""Train a small CNN on handwritten digits through LightningCLI: the monitors and their arguments are in a YAML file.

    python examples/cli/main.py fit --config examples/cli/config.yaml
    python examples/cli/main.py fit --config examples/cli/config.yaml --fast
    python examples/cli/main.py fit --config examples/cli/config.yaml --model.learning_rate 0.1 --print_config

This file does not import lightning_hooks: the monitors, their rules and thresholds are all in config.yaml.
"""

from __future__ import annotations

import logging
import warnings

import torch
from lightning.pytorch import LightningDataModule, LightningModule
from lightning.pytorch.cli import LightningArgumentParser, LightningCLI
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.utils.data import DataLoader, TensorDataset


class DigitsNet(LightningModule):
    """Two convolutions and two linear layers.

    Args:
        learning_rate: AdamW's.
        width: Channels of the first convolution.
    """

    def __init__(self, learning_rate: float = 3e-3, width: int = 16) -> None:
        super().__init__()
        self.save_hyperparameters()
        self.encoder = nn.Sequential(
            nn.Conv2d(1, width, 3, padding=1), nn.ReLU(), nn.Conv2d(width, 2 * width, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2)
        )
        self.head = nn.Sequential(nn.Flatten(), nn.Linear(2 * width * 16, 64), nn.ReLU(), nn.Linear(64, 10))

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, digits = batch
        loss = cross_entropy(self.head(self.encoder(images)), digits)
        self.log("train_loss", loss, on_step=False, on_epoch=True)
        return loss

    def validation_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> None:
        images, digits = batch
        guesses = self.head(self.encoder(images)).argmax(1)
        self.log("val_accuracy", (guesses == digits).float().mean(), prog_bar=True)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.hparams["learning_rate"])


class Digits(LightningDataModule):
    """scikit-learn's 1797 digits of 8 x 8 pixels, a fifth of them kept for validation.

    Args:
        batch_size: Of training.
    """

    def __init__(self, batch_size: int = 64) -> None:
        super().__init__()
        self.batch_size = batch_size

    def setup(self, stage: str) -> None:
        images, digits = load_digits(return_X_y=True)
        split = train_test_split(images / 16.0, digits, test_size=0.2, random_state=0, stratify=digits)
        train_x, val_x = (torch.tensor(part, dtype=torch.float32).view(-1, 1, 8, 8) for part in split[:2])
        train_y, val_y = (torch.tensor(part) for part in split[2:])
        self.train, self.val = TensorDataset(train_x, train_y), TensorDataset(val_x, val_y)

    def train_dataloader(self) -> DataLoader:
        return DataLoader(self.train, self.batch_size, shuffle=True)

    def val_dataloader(self) -> DataLoader:
        return DataLoader(self.val, len(self.val))


class CLI(LightningCLI):
    """LightningCLI with ``--fast``: two epochs, enough for a look."""

    def add_arguments_to_parser(self, parser: LightningArgumentParser) -> None:
        parser.add_argument("--fast", action="store_true", help="train for two epochs only")

    def before_instantiate_classes(self) -> None:
        config = self.config[self.subcommand] if self.subcommand else self.config
        if config.fast:
            config.trainer.max_epochs = 2


def main() -> None:
    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")  # the data are in memory
    warnings.filterwarnings("ignore", ".*LeafSpec.*")  # between Lightning and torch
    torch.set_num_threads(1)  # a second thread does not help with so small a net
    CLI(DigitsNet, Digits, seed_everything_default=0, save_config_kwargs={"overwrite": True})


if __name__ == "__main__":
    main()
