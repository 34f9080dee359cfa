"""Breakpoints in hooks, which open the debugger or raise, and the reason why a hook did not run."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lightning_hooks.debugging.trace import describe
from lightning_hooks.debugging.watcher import in_backward, uncompiled
from lightning_hooks.hooks import float_tensors
from lightning_hooks.profiling.tracer import StepHook


@dataclass(slots=True)
class Call:
    """The argument of a ``break_when`` function: the objects of one call.

    Attributes:
        site: The module's name.
        phase: ``forward`` or ``backward``.
        module: The module; None in backward.
        args: Its positional arguments; () in backward.
        kwargs: Its keyword arguments.
        output: Its output; None in backward.
        gradient: The gradient at its output; None in forward.
    """

    site: str
    phase: str
    module: nn.Module | None = None
    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict)
    output: Any = None
    gradient: Tensor | None = None

    @property
    def tensors(self) -> list[Tensor]:
        """The floating-point tensors of the output; in backward the gradient."""
        return float_tensors(self.output if self.phase == "forward" else self.gradient)


class HookBreakError(RuntimeError):
    """Raised when ``break_when`` is true.

    Attributes:
        site: The module's name.
        phase: ``forward`` or ``backward``.
    """

    def __init__(self, site: str, phase: str, message: str) -> None:
        super().__init__(message)
        self.site, self.phase = site, phase

    def __reduce__(self) -> tuple[type[HookBreakError], tuple[str, str, str]]:
        return (type(self), (self.site, self.phase, str(self)))


def nonfinite(call: Call) -> bool:
    """Whether a tensor of the call holds a NaN or an infinite value."""
    return any(not bool(torch.isfinite(tensor.detach()).all()) for tensor in call.tensors)


class Breakpoint:
    """Stops at a call for which ``when`` is true.

    Args:
        when: A function of a :class:`Call`, or ``nonfinite``.
        how: ``debugger`` calls ``sys.breakpointhook`` (pdb, unless PYTHONBREAKPOINT is set); ``raise`` raises
            :class:`HookBreakError`.
        phases: Which calls to check, ``forward`` or ``backward``.
        on_fault: Called once with (site, error) if ``when`` raises, which disables it; None lets the error propagate.
    """

    def __init__(
        self,
        when: Callable[[Call], Any] | Literal["nonfinite"],
        how: Literal["debugger", "raise"] = "debugger",
        on_fault: Callable[[str, Exception], None] | None = None,
        phases: tuple[str, ...] = ("forward",),
    ) -> None:
        self.when = when if callable(when) else nonfinite
        self.label = getattr(when, "__name__", repr(when)) if callable(when) else when
        self.how, self.on_fault, self.phases, self.broken = how, on_fault, phases, False
        self.tracing = False  # whether calls are checked

    def check(self, call: Call) -> None:
        """Stop if ``when`` is true.

        Raises:
            HookBreakError: If it is true and ``how`` is ``raise``.
        """
        if self.broken or call.phase not in self.phases:
            return
        try:
            stop = bool(self.when(call))
        except Exception as error:
            self.broken = True
            if self.on_fault is None:
                raise
            self.on_fault(call.site, error)
            return
        if stop:
            self._stop(call)

    @uncompiled
    def output(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Check a call of a site, and hook its output."""
        if not in_backward():
            self.check(Call(name, "forward", module, args, kwargs, output))
        if "backward" in self.phases:
            for tensor in float_tensors(output):
                if tensor.requires_grad and not tensor.is_leaf:
                    tensor.register_hook(StepHook(self, "gradient", name))  # type: ignore[no-untyped-call]

    def gradient(self, name: str, gradient: Tensor) -> None:
        """Check a gradient at a site's output."""
        self.check(Call(name, "backward", gradient=gradient))

    def _stop(self, call: Call) -> None:
        found = ", ".join(map(str, describe(call.output if call.phase == "forward" else call.gradient, statistics=True)))
        what = "output" if call.phase == "forward" else "gradient at the output"
        kind = f" ({type(call.module).__name__})" if call.module is not None else ""
        message = f"break_when={self.label} at {call.site!r}{kind} in {call.phase}: {what} {found}."
        if self.how == "raise":
            raise HookBreakError(call.site, call.phase, message)
        print(f"{message} The call is in `call`.")  # noqa: T201  for the user of the debugger
        sys.breakpointhook()


@dataclass(slots=True)
class Evidence:
    """Observations of one site in a step.

    Attributes:
        calls: Number of runs of its forward hook.
        fault: The error of the debugger's own hook there.
        alone: Whether no site was called.
        gradients: Number of gradients at its output.
        direct: Where ``.forward`` was called directly, ``file:line``; "" if it was not.
        used: Where its parameters were used without a call.
        fused: The fused operation that took its parameters.
        attention: The nn.MultiheadAttention that it is a part of.
        compiled: The compiled module that it is in; None for none, "" for the root.
        region_called: Whether a hook inside that module ran.
        parent: The nearest callable module around it.
        parent_called: Whether the hook of that module ran.
        updated: Whether its parameters have gradients.
        floats: Whether it returned a floating-point tensor.
        differentiable: Whether an output required a gradient.
        grad_enabled: Whether autograd was on at a call.
        inputs_differentiable: Whether an input required a gradient.
        trainable: Whether one of its parameters requires a gradient.
        parameters: Whether it has parameters.
        leaf: Whether the output that required a gradient was itself a parameter.
        view: Whether the output was a view.
        changed: Whether an output was changed in place afterwards.
        watched: Whether the operations of the step were observed.
    """

    calls: int = 0
    gradients: int = 0
    fault: str = ""
    alone: bool = False
    direct: str = ""
    used: str = ""
    fused: str = ""
    attention: str = ""
    compiled: str | None = None
    region_called: bool = True
    parent: str = ""
    parent_called: bool = True
    updated: bool = False
    floats: bool = False
    differentiable: bool = False
    grad_enabled: bool = False
    inputs_differentiable: bool = False
    trainable: bool = False
    parameters: bool = False
    leaf: bool = False
    view: bool = False
    changed: bool = False
    watched: bool = False


def why_no_call(seen: Evidence) -> str:
    """Return the reason why a forward hook did not run."""
    if seen.fault:
        return f"the debugger's own hook there failed: {seen.fault}."
    if seen.compiled is not None and not seen.region_called:
        where = f"{seen.compiled!r}" if seen.compiled else "the model"
        return (
            f"{where} was compiled before the hooks were registered, and a compiled graph does not run later hooks. Call "
            "torch.compiler.reset() first."
        )
    if seen.attention:
        return (
            f"a part of nn.MultiheadAttention {seen.attention!r}, which uses its weight in one fused function and never calls it. "
            f"Observe {seen.attention!r}."
        )
    if seen.fused:
        return (
            f"the fused operation {seen.fused} used its weights: the fast path of nn.TransformerEncoderLayer in evaluation without "
            "gradients. Observe that layer, or call torch.backends.mha.set_fastpath_enabled(False)."
        )
    if seen.direct:
        return (
            f"its forward was called directly at {seen.direct}; hooks run only when a module is called: module(x), not "
            "module.forward(x)."
        )
    if seen.used:
        return f"its weight was used directly at {seen.used}; hooks run only when the module is called: module(x)."
    if not seen.watched and seen.updated:
        return (
            "not called, though its parameters have gradients: its weight was used directly, or it was called as "
            "module.forward(x). Hooks run only when a module is called: module(x)."
        )
    if not seen.parent_called:
        return f"not called, and neither was {seen.parent!r} around it."
    if seen.alone:
        return "never called in this step, and no other selected module was. Was another object run, such as a copy of the model?"
    if seen.parameters:
        return "never called in this step: a branch not taken, or an unused layer."
    return "never called in this step: a branch not taken, an unused layer, or a function such as F.relu instead of it."


def why_no_gradient(seen: Evidence) -> str:
    """Return the reason why a site that was called has no gradient at its output."""
    if not seen.floats:
        return "its output holds no floating-point tensor."
    if not seen.grad_enabled:
        return "it was called without autograd (torch.no_grad or inference_mode)."
    if not seen.differentiable and seen.parameters and not seen.trainable and not seen.inputs_differentiable:
        return "it is frozen, and so are the layers before it: none of its parameters and inputs requires a gradient."
    if not seen.differentiable and seen.trainable:
        return "its output does not require a gradient although its parameters do: it detaches it, or computes it without autograd."
    if not seen.differentiable:
        return "none of its inputs requires a gradient, so no gradient is computed: frozen or detached layers before it, or data."
    if seen.leaf:
        return "its output is a parameter: see the gradient of that parameter."
    if seen.view and seen.changed:
        return (
            "its output is a view (as of nn.Linear with a bias on three dimensions) that was then changed in place (as by "
            "ReLU(inplace=True)), which drops the hooks on it. Use inplace=False there."
        )
    if seen.view:
        return (
            "its output does not reach the loss: it is not used, or detached on the way; or, being a view, it was changed in "
            "place, which drops the hooks on it."
        )
    return "its output does not reach the loss: it is not used, or detached on the way."
