"""What tools that trace a step share: hooks that run while it is traced, its calls under way, and whether it is in backward."""

from __future__ import annotations

from typing import Any, TypeVar

import torch

from lightning_hooks.hooks.listener import Listener

C = TypeVar("C")


class TraceHook(Listener):
    """Hook that passes its arguments to a method of a tracer while a step is traced.

    Args:
        tracer: An object with a flag ``tracing``.
        method: The name of its method.
        *first: The first arguments of the method.
    """

    def __init__(self, tracer: Any, method: str, *first: Any) -> None:
        self.tracer, self.method, self.first = tracer, method, first

    def __call__(self, *args: Any) -> None:
        """Call the method if a step is traced."""
        if self.tracer.tracing:
            self.run(*args)

    def run(self, *args: Any) -> None:
        """Call the method."""
        getattr(self.tracer, self.method)(*self.first, *args)


class UncompiledHook(TraceHook):
    """Hook that torch.compile does not trace: a compiled graph breaks there, in traced steps only."""

    @torch.compiler.disable  # type: ignore[untyped-decorator]
    def run(self, *args: Any) -> None:
        """Call the method."""
        super().run(*args)


class CallStack(list[tuple[Any, C]]):
    """The calls of a step that have begun and not ended, the innermost last: (site, what a tracer keeps of the call) pairs."""

    @property
    def sites(self) -> list[Any]:
        """The sites of the calls."""
        return [site for site, _ in self]

    def end(self, site: Any) -> C | None:
        """End the innermost call of ``site``, and with it calls inside it whose end was not recorded; None if there is none."""
        ended, kept = None, None
        while site in self.sites and ended != site:
            ended, kept = self.pop()
        return kept


def in_backward() -> bool:
    """Whether a backward pass runs in this thread, by the private function that activation checkpointing uses."""
    current = getattr(torch._C, "_current_graph_task_id", None)
    return current is not None and current() != -1
