"""What the batch and the weights of a bad step say of it, where it cannot be run again."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from lightning_hooks.hooks.selection import clean_name
from lightning_hooks.hooks.tensors import has_values
from lightning_hooks.replay.trace import tensors_of


class Look(NamedTuple):
    """What was seen.

    Attributes:
        text: In a sentence.
        rows: The rows of the batch that are not finite, where samples lie along the first dimension.
    """

    text: str
    rows: tuple[int, ...] = ()


def look_at(model: nn.Module, batch: Any) -> Look:
    """Look for values that are not finite: in the batch first, then in the parameters, then NaN in the buffers.

    Args:
        model: The model, as it was in the step.
        batch: The batch, as the step got it.
    """
    for place, tensor in tensors_of(batch).items():
        found = _bad(tensor, ~torch.isfinite(tensor)) if tensor.is_floating_point() and tensor.layout == torch.strided else None
        if found is not None and len(found) and tensor.dim():
            rows = tuple(dict.fromkeys(found[:, 0].tolist()))
            value = tensor[tuple(found[0])].item()
            return Look(f"The batch itself has {value} in it (batch{place}), first at {found[0].tolist()}.", rows)
    named = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in named:
        if not has_values(tensor) or not tensor.is_floating_point() or tensor.layout != torch.strided:
            continue
        weight = isinstance(tensor, nn.Parameter)  # buffers hold masks of minus infinity
        found = _bad(tensor, ~torch.isfinite(tensor) if weight else torch.isnan(tensor))
        if found is not None:
            return Look(
                f"{clean_name(name)} has {tensor[tuple(found[0])].item()} in it, first at {found[0].tolist()}: no step makes it "
                "finite again."
            )
    return Look("The batch and the weights were finite: an operation of the step was the first.")


def _bad(tensor: Tensor, where: Tensor) -> Tensor | None:
    """The places of some numbers of a tensor; None without."""
    return where.nonzero() if tensor.numel() and bool(where.any()) else None
