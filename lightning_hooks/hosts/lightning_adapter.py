"""Forwards the events of a Lightning Trainer to the session of its fit."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from operator import attrgetter
from typing import Any, ClassVar
from weakref import ref

from lightning.pytorch import LightningModule, Trainer
from typing_extensions import Self, override

from lightning_hooks.declare.collector import EPOCH_END, VALIDATION
from lightning_hooks.hooks.modes import dispatch_modes, function_modes, outside_modes
from lightning_hooks.hosts.lightning import LightningHost
from lightning_hooks.hosts.lightning_api import EpochLog, around_steps, callbacks_of
from lightning_hooks.hosts.lightning_callback import EitherPackage
from lightning_hooks.hosts.lightning_folder import TemporaryFolder
from lightning_hooks.hosts.loggers import warn_of_logger
from lightning_hooks.session.session import Session
from lightning_hooks.trackers import Trackers


def _event(name: str, takes: int = 0) -> Callable[..., None]:
    """A method of a callback that hands an event to the session, which no mode of others sees.

    Args:
        name: The method, from the session on.
        takes: How many arguments it takes of those that Lightning gives behind the trainer and the model.
    """
    method = attrgetter(name)

    def call(self: Adapter, *given: Any) -> None:
        if self.session is None:
            return
        event = method(self.session)
        if function_modes() or dispatch_modes():
            with outside_modes():
                event(*given[2 : 2 + takes])
        else:
            event(*given[2 : 2 + takes])

    return call


def _pause(moment: str) -> Callable[..., None]:
    """A method of the first callback: training pauses, and no other callback has come to it yet."""

    def call(self: _First, *_: Any) -> None:
        session = self.adapter.session
        if session is not None and not session.pauses.paused:
            session.pauses.start(moment)

    return call


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

    on_train_batch_start = _event("batch_start", 2)
    on_train_epoch_start = _event("epoch_start")
    on_before_backward = _event("before_backward", 1)
    on_after_backward = _event("after_backward")
    on_before_optimizer_step = _event("before_optimizer_step", 1)
    on_before_zero_grad = _event("probe.before_zero_grad", 1)
    on_train_batch_end = _event("batch_end", 1)
    on_validation_start = _event("pauses.validation_start")
    on_validation_end = _event("pauses.validation_end")
    on_train_epoch_end = _event("epoch_end")
    on_train_end = _event("finish")

    @override
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self.session is not None and not dataloader_idx:
            with outside_modes():
                self.session.pauses.validation_batch(batch, batch_idx)

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
    """Stands first among a trainer's callbacks, so that an exception, a validation and an epoch's end reach it first.

    Lightning calls ``on_exception`` of one callback after the other, and of none after one that raises itself: this one calls the
    adapter, and puts the callbacks of lightning_hooks before all others.
    """

    def __init__(self, adapter: Adapter) -> None:
        super().__init__()
        self.adapter = adapter

    on_validation_start = _pause(VALIDATION)
    on_train_epoch_end = _pause(EPOCH_END)

    @override
    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        under_way = callbacks_of(trainer)  # the list that Lightning goes through now, and is at the first of
        try:
            how = "interrupted" if isinstance(exception, KeyboardInterrupt) else "exception"
            self.adapter.leave(trainer, how, exception)
        finally:
            under_way.sort(key=lambda callback: not isinstance(callback, EitherPackage))  # this one stays the first
