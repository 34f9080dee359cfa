"""Hooks that record one step."""

from __future__ import annotations

import sys
import weakref
from collections import Counter
from collections.abc import Mapping
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightning_hooks.debugging.breaks import Breakpoint, Evidence, HookBreakError, why_no_call, why_no_gradient
from lightning_hooks.debugging.trace import MAX_CALLS, CallRecord, TensorInfo, Trace, describe
from lightning_hooks.debugging.watcher import Watcher, in_backward, uncompiled
from lightning_hooks.hooks import HookManager, float_tensors, guarded
from lightning_hooks.hooks.selection import compiled_around, compiled_regions, named_sites
from lightning_hooks.profiling.tracer import StepHook


class _OpenCall(NamedTuple):
    """A call that has begun."""

    site: int
    order: int
    depth: int
    inputs: list[TensorInfo]
    handling: BaseException | None


class Tracer:
    """Records the calls and gradients of a step, and checks a breakpoint at each.

    Args:
        sites: (name, module) pairs; the modules are not kept.
        statistics: Whether to read the values of tensors, which waits for the device.
        breakpoint: The breakpoint to check, or None.
    """

    def __init__(self, sites: list[tuple[str, nn.Module]], statistics: bool = False, breakpoint: Breakpoint | None = None) -> None:
        self.names = [name for name, _ in sites]
        self.kinds = [type(module).__name__ for _, module in sites]
        self.statistics, self.breakpoint = statistics, breakpoint
        self.tracing = False
        self._on_fault: Any = None
        self._watcher: Watcher | None = None
        self._clear()

    @property
    def active(self) -> bool:
        """Whether the breakpoint is checked."""
        return self.breakpoint is not None and self.breakpoint.tracing

    @active.setter
    def active(self, active: bool) -> None:
        if self.breakpoint is not None:
            self.breakpoint.tracing = active

    @property
    def innermost(self) -> str:
        """The innermost of the sites that are being called now; empty for none."""
        return self.names[self._stack[-1].site] if self._stack else ""

    def _clear(self) -> None:
        self._records: list[CallRecord | None] = []
        self._stack: list[_OpenCall] = []
        self._open: Counter[str] = Counter()
        self._evidence = [Evidence() for _ in self.names]
        self._views: list[tuple[int, weakref.ref[Tensor], int]] = []  # outputs that may still be changed in place
        self._error: BaseException | None = None
        self._raised_in, self._dropped = "", 0
        self._backward = False
        self._marks: list[tuple[int, int] | None] = []

    def attach(self, sites: list[tuple[str, nn.Module]], hooks: HookManager, on_fault: Any = None) -> None:
        """Hook the sites, in the order of the constructor; ``on_fault`` is called with the site and error of a hook that raises."""
        self._on_fault = on_fault
        for index, (name, module) in enumerate(sites):
            enter, leave = (guarded(StepHook(self, method, index), name, on_fault) for method in ("on_enter", "on_return"))
            hooks.register(module, enter, "forward_pre", label=name, with_kwargs=True)
            hooks.register(module, leave, "forward", label=name, with_kwargs=True, always_call=True)
            if self.breakpoint is not None:
                hooks.register(module, StepHook(self.breakpoint, "output", name), "forward", label=name, with_kwargs=True)

    # One step.

    def begin(self, root: nn.Module, watch: bool = True) -> None:
        """Start tracing; ``watch`` also inspects operations, unless the model is compiled."""
        self._clear()
        self.tracing = self.active = True
        self._marks = _gradient_marks(root)
        if watch and not compiled_regions(root):  # a mode would make compiled code run uncompiled
            sites = dict(named_sites(root))
            self._watcher = Watcher([(name, sites[name]) for name in self.names if name in sites], self._open)
            self._watcher.__enter__()  # type: ignore[no-untyped-call]

    def backward_begins(self, forward_is_over: bool = True) -> None:
        """Backward begins; ``forward_is_over`` ends the inspection of operations."""
        self._backward = True
        if forward_is_over:
            self.forward_is_over()

    def forward_is_over(self) -> None:
        """End the inspection of operations."""
        if self._watcher is not None:
            self._watcher.leave()

    def finish(self, root: nn.Module, title: str, error: BaseException | None = None) -> Trace:
        """Stop tracing, and return the trace; ``error`` is the exception that ended the step."""
        self.forward_is_over()
        self._gather(root)
        self.tracing = False
        backward = self._backward or any(seen.gradients for seen in self._evidence) or _gradient_marks(root) != self._marks
        backward = backward or (self._watcher is not None and self._watcher.backward)
        named = list(zip(self.names, self._evidence, strict=True))
        where = error.site if isinstance(error, HookBreakError) else self._raised_in if error is self._error else ""
        trace = Trace(
            title=title,
            calls=tuple(record for record in self._records if record is not None),
            never_called={} if error else {name: why_no_call(seen) for name, seen in named if not seen.calls},
            no_gradient={
                name: why_no_gradient(seen) for name, seen in named if backward and not error and seen.calls and not seen.gradients
            },
            error=f"{type(error).__name__}: {error}" if error is not None else "",
            raised_in=where,
            dropped=self._dropped,
        )
        self._watcher = None
        self._clear()
        return trace

    def stop(self) -> None:
        """Stop tracing and discard the current step."""
        self.forward_is_over()
        self._watcher = None
        self.tracing = self.active = False
        self._clear()

    def _gather(self, root: nn.Module) -> None:
        """Complete the evidence with properties of the model."""
        modules, regions = dict(named_sites(root)), compiled_regions(root)
        faults: Mapping[str, str] = getattr(self._on_fault, "errors", {})
        called = {name for name, seen in zip(self.names, self._evidence, strict=True) if seen.calls}
        self._check_views()
        for name, seen in zip(self.names, self._evidence, strict=True):
            seen.fault, seen.alone = faults.get(name, ""), not called
            module = modules.get(name)
            if module is None:
                continue
            parameters = list(module.parameters())
            seen.parameters, seen.trainable = bool(parameters), any(p.requires_grad for p in parameters)
            seen.updated = any(p.grad is not None for p in parameters)
            around = [(outer, modules[outer]) for outer in _around(name) if outer in modules]
            seen.attention = next((outer for outer, other in around if isinstance(other, nn.MultiheadAttention)), "")
            callable_ones = [outer for outer, other in around if not isinstance(other, nn.ModuleList | nn.ModuleDict)]
            if callable_ones and callable_ones[0] in self.names:
                seen.parent, seen.parent_called = callable_ones[0], callable_ones[0] in called
            seen.compiled = compiled_around(name, regions)
            if seen.compiled is not None:
                seen.region_called = any(not seen.compiled or f"{other}.".startswith(f"{seen.compiled}.") for other in called)
            if self._watcher is not None:
                seen.watched = True
                seen.direct = self._watcher.direct.get(name, "")
                seen.used, seen.fused = self._watcher.used.get(name, ""), self._watcher.fused.get(name, "")

    # Called by the hooks.

    @uncompiled
    def on_enter(self, index: int, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Record the beginning of a call."""
        self._check_views()
        order = len(self._records)
        self._records.append(None)
        inputs: list[TensorInfo] = []
        if order < MAX_CALLS:
            for key, value in (*(("", value) for value in args), *kwargs.items()):
                inputs += describe(value, key, self.statistics)
        self._stack.append(_OpenCall(index, order, len(self._stack), inputs, sys.exc_info()[1]))
        self._open[self.names[index]] += 1
        seen = self._evidence[index]
        seen.calls += 1
        seen.grad_enabled |= torch.is_grad_enabled()
        seen.inputs_differentiable |= any(tensor.requires_grad for tensor in float_tensors([*args, *kwargs.values()]))

    @uncompiled
    def on_return(self, index: int, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """Record the end of a call, also when its forward raised, and hook its output."""
        self._check_views()
        while self._stack:  # calls inside it that have not ended never will
            call = self._stack.pop()
            self._open[self.names[call.site]] -= 1
            if call.site == index:
                break
        else:
            return
        raised = sys.exc_info()[1]
        error = raised if output is None and raised is not None and raised is not call.handling else None
        recomputed = in_backward()
        stopped = recomputed and type(error).__name__.startswith("_StopRecomputation")
        if stopped:
            error = None  # how checkpointing ends a recomputation early
        if error is not None and error is not self._error:
            self._error, self._raised_in = error, self.names[index]
        text = "" if error is None else f"{type(error).__name__}: {error}"
        self._keep(call, "recompute" if recomputed else "forward", () if text or stopped else output, text)
        if error is None:
            self._observe(call, output)

    def _keep(self, call: _OpenCall, phase: str, output: Any, error: str = "") -> None:
        if call.order >= MAX_CALLS:
            self._dropped += 1
            return
        name, kind = self.names[call.site], self.kinds[call.site]
        outputs = describe(output, "", self.statistics)
        self._records[call.order] = CallRecord(call.order, phase, name, kind, call.depth, tuple(call.inputs), tuple(outputs), error)

    def _observe(self, call: _OpenCall, output: Any) -> None:
        """Record the evidence of a site's output, and hook the tensors whose gradients are to be recorded."""
        seen, name = self._evidence[call.site], self.names[call.site]
        for tensor in float_tensors(output):
            seen.floats = True
            if not tensor.requires_grad:
                continue
            seen.differentiable = True
            seen.leaf |= tensor.is_leaf
            if tensor._is_view():
                seen.view = True
                self._views.append((call.site, weakref.ref(tensor), tensor._version))
            if not tensor.is_leaf:
                hook = guarded(StepHook(self, "on_gradient", call.site, call.depth), name, self._on_fault)
                tensor.register_hook(hook)  # type: ignore[no-untyped-call]

    def _check_views(self) -> None:
        """Record which views were changed in place, which drops their hooks. There is no public count of such changes."""
        kept = []
        for index, reference, version in self._views:
            tensor = reference()
            if tensor is not None and tensor._version != version:
                self._evidence[index].changed = True
            elif tensor is not None:
                kept.append((index, reference, version))
        self._views = kept

    @uncompiled
    def on_gradient(self, index: int, depth: int, gradient: Tensor) -> None:
        """Record a gradient at a site's output."""
        self._evidence[index].gradients += 1
        call = _OpenCall(index, len(self._records), depth, [], None)
        self._records.append(None)
        self._keep(call, "backward", gradient)


def _around(name: str) -> list[str]:
    """The names of the modules around a module, the nearest first."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]


def _gradient_marks(root: nn.Module) -> list[tuple[int, int] | None]:
    """Marks of the parameters' gradients, which change when backward writes to them."""
    return [None if p.grad is None else (id(p.grad), p.grad._version) for p in root.parameters()]
