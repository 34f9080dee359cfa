"""Train a GAN that draws digits: two optimizers under manual optimisation, with the clip events of each.

    python examples/gan.py                # about a minute, then a few digits in the terminal
    python examples/gan.py --clip 0.05    # a norm so small that every step is clipped: the monitor raises an alert

Under manual optimisation Lightning clips nothing by itself: the model calls ``self.clip_gradients`` between ``manual_backward``
and ``step``. GradientClipMonitor observes it, and reports the discriminator's and the generator's steps separately.
"""

from __future__ import annotations

import argparse
import logging
import sys
import time
import warnings
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import LightningModule, Trainer, seed_everything
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import TrainingMonitor

NOISE, BATCH = 32, 64
INK = " .:-=+*#%@"


class GAN(LightningModule):
    """A generator of 8 x 8 pictures, and a discriminator that classifies real and generated ones (Goodfellow et al. 2014)."""

    def __init__(self, clip: float) -> None:
        super().__init__()
        self.automatic_optimization = False  # which optimizer steps when is up to training_step
        self.clip = clip
        self.generator = nn.Sequential(
            nn.Linear(NOISE, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 128), nn.BatchNorm1d(128), nn.ReLU(),
            nn.Linear(128, 64), nn.Sigmoid(),
        )  # fmt: skip
        self.discriminator = nn.Sequential(
            nn.Linear(64, 128), nn.LeakyReLU(0.2), nn.Dropout(0.3), nn.Linear(128, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1)
        )

    def draw(self, count: int) -> Tensor:
        return self.generator(torch.randn(count, NOISE, device=self.device))

    def training_step(self, batch: tuple[Tensor], batch_idx: int) -> None:
        (real,) = batch
        optimizers: Any = self.optimizers()
        discriminator, generator = optimizers

        self.toggle_optimizer(discriminator)  # the other one's parameters need no gradient here
        verdict = self.discriminator(torch.cat((real, self.draw(len(real)).detach())))
        truth = torch.cat((torch.full((len(real), 1), 0.9), torch.zeros(len(real), 1)))
        self.step(discriminator, binary_cross_entropy_with_logits(verdict, truth))
        self.untoggle_optimizer(discriminator)

        self.toggle_optimizer(generator)
        verdict = self.discriminator(self.draw(len(real)))
        self.step(generator, binary_cross_entropy_with_logits(verdict, torch.ones_like(verdict)))
        self.untoggle_optimizer(generator)

    def step(self, optimizer: Any, loss: Tensor) -> None:
        optimizer.zero_grad()
        self.manual_backward(loss)  # not loss.backward(): Lightning calls the monitors' hooks in this one
        self.clip_gradients(optimizer, gradient_clip_val=self.clip, gradient_clip_algorithm="norm")
        optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:
        settings: dict[str, Any] = {"lr": 1e-3, "betas": (0.5, 0.99)}
        return [torch.optim.Adam(net.parameters(), **settings) for net in (self.discriminator, self.generator)]


def as_text(pictures: Tensor) -> str:
    """Pictures side by side, darker characters for brighter pixels, each twice for its width."""
    rows = (pictures.clamp(0, 1) * (len(INK) - 1)).round().int().view(-1, 8, 8).transpose(0, 1)
    return "\n".join("   ".join("".join(INK[ink] * 2 for ink in line) for line in row.tolist()) for row in rows)


def main() -> int:
    parser = argparse.ArgumentParser(description="A GAN on scikit-learn's digits with lightning_hooks on.")
    parser.add_argument("--epochs", type=int, default=100, help="training epochs (default 100)")
    parser.add_argument("--clip", type=float, default=1.0, help="the norm to which gradients are clipped (default 1)")
    parser.add_argument("--fast", action="store_true", help="three epochs, enough for a look")
    parser.add_argument("--log-dir", type=Path, default=Path("runs/gan"), help="where the logs go (default runs/gan)")
    options = parser.parse_args()

    logging.getLogger("lightning.pytorch").setLevel(logging.WARNING)
    warnings.filterwarnings("ignore", ".*does not have many workers.*")  # the data are in memory
    warnings.filterwarnings("ignore", ".*LeafSpec.*")  # between Lightning and torch
    torch.set_num_threads(1)  # a second thread does not help with so small a net
    seed_everything(0, verbose=False)
    real = torch.tensor(load_digits().data / 16.0, dtype=torch.float32)
    model = GAN(options.clip)

    monitor = TrainingMonitor()
    tensorboard = TensorBoardLogger(options.log_dir, name="")
    trainer = Trainer(
        max_epochs=3 if options.fast else options.epochs,
        accelerator="cpu",
        callbacks=[monitor],
        logger=[CSVLogger(options.log_dir, name="", version=tensorboard.version), tensorboard],
        enable_checkpointing=False,
        enable_model_summary=False,
        enable_progress_bar=sys.stdout.isatty(),
        log_every_n_steps=10,
    )
    start = time.perf_counter()
    trainer.fit(model, DataLoader(TensorDataset(real), BATCH, shuffle=True, drop_last=True))

    clips = monitor.clipping
    assert clips is not None
    print()
    for name, net in zip(clips.optimizers, ("discriminator", "generator"), strict=True):
        stats = clips.optimizers[name]
        print(
            f"{net}: {stats.clipped_steps} of {stats.steps} steps were clipped to {options.clip:g}; "
            f"norms {stats.norm_before:.3f} before, {stats.norm_after:.3f} after (means of the last epoch)."
        )
    with torch.no_grad():
        print(f"It draws, after epoch {trainer.current_epoch} ({time.perf_counter() - start:.1f} s):")
        print(as_text(model.eval().draw(5)))
    print(f"Logs: {tensorboard.log_dir}. To look:\n    tensorboard --logdir {options.log_dir}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
