"""Hooks that record one step."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.debugging.reasons import Evidence, Watcher, why_no_call, why_no_gradient
from lightning_hooks.debugging.trace import CallRecord, HookBreakError, Trace, describe
from lightning_hooks.hooks import HookManager, float_tensors, guarded
from lightning_hooks.hooks.listener import CallStack, UncompiledHook, in_backward
from lightning_hooks.hooks.selection import OPAQUE, compiled_around, compiled_regions, named_sites, outwards


class Tracer:
    """Records the calls and gradients of a step.

    Args:
        sites: (name, module) pairs; the modules are not kept.
        statistics: Whether to read the values of tensors, which waits for the device.
    """

    def __init__(self, sites: list[tuple[str, nn.Module]], statistics: bool = False) -> None:
        self.kinds = {name: type(module).__name__ for name, module in sites}
        self.statistics = statistics
        self.tracing = False
        self._on_fault: Any = None
        self._watcher: Watcher | None = None
        self._clear()

    @property
    def innermost(self) -> str:
        """The innermost of the sites that are being called now; empty for none."""
        return self._stack[-1][0] if self._stack else ""

    def _clear(self) -> None:
        self._records: list[CallRecord] = []
        self._stack: CallStack[tuple[CallRecord, BaseException | None]] = CallStack()
        self._evidence = {name: Evidence() for name in self.kinds}
        self._error: BaseException | None = None
        self._raised_in = ""
        self._backward = False
        self._marks: list[tuple[int, int] | None] = []

    def attach(self, sites: list[tuple[str, nn.Module]], hooks: HookManager, on_fault: Any = None) -> None:
        """Hook the sites; ``on_fault`` is called with the site and error of a hook that raises."""
        self._on_fault = on_fault
        for name, module in sites:
            enter, leave = (guarded(UncompiledHook(self, method, name), name, on_fault) for method in ("on_enter", "on_return"))
            hooks.register(module, enter, "forward_pre", label=name, with_kwargs=True)
            hooks.register(module, leave, "forward", label=name, with_kwargs=True, always_call=True)

    # One step.

    def begin(self, root: nn.Module, watch: bool = True) -> None:
        """Start tracing; ``watch`` also inspects operations, unless the model is compiled."""
        self._clear()
        self.tracing = True
        self._marks = _gradient_marks(root)
        if watch and not compiled_regions(root):  # a mode would make compiled code run uncompiled
            sites = dict(named_sites(root))
            self._watcher = Watcher([(name, sites[name]) for name in self.kinds if name in sites], self._stack)
            self._watcher.__enter__()  # type: ignore[no-untyped-call]

    def backward_begins(self, forward_is_over: bool = True) -> None:
        """Backward begins; ``forward_is_over`` ends the inspection of operations."""
        self._backward = True
        if forward_is_over:
            self._stop_watching()

    def _stop_watching(self) -> None:
        if self._watcher is not None:
            self._watcher.leave()

    def finish(self, root: nn.Module, title: str, error: BaseException | None = None) -> Trace:
        """Stop tracing, and return the trace; ``error`` is the exception that ended the step."""
        trace = Trace(
            title=title,
            calls=tuple(self._records),
            never_called={} if error else self._never_called(root),
            no_gradient={} if error else self._no_gradient(root),
            error=f"{type(error).__name__}: {error}" if error is not None else "",
            raised_in=error.site if isinstance(error, HookBreakError) else self._raised_in if error is self._error else "",
        )
        self.stop()
        return trace

    def stop(self) -> None:
        """Stop tracing and discard the current step."""
        self._stop_watching()
        self._watcher = None
        self.tracing = False
        self._clear()

    def _never_called(self, root: nn.Module) -> dict[str, str]:
        modules, regions = dict(named_sites(root)), compiled_regions(root)
        faults: Mapping[str, str] = getattr(self._on_fault, "errors", {})
        called = {name for name, seen in self._evidence.items() if seen.calls}
        reasons = {}
        for name in [name for name in self.kinds if name not in called]:
            region = compiled_around(name, regions)
            ran = region is not None and any(compiled_around(other, [region]) is not None for other in called)
            around = [outer for outer in outwards(name)[1:-1] if outer in modules]
            opaque = next((outer for outer in around if isinstance(modules[outer], OPAQUE)), "")
            parent = next((outer for outer in around if not isinstance(modules[outer], nn.ModuleList | nn.ModuleDict)), "")
            parameters = list(modules[name].parameters()) if name in modules else []
            watcher = self._watcher
            reasons[name] = why_no_call(
                fault=faults.get(name, ""),
                compiled=None if ran or region is None else repr(region) if region else "the model",
                opaque=opaque,
                **({} if watcher is None else watcher.of(name)),
                updated=watcher is None and any(parameter.grad is not None for parameter in parameters),
                parent=parent if parent in self.kinds and parent not in called else "",
                alone=not called,
                parameters=bool(parameters),
            )
        return reasons

    def _no_gradient(self, root: nn.Module) -> dict[str, str]:
        backward = self._backward or any(seen.gradients for seen in self._evidence.values())
        backward = backward or _gradient_marks(root) != self._marks or (self._watcher is not None and self._watcher.backward)
        modules = dict(named_sites(root))
        reasons = {}
        for name, seen in self._evidence.items():
            if backward and seen.calls and not seen.gradients:
                parameters = list(modules[name].parameters()) if name in modules else []
                trainable = any(parameter.requires_grad for parameter in parameters)
                reasons[name] = why_no_gradient(seen, bool(parameters), trainable)
        return reasons

    # Called by the hooks.

    def on_enter(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Record the beginning of a call."""
        values = [*(("", value) for value in args), *kwargs.items()]
        record = self._add(name, "forward", len(self._stack), "inputs", values)
        self._stack.append((name, (record, sys.exc_info()[1])))
        seen = self._evidence[name]
        seen.calls += 1
        seen.grad_enabled |= torch.is_grad_enabled()
        seen.inputs_differentiable |= any(tensor.requires_grad for tensor in float_tensors([value for _, value in values]))

    def on_return(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any) -> None:
        """Record the end of a call, also when its forward raised, and hook its output."""
        ended = self._stack.end(name)
        if ended is None:
            return
        record, handled = ended
        raised = sys.exc_info()[1]
        error = raised if output is None and raised is not handled else None
        record = replace(record, phase="recompute" if in_backward() else "forward")
        if error is None:
            record = replace(record, outputs=tuple(describe(output, "", self.statistics)))
            self._observe(record, output)
        elif record.phase == "forward" or not type(error).__name__.startswith("_StopRecomputation"):
            # Not how checkpointing ends a recomputation early.
            record = replace(record, error=f"{type(error).__name__}: {error}")
            if error is not self._error:
                self._error, self._raised_in = error, name
        self._records[record.order] = record

    def _add(self, name: str, phase: str, depth: int, field: str, values: Iterable[tuple[str, Any]]) -> CallRecord:
        """Record a call or a gradient; ``values`` are (name, value) pairs for one of its fields."""
        described = tuple(text for key, value in values for text in describe(value, key, self.statistics))
        record = CallRecord(len(self._records), phase, name, self.kinds[name], depth, **{field: described})  # type: ignore[arg-type]
        self._records.append(record)
        return record

    def _observe(self, record: CallRecord, output: Any) -> None:
        seen = self._evidence[record.site]
        for tensor in float_tensors(output):
            seen.floats = True
            if not tensor.requires_grad:
                continue
            seen.differentiable = True
            seen.leaf |= tensor.is_leaf
            seen.view |= tensor._is_view()
            if not tensor.is_leaf:
                hook = guarded(UncompiledHook(self, "on_gradient", record.site, record.depth), record.site, self._on_fault)
                tensor.register_hook(hook)  # type: ignore[no-untyped-call]

    def on_gradient(self, name: str, depth: int, gradient: Tensor) -> None:
        """Record a gradient at a site's output."""
        self._evidence[name].gradients += 1
        self._add(name, "backward", depth, "outputs", [("", gradient)])


def _gradient_marks(root: nn.Module) -> list[tuple[int, int] | None]:
    return [None if p.grad is None else (id(p.grad), p.grad._version) for p in root.parameters()]
