"""The tracer: follows one step through forward and backward, and switches the account of the clock."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightning_hooks.hooks import Faults, Listener, guarded, tensors_in
from lightning_hooks.profiling.clock import BACKWARD, FORWARD, OTHER, RECOMPUTE, ROOT, Account, NodeMap, Place, clock_for


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


class _Frame(NamedTuple):
    site: int
    phase: int
    before: Account
    allocated: int | None


@dataclass(slots=True)
class TracedStep:
    """The calls of a traced step.

    Attributes:
        tallies: Site to its totals; only called sites.
        reads_memory: Whether allocated memory was read at every call, which takes time.
        counts: Whether its times are in the report.
        accounts: Account to milliseconds.
        overhead: Host milliseconds spent in the profiler's own hooks.
    """

    tallies: dict[int, Tally] = field(default_factory=dict)
    reads_memory: bool = False
    counts: bool = True
    accounts: dict[Account, float] = field(default_factory=dict)
    overhead: float = 0.0


class StepTracer:
    """Assigns the time of training steps to sites and phases.

    In forward the time of a site is from its call to its return. In backward each node of the graph belongs to the site whose
    forward created it, and the time until the node of another site starts is that site's.

    Args:
        device: The device of the model.
        faults: Records the hooks that raise.
    """

    def __init__(self, device: torch.device, faults: Faults) -> None:
        self.clock = clock_for(device)
        self.step = TracedStep()
        self.tracing = False
        self.now: Account = (ROOT, OTHER)
        self._nodes = NodeMap(self._hook_for)
        self._places: set[Place] = set()  # that have been called
        self._marks: dict[Place, Callable[..., Any]] = {}
        self._faults = faults
        self._stack: list[_Frame] = []
        self._ended: list[TracedStep] = []  # steps whose times are not read yet
        self._in_backward = False
        self._before_backward = self.now

    def hook(self, sites: Iterable[tuple[int, str, nn.Module | None]], register: Callable[..., object]) -> None:
        """Hook (site, name, module), where there is a module, by ``register(name, module, hook, kind, **options)``."""
        for site, name, module in sites:
            if module is not None:
                register(name, module, StepHook(self, "enter", site), "forward_pre")
                # The first forward hook, which also runs if the module raises, as it does under checkpointing.
                register(name, module, StepHook(self, "leave", site), "forward", prepend=True, always_call=True)

    # One step.

    def begin_step(self, phase: int, reads_memory: bool = False, counts: bool = True) -> None:
        """Begin a step, whose phase outside every module is ``phase``. Without ``counts`` its times are not in the report."""
        self.step = TracedStep(reads_memory=reads_memory, counts=counts)
        self._stack.clear()
        self._nodes.clear()
        self._in_backward = False
        self.now = (ROOT, phase)
        self.tracing = True
        self.clock.begin(self.now)

    def end_step(self) -> list[TracedStep]:
        """End the step, and return the steps whose times are known."""
        self.tracing = False
        self.clock.end()
        self._ended.append(self.step)
        return self.take(wait=False)

    def take(self, wait: bool) -> list[TracedStep]:
        """Return the steps that have ended and remove them: with ``wait`` all, else those whose times are known without a sync."""
        found = []
        for times in self.clock.take(wait):
            step = self._ended.pop(0)
            step.accounts, step.overhead = times
            found.append(step)
        return found

    def before_backward(self, loss: Tensor) -> None:
        """Begin backward at ``loss``: the remaining nodes of the graph belong to no module."""
        self.clock.pause()
        self._in_backward = True
        self._switch((ROOT, BACKWARD))
        self._nodes.claim([loss.grad_fn])
        self.clock.resume()

    def after_backward(self, account: Account = (ROOT, OTHER)) -> None:
        """End backward, after which time belongs to ``account``."""
        if self.tracing:
            self.clock.pause()
            self._in_backward = False
            self._switch(account)
            self.clock.resume()

    # Called by the hooks.

    def enter(self, site: int, *_: object) -> None:
        """Begin a module's call; site -1 is the model itself, whose time is that outside every module."""
        self.clock.pause()
        phase = RECOMPUTE if self._in_backward else FORWARD
        place = self.now[0]
        if site >= 0:
            place = self._called_again(place, site) if phase == RECOMPUTE and self.now[1] == BACKWARD else (*place, site)
            self._places.add(place)
            tally = self.step.tallies.setdefault(site, Tally())
            tally.calls += phase == FORWARD
            tally.recomputed += phase == RECOMPUTE
        allocated = self.clock.allocated() if self.step.reads_memory else None
        self._stack.append(_Frame(site, phase, self.now, allocated))
        self._nodes.move(place)
        self._switch((place, phase))
        self.clock.resume()

    def _called_again(self, place: Place, site: int) -> Place:
        """The place of ``site`` recomputed in backward at ``place``: next to that place, or next to one of its callers."""
        known = ((*place[:depth], site) for depth in range(len(place), -1, -1))
        return next((found for found in known if found in self._places), (*place, site))

    def leave(self, site: int, module: nn.Module, args: Any, output: Any) -> None:
        """End a module's call; ``output`` is None if it raised."""
        if not any(frame.site == site for frame in self._stack):
            return
        self.clock.pause()
        frame = self._stack.pop()
        while frame.site != site:  # a call whose end was not recorded
            frame = self._stack.pop()
        self._switch(frame.before)
        self._nodes.move(frame.before[0])
        if site >= 0 and frame.phase == FORWARD:
            tally = self.step.tallies[site]
            tally.output_bytes += sum(_bytes(tensor) for tensor in {id(tensor): tensor for tensor in tensors_in(output)}.values())
            if frame.allocated is not None:
                tally.memory_bytes += (self.clock.allocated() or 0) - frame.allocated
        if not self._stack or self._stack[-1].site < 0 or self._stack[-1].phase != frame.phase:
            # An outermost call: its nodes lead to those of all modules inside it.
            self._nodes.claim([tensor.grad_fn for tensor in tensors_in(output) if tensor.requires_grad])
        self.clock.resume()

    def node(self, place: Place, gradients: Any) -> None:
        """Begin a node of the graph, unless the time is that of its place already."""
        if self.now == (place, BACKWARD):
            return
        self.clock.pause()
        if not self._in_backward:  # not announced: torch.autograd.grad, or the user's own training loop
            self._in_backward = True
            self._before_backward = self.now
            # DDP and FSDP also use this callback for the end of backward; it has no public name.
            torch.autograd.Variable._execution_engine.queue_callback(guarded(self._end_of_graph, "end of backward", self._faults))
        self._switch((place, BACKWARD))
        self.clock.resume()

    def _end_of_graph(self) -> None:
        if self._in_backward:
            self.after_backward(self._before_backward)

    def _switch(self, target: Account) -> None:
        self.now = target
        self.clock.switch(target)

    def _hook_for(self, place: Place) -> Callable[..., Any]:
        if place not in self._marks:
            self._marks[place] = guarded(StepHook(self, "node", place), "backward", self._faults)
        return self._marks[place]


class StepHook(Listener):
    """Hook that passes its arguments to a method of a tracer while a step is traced.

    Args:
        tracer: An object with a flag ``tracing``.
        method: The name of its method.
        *first: The first arguments of the method.
    """

    def __init__(self, tracer: Any, method: str, *first: Any) -> None:
        self.tracer, self.method, self.first = tracer, method, first

    def __call__(self, *args: Any) -> None:
        """Call the method if a step is traced."""
        if self.tracer.tracing:
            getattr(self.tracer, self.method)(*self.first, *args)


def _bytes(tensor: Tensor) -> int:
    try:
        return tensor.numel() * tensor.element_size()
    except (RuntimeError, NotImplementedError):  # a layout without a size of its own
        return 0
