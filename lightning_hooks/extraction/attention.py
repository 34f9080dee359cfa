"""Attention layers that return their weights."""

from __future__ import annotations

import inspect
from typing import Any

from torch import nn

from lightning_hooks.hooks import HookManager, Listener


def ask_for_attention(model: nn.Module, hooks: HookManager) -> None:
    """Hook every ``nn.MultiheadAttention`` so that it returns the weights of each head.

    Its output is equal up to rounding: PyTorch then uses another algorithm.
    """
    for name, module in model.named_modules():
        if isinstance(module, nn.MultiheadAttention):
            hooks.register(module, _RequestWeights(), "forward_pre", with_kwargs=True, label=name)


class _RequestWeights(Listener):
    """Forward pre-hook of an attention layer."""

    def __call__(self, module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        bound = inspect.signature(module.forward).bind(*args, **kwargs)
        bound.arguments.update(need_weights=True, average_attn_weights=False)
        return bound.args, bound.kwargs
