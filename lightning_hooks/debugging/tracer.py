"""Hooks that record one step, and why a hook did not run."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping
from dataclasses import replace
from typing import Any

from torch import Tensor, nn

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
        self._clear()

    @property
    def innermost(self) -> str:
        """The innermost of the sites that are being called now; empty for none."""
        return self._stack[-1][0] if self._stack else ""

    def _clear(self) -> None:
        self._records: list[CallRecord] = []
        self._stack: CallStack[tuple[CallRecord, BaseException | None]] = CallStack()
        self._error: BaseException | None = None
        self._raised_in = ""

    def attach(self, sites: list[tuple[str, nn.Module]], hooks: HookManager, on_fault: Any = None) -> None:
        """Hook the sites; ``on_fault`` is called with the site and error of a hook that raises."""
        self._on_fault = on_fault
        for name, module in sites:
            enter, leave = (guarded(UncompiledHook(self, method, name), name, on_fault) for method in ("on_enter", "on_return"))
            hooks.register(module, enter, "forward_pre", label=name, with_kwargs=True)
            hooks.register(module, leave, "forward", label=name, with_kwargs=True, always_call=True)

    # One step.

    def begin(self) -> None:
        """Start tracing."""
        self._clear()
        self.tracing = True

    def finish(self, root: nn.Module, title: str, error: BaseException | None = None) -> Trace:
        """Stop tracing, and return the trace; ``error`` is the exception that ended the step."""
        trace = Trace(
            title=title,
            calls=tuple(self._records),
            never_called={} if error else self._never_called(root),
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
        called = {record.site for record in self._records}
        silent = (name for name in self.kinds if name not in called)
        return {name: why_no_call(name, modules, called, self.kinds, regions, faults.get(name)) for name in silent}

    # Called by the hooks.

    def on_enter(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """Record the beginning of a call."""
        record = self._add(name, "forward", len(self._stack), "inputs", (*(("", value) for value in args), *kwargs.items()))
        self._stack.append((name, (record, sys.exc_info()[1])))

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
            for tensor in float_tensors(output):
                if tensor.requires_grad and not tensor.is_leaf:
                    hook = guarded(UncompiledHook(self, "on_gradient", name, record.depth), name, self._on_fault)
                    tensor.register_hook(hook)  # type: ignore[no-untyped-call]
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

    def on_gradient(self, name: str, depth: int, gradient: Tensor) -> None:
        """Record a gradient at a site's output."""
        self._add(name, "backward", depth, "outputs", [("", gradient)])


def why_no_call(
    name: str,
    modules: Mapping[str, nn.Module],
    called: Collection[str],
    selected: Collection[str],
    regions: Collection[str],
    fault: str | None = None,
) -> str:
    """Return the reason why the forward hook of a module did not run in a step: the first that holds.

    Args:
        name: The module's name.
        modules: The modules of the model, by name.
        called: The names of the selected modules that were called.
        selected: The names of the selected modules.
        regions: The names of compiled modules.
        fault: The error of the debugger's own hook there.
    """
    region = compiled_around(name, regions)
    compiled = region is not None and all(compiled_around(other, [region]) is None for other in called)
    around = [outer for outer in outwards(name)[1:-1] if outer in modules]
    opaque = next((outer for outer in around if isinstance(modules[outer], OPAQUE)), None)
    parent = next((outer for outer in around if not isinstance(modules[outer], nn.ModuleList | nn.ModuleDict)), None)
    reasons = (
        (fault is not None, f"the debugger's own hook there failed: {fault}."),
        (
            compiled,
            f"{repr(region) if region else 'the model'} was compiled before the hooks were registered, and a compiled graph does "
            "not run later hooks. Call torch.compiler.reset() first.",
        ),
        (
            opaque is not None,
            f"a part of nn.MultiheadAttention {opaque!r}, which uses its weight in one fused function and never calls it. Observe "
            f"{opaque!r}.",
        ),
        (
            name in modules and any(parameter.grad is not None for parameter in modules[name].parameters()),
            "not called, though its parameters have gradients: its weight was used directly, or it was called as "
            "module.forward(x). Hooks run only when a module is called: module(x).",
        ),
        (parent in selected and parent not in called, f"not called, and neither was {parent!r} around it."),
        (
            not called,
            "never called in this step, and no other selected module was. Was another object run, such as a copy of the model?",
        ),
        (
            True,
            "never called in this step: a branch not taken, an unused layer, or a function such as F.relu, or module.forward(x), "
            "instead of it.",
        ),
    )
    return next(reason for holds, reason in reasons if holds)
