"""The layout and number of the units of a module."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from lightning_hooks.hooks.attributes import stored, stored_count
from lightning_hooks.statistics.units import features_last, unit_dimension

_CONV = nn.modules.conv._ConvNd
_NORM = nn.modules.batchnorm._NormBase


@dataclass(frozen=True, slots=True)
class Layout:
    """The position of the units in a module's output.

    Attributes:
        spatial: The number of spatial dimensions after the units, or None.
        last: Whether the units are in the last dimension (True) or in dimension 1 (False); None if unknown.
        guess: The same, from the order of the model's modules, for three-dimensional outputs, where both are common.
        given: The dimension that the user passed, or None.
    """

    spatial: int | None = None
    last: bool | None = None
    guess: bool | None = None
    given: int | None = None

    @classmethod
    def of(cls, maker: nn.Module, guess: bool | None) -> Layout:
        """Return the layout of the output of ``maker``: channels before the spatial dimensions, features last."""
        if isinstance(maker, _CONV):
            kernel = stored(maker, "kernel_size")
            return cls(spatial=len(kernel) if isinstance(kernel, tuple) else None)
        return cls(last=features_last(maker), guess=guess)

    def dim(self, values: Tensor) -> int:
        """Return the dimension of the units in ``values``.

        Raises:
            RuntimeError: If there is no such dimension.
        """
        dims = values.dim()
        found = self.given
        if found is None and self.spatial is not None:
            found = dims - self.spatial - 1
        if found is None:
            found = unit_dimension(values, self.guess if self.last is None and dims == 3 else self.last)
        if not -dims <= found < dims:
            raise RuntimeError(f"unit_dim={found} is not a dimension of an output of shape {tuple(values.shape)}.")
        return found % dims


def known_units(module: nn.Module) -> int | None:
    """Return the number of units of a module from its attributes, or None."""
    if isinstance(module, nn.LayerNorm):
        shape = stored(module, "normalized_shape")
        return int(shape[-1]) if isinstance(shape, tuple) else None
    for kind, attribute in (
        (nn.Linear, "out_features"),
        (nn.Bilinear, "out_features"),
        (_CONV, "out_channels"),
        (_NORM, "num_features"),
        (nn.GroupNorm, "num_channels"),
        (nn.Embedding, "embedding_dim"),
    ):
        if isinstance(module, kind):
            return stored_count(module, attribute) or None  # a lazy layer has 0
    return None


def activity_sums(values: Tensor, dim: int) -> tuple[Tensor, int]:
    """Return the sum of |value| of each unit, shape ``(n_units,)``, and the number of values per unit. No host sync."""
    found = values.detach()
    others = [other for other in range(found.dim()) if other != dim]
    if found.dtype in (torch.float16, torch.bfloat16):
        found = found.float()
    sums = torch.linalg.vector_norm(found, ord=1, dim=others) if others else found.abs()
    return sums, found.numel() // max(found.shape[dim], 1)
