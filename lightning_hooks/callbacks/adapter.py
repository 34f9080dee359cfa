"""Forwards the events of a Lightning Trainer to the session of its fit."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar
from weakref import ref

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info
from torch import Tensor, nn
from typing_extensions import Self, override

from lightning_hooks.callbacks import lightning_api
from lightning_hooks.callbacks.either_package import EitherPackage
from lightning_hooks.callbacks.epoch_log import EpochLog
from lightning_hooks.callbacks.lightning_api import callbacks_of
from lightning_hooks.callbacks.progress_bar import printing
from lightning_hooks.callbacks.run_folder import TemporaryFolder, run_folder
from lightning_hooks.collectors.host import Host
from lightning_hooks.collectors.warn import warn
from lightning_hooks.session.session import Session
from lightning_hooks.trackers import Trackers


class Adapter(EitherPackage):
    """Stands before the first monitor among a trainer's callbacks, forwards each event once, and holds what belongs to the fit.

    It joins when training starts, and leaves at teardown and when training raises.

    Args:
        trainer: The trainer.

    Attributes:
        session: That of the fit under way; None without one.
    """

    only_observes: ClassVar[bool] = True
    """It leaves the gradients of an optimizer step as they are."""

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self._trainer = ref(trainer)
        self.session: Session | None = None
        self.temporary_folder = TemporaryFolder(trainer)
        self._trackers: Trackers | None = None

    @classmethod
    def of(cls, trainer: Trainer) -> Self:
        """Return the trainer's, which joins if there is none."""
        callbacks = callbacks_of(trainer)
        found = next((callback for callback in callbacks if isinstance(callback, cls)), None)
        if found is None:
            found = cls(trainer)
            ours = [isinstance(callback, EitherPackage) and callback.joins_session for callback in callbacks]
            place = ours.index(True) if any(ours) else 0
            # A new list: Lightning goes through the old one now, and it may be the user's own.
            trainer.callbacks = [_First(found), *callbacks[:place], found, *callbacks[place:]]  # type: ignore[attr-defined]
        return found

    def session_of(self, trainer: Trainer, pl_module: LightningModule) -> Session:
        """Return the session of the fit that starts."""
        if self.session is None:
            self.session = Session(LightningHost(trainer, pl_module, self))
        return self.session

    @property
    def trackers(self) -> Trackers:
        """The trainer's loggers behind one interface; empty on ranks other than 0. A logger that raises is reported once."""
        if self._trackers is None:
            trainer = self._trainer()
            loggers = trainer.loggers if trainer is not None and trainer.is_global_zero else ()
            self._trackers = Trackers(loggers, _fault)
        return self._trackers

    # Events.

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.session is not None:
            self.session.epoch_start()

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self.session is not None:
            self.session.batch_start(batch_idx, batch)

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        if self.session is not None:
            self.session.before_backward(loss)

    @override
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.session is not None:
            self.session.after_backward()

    @override
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        if self.session is not None:
            self.session.before_optimizer_step(optimizer)

    @override
    def on_before_zero_grad(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        if self.session is not None:
            self.session.before_zero_grad(optimizer)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self.session is not None:
            self.session.batch_end(outputs)

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.session is not None:
            self.session.validation_start()

    @override
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self.session is not None and not dataloader_idx:
            self.session.validation_batch(batch, batch_idx)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.session is not None:
            self.session.validation_end()

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.session is not None:
            self.session.epoch_end()

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self.session is not None:
            self.session.finish()

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.leave(trainer, "stopped")

    def leave(self, trainer: Trainer, how: str, error: BaseException | None = None) -> None:
        """The fit is over: close its session, and leave the trainer's callbacks as they were.

        Args:
            trainer: The trainer.
            how: ``exception``, ``interrupted`` or ``stopped``.
            error: What ended training.
        """
        session, self.session = self.session, None
        callbacks = callbacks_of(trainer)
        trainer.callbacks = [each for each in callbacks if not isinstance(each, _First | Adapter)]  # type: ignore[attr-defined]
        for callback in callbacks:
            if isinstance(callback, EitherPackage):
                callback.forget_model()
        if session is not None:
            session.close(how, error)


class _First(EitherPackage):
    """Stands first among a trainer's callbacks, so that an exception reaches it first.

    Lightning calls ``on_exception`` of one callback after the other, and of none after one that raises itself: this one calls the
    adapter, and puts the callbacks of lightning_hooks before all others.
    """

    def __init__(self, adapter: Adapter) -> None:
        super().__init__()
        self._adapter = adapter

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        under_way = callbacks_of(trainer)  # the list that Lightning goes through now, and is at the first of
        try:
            how = "interrupted" if isinstance(exception, KeyboardInterrupt) else "exception"
            self._adapter.leave(trainer, how, exception)
        finally:
            ours = [callback for callback in under_way if isinstance(callback, EitherPackage) and callback is not self]
            others = [callback for callback in under_way if not isinstance(callback, EitherPackage)]
            under_way[:] = [self, *ours, *others]


class LightningHost(Host):
    """A Lightning Trainer, as a session sees it.

    Args:
        trainer: The trainer.
        pl_module: The model.
        adapter: What holds the trainer's loggers.
    """

    def __init__(self, trainer: Trainer, pl_module: LightningModule, adapter: Adapter) -> None:
        self._trainer, self._model = ref(trainer), ref(pl_module)
        self._adapter = adapter
        self._log = EpochLog()

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
        return lightning_api.loss_scaler(self.trainer)

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
        return self._adapter.trackers

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
        self._log.write(who, self.trainer, self.trackers, scalars, logged)

    @override
    def show_progress(self, values: Mapping[str, Any]) -> None:
        self.trainer.progress_bar_metrics.update(values)

    @override
    def printing(self) -> AbstractContextManager[None]:
        return printing(self.trainer)

    @override
    def info(self, message: str) -> None:
        rank_zero_info(message)

    @override
    def stop(self) -> None:
        self.trainer.should_stop = True

    @override
    def folder(self, report_dir: Any) -> Path | None:
        return run_folder(self.trainer, report_dir, self.trackers, self._adapter.temporary_folder)

    @override
    def keep_temporary(self, file: Path, kept_in: Sequence[str], everything: bool) -> str:
        temporary = self._adapter.temporary_folder
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


def _fault(tracker: str, error: Exception) -> None:
    warn(
        f"{tracker} raised {type(error).__name__}: {error}. What lightning_hooks writes may be missing there; training goes "
        "on, and this warning is shown once."
    )
