"""Calls that ``multi_head_attention_forward`` makes, which run outside of the mode that sees its own call."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch.nn.functional as F  # noqa: N812

Show = Callable[[Callable[..., Any], tuple[Any, ...], dict[str, Any], Any], None]
"""Called with a function, its arguments and what it returned."""


class Exchange:
    """Exchanges attributes of ``torch.nn.functional`` while anybody asks for their calls.

    What takes their place calls what was there, and shows the call only in a thread that asked for it. The last one to leave puts
    back what was there.

    Args:
        functions: By the name of the attribute, the function as which its calls are shown, whatever is there by then.
    """

    def __init__(self, functions: dict[str, Callable[..., Any]]) -> None:
        self._functions = functions
        self._lock = threading.Lock()
        self._local = threading.local()
        self._exchanged: dict[str, tuple[Any, Any]] = {}  # name -> what was there, what is there instead
        self._users = 0

    @contextmanager
    def shown_to(self, show: Show) -> Iterator[None]:
        """Within this block, show the calls that this thread makes."""
        outer, self._local.show = getattr(self._local, "show", None), show
        with self._lock:
            self._users += 1
            for name in self._functions if self._users == 1 else ():
                own = getattr(F, name)
                self._exchanged[name] = own, self._showing(name, own)
                setattr(F, name, self._exchanged[name][1])
        try:
            yield
        finally:
            self._local.show = outer
            with self._lock:
                self._users -= 1
                for name in () if self._users else self._functions:
                    own, ours = self._exchanged.pop(name)
                    if getattr(F, name) is ours:  # else somebody has exchanged it since
                        setattr(F, name, own)

    def _showing(self, name: str, own: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            output = own(*args, **kwargs)
            show: Show | None = getattr(self._local, "show", None)
            if show is not None:
                show(self._functions[name], args, kwargs, output)
            return output

        return call
