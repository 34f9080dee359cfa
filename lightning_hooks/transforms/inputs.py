"""Normalisation of the inputs of chosen modules by hooks."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from lightning_hooks.hooks import Gate, Listener
from lightning_hooks.transforms.normalization import Argument, Normalization


@dataclass(frozen=True, slots=True)
class InputStatistics:
    """The statistics that normalise the input of one module.

    Attributes:
        mean: One per channel.
        std: One per channel, above 0.
        count: Number of finite values per channel that they were learned from; () if they were given.
        frozen: Whether they are final.
    """

    mean: tuple[float, ...]
    std: tuple[float, ...]
    count: tuple[int, ...]
    frozen: bool


class NormalizeInput(Listener):
    """Forward pre-hook of one module: normalises one of its arguments."""

    def __init__(self, site: Normalization, argument: Argument, gate: Gate) -> None:
        self.site, self.argument, self.gate, self.called = site, argument, gate, False

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """Return the arguments, one of them normalised."""
        self.called = True
        return self.argument.replace(args, kwargs, self._change)

    def _change(self, x: Tensor) -> Tensor:
        if self.gate.open:
            self.site.learn(x)  # unless they are final
        return self.site.normalize(x)


class InvertOutput(Listener):
    """Forward hook of a module: maps its output back to the units of the input."""

    def __init__(self, site: Normalization, name: str) -> None:
        self.site, self.name = site, name

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> Tensor:
        """Return the output in the units of the input."""
        if not isinstance(output, Tensor):
            raise TypeError(f"inverse_modules: the output of {self.name!r} must be a tensor; got {type(output).__name__}.")
        return self.site.inverse(output)
