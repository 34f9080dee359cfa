"""Which parameters DistributedDataParallel keeps the same on every rank."""

from __future__ import annotations

from typing import Any

from torch import nn

_SAME_EVERYWHERE = ("default_hooks", "powerSGD_hook", "quantization_hooks", "mixed_precision_hooks", "optimizer_overlap_hooks")


def replicated(wrapped: nn.Module | None) -> list[nn.Parameter]:
    """Return the parameters that DDP keeps the same: none where a communication hook may not, or without DDP.

    What a hook of the user's does is not known.
    """
    if not isinstance(wrapped, nn.parallel.DistributedDataParallel):
        return []
    hooks: Any = getattr(wrapped, "_comm_hooks", ())  # of torch; neither of these has a public name
    ignored: Any = getattr(wrapped, "parameters_to_ignore", ())
    if not all(_reduces_alike(hook, state) for hook, state in hooks):
        return []
    return [parameter for name, parameter in wrapped.module.named_parameters() if name not in ignored]


def _reduces_alike(hook: Any, state: Any) -> bool:
    """Whether a communication hook of DDP's leaves every rank with the same gradients."""
    known = getattr(hook, "__module__", "") in {f"torch.distributed.algorithms.ddp_comm_hooks.{name}" for name in _SAME_EVERYWHERE}
    return known and type(state).__name__ != "PostLocalSGDState"  # which a wrapper such as fp16_compress_wrapper hands on
