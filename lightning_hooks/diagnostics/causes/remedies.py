"""What remedies of several causes are made of."""

from __future__ import annotations

from lightning_hooks.declare.cause import Remedy

SOON = 50  # optimizer steps after which a cure of the step size shows


def replace(target: str, to: str, effect: str = "", code: str = "", steps: int = SOON) -> Remedy:
    """Replace something by something else, both in words."""
    return Remedy("replace", target, to=to, effect=effect, steps=steps, code=code)


def rounded(value: float) -> float:
    """A value to one significant digit."""
    return float(f"{value:.0e}")


def in_code(name: str) -> str:
    """A module or parameter as an attribute of the model in its own ``__init__``: ``self.net[0].bias``; ``self`` for the model."""
    parts = [] if name == "the model" else name.split(".")
    return "self" + "".join(f"[{part}]" if part.isdecimal() else f".{part}" for part in parts)
