"""A fit that is interrupted in the middle of an epoch and resumed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from lightning.pytorch import Callback

from tests.support.models import loader


class Batches:
    """A loader that remembers where it was, as torchdata's stateful loader does."""

    def __init__(self, shape: tuple[int, ...]) -> None:
        self.items = list(loader(shape))
        self.at = 0

    def __len__(self) -> int:
        return len(self.items)

    def __iter__(self) -> Any:
        self.at %= len(self.items)  # whoever knows the length does not ask for the end
        while self.at < len(self.items):
            self.at += 1
            yield self.items[self.at - 1]

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


class SaveAt(Callback):
    """Saves a checkpoint after a batch of an epoch, and stops there."""

    def __init__(self, path: Path, epoch: int, batch: int) -> None:
        self.path, self.epoch, self.batch = path, epoch, batch

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if (trainer.current_epoch, batch_idx) == (self.epoch, self.batch):
            trainer.save_checkpoint(self.path)
            raise KeyboardInterrupt


class Keep(Callback):
    def __init__(self, ours: list[Any]) -> None:
        self.ours, self.reports = ours, []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.reports.append([callback.report for callback in self.ours])
