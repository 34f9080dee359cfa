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

from lightning_hooks.declare.host import (
    Console,
    GradientChanges,
    LossScaling,
    Metrics,
    Position,
    RunFiles,
    Scheduled,
    TrainingSetup,
)
from lightning_hooks.declare.warn import warn
from lightning_hooks.hosts import lightning_api
from lightning_hooks.hosts.lightning_folder import TemporaryFolder, run_folder
from lightning_hooks.hosts.lightning_replay import LightningStepAgain, TrainerHost
from lightning_hooks.trackers import Trackers


class FitObjects(Protocol):
    """What belongs to the fit and outlives its session."""

    temporary_folder: TemporaryFolder
    epoch_log: EpochLog

    @property
    def trackers(self) -> Trackers:
        """The trainer's loggers behind one interface."""


class TrainerReference:
    """Base of what asks a trainer, and does not keep it alive.

    Args:
        trainer: The trainer.
        of_fit: What belongs to its fit.
    """

    def __init__(self, trainer: Trainer, of_fit: FitObjects) -> None:
        self._trainer, self._of_fit = ref(trainer), of_fit

    @property
    def trainer(self) -> Trainer:
        """The trainer."""
        found = self._trainer()
        assert found is not None, "the trainer is gone"
        return found


class LightningPosition(TrainerReference):
    """How far a Trainer is; each of the numbers takes it some time."""

    @property
    def epoch(self) -> int:
        """The epoch, from 0."""
        return self.trainer.current_epoch

    @property
    def global_step(self) -> int:
        """The number of optimizer steps so far."""
        return self.trainer.global_step

    @property
    def epoch_ends(self) -> bool:
        """Whether the training batch that ends now is the epoch's last."""
        return lightning_api.epoch_ends(self.trainer)


class LightningHost(TrainerReference, TrainerHost):
    """A Lightning Trainer, as a session sees it.

    Args:
        trainer: The trainer, whose training starts.
        pl_module: The model.
        of_fit: What holds the trainer's loggers.
    """

    def __init__(self, trainer: Trainer, pl_module: LightningModule, of_fit: FitObjects) -> None:
        super().__init__(trainer, of_fit)
        self._model = ref(pl_module)
        self._position, self._loss_scaling = LightningPosition(trainer, of_fit), LossScaling()
        self.metrics = LightningMetrics(trainer, of_fit)
        self.console = LightningConsole(trainer, of_fit)
        self.files = LightningFiles(trainer, of_fit)
        self.again = LightningStepAgain(self)
        self.setup = TrainingSetup(
            device=pl_module.device,
            world_size=trainer.world_size,
            data_parallel_size=lightning_api.data_parallel_size(trainer),
            is_global_zero=trainer.is_global_zero,
            automatic_optimization=pl_module.automatic_optimization,
            steps_announced=pl_module.automatic_optimization,
            clip_norm=lightning_api.configured_norm(trainer, pl_module),
            batches_per_epoch=lightning_api.batches_per_epoch(trainer),
            planned_steps=lightning_api.planned_steps(trainer, pl_module),
            unreadable_shards=lightning_api.unreadable_shards(trainer, pl_module),
            description={
                "max_epochs": trainer.max_epochs,
                "precision": str(trainer.precision),
                "accelerator": type(trainer.accelerator).__name__,
            },
        )

    @property
    @override
    def model(self) -> LightningModule:
        found = self._model()
        if found is None:
            raise ReferenceError("the model is gone")
        return found

    @property
    @override
    def position(self) -> Position:
        return self._position

    @property
    @override
    def schedulers(self) -> Sequence[Scheduled]:
        return lightning_api.schedulers(self.trainer)

    @property
    @override
    def optimizers(self) -> Sequence[Any]:
        return self.trainer.optimizers

    @property
    @override
    def loss_scaling(self) -> LossScaling:
        trainer, known = self.trainer, self._loss_scaling
        of_trainer = lightning_api.loss_scaler(trainer)
        scaler = of_trainer or (None if self.setup.automatic_optimization else lightning_api.own_loss_scaler(self.model))
        if known.scaler is not scaler or known.accumulation != trainer.accumulate_grad_batches:
            unscales_in_step = of_trainer is None and scaler is not None
            known = self._loss_scaling = LossScaling(trainer.accumulate_grad_batches, scaler, unscales_in_step)
        return known

    @override
    def gradient_changes(self) -> GradientChanges:
        return lightning_api.gradient_changes(self.trainer, self.model)

    @override
    def replicated_parameters(self) -> Sequence[nn.Parameter]:
        return lightning_api.replicated_parameters(self.trainer, self.model)

    @override
    def stop(self) -> None:
        self.trainer.should_stop = True


class LightningMetrics(TrainerReference, Metrics):
    """What a Trainer logs."""

    @property
    @override
    def step(self) -> int:
        return lightning_api.log_step(self.trainer)

    @property
    @override
    def trackers(self) -> Trackers:
        return self._of_fit.trackers

    @property
    @override
    def logged(self) -> Mapping[str, Any]:
        return self.trainer.logged_metrics

    @property
    @override
    def available(self) -> Mapping[str, Any]:
        return self.trainer.callback_metrics

    @override
    def watched_tags(self) -> set[str]:
        return lightning_api.watched_tags(self.trainer)

    @override
    def write(self, who: str, scalars: Mapping[str, float], logged: Mapping[str, float]) -> None:
        self._of_fit.epoch_log.write(who, self.trainer, self._of_fit.trackers, scalars, logged)


class LightningConsole(TrainerReference, Console):
    """A Trainer's progress bar, and lines next to it."""

    @override
    def printing(self) -> AbstractContextManager[None]:
        return lightning_api.printing(self.trainer)

    @override
    def show_progress(self, values: Mapping[str, Any]) -> None:
        self.trainer.progress_bar_metrics.update(values)


class LightningFiles(TrainerReference, RunFiles):
    """A Trainer's log directory, or a temporary folder."""

    @override
    def folder(self, report_dir: Any) -> Path | None:
        return run_folder(self.trainer, report_dir, self._of_fit.trackers, self._of_fit.temporary_folder)

    @override
    def place(self, file: Path, kept_in: Sequence[str], everything: bool) -> str:
        temporary = self._of_fit.temporary_folder
        if not temporary.holds(file):
            return str(file)
        if everything:
            return f"{file.name} is among {kept_in[0]}."
        temporary.keep()
        return str(file)

    @override
    def keeps(self, folder: Path) -> bool:
        return not self._of_fit.temporary_folder.holds(folder)


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
        taken = (scalars.keys() & known.keys()) - self._tags
        if taken and not self._warned:
            self._warned = True
            named = ", ".join(map(repr, sorted(taken)[:3])) + " and others" * (len(taken) > 3)
            warn(
                f"{who} does not log {named}: these keys are logged by the model or another callback already. "
                "Rename them there to have both."
            )
        own = {tag: value for tag, value in scalars.items() if tag not in taken} if taken else scalars
        # Of thousands of numbers one tensor, of which these are views: a quarter of the time. Norms can be beyond float32.
        tensors = dict(zip(own, torch.tensor([*own.values()], dtype=torch.float64).unbind(), strict=True))
        for tag in lightning_api.watched_tags(trainer).intersection(tensors):
            tensors[tag] = tensors[tag].clone()  # it may be saved in a checkpoint, without all the others
        self._tags.update(tensors)
        known.update(tensors)
        logged = {tag: value for tag, value in logged.items() if tag in tensors}
        trainer.logged_metrics.update({tag: tensors[tag] for tag in logged})
        trackers.scalars(logged, lightning_api.log_step(trainer))
        trackers.save()

    def withdraw(self, trainer: Trainer) -> None:
        """Take the numbers out of ``trainer.callback_metrics`` again where they would be sent to another process.

        A process of ``ddp_spawn`` sends them through a pipe that holds 64 KB, which is read only when the process has ended: with a
        few hundred of them it never ends.
        """
        if lightning_api.sends_metrics(trainer):
            for tag in self._tags:
                trainer.callback_metrics.pop(tag, None)
