"""One step as a list of calls and as text, and breakpoints at its calls."""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import PackedSequence

from lightning_hooks.hooks import Gate, HookManager, float_tensors
from lightning_hooks.hooks.attributes import stored
from lightning_hooks.hooks.listener import UncompiledHook, in_backward
from lightning_hooks.hooks.modes import outside_modes
from lightning_hooks.hooks.tensors import MAX_DEPTH, plain_values
from lightning_hooks.statistics.kernels import summarize
from lightning_hooks.statistics.rows import Column


def describe(value: Any, name: str = "", statistics: bool = False, depth: int = 0) -> list[str]:
    """Describe every value in a module's arguments or output, containers included, as ``mask=float32[4, 4]`` or ``[0] float32[2]``.

    With ``statistics`` the values of tensors are read, which waits for the device.

    Args:
        value: What was passed.
        name: The keyword, or the path in containers; "" without either.
        statistics: Whether to add the minimum, maximum, mean and standard deviation of finite values, and the number of others.
        depth: The current depth of the search.
    """
    if isinstance(value, PackedSequence):
        return describe(value.data, f"{name}.data", statistics, depth + 1)
    entries = None if isinstance(value, Tensor) or depth >= MAX_DEPTH else entries_of(value)
    if entries is not None:
        return [text for key, entry in entries for text in describe(entry, f"{name}{key}", statistics, depth + 1)]
    text = _tensor(value, statistics) if isinstance(value, Tensor) else _short(value)
    return [f"{name} {text}" if name.startswith(("[", ".")) else f"{name}={text}" if name else text]


def entries_of(value: Any) -> list[tuple[str, Any]] | None:
    """The path of each entry of a container, such as ``[0]``, with the entry; None for another value."""
    if isinstance(value, Mapping):
        dotted = hasattr(type(value), "to_tuple")  # a ModelOutput of transformers
        return [(f".{key}" if dotted else f"[{key!r}]", entry) for key, entry in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{key}", entry) for key, entry in zip(value._fields, value, strict=True)]
    if isinstance(value, tuple | list):
        return [(f"[{place}]", entry) for place, entry in enumerate(value)]
    if is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", stored(value, field.name)) for field in fields(value)]
    return None


def _short(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 20 else value[:17] + "...")
    return type(value).__name__


def _tensor(tensor: Tensor, statistics: bool) -> str:
    kind = str(tensor.dtype).removeprefix("torch.")
    kind = kind if tensor.layout == torch.strided else f"{str(tensor.layout).removeprefix('torch.')} {kind}"
    shape = (tensor.size(0),) if tensor.is_nested else tuple(tensor.shape)  # the other sizes of a nested tensor vary
    text = f"{kind}[{', '.join(map(str, shape))}]" + f" {tensor.device}" * (tensor.device.type != "cpu")
    return text + (_numbers(tensor) if statistics and tensor.is_floating_point() else "")


def _numbers(tensor: Tensor) -> str:
    """The statistics of a tensor; empty where there are no values to read: under torch.func.vmap, on the meta device."""
    try:
        with outside_modes():
            row = summarize(plain_values(tensor)).tolist()
    except RuntimeError:
        return ""
    count, nonfinite = row[Column.COUNT], row[Column.NONFINITE]
    std = math.sqrt(row[Column.M2] / count) if count else math.nan
    low, high, mean = (row[column] if count else math.nan for column in (Column.MIN, Column.MAX, Column.MEAN))
    text = f" (min {low:.4g}, max {high:.4g}, mean {mean:.4g}, std {std:.4g}"
    return f"{text}, {nonfinite:.0f} non-finite)" if nonfinite else f"{text})"


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call of a module, or one gradient at its output.

    Attributes:
        order: Its position in the step, from 0, forward and backward together.
        phase: ``forward``, ``backward``, or ``recompute`` (a forward call during backward: activation checkpointing).
        site: The module's name.
        kind: The module's class.
        depth: The number of traced modules whose calls contain it.
        inputs: Its arguments, a text of :func:`describe` for each tensor or other value; empty for ``backward``.
        outputs: Its output; for ``backward`` the gradient at its output.
        error: The exception that it raised; "" without one.
    """

    order: int
    phase: str
    site: str
    kind: str
    depth: int
    inputs: tuple[str, ...] = ()
    outputs: tuple[str, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """The calls and gradients of one step in order, and those that are missing.

    Attributes:
        title: The name of the step.
        calls: Calls and gradients in the order of their beginnings.
        never_called: Site to the reason why its forward hook did not run.
        error: The exception that ended the step, "" without one.
        raised_in: The innermost traced module that raised it.
    """

    title: str
    calls: tuple[CallRecord, ...]
    never_called: dict[str, str] = field(default_factory=dict)
    error: str = ""
    raised_in: str = ""

    def of(self, site: str, phase: str = "forward") -> list[CallRecord]:
        """Return the calls of one site in one phase."""
        return [call for call in self.calls if (call.site, call.phase) == (site, phase)]

    @property
    def forward_order(self) -> list[str]:
        """The sites in the order of their calls."""
        return [call.site for call in self.calls if call.phase == "forward"]

    @property
    def backward_order(self) -> list[str]:
        """The sites in the order of their gradients."""
        return [call.site for call in self.calls if call.phase == "backward"]

    @property
    def no_gradient(self) -> list[str]:
        """The sites that were called and have no gradient at their output; empty without any gradient."""
        reached = set(self.backward_order)
        return [site for site in dict.fromkeys(self.forward_order) if reached and site not in reached]

    def __str__(self) -> str:
        forward = [call for call in self.calls if call.phase == "forward"]
        rest = [call for call in self.calls if call.phase != "forward"]
        counts = f"{len(forward)} calls, {len(self.backward_order)} gradients"
        why = "frozen, without autograd, detached, not part of the loss, or a view that was changed in place."
        lines = [
            f"{self.title}: {counts} (on the CPU if no device is shown).",
            *[f"  Raised in {self.raised_in or 'no traced module'}: {self.error}"] * bool(self.error),
            *("Forward", *_table(forward)),
            *(("Backward", *_table(rest)) if rest else ()),
            *_because("Never called", self.never_called),
            *_because("No gradient", dict.fromkeys(self.no_gradient, why)),
        ]
        return "\n".join(lines)


def _table(calls: Iterable[CallRecord]) -> list[str]:
    rows = []
    for call in calls:
        given, returned = (", ".join(values) or "nothing" for values in (call.inputs, call.outputs))
        text = f"gradient {returned}" if call.phase == "backward" else f"{given} -> {returned}"
        if call.error:
            text = f"{given} -> raised {call.error}"
        elif call.phase == "recompute":  # checkpointing ends it early
            text += " (recomputed)" if call.outputs else " yet (recomputed as far as needed)"
        rows.append((str(call.order), "  " * call.depth + call.site, call.kind, text))
    widths = [max((len(row[column]) for row in rows), default=0) for column in range(3)]
    return [
        f"  {order.rjust(widths[0])}  {site.ljust(widths[1])}  {kind.ljust(widths[2])}  {text}" for order, site, kind, text in rows
    ]


def _because(title: str, reasons: dict[str, str]) -> list[str]:
    lines = [title] if reasons else []
    for reason in dict.fromkeys(reasons.values()):
        sites = [site for site in reasons if reasons[site] == reason]
        more = f" and {len(sites) - 6} more" * (len(sites) > 6)
        lines.append(f"  {', '.join(sites[:6])}{more}: {reason}")
    return lines


@dataclass(slots=True)
class Call:
    """The argument of a ``break_when`` function: the objects of one call.

    Attributes:
        site: The module's name.
        module: The module.
        args: Its positional arguments.
        kwargs: Its keyword arguments.
        output: Its output.
    """

    site: str
    module: nn.Module
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    output: Any


class HookBreakError(RuntimeError):
    """Raised when ``break_when`` is true.

    Attributes:
        site: The module's name.
    """

    def __init__(self, site: str, message: str) -> None:
        super().__init__(message)
        self.site = site

    def __reduce__(self) -> tuple[type[HookBreakError], tuple[str, str]]:
        return (type(self), (self.site, str(self)))


def nonfinite(call: Call) -> bool:
    """Whether a floating-point tensor of the output holds a NaN or an infinite value."""
    return any(not bool(torch.isfinite(tensor.detach()).all()) for tensor in float_tensors(call.output))


class Breakpoint:
    """Stops at a call for which ``when`` is true.

    Args:
        when: A function of a :class:`Call`, or ``nonfinite``.
        how: ``debugger`` calls ``sys.breakpointhook`` (pdb, unless PYTHONBREAKPOINT is set); ``raise`` raises
            :class:`HookBreakError`.
        on_fault: Called once with (site, error) if ``when`` raises, which disables it.
        gate: Calls are checked while it is open; None for always.
    """

    def __init__(
        self,
        when: Callable[[Call], Any] | Literal["nonfinite"],
        how: Literal["debugger", "raise"],
        on_fault: Callable[[str, Exception], None],
        gate: Gate | None = None,
    ) -> None:
        self.when = when if callable(when) else nonfinite
        self.label = getattr(when, "__name__", repr(when)) if callable(when) else when
        self.how, self.on_fault, self.gate, self.broken = how, on_fault, gate, False

    @property
    def tracing(self) -> bool:
        """Whether calls are checked."""
        return self.gate is None or self.gate.open

    def attach(self, sites: Iterable[tuple[str, nn.Module]], hooks: HookManager) -> None:
        """Hook (name, module) pairs."""
        for name, module in sites:
            hooks.register(module, UncompiledHook(self, "check", name), "forward", label=name, with_kwargs=True)

    def check(self, name: str, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        """Stop at a call of a site if ``when`` is true."""
        if self.broken or in_backward():
            return
        call = Call(name, module, args, kwargs, output)
        try:
            stop = bool(self.when(call))
        except Exception as error:  # noqa: BLE001  of the user's function
            self.broken, stop = True, False
            self.on_fault(name, error)
        if stop:
            self._stop(call)

    def _stop(self, call: Call) -> None:
        found = ", ".join(describe(call.output, statistics=True))
        message = f"break_when={self.label} at {call.site!r} ({type(call.module).__name__}): output {found}."
        if self.how == "raise":
            raise HookBreakError(call.site, message)
        print(f"{message} The call is in `call`.")  # noqa: T201  for the user of the debugger
        sys.breakpointhook()
