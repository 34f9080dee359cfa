"""Where the units of a layer lie in its output, and how many there can be."""

from __future__ import annotations

import functools
from collections.abc import Mapping

from torch import nn

from lightning_hooks.hooks.attributes import stored_count
from lightning_hooks.hooks.selection import OPAQUE
from lightning_hooks.hooks.tensors import is_computed

_FEATURES_LAST = (nn.Linear, nn.Bilinear, nn.Embedding, nn.EmbeddingBag, nn.LayerNorm, nn.RNNBase, *OPAQUE)
_CHANNELS_FIRST = (nn.modules.conv._ConvNd, nn.modules.batchnorm._NormBase, nn.GroupNorm)


def features_last(producer: nn.Module) -> bool | None:
    """Whether ``producer`` puts its units in the last dimension, in dimension 1 (False), or implies neither (None)."""
    if isinstance(producer, _CHANNELS_FIRST):
        return False
    return True if isinstance(producer, _FEATURES_LAST) else None


@functools.lru_cache(maxsize=64)
def unit_dimension(dims: int, units_last: bool | None) -> int:
    """The dimension in which a rectifier's units lie; 0 for a single number.

    Args:
        dims: How many dimensions its output has. Units are in the last one of 1 to 3 dimensions and in dimension 1 of more, unless
            ``units_last`` says otherwise.
        units_last: What the layer before implies (a convolution or a linear layer), or None.
    """
    last = units_last if units_last is not None else dims < 4
    return max(dims - 1, 0) if last or dims < 2 else 1


def layouts(root: nn.Module) -> Mapping[int, bool | None]:
    """For each module, by id, whether the layer before it (in the model's order) puts its units last."""
    found: dict[int, bool | None] = {}
    last: bool | None = None
    for module in root.modules():
        found[id(module)] = last
        known = features_last(module)
        last = last if known is None else known
    return found


def units_of(module: nn.Module) -> int:
    """The most units a rectifier after this module can have, as far as its parameters show."""
    if isinstance(module, nn.Embedding | nn.EmbeddingBag):
        return stored_count(module, "embedding_dim")
    if isinstance(module, nn.modules.conv._ConvTransposeNd):
        return stored_count(module, "out_channels")
    shapes = [p.shape for p in module.parameters(recurse=False) if is_computed(p)]
    return max((shape[0] for shape in shapes if len(shape)), default=0)
