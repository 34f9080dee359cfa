"""A word before ``torch.compile`` traces anything."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Any, Protocol
from weakref import WeakSet


class Told(Protocol):
    """Who wants to be told."""

    def compiling(self) -> None:
        """Something is about to be traced."""


_TOLD: WeakSet[Any] = WeakSet()


def before_compiling(whom: Told) -> bool:
    """Have ``whom.compiling`` called whenever something is about to be traced; whether torch tells of that."""
    _TOLD.add(whom)
    return compiling_is_told()


def compiling_is_told() -> bool:
    """Whether torch tells, and goes on to tell, before it traces anything."""
    dynamo = sys.modules.get("torch._dynamo.callback")  # loaded with the first optimizer
    handler = getattr(dynamo, "callback_handler", None)
    known = getattr(handler, "start_callbacks", None)
    if handler is None or known is None:
        return False
    if _compiling not in known:  # torch._dynamo.reset() forgets it
        handler.register_start_callback(_compiling)
    return True


def _compiling(*_: object) -> None:
    for whom in list(_TOLD):
        with suppress(Exception):  # the compiler is the model's; what is missing here is told where it is missed
            whom.compiling()
