"""The monitors of one training in a loop of any kind, from its first batch to its end."""

from __future__ import annotations

import atexit
import sys
from collections.abc import Mapping
from typing import Any, TypeVar
from weakref import WeakSet

from torch import Tensor
from typing_extensions import Self, override

from lightning_hooks.declare.warn import Once
from lightning_hooks.hosts.loop_events import LoopEvents
from lightning_hooks.hosts.observers import TrainingMembers, TrainingReports, joining
from lightning_hooks.hosts.plain import LoopStepAgain, PlainHost
from lightning_hooks.session.session import Session

Loader = TypeVar("Loader")


class LoopMonitor(TrainingReports):
    """The monitors of one training in a loop: a context manager, around the loop.

    Hooks are registered when the block starts, and removed when it ends, also where it raises. A block that is not left, as after
    :meth:`start` alone, ends when the monitors are collected, or with the process.

    Args:
        host: The loop.
        observers: The members that observe it, and where the run is sent to.
        ends_at_step: Whether each optimizer step ends a batch; otherwise :meth:`step` does.

    Attributes:
        host: The loop.
    """

    def __init__(self, host: PlainHost, observers: TrainingMembers, ends_at_step: bool = False) -> None:
        self.host, self.observers = host, observers
        self._ends_at_step, self._warn_once = ends_at_step, Once()
        self._events: LoopEvents | None = None

    @property
    def should_stop(self) -> bool:
        """Whether an alert with ``on_alert="stop"`` asks the loop to end."""
        return self.host.should_stop

    @property
    def running(self) -> bool:
        """Whether the hooks are in place."""
        return self._events is not None

    def start(self) -> Self:
        """Register the hooks, all or none.

        Raises:
            RuntimeError: If the block was entered before and not left, or each rank holds gradients that it cannot read whole.
            ValueError: If a pattern matches nothing.
        """
        if self._events is not None:
            raise RuntimeError("These monitors observe a training already. Leave the block first, or build others.")
        session = Session(self.host)
        self._events = events = LoopEvents(session, self.host, self._ends_at_step)
        try:
            for member in joining(self.members, self.host.model):
                session.join(member)
            self.observers.outlets.add_to(session.sinks, session.host, session.members)
            events.start()
        except BaseException:
            self.close("stopped")
            raise
        _RUNNING.add(self)
        session.epoch_start()
        return self

    __enter__ = start

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, traceback: object) -> None:
        if error is None:
            self.finish()
        else:
            self.close("interrupted" if isinstance(error, KeyboardInterrupt) else "exception", error)

    def step(self, loss: Tensor | None = None, metrics: Mapping[str, Any] | None = None) -> None:
        """A training batch is over: call it after each, when the optimizer has stepped or, under accumulation, has not.

        Args:
            loss: The batch's loss; None for that whose ``backward()`` was called.
            metrics: What is drawn next to the loss, by name: numbers, or tensors of one, of which a window's last are kept.

        Raises:
            AlertError: If a new alert is found and ``on_alert="raise"``.
            RuntimeError: Outside of the block.
            TypeError: If ``loss`` is no tensor, or ``metrics`` no mapping.
        """
        if loss is not None and not isinstance(loss, Tensor):
            raise TypeError(f"step() takes the loss as a tensor, or nothing; got {loss!r}. Leave out .item().")
        if metrics is not None:
            self.host.metrics.report(metrics)
        events = self.events
        if not events.ran and type(self.host.again) is LoopStepAgain:
            self._warn_once(
                "watch: this batch's loss did not come from monitor.loss(batch). Call it in place of loss_function(batch): a step "
                "can be run again only where its batch is known. This warning is shown once."
            )
        events.end_batch(loss)

    def loss(self, batch: Any) -> Any:
        """Call ``loss_function`` on a training batch, and return what it returns: if the step turns out bad, it is run again.

        Args:
            batch: What ``loss_function`` takes.

        Raises:
            RuntimeError: Outside of the block, or without a ``loss_function``.
        """
        return self.events.run(self._again().loss_function, batch)

    def batches(self, loader: Loader) -> Loader:
        """Return the loader of the training batches. Where it is a ``DataLoader``, alerts about single steps name their samples.

        Args:
            loader: The loader.

        Raises:
            RuntimeError: Without a ``loss_function``.
        """
        self._again().record(loader)
        return loader

    def _again(self) -> LoopStepAgain:
        again = self.host.again
        if not isinstance(again, LoopStepAgain):
            raise RuntimeError(
                "loss(batch) and batches(loader) are for steps that are run again, which needs the function that gives a batch's "
                "loss: watch(model, optimizer, loss_function=…)."
            )
        return again

    def end_window(self) -> dict[str, Any]:
        """End the window under way, as at an epoch's end.

        Returns:
            The reports by monitor: ``features``, ``gradients``, ``clipping``; ``attention`` and ``routers`` where there are some.

        Raises:
            AlertError: If a new alert is found and ``on_alert="raise"``.
            RuntimeError: Outside of the block.
        """
        self.events.end_epoch()
        return {name: report for name in self.history if (report := getattr(self, name)) is not None}

    def end_validation(self, metrics: Mapping[str, Any]) -> None:
        """A validation is over: its metrics, with the loss as ``val_loss``, belong to the window under way."""
        session = self.events.session
        self.host.metrics.report(metrics)
        session.validation_end()

    @property
    def events(self) -> LoopEvents:
        """What calls the session.

        Raises:
            RuntimeError: Outside of the block.
        """
        if self._events is None:
            raise RuntimeError("step() and end_window() belong into the block: with watch(model, optimizer) as monitor: …")
        return self._events

    def finish(self, ends_window: bool = True) -> None:
        """Training has ended as it should: end the window under way, if all ranks come here, and :meth:`close`."""
        if self._events is not None:
            try:
                if ends_window and any(member.context.batches for member in self._events.session.members):
                    self._events.end_epoch()
            except BaseException as error:
                self.close("exception", error)
                raise
            self.close("finished")

    def abandon(self) -> None:
        """Nobody ends this training: the process ends, or what it belongs to is gone. Other ranks may not come here."""
        error = getattr(sys, "last_value", None)
        if isinstance(error, BaseException):
            self.close("exception", error)
        else:
            self.finish(ends_window=self.host.setup.world_size == 1)

    __del__ = abandon

    def close(self, how: str, error: BaseException | None = None) -> None:
        """Remove the hooks and write the report. Harmless when that was done before."""
        events, self._events = self._events, None
        if events is not None:
            events.stop()
            events.session.close(how, error)
            self.host.again.release()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**self.host.progress, "monitors": super().state_dict()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from an earlier training: call it before the block."""
        self.host.progress = state_dict
        super().load_state_dict(state_dict["monitors"])


_RUNNING: WeakSet[LoopMonitor] = WeakSet()


@atexit.register
def _end_all() -> None:
    for monitor in list(_RUNNING):
        monitor.abandon()
