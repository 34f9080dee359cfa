"""A callback whose hooks change the model, and so belong to it in evaluation too."""

from __future__ import annotations

from abc import abstractmethod

from lightning.pytorch import LightningModule, Trainer
from typing_extensions import override

from lightning_hooks.callbacks.base import HookedCallback


class EvaluatedCallback(HookedCallback):
    """Base class of callbacks that change what a model computes: their hooks are in place in evaluation outside a fit too.

    ``trainer.validate``, ``test`` and ``predict``, and the sanity check before a fit, get them when they start; they come out at
    teardown, on an exception, and when training starts, which has its own.
    """

    @abstractmethod
    def install(self, trainer: Trainer, pl_module: LightningModule) -> None:
        """Register the hooks for evaluation, if there are any."""

    def _enter(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if not self.hooks.alive:  # else a fit is under way, and they are in place
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
