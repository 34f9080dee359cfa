"""Counts what waits for the device, and the models that this is counted with."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import Callback
from torch.utils._python_dispatch import TorchDispatchMode

from tests.support.models import ResidualCNN, TinyLSTM, TinyTransformer

NETS = {"cnn": (ResidualCNN, (1, 6, 6)), "transformer": (TinyTransformer, (5, 6)), "lstm": (TinyLSTM, (5, 6))}


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.syncs += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


class CountSyncs(Callback):
    """Counts reads of single values between the first batch's start and the last one's end."""

    def __init__(self) -> None:
        self.mode = _Counter()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            self.mode.__enter__()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == trainer.num_training_batches - 1:
            self.mode.__exit__(None, None, None)


class NoSync(Callback):
    """Makes every synchronisation an error from the second batch's start to the last one's end."""

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 1:
            torch.cuda.set_sync_debug_mode("error")

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == trainer.num_training_batches - 1:
            torch.cuda.set_sync_debug_mode("default")

    def on_exception(self, *args: Any) -> None:
        torch.cuda.set_sync_debug_mode("default")
