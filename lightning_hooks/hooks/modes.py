"""Modes on the stack of a thread: ours among those of others, and our code outside of all of them.

A torch-function mode sees each method and each property of a tensor that Python touches, a dispatch mode each operator. What a hook
reads and computes is neither the user's to see (a FLOP counter would count it) nor to be slowed down.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch.overrides import TorchFunctionMode
from torch.utils._device import DeviceContext
from torch.utils._python_dispatch import _disable_current_modes  # has no public name

from lightning_hooks.hooks.attributes import exchange

_NO_MODES = nullcontext()
_push: Callable[[TorchFunctionMode], None] = torch.overrides._push_mode  # a mode that leaves before later ones has no public name
_pop: Callable[[], TorchFunctionMode] = torch.overrides._pop_mode
# They return how many modes of each kind are in force in this thread.
function_modes, dispatch_modes = torch._C._len_torch_function_stack, torch._C._len_torch_dispatch_stack


def outside_modes() -> AbstractContextManager[None]:
    """Return a context in which no mode sees what is called, nor a subclass of tensors by its ``__torch_function__``."""
    if dispatch_modes():
        return _outside_all()
    return torch._C.DisableTorchFunction() if function_modes() else _NO_MODES


def uncompiled() -> AbstractContextManager[None]:
    """Return a context in which compiled modules run without ``torch.compile``; before torch 2.6 they run as they are."""
    return torch.compiler.set_stance("force_eager") if hasattr(torch.compiler, "set_stance") else _NO_MODES


@contextmanager
def _outside_all() -> Iterator[None]:
    with torch._C.DisableTorchFunction(), _disable_current_modes():
        yield


def is_captured() -> bool:
    """Whether a CUDA graph captures what runs now: it would replay what is recorded here, also when the monitors are gone."""
    return torch.cuda.is_initialized() and torch.cuda.is_current_stream_capturing()  # type: ignore[no-untyped-call]


def remove_mode(mode: TorchFunctionMode) -> None:
    """Take a mode from the stack of modes, wherever in it it is, if it is there."""
    above = []
    while function_modes():
        top = _pop()
        if top is mode:
            break
        above.append(top)
    for other in reversed(above):
        _push(other)


def lowest_place() -> int:
    """How many modes have to be below a mode that others leave before: that of a default device lies at the bottom."""
    return int(function_modes() > 0 and isinstance(torch._C._get_function_stack_at(0), DeviceContext))


def insert_mode(mode: TorchFunctionMode, below: int) -> None:
    """Put a mode onto the stack of modes, with so many below it: those above it are the user's, and leave before it."""
    above = []
    while function_modes() > below:
        above.append(_pop())
    for other in (mode, *reversed(above)):
        _push(other)


# Called with a function, its arguments and what it returned.
Show = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any], None]


@contextmanager
def shown(functions: dict[str, Callable[..., Any]], show: Show) -> Iterator[None]:
    """Within this block, show the calls of some functions that this thread makes as attributes of ``torch.nn.functional``.

    What takes their place calls what was there.

    Args:
        functions: By the name of the attribute, the function as which its calls are shown, whatever is there by then.
        show: What they are shown to.
    """
    thread = threading.get_ident()

    def showing(name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            output = own(*args, **kwargs)
            if threading.get_ident() == thread:
                show(functions[name], args, kwargs, output)
            return output

        return call

    put_back = exchange(F, **{name: showing(name, getattr(F, name)) for name in functions})
    try:
        yield
    finally:
        put_back()
