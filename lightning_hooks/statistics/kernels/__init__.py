"""What reads tensors: torch's own kernels, and faster ones where they can be had.

Everybody else asks :func:`kernels_for` once for a kind of device and uses the methods of :class:`Kernels`.
"""

from __future__ import annotations

import functools
import os
import warnings
from importlib import import_module

import torch

from lightning_hooks.statistics.kernels.host import HostKernels
from lightning_hooks.statistics.kernels.plain import Bounds, Kernels, Norms, Units, summarize

__all__ = ["Bounds", "Kernels", "Norms", "Units", "kernels", "kernels_for", "summarize"]

_FASTER = {
    "cpu": "native",  # in C
    "cuda": "fused",  # in Triton
}
"""For a kind of device the module whose ``load()`` gives kernels for it; what this does not name, torch does."""


@functools.cache
def kernels_for(kind: str) -> Kernels:
    """Choose the kernels for a kind of device, once.

    With ``LIGHTNING_HOOKS_NATIVE=0`` in the environment they are torch's.

    Args:
        kind: ``device.type`` of the tables that are written: ``"cpu"``, ``"cuda"``, ...
    """
    if kind in _FASTER and os.environ.get("LIGHTNING_HOOKS_NATIVE", "1") != "0":
        module = import_module(f"{__name__}.{_FASTER[kind]}")
        try:
            faster: Kernels | None = module.load()
        except Exception as error:  # noqa: BLE001  any error: torch's kernels do the same
            warnings.warn(
                f"{module.WHAT} is not used: {error}. torch's kernels do the same work, more slowly. {module.REMEDY}",
                stacklevel=2,
            )
        else:
            if faster is not None:
                return faster
    return HostKernels() if kind == "cpu" else Kernels()


def kernels() -> dict[str, str]:
    """Return which kernels read tensors here, by kind of device.

    Returns:
        ``"c"`` or ``"torch"`` for ``"cpu"``; where there is a CUDA device, ``"triton"`` or ``"torch"`` for ``"cuda"``.
    """
    return {kind: kernels_for(kind).name for kind in ("cpu", "cuda") if kind == "cpu" or torch.cuda.is_available()}
