"""Hooks that record one step."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.debugging.reasons import Evidence, why_no_call, why_no_gradient
from lightning_hooks.debugging.trace import CallRecord, HookBreakError, Trace, describe
from lightning_hooks.hooks import HookManager, float_tensors, guarded
from lightning_hooks.hooks.listener import CallStack, UncompiledHook, in_backward
from lightning_hooks.hooks.selection import compiled_regions, named_sites


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
        self.backward = False  # whether a backward pass is known to have run
        self._marks: list[tuple[int, int] | None] = []

    def attach(self, sites: list[tuple[str, nn.Module]], hooks: HookManager, on_fault: Any = None) -> None:
        """Hook the sites; ``on_fault`` is called with the site and error of a hook that raises."""
        self._on_fault = on_fault
        for name, module in sites:
            enter, leave = (guarded(UncompiledHook(self, method, name), name, on_fault) for method in ("on_enter", "on_return"))
            hooks.register(module, enter, "forward_pre", label=name, with_kwargs=True)
            hooks.register(module, leave, "forward", label=name, with_kwargs=True, always_call=True)

    # One step.

    def begin(self, root: nn.Module) -> None:
        """Start tracing."""
        self._clear()
        self.tracing = True
        self._marks = _gradient_marks(root)

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
        self.tracing = False
        self._clear()

    def _never_called(self, root: nn.Module) -> dict[str, str]:
        modules, regions = dict(named_sites(root)), compiled_regions(root)
        faults: Mapping[str, str] = getattr(self._on_fault, "errors", {})
        called = {name for name, seen in self._evidence.items() if seen.calls}
        silent = [name for name in self.kinds if name not in called]
        return {name: why_no_call(name, modules, called, self.kinds, regions, faults.get(name)) for name in silent}

    def _no_gradient(self, root: nn.Module) -> dict[str, str]:
        backward = self.backward or any(seen.gradients for seen in self._evidence.values())
        backward = backward or _gradient_marks(root) != self._marks
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
            if not tensor.is_leaf:
                hook = guarded(UncompiledHook(self, "on_gradient", record.site, record.depth), record.site, self._on_fault)
                tensor.register_hook(hook)  # type: ignore[no-untyped-call]

    def on_gradient(self, name: str, depth: int, gradient: Tensor) -> None:
        """Record a gradient at a site's output."""
        self._evidence[name].gradients += 1
        self._add(name, "backward", depth, "outputs", [("", gradient)])


def _gradient_marks(root: nn.Module) -> list[tuple[int, int] | None]:
    return [None if p.grad is None else (id(p.grad), p.grad._version) for p in root.parameters()]
