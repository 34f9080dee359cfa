"""Pooling of a layer's output to one vector per sample."""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeAlias

from torch import Tensor, nn

Pool: TypeAlias = str | Callable[[Tensor], Tensor]
"""One of ``POOLS``, or a function of a module's output, ``(n, …)`` to ``(n, …)``."""

POOLS = ("mean", "space", "tokens", "cls")
"""The named poolings; see :func:`pooled`."""

# Modules whose outputs have channels first, also with three dimensions.
_CHANNELS_FIRST: tuple[type[nn.Module], ...] = (
    nn.modules.conv._ConvNd,
    nn.modules.batchnorm._NormBase,
    nn.GroupNorm,
    nn.modules.pooling._MaxPoolNd,
    nn.modules.pooling._AvgPoolNd,
    nn.modules.pooling._AdaptiveAvgPoolNd,
    nn.modules.pooling._AdaptiveMaxPoolNd,
)


def check_pool(pool: object) -> None:
    """Raise ValueError if ``pool`` is neither None, one of ``POOLS``, nor a function."""
    if pool is not None and not callable(pool) and pool not in POOLS:
        raise ValueError(f"pool must be None, one of {', '.join(map(repr, POOLS))}, or a function of the output; got {pool!r}.")


def channels_first(module: nn.Module, dims: int) -> bool:
    """Whether an output of ``dims`` dimensions of ``module`` is (n, channels, space …) rather than (n, tokens …, features)."""
    return dims >= 4 or isinstance(module, _CHANNELS_FIRST)


def pooled(values: Tensor, pool: Pool | None, module: nn.Module) -> Tensor:
    """Pool one output of ``module``.

    Args:
        values: The output, samples first: ``(n, channels, space …)``, ``(n, tokens, features)`` or ``(n, features)``.
        pool: None for no pooling. ``space`` is the mean over dimensions 2 and up; ``tokens`` the mean over all but the
            first and the last; ``cls`` the first token; ``mean`` is ``space`` for four or more dimensions and for
            one-dimensional convolutions, norms and pools, ``tokens`` otherwise. Two-dimensional outputs are unchanged.
        module: The module of the output.

    Returns:
        Shape ``(n, channels)`` or ``(n, features)``; that of ``values`` with ``pool=None``.

    Raises:
        ValueError: If the output has too few dimensions for ``cls``.
    """
    if pool is None:
        return values
    if callable(pool):
        return pool(values)
    dims = values.dim()
    if pool == "cls":
        if dims < 3:
            raise ValueError(f"pool='cls' takes the first token of (n, tokens, features); got shape {tuple(values.shape)}.")
        return values[:, 0]
    if dims < 3:
        return values
    if pool == "space" or (pool == "mean" and channels_first(module, dims)):
        return values.mean(dim=tuple(range(2, dims)))
    return values.mean(dim=tuple(range(1, dims - 1)))
