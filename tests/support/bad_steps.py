"""Steps that were run again, as diagnostics are given them."""

from __future__ import annotations

from typing import Any

from lightning_hooks.diagnostics.nonfinite.bad_step import BadStep, Failure, Operand, Place


def failed(operation: str, module: str = "", value: str = "NaN", settings: dict[str, Any] | None = None, **step: Any) -> BadStep:
    """A step whose first bad operation was given zeros of float32, or two zeros and the settings."""
    zeros = tuple(Operand(name, "float32", (4,), 0.0, 0.0, {"zero": 4}) for name in ("self", "other"))
    place = Place(operation, module, "net.py:3", "y = f(x)", "Net.forward", zeros, settings or {})
    return BadStep(Failure("operation", place, "backward" if operation == "sqrt" else "forward", value), **step)


def data_of(name: str, value: str = "NaN", **step: Any) -> BadStep:
    """A step whose batch was not finite."""
    return BadStep(Failure("data", Place("addmm", "net.fc", "net.py:3", "y = f(x)", "Net.forward"), "forward", value, name), **step)
