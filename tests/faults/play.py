"""One training, with the monitors on or without."""

from __future__ import annotations

import logging
import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer

from lightning_hooks import Alert, monitors
from tests.faults.zoo import Built, Case, Outcome

QUIET: dict[str, Any] = {
    "accelerator": "cpu",
    "devices": 1,
    "logger": False,
    "enable_checkpointing": False,
    "enable_progress_bar": False,
    "enable_model_summary": False,
    "num_sanity_val_steps": 0,
}


@dataclass(frozen=True)
class Told:
    """An alert, and when it was told: after how many training batches, in which epoch."""

    alert: Alert
    batches: int
    epoch: int


class Clock(Callback):
    """Counts the batches of a training; first in the list, so that what is told in a batch is told after its count."""

    def __init__(self) -> None:
        self.batches = self.epoch = 0

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.batches += 1
        self.epoch = trainer.current_epoch


def build(case: Case, seed: int, ill: bool = True) -> Built:
    """Build a training from its seed alone."""
    torch.manual_seed(seed)
    return case.build(seed) if case.healthy else case.build(seed, ill=ill)


def play(built: Built, callbacks: Sequence[Callback] = ()) -> tuple[Outcome, float]:
    """Train, and return what became of it and how many seconds it took."""
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    start = time.perf_counter()
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Lightning's advice on loaders, PyTorch's on schedulers of skipped steps
        trainer = Trainer(**{**QUIET, **built.kwargs}, callbacks=list(callbacks))
        trainer.fit(built.module, **built.data)
    module: Any = built.module
    losses = torch.stack(module.losses).double()
    score = trainer.callback_metrics.get("val_score", torch.tensor(math.nan)).item()
    finite = all(bool(parameter.isfinite().all()) for parameter in module.parameters())
    return Outcome(score, losses[:5].mean().item(), losses[-5:].mean().item(), finite), time.perf_counter() - start


def listen(case: Case, seed: int, ill: bool = True, **options: Any) -> tuple[list[Told], Outcome, float]:
    """Train with the trio on, and return what it told, in the order in which it did.

    Args:
        case: Which training.
        seed: Of the order of the data, the weights, and often of the layer at fault.
        ill: Whether the fault is planted.
        **options: For :func:`lightning_hooks.monitors`; by default none, as users write it.
    """
    built, clock, told = build(case, seed, ill), Clock(), []

    def note(alert: Alert) -> None:
        told.append(Told(alert, clock.batches, clock.epoch))

    outcome, seconds = play(built, [clock, *monitors(on_alert=note, summary=False, **options)])
    return told, outcome, seconds
