"""Base class of callbacks whose hooks change the model's outputs, in evaluation too."""

from __future__ import annotations

from abc import abstractmethod

from lightning.pytorch import LightningModule, Trainer
from typing_extensions import override

from lightning_hooks.callbacks.base import HookedCallback


class EvaluatedCallback(HookedCallback):
    """Base class of callbacks that change a model's outputs: their hooks are also registered in evaluation outside of a fit.

    They are registered at the start of ``trainer.validate``, ``test`` and ``predict`` and of the sanity check before a fit, and
    removed at teardown, on an exception, and when training starts, which registers its own.
    """

    @abstractmethod
    def install(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Register the hooks for evaluation, if needed."""

    def _enter(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.hooks.alive:  # else a fit is running, and they are registered
            with self.hooks.all_or_nothing():
                self.install(trainer, pl_module)

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_start(trainer, pl_module)
        self._enter(trainer, pl_module)

    @override
    def on_test_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._enter(trainer, pl_module)

    @override
    def on_predict_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._enter(trainer, pl_module)
