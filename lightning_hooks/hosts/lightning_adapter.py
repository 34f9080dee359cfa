"""Forwards the events of a Lightning Trainer to the session of its fit."""

from __future__ import annotations

from contextlib import ExitStack
from typing import Any, ClassVar
from weakref import ref

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import Self, override

from lightning_hooks.hooks.modes import dispatch_modes, function_modes, outside_modes
from lightning_hooks.hosts.lightning import LightningHost
from lightning_hooks.hosts.lightning_api import EpochLog, around_steps, callbacks_of
from lightning_hooks.hosts.lightning_callback import EitherPackage
from lightning_hooks.hosts.lightning_folder import TemporaryFolder
from lightning_hooks.hosts.loggers import warn_of_logger
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
        self._steps = ExitStack()  # what is around them
        self.temporary_folder = TemporaryFolder(trainer)
        self.epoch_log = EpochLog()
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
            first = _First(found)
            first.skip_unused_events()
            trainer.callbacks = [first, *callbacks[:place], found, *callbacks[place:]]  # type: ignore[attr-defined]
        return found

    def session_of(self, trainer: Trainer, pl_module: LightningModule) -> Session:
        """Return the session of the fit that starts."""
        if self.session is None:
            self.session = session = Session(LightningHost(trainer, pl_module, self))
            self._steps.callback(around_steps(trainer, session.step))
        return self.session

    @property
    def trackers(self) -> Trackers:
        """The trainer's loggers behind one interface; empty on ranks other than 0. A logger that raises is reported once."""
        if self._trackers is None:
            trainer = self._trainer()
            loggers = trainer.loggers if trainer is not None and trainer.is_global_zero else ()
            self._trackers = Trackers(loggers, warn_of_logger)
        return self._trackers

    # Events.

    def _event(self, name: str, *args: Any) -> None:
        """Hand an event to the session, which no mode of others sees."""
        if self.session is None:
            return
        if function_modes() or dispatch_modes():
            with outside_modes():
                getattr(self.session, name)(*args)
        else:
            getattr(self.session, name)(*args)

    @override
    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._event("epoch_start")

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        self._event("batch_start", batch_idx, batch)

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        self._event("before_backward", loss)

    @override
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._event("after_backward")

    @override
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        self._event("before_optimizer_step", optimizer)

    @override
    def on_before_zero_grad(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        self._event("before_zero_grad", optimizer)

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        self._event("batch_end", outputs)

    @override
    def on_validation_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._event("validation_start")

    @override
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if not dataloader_idx:
            self._event("validation_batch", batch, batch_idx)

    @override
    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._event("validation_end")

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._event("epoch_end")

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._event("finish")

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.leave(trainer, "stopped")
        self.epoch_log.withdraw(trainer)

    def leave(self, trainer: Trainer, how: str, error: BaseException | None = None) -> None:
        """The fit is over: close its session, and leave the trainer's callbacks as they were.

        Args:
            trainer: The trainer.
            how: ``exception``, ``interrupted`` or ``stopped``.
            error: What ended training.
        """
        session, self.session = self.session, None
        self._steps.close()
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
            under_way.sort(key=lambda callback: not isinstance(callback, EitherPackage))  # this one stays the first
