"""Hooks that record one step."""

from __future__ import annotations

import sys
import weakref
from collections.abc import Callable, Mapping
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from lightning_hooks.debugging.breaks import Breakpoint, Call, HookBreakError
from lightning_hooks.debugging.describe import TensorInfo, describe
from lightning_hooks.debugging.silence import Evidence, why_no_call, why_no_gradient
from lightning_hooks.debugging.trace import MAX_CALLS, CallRecord, Trace
from lightning_hooks.debugging.watcher import Watcher, in_backward
from lightning_hooks.hooks import HookManager, Listener, float_tensors, guarded
from lightning_hooks.hooks.selection import compiled_around, compiled_regions, named_sites

F = TypeVar("F", bound=Callable[..., Any])


def _uncompiled(function: F) -> F:
    """Return the function with tracing by torch.compile disabled: a compiled graph breaks there, in traced steps only."""
    disabled: F = torch.compiler.disable(function)  # type: ignore[no-untyped-call]
    return disabled


class _Open:
    """A call that has begun."""

    def __init__(self, index: int, order: int, depth: int, inputs: list[TensorInfo], handling: BaseException | None) -> None:
        self.index, self.order, self.depth, self.inputs, self.handling = index, order, depth, inputs, handling


class Tracer:
    """Records the calls and gradients of a step, and checks a breakpoint at each.

    Args:
        sites: (name, module) pairs; the modules are not kept.
        statistics: Whether to read the values of tensors, which waits for the device.
        breakpoint: The breakpoint to check, or None.
        break_in: The phases in which to check it, ``forward`` or ``backward``.
    """

    def __init__(
        self,
        sites: list[tuple[str, nn.Module]],
        statistics: bool = False,
        breakpoint: Breakpoint | None = None,
        break_in: tuple[str, ...] = ("forward",),
    ) -> None:
        self.names = [name for name, _ in sites]
        self.kinds = [type(module).__name__ for _, module in sites]
        self.statistics, self.breakpoint, self.break_in = statistics, breakpoint, break_in
        self.active = False  # whether the breakpoint is checked
        self.tracing = False
        self._faults: Mapping[str, str] = {}
        self._watcher: Watcher | None = None
        self._clear()

    def _clear(self) -> None:
        self._records: list[CallRecord | None] = []
        self._stack: list[_Open] = []
        self._open: dict[str, int] = {}
        self._evidence = [Evidence() for _ in self.names]
        self._views: list[tuple[int, weakref.ref[Tensor], int]] = []  # outputs that may still be changed in place
        self._error: BaseException | None = None
        self._raised_in, self._dropped = "", 0
        self._backward = False
        self._marks: list[tuple[int, int] | None] = []

    def attach(self, sites: list[tuple[str, nn.Module]], hooks: HookManager, on_fault: Any = None) -> None:
        """Hook the sites, in the order of the constructor; ``on_fault`` is called with the site and error of a hook that raises."""
        self._faults = getattr(on_fault, "errors", {})
        for index, (name, module) in enumerate(sites):
            enter, leave = guarded(_Enter(self, index), name, on_fault), guarded(_Leave(self, index, on_fault), name, on_fault)
            hooks.register(module, enter, "forward_pre", label=name, with_kwargs=True)
            hooks.register(module, leave, "forward", label=name, with_kwargs=True, always_call=True)
            if self.breakpoint is not None:
                hooks.register(module, _Break(self, index), "forward", label=name, with_kwargs=True)

    # One step.

    def begin(self, root: nn.Module, watch: bool = True) -> None:
        """Start tracing; ``watch`` also inspects operations, unless the model is compiled."""
        self._clear()
        self.tracing = self.active = True
        self._marks = _gradient_marks(root)
        if watch and not compiled_regions(root):  # a mode would make compiled code run uncompiled
            sites = dict(named_sites(root))
            self._watcher = Watcher([(name, sites[name]) for name in self.names if name in sites], self._is_open)
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
        raised = f"{type(error).__name__}: {error}" if error is not None else ""
        backward = self._backward or any(seen.gradients for seen in self._evidence) or _gradient_marks(root) != self._marks
        backward = backward or (self._watcher is not None and self._watcher.backward)
        named = list(zip(self.names, self._evidence, strict=True))
        trace = Trace(
            title=title,
            calls=tuple(record for record in self._records if record is not None),
            never_called={} if error else {name: why_no_call(seen) for name, seen in named if not seen.calls},
            no_gradient={
                name: why_no_gradient(seen) for name, seen in named if backward and not error and seen.calls and not seen.gradients
            },
            error=raised,
            raised_in=self._place_of(error),
            dropped=self._dropped,
        )
        self._watcher = None
        self._clear()
        return trace

    def _place_of(self, error: BaseException | None) -> str:
        if isinstance(error, HookBreakError):
            return error.site
        return self._raised_in if error is not None and error is self._error else ""

    def stop(self) -> None:
        """Stop tracing and discard the current step."""
        self.forward_is_over()
        self._watcher = None
        self.tracing = self.active = False
        self._clear()

    def _is_open(self, name: str) -> bool:
        return self._open.get(name, 0) > 0

    def _gather(self, root: nn.Module) -> None:
        """Complete the evidence with properties of the model."""
        modules = dict(named_sites(root))
        regions = compiled_regions(root)
        called = {name for name, seen in zip(self.names, self._evidence, strict=True) if seen.calls}
        self._check_views()
        for name, seen in zip(self.names, self._evidence, strict=True):
            seen.fault, seen.alone = self._faults.get(name, ""), not called
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

    @_uncompiled
    def on_enter(self, index: int, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Record the beginning of a call."""
        self._check_views()
        order = len(self._records)
        self._records.append(None)
        inputs: list[TensorInfo] = []
        if order < MAX_CALLS:
            for value in args:
                inputs += describe(value, "", self.statistics)
            for key, value in kwargs.items():
                inputs += describe(value, key, self.statistics)
        self._stack.append(_Open(index, order, len(self._stack), inputs, sys.exc_info()[1]))
        name = self.names[index]
        self._open[name] = self._open.get(name, 0) + 1
        seen = self._evidence[index]
        seen.calls += 1
        seen.grad_enabled |= torch.is_grad_enabled()
        seen.inputs_differentiable |= any(tensor.requires_grad for tensor in float_tensors([*args, *kwargs.values()]))

    def on_return(self, index: int, output: Any) -> _Open | None:
        """Record the end of a call, and return the call; None if it raised."""
        self._check_views()
        while self._stack:  # calls inside it that have not ended never will
            call = self._stack.pop()
            self._open[self.names[call.index]] -= 1
            if call.index == index:
                break
        else:
            return None
        raised = sys.exc_info()[1]
        error = raised if output is None and raised is not None and raised is not call.handling else None
        recomputed = in_backward()
        stopped = recomputed and type(error).__name__.startswith("_StopRecomputation")
        if stopped:
            error = None  # how checkpointing ends a recomputation early
        if error is not None and error is not self._error:
            self._error, self._raised_in = error, self.names[index]
        outputs = describe(output, "", self.statistics) if error is None and not stopped and call.order < MAX_CALLS else []
        self._keep(
            call, "recompute" if recomputed else "forward", outputs, "" if error is None else f"{type(error).__name__}: {error}"
        )
        return None if error is not None else call

    def _keep(self, call: _Open, phase: str, outputs: list[TensorInfo], error: str = "") -> None:
        if call.order >= MAX_CALLS:
            self._dropped += 1
            return
        name, kind = self.names[call.index], self.kinds[call.index]
        self._records[call.order] = CallRecord(call.order, phase, name, kind, call.depth, tuple(call.inputs), tuple(outputs), error)

    def record_output(self, index: int, output: Any) -> list[Tensor]:
        """Record the evidence of a site's output, and return the tensors whose gradients are to be recorded."""
        seen = self._evidence[index]
        tensors = float_tensors(output)
        seen.floats |= bool(tensors)
        for tensor in tensors:
            seen.differentiable |= tensor.requires_grad
            if not tensor.requires_grad:
                continue
            seen.leaf |= tensor.is_leaf
            seen.view |= tensor._is_view()
            if tensor._is_view():
                self._views.append((index, weakref.ref(tensor), tensor._version))
        return [tensor for tensor in tensors if tensor.requires_grad and not tensor.is_leaf]

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

    @_uncompiled
    def on_gradient(self, index: int, depth: int, gradient: Tensor) -> None:
        """Record a gradient at a site's output."""
        self._evidence[index].gradients += 1
        call = _Open(index, len(self._records), depth, [], None)
        self._records.append(None)
        self._keep(call, "backward", describe(gradient, "", self.statistics) if call.order < MAX_CALLS else [])

    def check(self, call: Call) -> None:
        """Check the breakpoint."""
        if self.breakpoint is not None and self.active and call.phase in self.break_in:
            self.breakpoint.check(call)


class _Enter(Listener):
    """Forward pre-hook of one site."""

    def __init__(self, tracer: Tracer, index: int) -> None:
        self.tracer, self.index = tracer, index

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        if self.tracer.tracing:
            self.tracer.on_enter(self.index, args, kwargs)


class _Leave(Listener):
    """Forward hook of one site, also called when its forward raised."""

    def __init__(self, tracer: Tracer, index: int, on_fault: Any) -> None:
        self.tracer, self.index, self.on_fault = tracer, index, on_fault

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.tracer.tracing:
            self._observe(output)

    @_uncompiled
    def _observe(self, output: Any) -> None:
        call = self.tracer.on_return(self.index, output)
        if call is None:
            return
        name = self.tracer.names[self.index]
        for tensor in self.tracer.record_output(self.index, output):
            hook = guarded(_Gradient(self.tracer, self.index, call.depth), name, self.on_fault)
            tensor.register_hook(hook)  # type: ignore[no-untyped-call]


class _Gradient(Listener):
    """Tensor hook of one call's output."""

    def __init__(self, tracer: Tracer, index: int, depth: int) -> None:
        self.tracer, self.index, self.depth = tracer, index, depth

    def __call__(self, gradient: Tensor) -> None:
        if self.tracer.tracing:
            self.tracer.on_gradient(self.index, self.depth, gradient)


class _Break(Listener):
    """Forward hook of one site: checks the breakpoint, for the output and for its gradient."""

    def __init__(self, tracer: Tracer, index: int) -> None:
        self.tracer, self.index = tracer, index

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if self.tracer.active:
            self._observe(module, args, kwargs, output)

    @_uncompiled
    def _observe(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        tracer, name = self.tracer, self.tracer.names[self.index]
        if not in_backward():
            tracer.check(Call(name, "forward", module, args, kwargs, output))
        if "backward" in tracer.break_in:
            for tensor in float_tensors(output):
                if tensor.requires_grad and not tensor.is_leaf:
                    tensor.register_hook(_BreakGradient(tracer, name))  # type: ignore[no-untyped-call]


class _BreakGradient(Listener):
    """Tensor hook: checks the breakpoint."""

    def __init__(self, tracer: Tracer, name: str) -> None:
        self.tracer, self.name = tracer, name

    def __call__(self, gradient: Tensor) -> None:
        self.tracer.check(Call(self.name, "backward", gradient=gradient))


def _around(name: str) -> list[str]:
    """The names of the modules around a module, the nearest first."""
    parts = name.split(".")
    return [".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1)]


def _gradient_marks(root: nn.Module) -> list[tuple[int, int] | None]:
    """Marks of the parameters' gradients, which change when backward writes to them."""
    return [None if p.grad is None else (id(p.grad), p.grad._version) for p in root.parameters()]
