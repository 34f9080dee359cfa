"""One training step as text, breakpoints in hooks, and the reason why a hook did not run."""

from lightning_hooks.debugging.breaks import Breakpoint, Call, HookBreakError
from lightning_hooks.debugging.reasons import Evidence, why_no_call, why_no_gradient
from lightning_hooks.debugging.trace import CallRecord, TensorInfo, Trace, describe
from lightning_hooks.debugging.tracer import Tracer

__all__ = [
    "Breakpoint",
    "Call",
    "CallRecord",
    "Evidence",
    "HookBreakError",
    "TensorInfo",
    "Trace",
    "Tracer",
    "describe",
    "why_no_call",
    "why_no_gradient",
]
