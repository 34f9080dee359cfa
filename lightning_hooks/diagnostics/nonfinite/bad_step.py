"""What running a bad step again has shown: the operation that failed, its arguments, where it was called, and the samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that an operation was given, in a few numbers."""

    name: str  # what the operation calls it, such as self or other
    dtype: str  # its dtype, such as float32
    shape: tuple[int, ...]
    low: float = math.nan  # the smallest finite value; NaN without one, as for the next
    high: float = math.nan  # the largest
    # How many of its values are ``zero``, ``negative``, ``one`` (1 or -1), ``beyond`` (above 1 or below -1), ``outside`` (of
    # [0, 1]), ``nan``, ``inf`` and ``-inf``; what none is, is left out.
    counts: Mapping[str, int] = field(default_factory=dict)

    @property
    def elements(self) -> int:
        """How many values it has."""
        return math.prod(self.shape)

    def __str__(self) -> str:
        """``float32[8, 3] from 0 to 0.93``."""
        text = f"{self.dtype}[{', '.join(map(str, self.shape))}]"
        bad = sum(self.counts.get(one, 0) for one in ("nan", "inf", "-inf"))
        if math.isnan(self.low):
            return f"{text} with no finite value" if bad else text
        return f"{text} from {self.low:.4g} to {self.high:.4g}{f' with {bad} not finite' * bool(bad)}"


@dataclass(frozen=True, slots=True)
class Place:
    """Where an operation of the forward pass was called."""

    operation: str  # its name, such as log
    module: str = ""  # the innermost module that was being called; empty for the step itself
    where: str = ""  # the nearest line of the user's, file:line
    code: str = ""
    function: str = ""  # the function that the line is in, such as Log.forward
    arguments: tuple[Operand, ...] = ()  # the tensors that it was given
    # Its other arguments by name, as far as they are numbers; and what is known of its arguments as a whole: along the dimension
    # that it reduces, or of each sequence.
    settings: Mapping[str, Any] = field(default_factory=dict)

    @property
    def inputs(self) -> str:
        """Its tensors in words, with their ranges."""
        return ", ".join(map(str, self.arguments))

    def argument(self, name: str) -> Operand | None:
        """The tensor of this name."""
        return next((one for one in self.arguments if one.name == name), None)


@dataclass(frozen=True, slots=True)
class Failure:
    """The operation that gave the first value that is not finite and reached the loss or a gradient."""

    source: str  # operation; data or weights where the batch or a parameter or buffer was not finite itself; error where it raised
    place: Place  # the operation; of what is not finite itself the first that used it
    phase: str = "forward"  # forward or backward
    value: str = ""  # NaN, inf or -inf; of an error its text
    name: str = ""  # of the tensor in the batch, or of the parameter or buffer
    rows: tuple[int, ...] | None = None  # the rows of the batch with such values, by the first dimension; None without one


@dataclass(frozen=True, slots=True)
class BadStep:
    """What running the first bad step again has shown, as alerts state it."""

    failure: Failure
    samples: tuple[int | str, ...] = ()  # the samples that cause it
    loss: bool = False  # whether its loss was not finite
    notes: tuple[str, ...] = ()  # what is to be known of how it was run again, as sentences
    first: bool = False  # whether it is the first training batch of its epoch
