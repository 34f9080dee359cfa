"""Profiling of training steps: each is followed through forward and backward, and the account of the clock switched."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightning_hooks.hooks import Faults, ModuleSelector, guarded, tensors_in
from lightning_hooks.hooks.listener import CallStack, TraceHook
from lightning_hooks.hooks.selection import can_be_called, clean_name, compiled_around, compiled_regions, select_modules
from lightning_hooks.profiling.clock import BACKWARD, FORWARD, OTHER, RECOMPUTE, ROOT, Account, NodeMap, Place, clock_for
from lightning_hooks.profiling.report import LIMIT, ProfileReport, Tally, TracedStep, profile_report


class _Call(NamedTuple):
    phase: int
    before: Account
    allocated: int | None


class StepTracer:
    """Assigns the time of training steps to sites and phases.

    In forward the time of a site is from its call to its return. In backward each node of the graph belongs to the site whose
    forward created it, and the time until the node of another site starts is that site's. The first ``warmup_steps`` are not
    measured.
    """

    def __init__(
        self, sites: Sequence[tuple[str, nn.Module | None]], device: torch.device, warmup_steps: int, faults: Faults
    ) -> None:
        self._sites, self._device = sites, str(device)
        self.clock = clock_for(device)
        self.measured: list[TracedStep] = []  # of the epoch
        self._memory: dict[int, int] = {}  # site -> bytes; kept from epoch to epoch
        self.warmup_steps = warmup_steps
        self.steps = 0  # begun
        self.step = TracedStep()
        self.tracing = False
        self.now: Account = (ROOT, OTHER)
        self._nodes = NodeMap(cache(self._hook_for))
        self._places: set[Place] = set()  # that have been called
        self._faults = faults
        self._stack: CallStack[_Call] = CallStack()
        self._ended: list[TracedStep] = []  # steps whose times are not read yet
        self._in_backward = False
        self._before_backward = self.now

    def hook(self, register: Callable[..., object]) -> None:
        """Hook the sites that have a module by ``register(name, module, hook, kind, **options)``."""
        for site, (name, module) in enumerate(self._sites):
            if module is not None:
                register(name, module, TraceHook(self, "enter", site), "forward_pre")
                # The first forward hook, which also runs if the module raises, as it does under checkpointing.
                register(name, module, TraceHook(self, "leave", site), "forward", prepend=True, always_call=True)

    # One step.

    def begin_step(self, due: bool = True) -> bool:
        """Begin a step, and return whether it is traced.

        Traced are steps after the warm-up that are ``due``, and, where a device counts its allocated memory, the last step of the
        warm-up, in which memory is read at every call, which takes time.
        """
        number, self.steps = self.steps, self.steps + 1
        reads_memory = self.clock.allocated() is not None and number == max(self.warmup_steps - 1, 0)
        counts = number >= self.warmup_steps and due and len(self.measured) + len(self._ended) < LIMIT
        if not (counts or reads_memory):
            return False
        self.step = TracedStep(reads_memory=reads_memory, counts=counts)
        self._stack = CallStack()
        self._nodes.clear()
        self._in_backward = False
        self.now = (ROOT, FORWARD)
        self.tracing = True
        self.clock.begin(self.now)
        return True

    def end_step(self) -> None:
        """End the step."""
        self.tracing = False
        self.clock.end()
        self._ended.append(self.step)
        self._read(wait=False)

    def report(self, epoch: int, step: int, batches: int) -> ProfileReport:
        """Return the report of the steps since the last; waits for the device."""
        self._read(wait=True)
        return profile_report(
            [name for name, _ in self._sites],
            self.measured,
            self._memory,
            epoch=epoch,
            step=step,
            batches=batches,
            device=self._device,
        )

    def _read(self, wait: bool) -> None:
        """Add the steps that have ended to the samples: with ``wait`` all, else those whose times are known without a sync."""
        for times in self.clock.take(wait):
            step = self._ended.pop(0)
            step.accounts, step.overhead = times
            if step.reads_memory:
                self._memory = {site: tally.memory_bytes for site, tally in step.tallies.items()}
            if step.counts:
                self.measured.append(step)

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
        """Begin a module's call."""
        self.clock.pause()
        phase = RECOMPUTE if self._in_backward else FORWARD
        place, before = self.now
        place = self._called_again(place, site) if phase == RECOMPUTE and before == BACKWARD else (*place, site)
        self._places.add(place)
        tally = self.step.tallies.setdefault(site, Tally())
        tally.calls += phase == FORWARD
        tally.recomputed += phase == RECOMPUTE
        allocated = self.clock.allocated() if self.step.reads_memory else None
        self._stack.append((site, _Call(phase, self.now, allocated)))
        self._nodes.move(place)
        self._switch((place, phase))
        self.clock.resume()

    def _called_again(self, place: Place, site: int) -> Place:
        """The place of ``site`` recomputed in backward at ``place``: next to that place, or next to one of its callers."""
        known = ((*place[:depth], site) for depth in range(len(place), -1, -1))
        return next((found for found in known if found in self._places), (*place, site))

    def leave(self, site: int, module: nn.Module, args: Any, output: Any) -> None:
        """End a module's call; ``output`` is None if it raised."""
        if site not in self._stack.sites:
            return
        self.clock.pause()
        call = self._stack.end(site)
        assert call is not None  # it is on the stack
        self._switch(call.before)
        self._nodes.move(call.before[0])
        if call.phase == FORWARD:
            tally = self.step.tallies[site]
            tally.output_bytes += sum(_bytes(tensor) for tensor in {id(tensor): tensor for tensor in tensors_in(output)}.values())
            if call.allocated is not None:
                tally.memory_bytes += (self.clock.allocated() or 0) - call.allocated
        # The nodes of an outermost call lead to those of all modules inside it.
        if not self._stack or self._stack[-1][1].phase != call.phase:
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
        return guarded(TraceHook(self, "node", place), "backward", self._faults)


def _bytes(tensor: Tensor) -> int:
    try:
        return tensor.numel() * tensor.element_size()
    except (RuntimeError, NotImplementedError):  # a layout without a size of its own
        return 0


def profiled_modules(root: nn.Module, modules: ModuleSelector | None = None) -> list[tuple[str, nn.Module | None]]:
    """Select the modules of ``root`` to time, not itself: (name, module to hook) pairs; None for a module inside compiled code.

    None selects every module that can be called, since every module takes time and the total of a block is of interest too. A
    compiled module consists of fused kernels: a module that ``torch.compile(module)`` returned is timed as a whole, without hooks
    inside compiled code.
    """
    chosen = select_modules(root, (lambda _, module: can_be_called(module)) if modules is None else modules)
    wrappers = {clean_name(name): module for name, module in root.named_modules() if "_orig_mod" in module._modules}
    compiled = compiled_regions(root)
    around = ((name, module, compiled_around(name, compiled)) for name, module in chosen)
    return [(name, module if region is None else wrappers.get(name) if region == name else None) for name, module, region in around]
