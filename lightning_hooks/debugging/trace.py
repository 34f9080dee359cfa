"""One step as a list of calls, and as text."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lightning_hooks.debugging.describe import TensorInfo

MAX_CALLS = 20_000
"""The number of calls of one step that a trace keeps."""


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
        gradients = sum(call.phase == "backward" for call in rest)
        lines = [f"{self.title}: {len(forward)} calls, {gradients} gradients (on the CPU if no device is shown)."]
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
        outputs = ", ".join(map(_named, call.outputs)) or "nothing"
        inputs = ", ".join(map(_named, call.inputs)) or "nothing"
        if call.error:
            text = f"{inputs} -> raised {call.error}"
        elif call.phase == "backward":
            text = f"gradient {outputs}"
        else:
            text = f"{inputs} -> {outputs}"
            if call.phase == "recompute":  # checkpointing ends it early
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
    groups: dict[str, list[str]] = {}
    for site, reason in reasons.items():
        groups.setdefault(reason, []).append(site)
    lines = [title] if groups else []
    for reason, sites in groups.items():
        some = ", ".join(sites[:6]) + (f" and {len(sites) - 6} more" if len(sites) > 6 else "")
        lines.append(f"  {some}: {reason}")
    return lines
