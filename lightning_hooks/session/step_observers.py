"""Who observes optimizer steps, and of which each is notified."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from lightning_hooks.declare.step import EarlierOptimizers, Step

StepCalls = Mapping[str, Callable[[Any], Any]]
"""What an observer does at some of :data:`STEP_EVENTS`: functions of the :class:`Step`, of ``changed`` of what was kept."""
Due = Collection[int] | None
"""The optimizers whose gradients an observer takes at their next step; None for those of all at each step."""
STEP_EVENTS = ("gradients", "update", "taken", "skipped", "changed")
"""The events that observers of optimizer steps are called at."""
OnFault = Callable[[str, Exception], None]
"""Takes the site and the error of what failed."""


class StepObservers:
    """The observers of the optimizer steps of one run.

    Attributes:
        readers: Of the norms of each step: what they do with a fault.
        update: What is called where an update starts.
        taken: What is called where a step was taken.
    """

    def __init__(self) -> None:
        self._observers: dict[int, tuple[StepCalls, OnFault | None, Due]] = {}
        self.readers: list[OnFault] = []
        self._gradients: list[tuple[Due, Callable[[Any], Any]]] = []
        self._calls: dict[str, list[Callable[[Any], Any]]] = {}  # theirs, by the event
        self.update: list[Callable[[Any], Any]] = []
        self.taken: list[Callable[[Any], Any]] = []

    def __bool__(self) -> bool:
        return bool(self._observers)

    def add(self, owner: object, observer: StepCalls, on_fault: OnFault | None, due: Due) -> None:
        """Add an observer, behind all others.

        Args:
            owner: Whose it is.
            observer: What it does.
            on_fault: Of one that reads ``before`` and ``after`` of each step: takes what reading them raises, once.
            due: Of which optimizers it takes the gradients.
        """
        self._observers.pop(id(owner), None)
        self._observers[id(owner)] = observer, on_fault, due
        self._changed()

    def remove(self, owner: object) -> None:
        """Remove an observer."""
        self._observers.pop(id(owner), None)
        self._changed()

    def _changed(self) -> None:
        known = self._observers.values()
        self.readers = [on_fault for _, on_fault, _ in known if on_fault is not None]
        self._gradients = [(due, calls["gradients"]) for calls, _, due in known if "gradients" in calls]
        self._calls = {event: [calls[event] for calls, _, _ in known if event in calls] for event in STEP_EVENTS}
        self.update, self.taken = self._calls["update"], self._calls["taken"]

    def ready(self, step: Step) -> None:
        """The gradients of a step are there, and not clipped."""
        for due, call in self._gradients:
            if due is None or step.optimizer in due:
                call(step)
        if self.readers and step.before is None:  # after those who count zeros too, and read both at once
            try:
                step.before = step.norms() if step.known is None else step.known
            except Exception as error:  # noqa: BLE001  training goes on
                self._failed(error)
        step.found = ()  # it would keep gradients that are exchanged for others, or freed

    def read_after(self, step: Step) -> None:
        """Read the norms of gradients that clipping may have changed."""
        try:
            step.after = step.norms()
        except Exception as error:  # noqa: BLE001  training goes on
            self._failed(error)

    def notify(self, event: str, value: Step | EarlierOptimizers) -> None:
        """Another event."""
        for call in self._calls[event]:
            call(value)

    def _failed(self, error: Exception) -> None:
        """The norms cannot be read: they are read no more."""
        readers, self.readers = self.readers, []
        for on_fault in readers:
            on_fault("optimizer step (the norms of the gradients)", error)
