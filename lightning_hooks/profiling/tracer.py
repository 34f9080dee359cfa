"""The tracer: follows one step through forward and backward, and tells the clock whose time it is."""

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
    """What one step's calls of one site came to.

    Attributes:
        calls: Forward calls.
        recomputed: Forward calls inside backward.
        output_bytes: Bytes of the tensors they returned, in forward.
        memory_bytes: By how much allocated device memory grew over them; only in a step that reads it.
    """

    calls: int = 0
    recomputed: int = 0
    output_bytes: int = 0
    memory_bytes: int = 0


@dataclass(slots=True)
class _Frame:
    site: int
    phase: Phase
    before: int  # the account to go back to
    allocated: int | None = None


@dataclass(slots=True)
class TracedStep:
    """What a traced step leaves, besides its times.

    Attributes:
        tallies: Site to its calls; only those that were called.
        reads_memory: Whether allocated memory was read at every call, which takes time.
        counts: Whether its times are wanted.
    """

    tallies: dict[int, Tally] = field(default_factory=dict)
    reads_memory: bool = False
    counts: bool = True


class StepTracer:
    """Divides the time of training steps among sites and phases.

    In forward a site's time runs from its call to its return. Backward runs the nodes of the graph; each belongs to the site
    that was running when forward made it, and so does the time until the next node of another site starts.

    Args:
        device: Where the model is.
        faults: Where hooks that raise are noted.
    """

    def __init__(self, device: torch.device, faults: Faults) -> None:
        self.tree = CallTree()
        self.clock = clock_for(device)
        self.step = TracedStep()
        self.tracing = False
        self.now = 0  # the account whose time it is
        self._nodes = NodeMap(self._hook_for)
        self._marks: dict[int, Callable[..., Any]] = {}
        self._faults = faults
        self._stack: list[_Frame] = []
        self._in_backward = False
        self._before_backward = 0

    # What happens around a step.

    def begin_step(self, phase: Phase, reads_memory: bool = False, counts: bool = True) -> None:
        """Trace what follows; outside every module it is in ``phase``. A step that does not ``count`` is not in the times."""
        self.step = TracedStep(reads_memory=reads_memory, counts=counts)
        self._stack.clear()
        self._nodes.clear()
        self._in_backward = False
        self.now = account(ROOT, phase)
        self.tracing = True
        self.clock.begin(self.now)

    def end_step(self) -> TracedStep:
        """The step is over."""
        self.tracing = False
        self.clock.end()
        return self.step

    def abandon(self) -> None:
        """There will be no end."""
        self.tracing = False
        self.clock.abandon()

    def before_backward(self, loss: Tensor) -> None:
        """Backward starts at ``loss``: what is left of the graph belongs to no module."""
        self.clock.pause()
        self._in_backward = True
        self._switch(account(ROOT, Phase.BACKWARD))
        self._nodes.claim([loss.grad_fn])
        self.clock.resume()

    def after_backward(self) -> None:
        """Backward is over."""
        self.clock.pause()
        self._in_backward = False
        self._switch(account(ROOT, Phase.OTHER))
        self.clock.resume()

    # What the hooks tell.

    def enter(self, site: int) -> None:
        """A module is called; site -1 is the model itself, whose time is that outside every module."""
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
        """A module returns; ``output`` is None if it raised."""
        if not self.tracing or not any(frame.site == site for frame in self._stack):
            return
        self.clock.pause()
        frame = self._stack.pop()
        while frame.site != site:  # one whose return was not heard
            frame = self._stack.pop()
        self._switch(frame.before)
        self._nodes.move(place_of(frame.before))
        if site >= 0 and frame.phase is Phase.FORWARD:
            self._weigh(self.step.tallies[site], frame, output)
        if not self._stack or self._stack[-1].site < 0 or self._stack[-1].phase is not frame.phase:
            # An outermost one: with its nodes come those of all modules inside it.
            self._nodes.claim([tensor.grad_fn for tensor in tensors_in(output) if tensor.requires_grad])
        self.clock.resume()

    def _weigh(self, tally: Tally, frame: _Frame, output: Any) -> None:
        tally.output_bytes += sum(_bytes(tensor) for tensor in {id(tensor): tensor for tensor in tensors_in(output)}.values())
        allocated = self.clock.allocated() if frame.allocated is not None else None
        if allocated is not None and frame.allocated is not None:
            tally.memory_bytes += allocated - frame.allocated

    def node(self, target: int) -> None:
        """A node of the graph is about to run."""
        self.clock.pause()
        if not self._in_backward:  # one that nobody announced: torch.autograd.grad, or a training loop of the user's own
            self._in_backward = True
            self._before_backward = self.now
            # How DDP and FSDP too learn that backward is over; it has no public name.
            torch.autograd.Variable._execution_engine.queue_callback(self._mark_end())
        self._switch(target)
        self.clock.resume()

    def graph_done(self) -> None:
        """The backward pass under way has run its last node."""
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
        """The module is called."""
        self.tracer.enter(self.site)


class LeaveListener(Listener):
    """Forward hook of one site."""

    def __init__(self, tracer: StepTracer, site: int) -> None:
        self.tracer, self.site = tracer, site

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        """The module returns."""
        self.tracer.leave(self.site, output)


class NodeListener(Listener):
    """Pre-hook of the autograd nodes of one place."""

    def __init__(self, tracer: StepTracer, target: int) -> None:
        self.tracer, self.target = tracer, target

    def __call__(self, gradients: tuple[Any, ...]) -> None:
        """A node runs; most have their place running already."""
        if self.tracer.now != self.target and self.tracer.tracing:
            self.tracer.node(self.target)


def _bytes(tensor: Tensor) -> int:
    try:
        return tensor.numel() * tensor.element_size()
    except (RuntimeError, NotImplementedError):  # a layout without a size of its own
        return 0
