"""What comes between the training batches of a run: validations, and the ends of epochs."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import nn

from lightning_hooks.session.functional_calls import FunctionalCalls
from lightning_hooks.session.member import Member
from lightning_hooks.session.module_hooks import ModuleHooks


class Pauses:
    """Passes on to members that training pauses, what happens meanwhile, and that it has gone on.

    Args:
        model: The model.
        hooks: The forward hooks.
        calls: The calls of functions.
        members: Those of the session, in a list that changes with them.

    Attributes:
        paused: Whether training pauses.
        resuming: The batches to come at whose start ``followers`` are called.
        followers: What is called at pauses.
    """

    def __init__(self, model: nn.Module, hooks: ModuleHooks, calls: FunctionalCalls, members: Sequence[Member]) -> None:
        self._model, self._hooks, self._calls, self._members = model, hooks, calls, members
        self.paused, self.resuming = False, 0
        self.followers: list[Callable[..., Any]] = []

    def start(self, moment: str) -> None:
        """What comes next is no training batch, and other callbacks have not come to it yet.

        Args:
            moment: ``in validation`` or ``at the end of the epoch``.
        """
        if self.paused:
            return
        self.paused, self.followers = True, []
        for member in self._members:
            pause = member.live.pause
            if pause is not None:
                self.followers.append(pause)
                self.resuming = member.live.resumes
                pause(moment)

    def validation_start(self) -> None:
        """Validation starts: the model may be exported or replaced there."""
        self._hooks.suspension.suspend(self._model)

    def validation_batch(self, batch: Any, index: int) -> None:
        """A validation batch of the first loader starts."""
        self._calls.validation_batch(index)
        for member in self._members:
            member.live.validation_batch(batch, index)

    def validation_end(self) -> None:
        """A validation ends, and its metrics are known."""
        self._calls.stop()
        for member in self._members:
            member.live.validation_end()
