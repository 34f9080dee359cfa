"""Breakpoints in hooks, which open the debugger or raise."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor, nn

from lightning_hooks.debugging.trace import describe
from lightning_hooks.hooks import Gate, HookManager, float_tensors
from lightning_hooks.hooks.listener import UncompiledHook, in_backward


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
        on_fault: Called once with (site, error) if ``when`` raises, which disables it.
        gate: Calls are checked while it is open; None for always.
    """

    def __init__(
        self,
        when: Callable[[Call], Any] | Literal["nonfinite"],
        how: Literal["debugger", "raise"],
        on_fault: Callable[[str, Exception], None],
        phases: tuple[str, ...] = ("forward",),
        gate: Gate | None = None,
    ) -> None:
        self.when = when if callable(when) else nonfinite
        self.label = getattr(when, "__name__", repr(when)) if callable(when) else when
        self.how, self.on_fault, self.phases, self.gate, self.broken = how, on_fault, phases, gate, False

    @property
    def tracing(self) -> bool:
        """Whether calls are checked."""
        return self.gate is None or self.gate.open

    def attach(self, sites: Iterable[tuple[str, nn.Module]], hooks: HookManager) -> None:
        """Hook (name, module) pairs."""
        for name, module in sites:
            hooks.register(module, UncompiledHook(self, "output", name), "forward", label=name, with_kwargs=True)

    def check(self, call: Call) -> None:
        """Stop if ``when`` is true."""
        if self.broken or call.phase not in self.phases:
            return
        try:
            stop = bool(self.when(call))
        except Exception as error:  # noqa: BLE001  of the user's function
            self.broken = True
            self.on_fault(call.site, error)
        else:
            if stop:
                self._stop(call)

    def output(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Check a call of a site, and hook its output."""
        if not in_backward():
            self.check(Call(name, "forward", module, args, kwargs, output))
        if "backward" in self.phases:
            for tensor in float_tensors(output):
                if tensor.requires_grad and not tensor.is_leaf:
                    tensor.register_hook(UncompiledHook(self, "gradient", name))  # type: ignore[no-untyped-call]

    def gradient(self, name: str, gradient: Tensor) -> None:
        """Check a gradient at a site's output."""
        self.check(Call(name, "backward", gradient=gradient))

    def _stop(self, call: Call) -> None:
        forward = call.phase == "forward"
        found = ", ".join(map(str, describe(call.output if forward else call.gradient, statistics=True)))
        kind, what = (f" ({type(call.module).__name__})", "output") if forward else ("", "gradient at the output")
        message = f"break_when={self.label} at {call.site!r}{kind} in {call.phase}: {what} {found}."
        if self.how == "raise":
            raise HookBreakError(call.site, call.phase, message)
        print(f"{message} The call is in `call`.")  # noqa: T201  for the user of the debugger
        sys.breakpointhook()
