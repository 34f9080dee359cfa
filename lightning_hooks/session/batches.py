"""The training batches of a session: which members sample them, what happens in them, and the pauses between them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from time import perf_counter
from typing import Any

import torch

from lightning_hooks.declare.context import DETAILED_EVERY, FIRST_DETAILED, Context
from lightning_hooks.declare.functional_calls import FunctionalCalls
from lightning_hooks.declare.warn import warn_of_faults
from lightning_hooks.hooks import Gate
from lightning_hooks.session.member import Member
from lightning_hooks.session.module_hooks import ModuleHooks
from lightning_hooks.session.sampling import KEPT, Sampling

Calls = list[Callable[..., None]]


@dataclass(slots=True)
class BatchPlan:
    """What happens in the training batches that the same members sample.

    Attributes:
        hooks: Whether forward hooks record.
        calls: Whether calls of functions are recorded.
        gates: Those of the members that sample it.
        paused: Those of them that are closed in backward, where a forward is recomputation.
        batch_start: What collectors do when it starts; the next ones likewise.
    """

    hooks: bool = False
    calls: bool = False
    gates: list[Gate] = field(default_factory=list)
    paused: list[Gate] = field(default_factory=list)
    batch_start: Calls = field(default_factory=list)
    before_backward: Calls = field(default_factory=list)
    after_backward: Calls = field(default_factory=list)
    batch_end: Calls = field(default_factory=list)


class Batches:
    """Counts and times each training batch, once for all members, opens the gates of those that sample it, and plans it.

    They are timed by the host's clock, or on CUDA by events on the device's stream.

    Attributes:
        paused: Whether training pauses, for a validation or at the end of an epoch.
        resuming: The batches to come at whose start ``pauses`` are called.
        pauses: What members do where training pauses, and when it has gone on.
    """

    def __init__(self, device: torch.device, hooks: ModuleHooks, calls: FunctionalCalls) -> None:
        self._hooks, self._calls = hooks, calls
        self._cuda = device.type == "cuda"
        self._now = _event if self._cuda else perf_counter
        self._begin: Any = None
        self._members: list[Member] = []
        self._of_members: list[tuple[Context, Sampling]] = []
        self._sampled = -1  # which members sampled the last batch, as a bit each; of that before a resumed run nothing is known
        self._plans: dict[tuple[int, int], BatchPlan] = {}  # by these of a batch and of the one before
        self.paused, self.resuming = False, 0
        self.pauses: list[Callable[..., Any]] = []

    def follow(self, members: Sequence[Member]) -> None:
        """Start and end the batches of these members from now on, and make new plans."""
        self._members = [*members]
        self._of_members = [(member.context, member.sampling) for member in members]
        self._plans.clear()

    def pause(self, moment: str) -> None:
        """What comes next, of validation or the epoch's end, is no training batch, and other callbacks have not come to it yet."""
        if self.paused:
            return
        self.paused, self.pauses = True, []
        for member in self._members:
            pause = member.live.pause
            if pause is not None:
                self.pauses.append(pause)
                self.resuming = member.live.resumes
                pause(moment)

    def start(self, batch: int) -> BatchPlan:
        """A training batch starts, with this index in the epoch; return what happens in it."""
        for member in self._members:
            if not member.sampling.decided:
                member.sampling.choose([sampling for _, sampling in self._of_members], member.live.agreed)
        self._begin, which, bit = self._now(), 0, 1
        for context, sampling in self._of_members:
            context.batch = batch
            sampling.gate.running = True
            if sampling.meter is not None:
                sampling.meter.seconds = 0.0
            if sampling.every_step:
                context.sampled_batches += 1
            elif context.batches % sampling.stride == 0:
                which |= bit
                sampling.gate.start(True)
                context.sampled_batches += 1
                detailed = context.sampled_batches <= FIRST_DETAILED or context.sampled_batches % DETAILED_EVERY == 1
                sampling.gate.in_detail = context.detailed = detailed
            context.batches += 1
            bit <<= 1
        key, self._sampled = (which, self._sampled), which
        return self._plans.get(key) or self._plan(*key)

    def _plan(self, which: int, before: int) -> BatchPlan:
        """What happens in a batch that these members sample, and those sampled the one before, as a bit each."""
        plan = self._plans[which, before] = BatchPlan()
        for place, (context, sampling) in enumerate(self._of_members):
            collector, gate = self._members[place].live, sampling.gate
            if which >> place & 1:
                plan.hooks = plan.hooks or bool(self._hooks.of(context))
                plan.calls = plan.calls or self._calls.of(context)
                plan.gates.append(gate)
                if not collector.records_recomputation:
                    plan.paused.append(gate)
            for event, call in collector.batch_events(bool(which >> place & 1), bool(before >> place & 1)).items():
                getattr(plan, event).append(call)
        return plan

    def stop(self) -> list[Member]:
        """A training batch ends; return the members whose window is full."""
        begin, self._begin, end = self._begin, None, self._now()
        full: list[Member] = []
        for member, (context, sampling) in zip(self._members, self._of_members, strict=True):
            gate = sampling.gate
            if member.unchecked_regions and gate.sampled:
                member.check_compiled()
            if member.faults.unreported:
                warn_of_faults(member.name, member.faults)
            if member.windows.length is not None and context.batches >= member.windows.length:
                full.append(member)
            sampled = gate.sampled or sampling.every_step
            if gate.sampled:
                gate.stop()
            gate.running = False
            if begin is None:
                continue
            sampling.batches += 1
            sampling.sampled_batches += sampled
            times = sampling.sampled if sampled else sampling.others
            if self._cuda and len(times) < KEPT:
                sampling.wait_for(sampled, begin, end)
            elif len(times) < KEPT:
                times.append((end - begin, 0.0 if sampling.meter is None else sampling.meter.seconds))
        return full


def _event() -> Any:
    """The moment that the device's stream gets to, behind what is queued."""
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
    event.record()
    return event
