"""A Lightning Trainer, as a session sees it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Protocol
from weakref import ref

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from typing_extensions import override

from lightning_hooks.callbacks import lightning_api
from lightning_hooks.callbacks.run_folder import TemporaryFolder, run_folder
from lightning_hooks.collectors.host import Host
from lightning_hooks.collectors.warn import warn
from lightning_hooks.trackers import Trackers


class OfTheFit(Protocol):
    """What belongs to the fit and outlives its session."""

    temporary_folder: TemporaryFolder
    epoch_log: EpochLog

    @property
    def trackers(self) -> Trackers:
        """The trainer's loggers behind one interface."""


class LightningHost(Host):
    """A Lightning Trainer, as a session sees it.

    Args:
        trainer: The trainer.
        pl_module: The model.
        of_fit: What holds the trainer's loggers.
    """

    def __init__(self, trainer: Trainer, pl_module: LightningModule, of_fit: OfTheFit) -> None:
        self._trainer, self._model = ref(trainer), ref(pl_module)
        self._of_fit = of_fit

    @property
    def trainer(self) -> Trainer:
        """The trainer."""
        found = self._trainer()
        assert found is not None, "the trainer is gone"
        return found

    @property
    @override
    def model(self) -> LightningModule:
        found = self._model()
        if found is None:
            raise ReferenceError("the model is gone")
        return found

    @property
    @override
    def device(self) -> torch.device:
        return self.model.device

    @property
    @override
    def epoch(self) -> int:
        return self.trainer.current_epoch

    @property
    @override
    def global_step(self) -> int:
        return self.trainer.global_step

    @property
    @override
    def log_step(self) -> int:
        return lightning_api.log_step(self.trainer)

    @property
    @override
    def world_size(self) -> int:
        return self.trainer.world_size

    @property
    @override
    def data_parallel_size(self) -> int:
        return lightning_api.data_parallel_size(self.trainer)

    @override
    def replicated_parameters(self) -> Sequence[nn.Parameter]:
        return lightning_api.replicated_parameters(self.trainer, self.model)

    @property
    @override
    def is_global_zero(self) -> bool:
        return self.trainer.is_global_zero

    @property
    @override
    def automatic_optimization(self) -> bool:
        return self.model.automatic_optimization

    @property
    @override
    def accumulation(self) -> int:
        return self.trainer.accumulate_grad_batches

    @property
    @override
    def optimizers(self) -> Sequence[Any]:
        return self.trainer.optimizers

    @property
    @override
    def loss_scaler(self) -> Any:
        return lightning_api.loss_scaler(self.trainer) or lightning_api.own_loss_scaler(self.model)

    @property
    @override
    def unscales_in_step(self) -> bool:
        return lightning_api.loss_scaler(self.trainer) is None and self.loss_scaler is not None

    @property
    @override
    def clip_norm(self) -> float | None:
        return lightning_api.configured_norm(self.trainer, self.model)

    @override
    def may_clip(self) -> bool:
        return lightning_api.may_clip(self.trainer, self.model)

    @override
    def check_gradients(self, who: str) -> None:
        lightning_api.check_gradients(self.trainer, self.model, who)

    @property
    @override
    def batches_per_epoch(self) -> float:
        return lightning_api.batches_per_epoch(self.trainer)

    @property
    @override
    def epoch_ends(self) -> bool:
        return lightning_api.epoch_ends(self.trainer)

    @property
    @override
    def planned_steps(self) -> int | None:
        return lightning_api.planned_steps(self.trainer, self.model)

    @property
    @override
    def trackers(self) -> Trackers:
        return self._of_fit.trackers

    @property
    @override
    def training_metrics(self) -> Mapping[str, Any]:
        return self.trainer.logged_metrics

    @property
    @override
    def metrics(self) -> Mapping[str, Any]:
        return self.trainer.callback_metrics

    @override
    def watched_tags(self) -> set[str]:
        return lightning_api.watched_tags(self.trainer)

    @override
    def log(self, who: str, scalars: Mapping[str, float], logged: Mapping[str, float]) -> None:
        self._of_fit.epoch_log.write(who, self.trainer, self.trackers, scalars, logged)

    @override
    def show_progress(self, values: Mapping[str, Any]) -> None:
        self.trainer.progress_bar_metrics.update(values)

    @override
    def printing(self) -> AbstractContextManager[None]:
        return lightning_api.printing(self.trainer)

    @override
    def stop(self) -> None:
        self.trainer.should_stop = True

    @override
    def folder(self, report_dir: Any) -> Path | None:
        return run_folder(self.trainer, report_dir, self.trackers, self._of_fit.temporary_folder)

    @override
    def keep_temporary(self, file: Path, kept_in: Sequence[str], everything: bool) -> str:
        temporary = self._of_fit.temporary_folder
        if not temporary.holds(file):
            return str(file)
        if everything:
            return f"{file.name} is among {kept_in[0]}."
        temporary.keep()
        return str(file)

    @override
    def description(self) -> dict[str, Any]:
        trainer = self.trainer
        return {
            "max_epochs": trainer.max_epochs,
            "precision": str(trainer.precision),
            "accelerator": type(trainer.accelerator).__name__,
        }


class EpochLog:
    """Logs numbers that are the same on every rank: for loggers, and where EarlyStopping and ModelCheckpoint read them.

    ``self.log_dict`` would warn without ``sync_dist``, and cost one collective per key with it. A key that somebody else logs
    keeps their value, with one warning.
    """

    def __init__(self) -> None:
        self._tags: set[str] = set()
        self._warned = False

    def write(
        self, who: str, trainer: Trainer, trackers: Trackers, scalars: Mapping[str, float], logged: Mapping[str, float]
    ) -> None:
        """Log numbers.

        Args:
            who: The callback, for the warning.
            trainer: The trainer.
            trackers: Its loggers.
            scalars: The numbers by tag, for ``trainer.callback_metrics``.
            logged: Those that loggers get.
        """
        known = trainer.callback_metrics  # Lightning makes it again each time it is asked for
        taken = {tag for tag in scalars if tag in known and tag not in self._tags}
        if taken and not self._warned:
            self._warned = True
            named = ", ".join(map(repr, sorted(taken)[:3])) + " and others" * (len(taken) > 3)
            warn(
                f"{who} does not log {named}: these keys are logged by the model or another callback already. "
                "Rename them there to have both."
            )
        own = {tag: value for tag, value in scalars.items() if tag not in taken}
        # Of thousands of numbers one tensor, of which these are views: a quarter of the time. Norms can be beyond float32.
        tensors = dict(zip(own, torch.tensor([*own.values()], dtype=torch.float64).unbind(), strict=True))
        for tag in lightning_api.watched_tags(trainer).intersection(tensors):
            tensors[tag] = tensors[tag].clone()  # it may be saved in a checkpoint, without all the others
        self._tags.update(tensors)
        known.update(tensors)
        trainer.logged_metrics.update({tag: tensors[tag] for tag in logged if tag in tensors})
        trackers.scalars({tag: value for tag, value in logged.items() if tag in tensors}, lightning_api.log_step(trainer))
        trackers.save()

    def withdraw(self, trainer: Trainer) -> None:
        """Take the numbers out of ``trainer.callback_metrics`` again where they would be sent to another process.

        A process of ``ddp_spawn`` sends them through a pipe that holds 64 KB, which is read only when the process has ended: with a
        few hundred of them it never ends.
        """
        if lightning_api.sends_metrics(trainer):
            for tag in self._tags:
                trainer.callback_metrics.pop(tag, None)
