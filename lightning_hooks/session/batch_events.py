"""What the collectors of a session do at the events of a training batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from torch import Tensor

from lightning_hooks.session.member import Member


class CollectorEvents:
    """Calls the methods of collectors at each event, but those that do nothing.

    Args:
        members: Whose collectors.
    """

    def __init__(self, members: Sequence[Member] = ()) -> None:
        def of(event: str) -> list[Callable[..., None]]:
            return [getattr(member.live, event) for member in members if member.live.follows(event)]

        self._starts, self._ends = of("batch_start"), of("batch_end")
        self._before_backward, self._after_backward = of("before_backward"), of("after_backward")
        self._paused = [member.gate for member in members if not member.live.records_recomputation]

    def batch_start(self, batch: Any) -> None:
        """A training batch starts."""
        for start in self._starts:
            start(batch)

    def pause(self) -> None:
        """Backward starts: what fires now is recomputation."""
        for gate in self._paused:
            gate.pause()

    def before_backward(self, loss: Tensor) -> None:
        """Backward starts."""
        for start in self._before_backward:
            start(loss)

    def after_backward(self) -> None:
        """Backward is done."""
        for end in self._after_backward:
            end()

    def batch_end(self, outputs: Any) -> None:
        """A training batch ends; with what ``training_step`` returned."""
        for end in self._ends:
            end(outputs)
