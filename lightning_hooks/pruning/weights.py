"""Masks made permanent: the layout and number of a module's units, and their weights set to zero."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import NamedTuple

import torch
from torch import Tensor, nn

from lightning_hooks.extraction.capture import POOLING
from lightning_hooks.hooks.attributes import stored, stored_count
from lightning_hooks.hooks.selection import named_sites
from lightning_hooks.hooks.tensors import as_number, stored_tensor
from lightning_hooks.statistics.units import features_last, unit_dimension

_CONV = nn.modules.conv._ConvNd
_NORM = nn.modules.batchnorm._NormBase


class Layout(NamedTuple):
    """The position of the units in a module's output.

    Attributes:
        dim: The dimension that the user passed, or that of a convolution's channels, from the end; None if unknown.
        last: Whether the units are in the last dimension (True) or in dimension 1 (False); None if unknown.
        guess: The same, from the order of the model's modules, for three-dimensional outputs, where both are common.
    """

    dim: int | None = None
    last: bool | None = None
    guess: bool | None = None

    @classmethod
    def of(cls, maker: nn.Module, guess: bool | None) -> Layout:
        """Return the layout of the output of ``maker``: channels before the spatial dimensions, features last."""
        kernel = stored(maker, "kernel_size") if isinstance(maker, _CONV) else None
        return cls(dim=-1 - len(kernel)) if isinstance(kernel, tuple) else cls(last=features_last(maker), guess=guess)

    def dim_in(self, values: Tensor) -> int:
        """Return the dimension of the units in ``values``; raise RuntimeError if there is no such dimension."""
        dims, found = values.dim(), self.dim
        if found is None:
            found = unit_dimension(dims, self.guess if self.last is None and dims == 3 else self.last)
        if not -dims <= found < dims:
            raise RuntimeError(f"unit_dim={found} is not a dimension of an output of shape {tuple(values.shape)}.")
        return found % dims


# Modules, and the attribute with the number of their units.
_UNITS: tuple[tuple[type[nn.Module], str], ...] = (
    (nn.Linear, "out_features"),
    (nn.Bilinear, "out_features"),
    (_CONV, "out_channels"),
    (_NORM, "num_features"),
    (nn.GroupNorm, "num_channels"),
    (nn.Embedding, "embedding_dim"),
)


def known_units(module: nn.Module) -> int | None:
    """Return the number of units of a module from its attributes, or None."""
    if isinstance(module, nn.LayerNorm):
        shape = stored(module, "normalized_shape")
        return int(shape[-1]) if isinstance(shape, tuple) else None
    attribute = next((attribute for kind, attribute in _UNITS if isinstance(module, kind)), None)
    return None if attribute is None else stored_count(module, attribute) or None  # a lazy layer has 0


def activity_sums(values: Tensor, dim: int) -> tuple[Tensor, int]:
    """Return the sum of |value| of each unit, shape ``(n_units,)``, and the number of values per unit. No host sync."""
    found = values.detach()
    others = [other for other in range(found.dim()) if other != dim]
    if found.dtype in (torch.float16, torch.bfloat16):
        found = found.float()
    sums = torch.linalg.vector_norm(found, ord=1, dim=others) if others else found.abs()
    return sums, found.numel() // max(found.shape[dim], 1)


# They map 0 to 0 and each unit separately: a zero input is a zero output.
_KEEP_ZERO: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.ReLU6, nn.LeakyReLU, nn.PReLU, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU, nn.Mish, nn.Hardswish),
    *(nn.Tanh, nn.Softsign, nn.Tanhshrink, nn.Softshrink, nn.Hardshrink),
    *(nn.Identity, nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d, *POOLING),
)
_CONV_TRANSPOSE = nn.modules.conv._ConvTransposeNd


def zero_units(root: nn.Module, masks: Mapping[str, Tensor]) -> list[str]:
    """Set the weights and biases of masked units to zero, so that the model without masks has the same output as with them.

    They are those of the masked module if it is a linear layer, a convolution, an embedding or a norm with weights. For an
    activation, pooling or dropout that keeps zeros and follows one of these in an ``nn.Sequential``, they are those of that layer.

    Args:
        root: The model of the masks.
        masks: Module name to the units that stay, boolean, ``(units,)``.

    Returns:
        The names of the modules whose weights were changed.

    Raises:
        ValueError: If the module of a mask does not exist, has no weights for its units, has another number of units, or shares its
            weights with another module. Then nothing is changed.
    """
    modules = dict(named_sites(root))
    owners = Counter(id(p) for _, p in root.named_parameters(remove_duplicate=False))
    places = Counter(id(m) for _, m in root.named_modules(remove_duplicate=False))
    plan: list[tuple[str, nn.Module, Tensor]] = []
    for name, kept in masks.items():
        if bool(kept.all()):
            continue
        if name not in modules:
            raise ValueError(
                f"There is a mask for {name!r}, and {type(root).__name__} has no such module. Pass the model of the masks."
            )
        producer = producer_of(name, modules)
        if producer is None:
            kind = type(modules[name]).__name__
            raise ValueError(
                f"The units of {name!r} ({kind}) have no weights, neither its own nor those of a layer before it in an "
                "nn.Sequential, so zeroing weights cannot replace its mask. Mask the linear layer or convolution before it instead."
            )
        module = modules[producer]
        if known_units(module) != len(kept):
            raise ValueError(f"The mask of {name!r} has {len(kept)} units, and {producer!r} has {known_units(module)}.")
        shared = any(owners[id(p)] > 1 for p in module.parameters(recurse=False))
        if shared or (producer != name and places[id(module)] > 1):
            raise ValueError(f"{producer!r} shares its weights with another module, where zeroing them would have an effect too.")
        plan.append((producer, module, ~kept))
    for _, module, dropped in plan:
        _zero(module, dropped)
    return [producer for producer, _, _ in plan]


def producer_of(name: str, modules: Mapping[str, nn.Module]) -> str | None:
    """Return the name of the module whose weights determine the units of ``name``, or None if that is uncertain."""
    while True:
        module = modules[name]
        if _has_units(module):
            return name
        parent, _, child = name.rpartition(".")
        container = modules.get(parent)
        if not isinstance(container, nn.Sequential) or not _keeps_zero(module):
            return None
        names = list(dict(container.named_children()))
        place = names.index(child)
        if place == 0:
            return None
        name = f"{parent}.{names[place - 1]}" if parent else names[place - 1]


def _keeps_zero(module: nn.Module) -> bool:
    if isinstance(module, nn.Hardtanh):  # ReLU6 is one too
        low, high = (as_number(stored(module, name)) for name in ("min_val", "max_val"))
        return low is not None and high is not None and low <= 0 <= high
    return isinstance(module, _KEEP_ZERO)


def _has_units(module: nn.Module) -> bool:
    if "parametrizations" in module._modules:  # its weight is computed: zeros written to it would be overwritten
        return False
    return isinstance(module, (nn.LayerNorm, *dict(_UNITS))) and stored_tensor(module, "weight") is not None


@torch.no_grad()
def _zero(module: nn.Module, dropped: Tensor) -> None:
    weight, bias = stored_tensor(module, "weight"), stored_tensor(module, "bias")
    assert weight is not None  # as _has_units found
    dropped = dropped.to(weight.device)
    if isinstance(module, nn.Embedding | nn.LayerNorm):  # units last
        weight.masked_fill_(dropped, 0.0)
    elif isinstance(module, _CONV_TRANSPOSE):  # (in, out / groups, …): each group of outputs depends on one group of inputs
        groups = stored_count(module, "groups")
        rows = dropped.view(groups, 1, -1).expand(-1, weight.shape[0] // groups, -1).flatten(0, 1)
        weight.masked_fill_(rows.view(*rows.shape, *(1,) * (weight.dim() - 2)), 0.0)
    else:
        weight.masked_fill_(dropped.view(-1, *(1,) * (weight.dim() - 1)), 0.0)
    if bias is not None:
        bias.masked_fill_(dropped, 0.0)
