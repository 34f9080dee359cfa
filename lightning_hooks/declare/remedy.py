"""The remedy of a cause: an operation that a program can apply, with the line of code that does it."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_hooks.trackers.console import some

Setting = float | int | str | None
"""What a remedy sets: a number, or a word."""

_PHRASES = {
    "set": "Set {target} to {to}",
    "fill": "Fill {target} with {to}",
    "scale": "Multiply {target} by {to}",
    "initialise": "Initialise {target} again",
    "add": "Add {target} to {to}",
    "remove": "Remove {target}",
    "replace": "Replace {target} by {to}",
    "insert": "Put {to} before {target}",
    "call": "Call {target}",
    "check": "Check {target}",
}
OPS = tuple(_PHRASES)
"""What a remedy does."""
MOST_NAMED = 5
"""Layers or parameters that a sentence names; a program finds all of them in ``target``."""


@dataclass(frozen=True, slots=True)
class Remedy:
    """What to do about a cause.

    Attributes:
        op: What is done, one of :data:`OPS`.
        target: To what: a parameter (``net.conv2.bias``) or module of the model, ``optimizer.lr``, ``trainer.gradient_clip_val``,
            ``scheduler``, ``loss``, a tensor of the batch (``batch[0]``), or something in the code, in words.
        from_: What it is now; None where it is no value. ``from`` in JSON.
        to: What it is to be; None where it is no value.
        precondition: What holds now and makes it possible.
        effect: What is to be seen if it is the cure.
        steps: Optimizer steps after which that must show; None where it is not known.
        code: The line of code that does it.
    """

    op: str
    target: str
    from_: Setting = None
    to: Setting = None
    precondition: str = ""
    effect: str = ""
    steps: int | None = None
    code: str = ""

    @property
    def text(self) -> str:
        """A short imperative, with the line of code."""
        phrase = _PHRASES.get(self.op, f"{self.op} {{target}}").format(target=_shortened(self.target), to=written(self.to))
        now = f" (it is {written(self.from_)})" if self.op == "set" and self.from_ is not None else ""
        return f"{phrase}{now}{f': {self.code}' * bool(self.code)}"


def _shortened(target: str) -> str:
    """A target in a sentence: of a long list of names the first ones, and how many follow."""
    names = target.split(", ")
    if len(names) <= MOST_NAMED or any(" " in name for name in names):
        return target
    return some(names, 3)


def written(value: Setting) -> str:
    """A setting in a sentence, or in code."""
    return f"{value:.4g}" if isinstance(value, float) else str(value)
