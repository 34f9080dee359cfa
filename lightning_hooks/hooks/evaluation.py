"""Calls that drop something though the module that makes them is in eval mode, in a batch of validation.

No hook is in place meanwhile, so that a model that is copied or exported in validation is as it was.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import nn
from torch.overrides import TorchFunctionMode
from typing_extensions import override

from lightning_hooks.hooks.functional import FUSED, insert_mode, remove_mode
from lightning_hooks.hooks.selection import named_sites

_DEEPEST = 12
"""Python frames between a call and the forward that makes it, at most."""
_DROPOUTS = {F.dropout: "dropout", torch.dropout: "dropout", F.scaled_dot_product_attention: "sdpa"}
_POSITIONS = {"dropout": ("input", "p", "training"), "sdpa": ("query", "key", "value", "attn_mask", "dropout_p")}


class EvaluationMode(TorchFunctionMode):
    """Hands on each call of dropout, or of an attention with dropout, that drops something.

    Args:
        root: The model.
        record: Called with the calling module's name, the module, the function's name and the share it drops.
    """

    def __init__(self, root: nn.Module, record: Callable[[str, nn.Module, str, float], None]) -> None:
        super().__init__()
        self._root, self._record = root, record
        self._names: dict[int, str] = {}
        self._running = False

    def start(self) -> None:
        """A batch of validation starts. Models that take a fused path in eval mode are left alone: a mode keeps them from it."""
        if self._running or any(isinstance(module, FUSED) for module in self._root.modules()):
            return
        self._names = {id(module): name for name, module in named_sites(self._root)}
        self._running = True
        insert_mode(self, 0)

    def stop(self) -> None:
        """The batch is over. Harmless when it was over before."""
        if self._running:
            remove_mode(self)
            self._running = False
            self._names.clear()

    @override
    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        known = _DROPOUTS.get(function)
        if known is not None and (p := dropped(known, {**dict(zip(_POSITIONS[known], args, strict=False)), **(kwargs or {})})):
            self._find(known, p)
        return function(*args, **(kwargs or {}))

    def _find(self, function: str, p: float) -> None:
        """Find the module that makes the call under way: the nearest frame with a ``self`` that is one of the model's."""
        frame = sys._getframe(2)
        for _ in range(_DEEPEST):
            module = frame.f_locals.get("self")
            if isinstance(module, nn.Module) and id(module) in self._names:
                self._record(self._names[id(module)], module, function, p)
                return
            if frame.f_back is None:
                return
            frame = frame.f_back


def dropped(function: str, arguments: dict[str, Any]) -> float:
    """The share that a call drops, 0 where it drops nothing.

    Args:
        function: ``dropout`` or ``sdpa``.
        arguments: By name; those that were given.
    """
    if function == "sdpa":
        return float(arguments.get("dropout_p", 0.0))
    active = arguments.get("training", arguments.get("train", True))
    return float(arguments.get("p", 0.5)) if active else 0.0
