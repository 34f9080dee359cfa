"""Activations: those whose units can be dead, and where those with bounds saturate."""

from __future__ import annotations

from collections.abc import Mapping
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
    """Where an activation counts as saturated.

    Attributes:
        low: Entries at or below it are saturated; None for none.
        high: Entries at or above it are saturated; None for none.
        reads: Whether the bounds are on the activation's output or on its input.
        dim: For a softmax, the dimension of its distributions: one is saturated when an entry passes ``high``.
        masks: Whether an output of exactly 0 is that of a masked input (minus infinity), and does not count.
    """

    low: float | None
    high: float | None
    reads: Literal["input", "output"] = "output"
    dim: int | None = None
    masks: bool = False

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
    found = found or next((spec for kind, spec in _SATURATIONS if isinstance(module, kind)), None) or _from_arguments(module)
    if found is not None and found.reads == "input" and stored(module, "inplace"):
        return None
    return found


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


def _from_arguments(module: nn.Module) -> Saturation | None:
    """Activations whose bounds are their own arguments."""
    if isinstance(module, nn.ReLU6):
        return Saturation(None, 6.0)  # its zeros are the zero fraction and the dead units
    if isinstance(module, nn.Hardtanh):
        low, high = (as_number(stored(module, name)) for name in ("min_val", "max_val"))
        return None if low is None or high is None else Saturation(low, high)
    # With y the output, the slope in the left tail is 1 - exp(-beta y) for softplus, y + alpha for ELU, 1 + y / alpha for CELU.
    if isinstance(module, nn.Softplus):
        beta = as_number(stored(module, "beta"))
        return Saturation(0.01005 / beta, None) if beta else None
    if isinstance(module, nn.ELU | nn.CELU):
        alpha = as_number(stored(module, "alpha"))
        if alpha is None:
            return None
        return Saturation(0.01 - alpha if isinstance(module, nn.ELU) else -0.99 * alpha, None)
    if isinstance(module, nn.SELU):
        return Saturation(0.01 - 1.7580993408473766, None)
    if isinstance(module, nn.Softmax | nn.Softmax2d):  # not LogSoftmax: a confident one has all its slope under its loss
        dim = -3 if isinstance(module, nn.Softmax2d) else stored(module, "dim")
        return Saturation(None, 0.99, dim=-1 if dim is None else dim)
    return None
