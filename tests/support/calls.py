"""Tables of functional calls without a training: what they ask of a run."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any, TypeVar

from lightning_hooks.declare.functional import CallTable

T = TypeVar("T", bound=CallTable)


def call_table(kind: type[T], capacity: int = 3) -> T:
    """A table whose rows are recorded by hand: none of its functions is called."""
    host = SimpleNamespace(setup=SimpleNamespace(device="cpu"))
    make: Any = kind
    sites = [SimpleNamespace(index=index, name=name, function=kind.functions[0]) for index, name in enumerate("abc"[:capacity])]
    context = SimpleNamespace(host=host, on_call=lambda *_, **__: None)
    made: T = make(SimpleNamespace(capacity=capacity, sites=sites), context)
    return made
