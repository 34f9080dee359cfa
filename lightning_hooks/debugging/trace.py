"""One step as a list of calls, with the tensors passed in each, and as text."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import PackedSequence

from lightning_hooks.hooks.attributes import stored
from lightning_hooks.hooks.modes import outside_modes
from lightning_hooks.hooks.tensors import MAX_DEPTH, plain_values
from lightning_hooks.statistics.kernels import summarize
from lightning_hooks.statistics.rows import Column

MAX_CALLS = 20_000  # the number of calls of one step that a trace keeps


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor or other value that was passed.

    Attributes:
        name: The keyword and the path in containers: ``mask``, ``[0]``, ``.logits``, ``['a'][1]``; "" without either.
        kind: The dtype of a tensor, such as ``float32``; a short text for another value.
        shape: The shape of a tensor; None for another value.
        device: The device of a tensor.
        statistics: ``min``, ``max``, ``mean``, ``std`` of its finite values and ``nonfinite``, the number of others; None unless
            requested.
    """

    name: str
    kind: str
    shape: tuple[int, ...] | None = None
    device: str = ""
    statistics: dict[str, float] | None = None

    def __str__(self) -> str:
        if self.shape is None:
            return self.kind
        text = f"{self.kind}[{', '.join(map(str, self.shape))}]"
        if self.device != "cpu":
            text += f" {self.device}"
        if self.statistics is not None:
            text += " (" + ", ".join(f"{name} {value:.4g}" for name, value in self.statistics.items() if name != "nonfinite")
            nonfinite = self.statistics["nonfinite"]
            text += f", {nonfinite:.0f} non-finite)" if nonfinite else ")"
        return text


def describe(value: Any, name: str = "", statistics: bool = False, depth: int = 0) -> list[TensorInfo]:
    """Describe every value in a module's arguments or output, containers included.

    With ``statistics`` the values of tensors are read, which waits for the device.
    """
    if isinstance(value, Tensor):
        return [_tensor(value, name, statistics)]
    if isinstance(value, PackedSequence):
        return describe(value.data, f"{name}.data", statistics, depth + 1)
    entries = entries_of(value) if depth < MAX_DEPTH else None
    if entries is None:
        return [TensorInfo(name, _short(value))]
    return [info for key, entry in entries for info in describe(entry, f"{name}{key}", statistics, depth + 1)]


def entries_of(value: Any) -> list[tuple[str, Any]] | None:
    """The path of each entry of a container, such as ``[0]``, with the entry; None for another value."""
    if isinstance(value, Mapping):
        dotted = hasattr(type(value), "to_tuple")  # a ModelOutput of transformers
        return [(f".{key}" if dotted else f"[{key!r}]", entry) for key, entry in value.items()]
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        return [(f".{key}", entry) for key, entry in zip(value._fields, value, strict=True)]
    if isinstance(value, tuple | list):
        return [(f"[{place}]", entry) for place, entry in enumerate(value)]
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [(f".{field.name}", stored(value, field.name)) for field in dataclasses.fields(value)]
    return None


def _short(value: Any) -> str:
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, str):
        return repr(value if len(value) <= 20 else value[:17] + "...")
    return type(value).__name__


def _tensor(tensor: Tensor, name: str, statistics: bool) -> TensorInfo:
    kind = str(tensor.dtype).removeprefix("torch.")
    kind = kind if tensor.layout == torch.strided else f"{str(tensor.layout).removeprefix('torch.')} {kind}"
    shape = (tensor.size(0),) if tensor.is_nested else tuple(tensor.shape)  # the other sizes of a nested tensor vary
    numbers = _numbers(tensor) if statistics and tensor.is_floating_point() else None
    return TensorInfo(name, kind, shape, str(tensor.device), numbers)


def _numbers(tensor: Tensor) -> dict[str, float] | None:
    """The statistics of a tensor; None where there are no values to read: under torch.func.vmap, on the meta device."""
    try:
        with outside_modes():
            row = summarize(plain_values(tensor)).tolist()
    except RuntimeError:
        return None
    count, nonfinite = row[Column.COUNT], {"nonfinite": row[Column.NONFINITE]}
    if not count:
        return dict.fromkeys(("min", "max", "mean", "std"), math.nan) | nonfinite
    std = math.sqrt(row[Column.M2] / count)
    return {"min": row[Column.MIN], "max": row[Column.MAX], "mean": row[Column.MEAN], "std": std} | nonfinite


@dataclass(frozen=True, slots=True)
class CallRecord:
    """One call of a module, or one gradient at its output.

    Attributes:
        order: Its position in the step, from 0, forward and backward together.
        phase: ``forward``, ``backward``, or ``recompute`` (a forward call during backward: activation checkpointing).
        site: The module's name.
        kind: The module's class.
        depth: The number of traced modules whose calls contain it.
        inputs: Its arguments; empty for ``backward``.
        outputs: Its output; for ``backward`` the gradient at its output.
        error: The exception that it raised; "" without one.
    """

    order: int
    phase: str
    site: str
    kind: str
    depth: int
    inputs: tuple[TensorInfo, ...] = ()
    outputs: tuple[TensorInfo, ...] = ()
    error: str = ""


@dataclass(frozen=True, slots=True)
class Trace:
    """The calls and gradients of one step in order, and the reasons for those that are missing.

    Attributes:
        title: The name of the step.
        calls: Calls and gradients in the order of their beginnings.
        never_called: Site to the reason why its forward hook did not run.
        no_gradient: Called site to the reason why there was no gradient at its output; empty without a backward pass.
        error: The exception that ended the step, "" without one.
        raised_in: The innermost traced module that raised it.
        dropped: Number of calls beyond ``MAX_CALLS``.
    """

    title: str
    calls: tuple[CallRecord, ...]
    never_called: dict[str, str] = field(default_factory=dict)
    no_gradient: dict[str, str] = field(default_factory=dict)
    error: str = ""
    raised_in: str = ""
    dropped: int = 0

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

    def __str__(self) -> str:
        forward = [call for call in self.calls if call.phase == "forward"]
        rest = [call for call in self.calls if call.phase != "forward"]
        counts = f"{len(forward)} calls, {len(self.backward_order)} gradients"
        lines = [f"{self.title}: {counts} (on the CPU if no device is shown)."]
        if self.error:
            lines.append(f"  Raised in {self.raised_in or 'no traced module'}: {self.error}")
        lines += ["Forward", *_table(forward)]
        if rest:
            lines += ["Backward", *_table(rest)]
        if self.dropped:
            lines.append(f"  {self.dropped} more calls are not kept.")
        lines += _because("Never called", self.never_called) + _because("No gradient", self.no_gradient)
        return "\n".join(lines)


def _table(calls: Iterable[CallRecord]) -> list[str]:
    rows = []
    for call in calls:
        given, returned = (", ".join(map(_named, values)) or "nothing" for values in (call.inputs, call.outputs))
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


def _named(info: TensorInfo) -> str:
    if info.name.startswith(("[", ".")):  # an entry of a container
        return f"{info.name} {info}"
    return f"{info.name}={info}" if info.name else str(info)


def _because(title: str, reasons: dict[str, str]) -> list[str]:
    lines = [title] if reasons else []
    for reason in dict.fromkeys(reasons.values()):
        sites = [site for site in reasons if reasons[site] == reason]
        more = f" and {len(sites) - 6} more" if len(sites) > 6 else ""
        lines.append(f"  {', '.join(sites[:6])}{more}: {reason}")
    return lines
