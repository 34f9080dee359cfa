"""Everything that belongs to one training run: hooks, optimizer steps, windows, alerts, and the sinks that receive them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from functools import partial
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.alerts import AlertError
from lightning_hooks.declare.context import Context
from lightning_hooks.declare.functional_calls import FunctionalCalls
from lightning_hooks.declare.host import Host
from lightning_hooks.declare.step import Step
from lightning_hooks.declare.warn import Once, info, skipped_message
from lightning_hooks.diagnostics.batches.inputs import tensors_in
from lightning_hooks.hooks import guarded
from lightning_hooks.hooks.modes import dispatch_modes, function_modes, is_captured, outside_modes
from lightning_hooks.replay.measure import StepMeasure
from lightning_hooks.replay.watch import StepWatch
from lightning_hooks.session.batches import Batches, BatchPlan
from lightning_hooks.session.member import Member
from lightning_hooks.session.module_hooks import ModuleHooks
from lightning_hooks.session.rank_checks import check_ranks_agree, wait_for_ranks
from lightning_hooks.session.run_alerts import RunAlerts
from lightning_hooks.session.run_record import open_record
from lightning_hooks.session.sinks import Sinks
from lightning_hooks.session.step_probe import StepProbe
from lightning_hooks.session.terminal import Terminal, end_event, print_summaries
from lightning_hooks.session.tracker_sink import TrackerSink
from lightning_hooks.session.windows import merged

_NOTHING = nullcontext()


class Session:
    """One training run of one model.

    The training loop calls each event once, however many members there are. :meth:`close` removes everything, on every way out.
    Where a window ends with a new alert of a member with ``on_alert="raise"``, that event raises an AlertError.

    Attributes:
        host: The training loop.
        members: The collectors with their settings, in the order in which they joined; the list stays the same one.
        hooks: The forward hooks.
        calls: The calls of functions.
        probe: The optimizers' steps.
        batches: The training batches, and the pauses between them.
        evidence: That of the last steps, and what running a bad one again has shown.
        measure: What some steps gain.
        sinks: What receives the windows and the alerts.
        alerts: The alerts of all members.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.members: list[Member] = []
        self.hooks, self.calls, self.probe = ModuleHooks(), FunctionalCalls(host), StepProbe(host)
        unrecorded = partial(_unrecorded, self)
        self.evidence, self.measure = StepWatch(host, unrecorded), StepMeasure(host, unrecorded)
        self.sinks = Sinks(TrackerSink(host, self.members), Terminal(host, lambda: self.members))
        self.alerts = RunAlerts(host, self.evidence, self.sinks)
        self.batches, self._plan = Batches(host.setup.device, self.hooks, self.calls), BatchPlan()  # of the batch under way
        self._batch: tuple[int | None, Any] = None, None  # the training batch under way
        self._tensors_in = guarded(tensors_in, "the batch", self._unread_batch, observes=True)
        self._info_once, self._closed = Once(info), False

    def join(self, member: Member) -> None:
        """Add a member, all of its hooks or none.

        Raises:
            Exception: What its collector raises where it cannot observe this model; nothing of it is left then.
            RuntimeError: If ranks have different sites, parameters or arguments, or one has no such member.
        """
        self.hooks.suspension.restore()
        try:
            member.attach(self)
            wait_for_ranks(member.name)
            check_ranks_agree(member)
        except BaseException:
            member.detach()
            raise
        finally:
            self.hooks.suspension.suspend(self.host.model)
        self.members.append(member)
        self.batches.follow(self.members)
        open_record(member, self.host, self.sinks)
        if self.evidence.on:  # after all others: what they have read of the gradients is not read again
            self.probe.subscribe(self.evidence, {"gradients": self.evidence.gradients})

    def release(self, context: Context) -> None:
        """Remove what was registered for a member."""
        self.calls.release(context)
        self.probe.unsubscribe(context)
        self.hooks.release(context)
        self.members[:] = [member for member in self.members if member.session is self]
        self.batches.follow(self.members)

    def _unread_batch(self, site: str, error: Exception) -> None:
        self.members[0].faults(site, error)

    # Events of the training loop.

    def epoch_start(self) -> None:
        """An epoch starts."""
        self.sinks.call("epoch_start")

    def batch_start(self, batch: Any, batch_idx: int) -> None:
        """A training batch starts."""
        self._batch, batches = (batch_idx, batch), self.batches
        batches.paused = False
        if batches.resuming:
            batches.resuming -= 1
            for pause in batches.pauses:
                pause()
        self.probe.batch_start()
        if self.evidence.on:
            self.evidence.batch_start(batch_idx)
        self._plan = plan = batches.start(batch_idx)
        if plan.hooks or not batch_idx or not self.host.setup.automatic_optimization:
            self.host.refresh()
        if plan.hooks:
            self.hooks.suspension.restore()
            self.hooks.gate.open = True
        elif not self.hooks.suspension.suspended:
            self.hooks.suspension.rest()
        tensors = self._tensors_in(batch) or () if plan.batch_start else ()
        for call in plan.batch_start:
            call(tensors)
        if plan.calls:
            self.calls.start()

    def step(self, *args: Any, **kwargs: Any) -> AbstractContextManager[None]:
        """Return a block in which the loop calls ``training_step`` or ``validation_step`` with these arguments."""
        if self._batch[0] is None:  # validation_step
            pass
        elif function_modes() or dispatch_modes():
            with outside_modes():
                self.forward(args, kwargs)
        elif self.measure.on:
            self.forward(args, kwargs)
        elif self.evidence.on:
            self.evidence.forward(args, kwargs)
        return self.calls.observer.step() if self.calls.running or self.calls.in_validation else _NOTHING

    def forward(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """``training_step``, or what gives the loss, is about to be called with these arguments."""
        if self.evidence.on:
            self.evidence.forward(args, kwargs)
        if self.measure.on:
            self.measure.forward(args, kwargs)

    def before_backward(self, loss: Tensor) -> None:
        """Backward starts."""
        if torch.cuda.is_initialized() and is_captured():  # type: ignore[no-untyped-call]
            return
        plan = self._plan
        if self.calls.running:
            self.calls.observer.pause()
        if self.evidence.on:
            self.evidence.before_backward(loss)
        if self.measure.on:
            self.measure.before_backward(loss)
        for gate in plan.paused:
            gate.open = False
        self.probe.before_backward()
        for call in plan.before_backward:
            call(loss)

    def after_backward(self) -> None:
        """Backward is done."""
        if torch.cuda.is_initialized() and is_captured():  # type: ignore[no-untyped-call]
            return
        plan = self._plan
        if not self.host.setup.automatic_optimization:  # a manual loop may run forward again in the same batch
            for gate in plan.gates:
                gate.resume()
        self.probe.after_backward()
        if self.evidence.on and self.host.loss_scaling.accumulation > 1:
            self.evidence.after_backward()
        for call in plan.after_backward:
            call()

    def before_optimizer_step(self, optimizer: Any) -> Step | None:
        """Gradients are unscaled and not yet clipped; return the step under way, for who changes them."""
        if self.calls.running:
            self.calls.observer.pause()
        return self.probe.before_optimizer_step(optimizer)

    def batch_end(self, outputs: Any = None) -> None:
        """A training batch ends, and with it perhaps a window; ``training_step`` returned ``outputs``."""
        plan, self._batch = self._plan, (None, None)
        if self.calls.running:
            self.calls.batch_end(member.live.calls_numbered for member in self.members)
        for call in plan.batch_end:
            call(outputs)
        full = self.batches.stop()
        self.hooks.gate.open = False
        for watch in self.probe.watches:
            if watch.ready:  # announced and not taken by now
                self.probe.skip(watch)
        self.evidence.now = None
        if self.measure.on:
            self.measure.batch_end()
        if self.host.position.epoch_ends:
            self.hooks.suspension.suspend(self.host.model)  # the last window ends with the epoch, after validation
        elif full and not self.host.position.uneven:
            _end_windows(self, full)

    def validation_start(self) -> None:
        """Validation starts: the model may be exported or replaced there."""
        self.hooks.suspension.suspend(self.host.model)

    def validation_batch(self, batch: Any, index: int) -> None:
        """A validation batch of the first loader starts."""
        self.calls.validation_batch(index)
        for member in self.members:
            member.live.validation_batch(batch, index)

    def validation_end(self) -> None:
        """A validation ends, and its metrics are known."""
        self.calls.stop()
        for member in self.members:
            member.live.validation_end()

    def epoch_end(self) -> None:
        """An epoch ends, and with it the window under way."""
        self.calls.stop()
        for member in self.members:
            member.skip_batch()
        self.hooks.gate.stop()
        self.hooks.suspension.suspend(self.host.model)
        ending = [member for member in self.members if member.context.batches or not member.windows.index]
        _end_windows(self, ending, epoch_ends=True)
        self.sinks.call("reports", [member for member in self.members if member.finish_epoch()], True)

    def judge_urgent(self) -> None:
        """Something is wrong that cannot wait: apply the urgent rules of all members that check within a window."""
        self.alerts.judge_urgent([member for member in self.members if member.early is not None])

    def close(self, how: str = "finished", error: BaseException | None = None) -> None:
        """Remove all hooks, write the run's report and print the closing lines. Harmless when it was closed before.

        Training has ``finished``, or was ``interrupted``, ``stopped``, or ended by an ``exception``.
        """
        if self._closed:
            return
        self._closed = True
        members = [*self.members]
        if how == "finished" and self.host.setup.is_global_zero:
            print_summaries(members)
        if error is not None and how == "exception" and not isinstance(error, AlertError):
            self.evidence.crashed(error)
            self.alerts.last_look(members, error, *self._batch)
        self._batch = None, None
        self.calls.stop()
        with suppress(ReferenceError):  # a model that is gone has no hooks left
            self.hooks.remove_all(self.host.model)
        for member in members:
            member.detach()
        self.probe.unsubscribe(self.evidence)
        self.evidence.close()
        self.measure.close()
        self.calls.close()
        self.members[:] = members  # which the sinks show
        self.sinks.end(members, end_event(self.host, how, error, self.alerts.stopped_by))


@contextmanager
def _unrecorded(session: Session) -> Iterator[None]:
    """Within this block the model runs for other purposes than training: nothing is recorded."""
    suspension = session.hooks.suspension
    session.calls.observer.stop()
    before = suspension.suspended
    suspension.suspend(session.host.model)
    try:
        yield
    finally:
        if not before:
            suspension.restore()


def _end_windows(session: Session, members: Sequence[Member], epoch_ends: bool = False) -> None:
    """Make the reports of the windows that end, log and judge them, and pass them on to the sinks."""
    session.batches.follow(session.members)  # in another window collectors may follow other events
    results = session.evidence.results
    for member in members:
        member.live.window_end()
    tables, (bad,) = merged([member.live for member in members], [results.waiting])
    if bad:
        results.agree()
    for member, table in zip(members, tables, strict=True):
        member.finish_window(table, epoch_ends)
    skipped = session.hooks.faults.skipped + sum(member.faults.skipped for member in session.members)
    if skipped:
        session._info_once(skipped_message(skipped))
    session.sinks.call("reports", members)
    try:
        session.alerts.window_end(members)
    finally:  # also where on_alert="raise" ends the run here
        session.evidence.passed_on(alert for member in members for alert in member.report.alerts)
        for member in members:
            member.history.add(member.report)
        session.sinks.call("window_end", members)
