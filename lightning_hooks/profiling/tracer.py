"""The tracer: follows one step through forward and backward, and switches the account of the clock."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.hooks import Faults, Listener, guarded, tensors_in
from lightning_hooks.profiling.calls import ROOT, CallTree, Phase, account, phase_of, place_of
from lightning_hooks.profiling.clock import clock_for
from lightning_hooks.profiling.graph import NodeMap


@dataclass(slots=True)
class Tally:
    """Totals of the calls of one site in one step.

    Attributes:
        calls: Forward calls.
        recomputed: Forward calls inside backward.
        output_bytes: Bytes of the returned tensors, in forward.
        memory_bytes: Growth of the allocated device memory; only in a step that reads it.
    """

    calls: int = 0
    recomputed: int = 0
    output_bytes: int = 0
    memory_bytes: int = 0


@dataclass(slots=True)
class _Frame:
    site: int
    phase: Phase
    before: int  # the previous account
    allocated: int | None = None


@dataclass(slots=True)
class TracedStep:
    """The calls of a traced step.

    Attributes:
        tallies: Site to its totals; only called sites.
        reads_memory: Whether allocated memory was read at every call, which takes time.
        counts: Whether its times are in the report.
    """

    tallies: dict[int, Tally] = field(default_factory=dict)
    reads_memory: bool = False
    counts: bool = True


class StepTracer:
    """Assigns the time of training steps to sites and phases.

    In forward the time of a site is from its call to its return. In backward each node of the graph belongs to the site whose
    forward created it, and the time until the node of another site starts is that site's.

    Args:
        device: The device of the model.
        faults: Records the hooks that raise.
    """

    def __init__(self, device: torch.device, faults: Faults) -> None:
        self.tree = CallTree()
        self.clock = clock_for(device)
        self.step = TracedStep()
        self.tracing = False
        self.now = 0  # the current account
        self._nodes = NodeMap(self._hook_for)
        self._marks: dict[int, Callable[..., Any]] = {}
        self._faults = faults
        self._stack: list[_Frame] = []
        self._in_backward = False
        self._before_backward = 0

    # One step.

    def begin_step(self, phase: Phase, reads_memory: bool = False, counts: bool = True) -> None:
        """Begin a step, whose phase outside every module is ``phase``. Without ``counts`` its times are not in the report."""
        self.step = TracedStep(reads_memory=reads_memory, counts=counts)
        self._stack.clear()
        self._nodes.clear()
        self._in_backward = False
        self.now = account(ROOT, phase)
        self.tracing = True
        self.clock.begin(self.now)

    def end_step(self) -> TracedStep:
        """End the step."""
        self.tracing = False
        self.clock.end()
        return self.step

    def abandon(self) -> None:
        """Discard the step."""
        self.tracing = False
        self.clock.abandon()

    def before_backward(self, loss: Tensor) -> None:
        """Begin backward at ``loss``: the remaining nodes of the graph belong to no module."""
        self.clock.pause()
        self._in_backward = True
        self._switch(account(ROOT, Phase.BACKWARD))
        self._nodes.claim([loss.grad_fn])
        self.clock.resume()

    def after_backward(self) -> None:
        """End backward."""
        self.clock.pause()
        self._in_backward = False
        self._switch(account(ROOT, Phase.OTHER))
        self.clock.resume()

    # Called by the hooks.

    def enter(self, site: int) -> None:
        """Begin a module's call; site -1 is the model itself, whose time is that outside every module."""
        if not self.tracing:
            return
        self.clock.pause()
        phase = Phase.RECOMPUTE if self._in_backward else Phase.FORWARD
        place = place_of(self.now)
        if site >= 0:
            again = self._in_backward and phase_of(self.now) is Phase.BACKWARD
            place = self.tree.called_again(place, site) if again else self.tree.called(place, site)
            tally = self.step.tallies.setdefault(site, Tally())
            tally.calls += phase is Phase.FORWARD
            tally.recomputed += phase is Phase.RECOMPUTE
        allocated = self.clock.allocated() if self.step.reads_memory else None
        self._stack.append(_Frame(site, phase, self.now, allocated))
        self._nodes.move(place)
        self._switch(account(place, phase))
        self.clock.resume()

    def leave(self, site: int, output: Any) -> None:
        """End a module's call; ``output`` is None if it raised."""
        if not self.tracing or not any(frame.site == site for frame in self._stack):
            return
        self.clock.pause()
        frame = self._stack.pop()
        while frame.site != site:  # a call whose end was not recorded
            frame = self._stack.pop()
        self._switch(frame.before)
        self._nodes.move(place_of(frame.before))
        if site >= 0 and frame.phase is Phase.FORWARD:
            self._weigh(self.step.tallies[site], frame, output)
        if not self._stack or self._stack[-1].site < 0 or self._stack[-1].phase is not frame.phase:
            # An outermost call: its nodes lead to those of all modules inside it.
            self._nodes.claim([tensor.grad_fn for tensor in tensors_in(output) if tensor.requires_grad])
        self.clock.resume()

    def _weigh(self, tally: Tally, frame: _Frame, output: Any) -> None:
        tally.output_bytes += sum(_bytes(tensor) for tensor in {id(tensor): tensor for tensor in tensors_in(output)}.values())
        allocated = self.clock.allocated() if frame.allocated is not None else None
        if allocated is not None and frame.allocated is not None:
            tally.memory_bytes += allocated - frame.allocated

    def node(self, target: int) -> None:
        """Begin a node of the graph."""
        self.clock.pause()
        if not self._in_backward:  # not announced: torch.autograd.grad, or the user's own training loop
            self._in_backward = True
            self._before_backward = self.now
            # DDP and FSDP also use this callback for the end of backward; it has no public name.
            torch.autograd.Variable._execution_engine.queue_callback(self._mark_end())
        self._switch(target)
        self.clock.resume()

    def graph_done(self) -> None:
        """End a backward pass that was not announced."""
        if self.tracing and self._in_backward:
            self.clock.pause()
            self._in_backward = False
            self._switch(self._before_backward)
            self.clock.resume()

    def _switch(self, target: int) -> None:
        self.now = target
        self.clock.switch(target)

    def _hook_for(self, place: int) -> Callable[..., Any]:
        mark = self._marks.get(place)
        if mark is None:
            mark = self._marks[place] = guarded(NodeListener(self, account(place, Phase.BACKWARD)), "backward", self._faults)
        return mark

    def _mark_end(self) -> Callable[..., Any]:
        return guarded(self.graph_done, "end of backward", self._faults)


class EnterListener(Listener):
    """Forward pre-hook of one site."""

    def __init__(self, tracer: StepTracer, site: int) -> None:
        self.tracer, self.site = tracer, site

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """Begin the call."""
        self.tracer.enter(self.site)


class LeaveListener(Listener):
    """Forward hook of one site."""

    def __init__(self, tracer: StepTracer, site: int) -> None:
        self.tracer, self.site = tracer, site

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """End the call."""
        self.tracer.leave(self.site, output)


class NodeListener(Listener):
    """Pre-hook of the autograd nodes of one place."""

    def __init__(self, tracer: StepTracer, target: int) -> None:
        self.tracer, self.target = tracer, target

    def __call__(self, gradients: tuple[Any, ...]) -> None:
        """Begin the node, unless its account is the current one."""
        if self.tracer.now != self.target and self.tracer.tracing:
            self.tracer.node(self.target)


def _bytes(tensor: Tensor) -> int:
    try:
        return tensor.numel() * tensor.element_size()
    except (RuntimeError, NotImplementedError):  # a layout without a size of its own
        return 0
