"""One training step as text, breakpoints in hooks, and the reason why a hook did not run."""

from lightning_hooks.debugging.breaks import Call, HookBreakError
from lightning_hooks.debugging.trace import Trace

__all__ = ["Call", "HookBreakError", "Trace"]
