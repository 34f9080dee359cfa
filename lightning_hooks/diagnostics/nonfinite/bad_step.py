"""What running a bad step again has shown: the operation that failed, its arguments, where it was called, and the samples."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Operand:
    """A tensor that an operation was given, in a few numbers.

    Attributes:
        name: What the operation calls it, such as ``self`` or ``other``.
        dtype: Its dtype, such as ``float32``.
        shape: Its shape.
        low: The smallest finite value; NaN without one, as for the next.
        high: The largest.
        counts: How many of its values are ``zero``, ``negative``, ``one`` (1 or -1), ``beyond`` (above 1 or below -1), ``outside``
            (of [0, 1]), ``nan``, ``inf`` and ``-inf``; what none is, is left out.
    """

    name: str
    dtype: str
    shape: tuple[int, ...]
    low: float = math.nan
    high: float = math.nan
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
    """Where an operation of the forward pass was called.

    Attributes:
        operation: Its name, such as ``log``.
        module: The innermost module that was being called; empty for the step itself.
        where: The nearest line of the user's, ``file:line``.
        code: That line.
        function: The function that the line is in, such as ``Log.forward``.
        arguments: The tensors that it was given.
        settings: Its other arguments by name, as far as they are numbers; and what is known of its arguments as a whole: along the
            dimension that it reduces, or of each sequence.
    """

    operation: str
    module: str = ""
    where: str = ""
    code: str = ""
    function: str = ""
    arguments: tuple[Operand, ...] = ()
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
    """The operation that gave the first value that is not finite and reached the loss or a gradient.

    Attributes:
        source: ``operation``; ``data`` or ``weights`` where the batch or a parameter or buffer was not finite itself; ``error``
            where it raised.
        place: The operation; of what is not finite itself the first that used it.
        phase: ``forward`` or ``backward``.
        value: ``NaN``, ``inf`` or ``-inf``; of an error its text.
        name: Of the tensor in the batch, or of the parameter or buffer.
        rows: The rows of the batch with such values, by the first dimension; None where it has no such dimension.
    """

    source: str
    place: Place
    phase: str = "forward"
    value: str = ""
    name: str = ""
    rows: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class BadStep:
    """What running the first bad step again has shown, as alerts state it.

    Attributes:
        failure: The operation.
        samples: The samples that cause it.
        loss: Whether its loss was not finite.
        notes: What is to be known of how it was run again, as sentences.
        first: Whether it is the first training batch of its epoch.
    """

    failure: Failure
    samples: tuple[int | str, ...] = ()
    loss: bool = False
    notes: tuple[str, ...] = ()
    first: bool = False
