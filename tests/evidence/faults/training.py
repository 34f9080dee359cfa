"""One training, with or without the monitors."""

from __future__ import annotations

import math
import time
import warnings
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from lightning.pytorch import Callback, Trainer
from torch import Tensor

from lightning_hooks import Alert, monitors
from tests.evidence.faults.zoo import Built, Case, Outcome

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
class TimedAlert:
    """An alert, the number of training batches before it, and its epoch."""

    alert: Alert
    batches: int
    epoch: int


@dataclass(frozen=True)
class History:
    """How a training went, batch by batch.

    Attributes:
        epochs: The epoch of each batch.
        losses: The loss of each batch.
        places: The names of all modules and parameters.
    """

    epochs: list[int]
    losses: list[float]
    places: frozenset[str]


def loss_of(trainer: Any, pl_module: Any, outputs: Any) -> Tensor:
    """The loss of a batch: the last in the module's ``losses``, or what ``training_step`` returned; NaN without either."""
    noted = getattr(pl_module, "losses", None)
    if isinstance(noted, list) and noted:
        return noted[-1].detach()
    if isinstance(outputs, dict) and isinstance(outputs.get("loss"), Tensor):
        return outputs["loss"].detach() * trainer.accumulate_grad_batches
    return torch.tensor(math.nan)


class AlertLog(Callback):
    """Keeps the monitors' alerts with their times. Comes first in the list, so that a batch is counted before its alerts."""

    def __init__(self) -> None:
        self.epochs: list[int] = []
        self.losses: list[Tensor] = []
        self.alerts: list[TimedAlert] = []

    def note(self, alert: Alert) -> None:
        """For ``on_alert``."""
        self.alerts.append(TimedAlert(alert, len(self.epochs), self.epochs[-1]))

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.epochs.append(trainer.current_epoch)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        self.losses.append(loss_of(trainer, pl_module, outputs))

    def history(self, built: Built) -> History:
        """What is known after the training."""
        module = built.module
        places = {name for name, _ in module.named_modules()} | {name for name, _ in module.named_parameters()}
        return History(self.epochs, [loss.item() for loss in self.losses], frozenset(places))


def build(case: Case, seed: int, planted: bool = True) -> Built:
    """Build a training from its seed alone."""
    torch.manual_seed(seed)
    return case.build(seed) if case.healthy else case.build(seed, planted=planted)


def train(built: Built, callbacks: Sequence[Callback] = ()) -> tuple[Outcome, float]:
    """Train, and return the outcome and the seconds that it took."""
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


def observers(log: AlertLog, **options: Any) -> list[Callback]:
    """All monitors, with the arguments of :func:`lightning_hooks.monitors`."""
    return list(monitors(on_alert=log.note, summary=False, **options))


def train_monitored(case: Case, seed: int, planted: bool = True, **options: Any) -> tuple[list[TimedAlert], Outcome, History]:
    """Train with the trio on, and return its alerts in their order, the outcome and the history.

    Args:
        case: Which training.
        seed: Of the order of the data, the weights, and often of the layer at fault.
        planted: Whether the fault is planted.
        **options: For :func:`lightning_hooks.monitors`; by default none, as users write it.
    """
    built, log = build(case, seed, planted), AlertLog()
    outcome, _ = train(built, [log, *observers(log, **options)])
    return log.alerts, outcome, log.history(built)
