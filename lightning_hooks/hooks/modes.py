"""Modes on the stack of a thread: ours among those of others, and our code outside of all of them.

A torch-function mode sees each method and each property of a tensor that Python touches, a dispatch mode each operator. What a hook
reads and computes is neither the user's to see (a FLOP counter would count it) nor to be slowed down.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes  # has no public name

_NO_MODES = nullcontext()
_len_functions, _len_dispatch = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack


def in_modes() -> bool:
    """Whether a torch-function or dispatch mode is in force in this thread."""
    return _len_functions() > 0 or _len_dispatch() > 0


def outside_modes() -> AbstractContextManager[None]:
    """Return a context in which no mode sees what is called, nor a subclass of tensors by its ``__torch_function__``."""
    if _len_dispatch():
        return _outside_all()
    return torch._C.DisableTorchFunction() if _len_functions() else _NO_MODES


@contextmanager
def _outside_all() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


def remove_mode(mode: TorchFunctionMode) -> None:
    """Take a mode from the stack of modes, wherever in it it is, if it is there."""
    above = []
    while _len_functions():
        top = _pop()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        _push(other)


def lowest_place() -> int:
    """How many modes have to be below a mode that others leave before: that of a default device lies at the bottom."""
    return int(_len_functions() > 0 and isinstance(torch._C._get_function_stack_at(0), DeviceContext))


def insert_mode(mode: TorchFunctionMode, below: int) -> None:
    """Put a mode onto the stack of modes, with so many below it: those above it are the user's, and leave before it."""
    above = [_pop() for _ in range(_len_functions() - below)]
    for other in (mode, *reversed(above)):
        _push(other)


# A mode has to leave before those that were entered after it, which has no public name.


def _push(mode: TorchFunctionMode) -> None:
    torch.overrides._push_mode(mode)  # type: ignore[no-untyped-call]


def _pop() -> TorchFunctionMode:
    return torch.overrides._pop_mode()  # type: ignore[no-untyped-call, no-any-return]
