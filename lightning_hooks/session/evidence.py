"""The evidence of bad steps in a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from typing_extensions import override

from lightning_hooks.declare.host import Host
from lightning_hooks.replay.capsule import CapsuleWriter
from lightning_hooks.replay.measure import StepMeasure
from lightning_hooks.replay.watch import StepWatch
from lightning_hooks.session.functional_calls import FunctionalCalls
from lightning_hooks.session.module_hooks import ModuleHooks
from lightning_hooks.session.settings import Settings


class SessionEvidence(StepWatch):
    """The evidence of the last steps of a run, and what running a bad one again has shown.

    Args:
        host: The training loop.
        calls: The calls of functions.
        hooks: The forward hooks.
        window_so_far: Returns the reports of the window under way, in plain types.

    Attributes:
        measure: What some steps gain.
    """

    def __init__(self, host: Host, calls: FunctionalCalls, hooks: ModuleHooks, window_so_far: Callable[[], dict[str, Any]]) -> None:
        super().__init__(host, self.unrecorded)
        self._calls, self._hooks, self._window_so_far = calls, hooks, window_so_far
        self.measure = StepMeasure(host, self.unrecorded)

    @override
    def close(self) -> None:
        super().close()
        self.measure.close()

    def keep(self, settings: Settings, written: set[str]) -> None:
        """Keep the evidence of each step, as the first monitor with ``capsule=`` says.

        Args:
            settings: Its arguments.
            written: The kinds of capsules that the run has written; those to come are added.
        """
        if settings.capsule is not None and not self.on:
            writer = CapsuleWriter(settings.capsule, settings.max_capsule_mb, settings.report_dir, written, self._window_so_far)
            self.open(writer, settings.keep_batches)

    def samples_of(self, epoch: int, batch: int) -> Sequence[int | str]:
        """The samples of a training batch; empty where they are not known any more, and with several ranks, which have others."""
        entry = self.ring.of(epoch, batch) if self._host.setup.world_size == 1 else None
        return () if entry is None or entry.rows is None else entry.rows.samples()

    @contextmanager
    def unrecorded(self) -> Iterator[None]:
        """Within this block the model runs for other purposes than training: nothing is recorded."""
        suspension = self._hooks.suspension
        self._calls.leave()
        before = suspension.suspended
        suspension.suspend(self._host.model)
        try:
            yield
        finally:
            if not before:
                suspension.restore()
