"""Activations: those whose units can be dead, and where those with bounds saturate."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from torch import Tensor, nn

from lightning_hooks.hooks.attributes import stored
from lightning_hooks.hooks.tensors import as_number
from lightning_hooks.statistics.kernels import Bounds

RECTIFIERS: tuple[type[nn.Module], ...] = (nn.ReLU, nn.ReLU6)
_RECTIFIER_NAMES = frozenset({"ReLUSquaredActivation", "ReLU2"})


def is_rectifier(module: nn.Module) -> bool:
    """Whether the module gives exactly zero for a unit that does not fire."""
    return isinstance(module, RECTIFIERS) or type(module).__name__ in _RECTIFIER_NAMES


def is_activation(module: nn.Module) -> bool:
    """Whether the module is a rectifier or bounded."""
    return is_rectifier(module) or saturation_of(module) is not None


@dataclass(frozen=True, slots=True)
class Saturation:
    """Where an activation counts as saturated."""

    low: float | None  # entries at or below it are saturated; None for none
    high: float | None  # entries at or above it are saturated; None for none
    reads: Literal["input", "output"] = "output"  # whether the bounds are on the activation's output or on its input
    dim: int | None = None  # for a softmax, the dimension of its distributions: one is saturated when an entry passes ``high``
    masks: bool = False  # whether an output of exactly 0 is that of a masked input (minus infinity), and does not count

    def bounds(self, values: Tensor) -> Bounds:
        """The bounds of the activation's output or input, whichever it reads."""
        distribution = values.shape[self.dim] if self.dim is not None and values.dim() else 1
        return Bounds(values, self.low, self.high, values.numel() // max(distribution, 1))


_GELU = Saturation(-3.07, None, reads="input")
_SILU = Saturation(-6.26, None, reads="input")

# Bounded activations: within 1 % of their range of a bound. Tails: where the slope's size falls below 0.01.
_SATURATIONS: tuple[tuple[type[nn.Module], Saturation], ...] = (
    (nn.Sigmoid, Saturation(0.01, 0.99, masks=True)),
    (nn.Tanh, Saturation(-0.98, 0.98)),
    (nn.Softsign, Saturation(-0.98, 0.98)),
    (nn.GELU, _GELU),
    (nn.SiLU, _SILU),
    (nn.Mish, _SILU),
    (nn.Hardswish, Saturation(-3.0, None, reads="input")),
    (nn.Hardsigmoid, Saturation(0.0, 1.0)),
    (nn.ReLU6, Saturation(None, 6.0)),  # its zeros are the zero fraction and the dead units
    (nn.SELU, Saturation(0.01 - 1.7580993408473766, None)),
    (nn.Softmax2d, Saturation(None, 0.99, dim=-3)),
)
# Those whose bounds are their own arguments. With y the output, the slope in the left tail is 1 - exp(-beta y) for softplus,
# y + alpha for ELU, 1 + y / alpha for CELU.
_OF_ARGUMENTS: tuple[tuple[type[nn.Module], tuple[str, ...], Callable[..., Saturation]], ...] = (
    (nn.Hardtanh, ("min_val", "max_val"), Saturation),
    (nn.Softplus, ("beta",), lambda beta: Saturation(0.01005 / (beta or math.inf), None)),
    (nn.ELU, ("alpha",), lambda alpha: Saturation(0.01 - alpha, None)),
    (nn.CELU, ("alpha",), lambda alpha: Saturation(-0.99 * alpha, None)),
)
_SATURATION_NAMES: dict[str, Saturation] = {
    "GELUActivation": _GELU,
    "NewGELUActivation": _GELU,
    "PytorchGELUTanh": _GELU,
    "GELUTanh": _GELU,
    "FastGELUActivation": _GELU,
    "QuickGELUActivation": Saturation(-6.26 / 1.702, None, reads="input"),
    "SiLUActivation": _SILU,
}


def saturation_of(module: nn.Module) -> Saturation | None:
    """Return where ``module`` saturates, or None if it has no bounds (or overwrites the input that shows it).

    Bounded activations (sigmoid, tanh, softsign, hardtanh, ReLU6, hardsigmoid) saturate within 1 % of their range of a
    bound, hard ones at it; a softmax where one entry takes 99 % of a distribution; GELU, SiLU, Mish, softplus and the ELU
    family in the left tail, where the slope is below 0.01.
    """
    found = _SATURATION_NAMES.get(type(module).__name__)
    found = found or next((spec for kind, spec in _SATURATIONS if isinstance(module, kind)), None)
    if found is not None:
        return None if found.reads == "input" and stored(module, "inplace") else found
    if isinstance(module, nn.Softmax):  # not LogSoftmax: a confident one has all its slope under its loss
        return saturation_of_call("softmax", {"dim": stored(module, "dim")})
    for kind, names, bounds in _OF_ARGUMENTS:
        numbers = [as_number(stored(module, name)) for name in names] if isinstance(module, kind) else [None]
        if None not in numbers:
            return bounds(*numbers)
    return None


_FUNCTIONS: dict[str, Saturation] = {
    "sigmoid": Saturation(0.01, 0.99, masks=True),
    "tanh": Saturation(-0.98, 0.98),
    "gelu": _GELU,
    "silu": _SILU,
}


def saturation_of_call(function: str, arguments: Mapping[str, Any]) -> Saturation | None:
    """As :func:`saturation_of`, of a call of a function.

    Args:
        function: Its name, such as ``sigmoid``.
        arguments: By name.
    """
    if function == "softmax":
        dim = arguments.get("dim")
        return Saturation(None, 0.99, dim=-1 if dim is None else dim)
    return None if arguments.get("inplace") else _FUNCTIONS.get(function)
