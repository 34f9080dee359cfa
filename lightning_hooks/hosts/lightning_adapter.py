"""A callback of both of Lightning's packages, and the one that forwards the events of a Trainer to the session of its fit."""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack, suppress
from operator import attrgetter
from typing import Any, ClassVar

from lightning.pytorch import Callback, LightningModule, Trainer
from typing_extensions import Self, override

from lightning_hooks.declare.collector import EPOCH_END, VALIDATION
from lightning_hooks.hooks.modes import dispatch_modes, function_modes, outside_modes
from lightning_hooks.hosts.lightning import FitObjects, LightningHost
from lightning_hooks.hosts.lightning_api import around_steps, callbacks_of
from lightning_hooks.session.session import Session

LENT = ("log", "log_dict")

# The events of each batch
BATCH_EVENTS = (
    *("on_train_batch_start", "on_before_backward", "on_after_backward", "on_before_optimizer_step", "on_before_zero_grad"),
    *("on_train_batch_end", "on_validation_batch_start", "on_validation_batch_end"),
)


class EitherPackage(Callback):
    """A callback of ``lightning.pytorch`` that is one of ``pytorch_lightning`` too, wherever that is imported.

    They are two packages with the same classes twice. A Trainer of ``pytorch_lightning`` below 2.6 raises "Expected a parent" for a
    callback that is not of its own class.

    Attributes:
        joins_session: Whether it has members in the session of a fit.
    """

    joins_session: ClassVar[bool] = False

    def __new__(cls, *args: Any, **kwargs: Any) -> Self:  # noqa: ARG004  those of __init__
        """Make an instance, after both packages know its class."""
        join()
        return super().__new__(cls)

    def in_another_fit(self, trainer: Trainer) -> bool:
        """Whether it is attached in a fit of another trainer that is still running."""
        return False

    @override
    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if stage == "fit" and self.in_another_fit(trainer):
            raise RuntimeError(
                f"This {type(self).__name__} is attached to the fit of another Trainer that is still running, and one instance "
                f"observes one fit at a time. Give the Trainer inside it callbacks of its own: build another {type(self).__name__}."
            )

    def skip_unused_events(self) -> None:
        """Let Lightning, which calls what is callable, skip the batch events that this class does not handle, for this fit."""
        unused = [name for name in BATCH_EVENTS if getattr(type(self), name) is getattr(Callback, name)]
        vars(self).update({name: None for name in unused if name not in vars(self)})

    def forget_model(self) -> None:
        """Drop what belongs to a fit: the methods of the model that Lightning lends a callback, and with them the model."""
        own = vars(self)
        for name in [name for name, value in own.items() if _of_fit(name, value)]:
            del own[name]

    def __getstate__(self) -> dict[str, Any]:
        """Everything but what belongs to a fit."""
        return {name: value for name, value in vars(self).items() if not _of_fit(name, value)}


def _of_fit(name: str, value: object) -> bool:
    return name in LENT or (name in BATCH_EVENTS and value is None)


def join() -> None:
    """Make pytorch_lightning's Callback, if it is imported, a base class too, behind all others: no method is taken from it."""
    twin = getattr(sys.modules.get("pytorch_lightning"), "Callback", None)
    if isinstance(twin, type) and not issubclass(EitherPackage, twin):
        with suppress(TypeError):  # a subclass of both, the other one first, has an order of its own
            EitherPackage.__bases__ = (*EitherPackage.__bases__, twin)


def _event(name: str, takes: int = 0) -> Callable[..., None]:
    """A method of a callback that hands an event to the session, which no mode of others sees.

    It takes so many of the arguments that Lightning gives behind the trainer and the model.
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
        if session is not None and not session.batches.paused:
            session.batches.pause(moment)

    return call


class Adapter(EitherPackage):
    """Stands before the first monitor among a trainer's callbacks, forwards each event once, and holds what belongs to the fit.

    It joins when training starts, and leaves at teardown and when training raises.

    Attributes:
        session: That of the fit under way; None without one.
        only_observes: It leaves the gradients of an optimizer step as they are.
    """

    only_observes: ClassVar[bool] = True

    def __init__(self, trainer: Trainer) -> None:
        super().__init__()
        self.session: Session | None = None
        self._steps = ExitStack()  # what is around them
        self.of_fit = FitObjects(trainer)

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
            self.session = session = Session(LightningHost(trainer, pl_module, self.of_fit))
            self._steps.callback(around_steps(trainer, session.step))
        return self.session

    # Events.

    on_train_batch_start = _event("batch_start", 2)
    on_train_epoch_start = _event("epoch_start")
    on_before_backward = _event("before_backward", 1)
    on_after_backward = _event("after_backward")
    on_before_optimizer_step = _event("before_optimizer_step", 1)
    on_before_zero_grad = _event("probe.before_zero_grad", 1)
    on_train_batch_end = _event("batch_end", 1)
    on_validation_start = _event("validation_start")
    on_validation_end = _event("validation_end")
    on_train_epoch_end = _event("epoch_end")
    on_train_end = _event("close")

    @override
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        if self.session is not None and not dataloader_idx:
            with outside_modes():
                self.session.validation_batch(batch, batch_idx)

    @override
    def teardown(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self.leave(trainer, "stopped")
        self.of_fit.epoch_log.withdraw(trainer)

    def leave(self, trainer: Trainer, how: str, error: BaseException | None = None) -> None:
        """The fit is over: close its session, and leave the trainer's callbacks as they were."""
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
            self.adapter.leave(trainer, "interrupted" if isinstance(exception, KeyboardInterrupt) else "exception", exception)
        finally:
            under_way.sort(key=lambda callback: not isinstance(callback, EitherPackage))  # this one stays the first
