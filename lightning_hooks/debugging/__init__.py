"""One training step as text, breakpoints in hooks, and the reason why a hook did not run."""

from lightning_hooks.debugging.trace import Call, HookBreakError, Trace

__all__ = ["Call", "HookBreakError", "Trace"]
