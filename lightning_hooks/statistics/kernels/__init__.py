"""What reads tensors: torch's own kernels, and faster ones where they can be had."""

from __future__ import annotations

import torch

from lightning_hooks.statistics.fused import fused
from lightning_hooks.statistics.native import native


def kernels() -> dict[str, str]:
    """Return which kernels read tensors here, by kind of device.

    Returns:
        ``"c"`` or ``"torch"`` for ``"cpu"``; where there is a CUDA device, ``"triton"`` or ``"torch"`` for ``"cuda"``.
    """
    found = {"cpu": "torch" if native() is None else "c"}
    if torch.cuda.is_available():
        found["cuda"] = "torch" if fused() is None else "triton"
    return found
