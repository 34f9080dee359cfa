"""Everything that belongs to one training run: hooks, optimizer steps, windows, alerts, and the sinks that receive them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, suppress
from typing import Any

from torch import Tensor, nn

from lightning_hooks.alerts import AlertError
from lightning_hooks.declare.context import Context
from lightning_hooks.declare.host import Host
from lightning_hooks.declare.step import Step
from lightning_hooks.declare.warn import Once, info, skipped_message
from lightning_hooks.hooks.modes import outside_modes
from lightning_hooks.hooks.selection import clean_name
from lightning_hooks.hooks.tensors import unread
from lightning_hooks.session.closing import ending, print_summaries, verdict_of
from lightning_hooks.session.evidence import SessionEvidence
from lightning_hooks.session.functional_calls import FunctionalCalls
from lightning_hooks.session.member import Member
from lightning_hooks.session.module_hooks import ModuleHooks
from lightning_hooks.session.run_alerts import RunAlerts
from lightning_hooks.session.run_record import open_record
from lightning_hooks.session.sampling import BatchClock, Overhead
from lightning_hooks.session.sinks import Sinks
from lightning_hooks.session.step_probe import StepProbe
from lightning_hooks.session.terminal import Terminal
from lightning_hooks.session.tracker_sink import TrackerSink
from lightning_hooks.session.windows import check_ranks_agree, merged
from lightning_hooks.trackers import some


def _name_unread(model: nn.Module) -> None:
    names = list(map(clean_name, unread(model)))
    if names:
        info(f"Not measured, since torch does not compute with their values: {some(names, 5)}.")


class CollectorEvents:
    """Calls the methods of collectors at the events of batches, but those that do nothing.

    Args:
        members: Whose collectors.
    """

    def __init__(self, members: Sequence[Member] = ()) -> None:
        self._calls: dict[str, list[Callable[..., None]]] = {
            event: [getattr(member.live, event) for member in members if member.live.follows(event)]
            for event in ("batch_start", "before_backward", "after_backward", "batch_end", "validation_batch", "validation_end")
        }
        self._paused = [member.gate for member in members if not member.live.records_recomputation]

    def notify(self, event: str, *given: Any) -> None:
        """Call the methods of an event."""
        for call in self._calls[event]:
            call(*given)

    def pause(self) -> None:
        """Backward starts: what fires now is recomputation."""
        for gate in self._paused:
            gate.pause()


def merging_times(member: Member) -> dict[str, int | None]:
    """The arguments that say when ranks merge what a member has, as they hold in this run."""
    return {
        "report_every_n_steps": member.windows.length,
        "every_n_steps": member.settings.every_n_steps,
        "check_every_n_steps": member.settings.check_every_n_steps,
    }


class Session:
    """One training run of one model.

    The training loop calls each event once, however many members there are. :meth:`close` removes everything, on every way out.

    Args:
        host: The training loop.

    Attributes:
        members: The collectors with their settings, in the order in which they joined.
        hooks: The forward hooks.
        calls: The calls of functions.
        probe: The optimizers' steps.
        evidence: That of the last steps, and what running a bad one again has shown.
        sinks: What receives the windows and the alerts.
        alerts: The alerts of all members.
    """

    def __init__(self, host: Host) -> None:
        self.host = host
        self.members: list[Member] = []
        self.hooks = ModuleHooks()
        self.calls = FunctionalCalls(host)
        self.probe = StepProbe(host)
        self.evidence = SessionEvidence(host, self.calls, self.hooks, self._window_so_far)
        self.sinks = Sinks(TrackerSink(host, lambda: self.members), Terminal(host, lambda: self.members))
        self.alerts = RunAlerts(host, self.evidence, self.sinks)
        self._info_once, self._closed = Once(info), False
        self._clock, self._collectors = BatchClock(host.setup.device), CollectorEvents()
        self._batch: tuple[int | None, Any] = None, None  # the training batch under way
        _name_unread(host.model)

    def join(self, member: Member) -> None:
        """Add a member, all of its hooks or none.

        Raises:
            Exception: What its collector raises where it cannot observe this model; nothing of it is left then.
            RuntimeError: If ranks have different sites or parameters.
        """
        self.hooks.suspension.restore()
        try:
            member.attach(self)
            check_ranks_agree(member.name, member.live, merging_times(member))
        except BaseException:
            member.detach()
            raise
        finally:
            self.hooks.suspension.suspend(self.host.model)
        self.members.append(member)
        self._collectors = CollectorEvents(self.members)
        open_record(member, self.host, self.sinks)
        if self.evidence.on:  # after all others: what they have read of the gradients is not read again
            self.probe.subscribe(self.evidence, {"gradients": self.evidence.gradients})

    def release(self, context: Context) -> None:
        """Remove what was registered for a member."""
        self.calls.release(context)
        self.probe.unsubscribe(context)
        self.hooks.release(context)
        self.members = [member for member in self.members if member.session is self]
        self._collectors = CollectorEvents(self.members)

    def _window_so_far(self) -> dict[str, Any]:
        """The reports of the window under way by monitor, in plain types."""
        return {member.kind.prefix: member.so_far(member.live.tables.pack()).to_dict() for member in self.members}

    @property
    def overheads(self) -> list[Overhead]:
        """What each member costs."""
        return [member.sampling.overhead for member in self.members if member.sampling.overhead is not None]

    # Events of the training loop.

    def epoch_start(self) -> None:
        """An epoch starts."""
        self.sinks.epoch_start()

    def batch_start(self, batch_idx: int, batch: Any) -> None:
        """A training batch starts."""
        self._batch = batch_idx, batch
        self.probe.batch_start()
        self.evidence.batch_start(batch_idx)
        self.hooks.suspension.restore()
        self._clock.start()
        for member in self.members:
            member.batch_start(batch_idx)
        self._collectors.notify("batch_start", batch)
        self.hooks.start()
        self.calls.start()

    def step(self, *args: Any, **kwargs: Any) -> AbstractContextManager[None]:
        """Return a block in which the loop calls ``training_step`` or ``validation_step`` with these arguments."""
        with outside_modes():
            self.evidence.forward(args, kwargs)
        return self.calls.step()

    def before_backward(self, loss: Tensor) -> None:
        """Backward starts."""
        self.calls.pause()
        self.evidence.before_backward(loss)
        self._collectors.pause()
        self.probe.before_backward()
        self._collectors.notify("before_backward", loss)

    def after_backward(self) -> None:
        """Backward is done."""
        if not self.host.setup.automatic_optimization:  # a manual loop may run forward again in the same batch
            for member in self.members:
                member.gate.resume()
        self.probe.after_backward()
        self.evidence.after_backward()
        self._collectors.notify("after_backward")

    def before_optimizer_step(self, optimizer: Any) -> Step | None:
        """Gradients are unscaled and not yet clipped; return the step under way, for who changes them."""
        self.calls.pause()
        self.probe.before_optimizer_step(optimizer)
        return self.probe.current(optimizer)

    def before_zero_grad(self, optimizer: Any) -> None:
        """The loop is about to zero an optimizer's gradients."""
        self.probe.before_zero_grad(optimizer)

    def batch_end(self, outputs: Any = None) -> None:
        """A training batch ends, and with it perhaps a window.

        Args:
            outputs: What ``training_step`` returned: a loss, a mapping with one, or None.

        Raises:
            AlertError: As :meth:`epoch_end`.
        """
        self._batch = None, None
        if self.calls.batch_end():
            self.calls.notify(member.live for member in self.members)
        self._collectors.notify("batch_end", outputs)
        taken = self._clock.stop()
        for member in self.members:
            member.batch_end(taken)
        self.hooks.gate.stop()
        self.probe.batch_end()
        self.evidence.batch_end()
        if self.host.position.epoch_ends:
            self.hooks.suspension.suspend(self.host.model)
            return  # the last window ends with the epoch, after validation
        full = [member for member in self.members if member.windows.is_full(member.context.batches)]
        if full:
            self._end_windows(full)

    def validation_start(self) -> None:
        """Validation starts: the model may be exported or replaced there."""
        self.hooks.suspension.suspend(self.host.model)

    def validation_batch(self, batch: Any, index: int) -> None:
        """A validation batch of the first loader starts."""
        self.calls.validation_batch(index)
        self._collectors.notify("validation_batch", batch, index)

    def validation_end(self) -> None:
        """A validation ends, and its metrics are known."""
        self.calls.stop()
        self._collectors.notify("validation_end")

    def epoch_end(self) -> None:
        """An epoch ends, and with it the window under way.

        Raises:
            AlertError: If a member with ``on_alert="raise"`` has a new alert.
        """
        self.calls.stop()
        for member in self.members:
            member.skip_batch()
        self.hooks.gate.stop()
        self.hooks.suspension.suspend(self.host.model)
        self.probe.epoch_end()
        self._end_windows(
            [member for member in self.members if member.context.batches or not member.windows.index], epoch_ends=True
        )
        self.sinks.reports([member for member in self.members if member.finish_epoch()], of_epoch=True)

    def _end_windows(self, members: Sequence[Member], epoch_ends: bool = False) -> None:
        """The windows of some members end: make the reports, and log, judge them, and pass them on to the sinks."""
        for member in members:
            member.live.window_end()
        tables, (calls, bad) = merged([m.live for m in members], [self.calls.waiting, self.evidence.results.waiting])
        if calls:
            self.calls.agree()
        if bad:
            self.evidence.results.agree()
        for member, table in zip(members, tables, strict=True):
            member.finish_window(table, epoch_ends)
        self.calls.notify(member.live for member in self.members)
        skipped = self.hooks.faults.skipped + sum(member.faults.skipped for member in self.members)
        if skipped:
            self._info_once(skipped_message(skipped))
        self.sinks.reports(members)
        try:
            self.alerts.window_end(members)
        finally:  # also where on_alert="raise" ends the run here
            self.evidence.passed_on(alert for member in members for alert in member.report.alerts)
            for member in members:
                member.history.add(member.report)
            self.sinks.window_end(members)

    def judge_urgent(self) -> bool:
        """Something is wrong that cannot wait: apply the urgent rules of all members that check within a window.

        Raises:
            AlertError: If a member with ``on_alert="raise"`` has a new alert.
        """
        return self.alerts.judge_urgent([member for member in self.members if member.early is not None])

    # The end.

    def finish(self) -> None:
        """Training has ended: print the summaries, and close."""
        if self.host.setup.is_global_zero:
            print_summaries(self.members)
        self.close("finished")

    def close(self, how: str, error: BaseException | None = None) -> None:
        """Remove all hooks, write the run's report and print the closing lines. Harmless when it was closed before.

        Args:
            how: ``finished``, ``exception``, ``interrupted`` or ``stopped``.
            error: What ended training.
        """
        if self._closed:
            return
        self._closed = True
        members: Sequence[Member] = self.members
        if error is not None and how == "exception" and not isinstance(error, AlertError):
            self.evidence.crashed(error)
            self.alerts.last_look(members, error, *self._batch)
        self._batch = None, None
        self.calls.stop()
        with suppress(ReferenceError):  # a model that is gone has no hooks left
            self.hooks.remove_all(self.host.model)
        for member in list(members):
            member.detach()
        self.probe.unsubscribe(self.evidence)
        self.evidence.close()
        self.calls.close()
        with self.sinks.ending():
            end = ending(self.host, how, error, self.alerts.stopped_by)
            for member in members:
                member.history.add(member.report)
                member.end = end
            self.members = list(members)  # which the sinks show
            self.sinks.end(end, verdict_of(members).headline)
