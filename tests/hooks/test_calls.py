"""What tracers of a step share: hooks that run while it is traced, its open calls, and whether it is in backward."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.hooks import HookManager
from lightning_hooks.hooks.calls import CallStack, TraceHook, UncompiledHook, in_backward


class Tracer:
    """Keeps what its hooks were called with."""

    def __init__(self) -> None:
        self.tracing, self.seen = False, []

    def note(self, *given: Any) -> None:
        self.seen.append(given)


def test_a_hook_passes_its_arguments_while_a_step_is_traced() -> None:
    for kind in (TraceHook, UncompiledHook):
        tracer, layer, x = Tracer(), nn.Identity(), torch.zeros(1)
        with HookManager() as hooks:
            hooks.register(layer, kind(tracer, "note", "site", 3), "forward_pre")
            layer(x)
            tracer.tracing = True
            layer(x)
        assert tracer.seen == [("site", 3, layer, (x,))]


def test_a_call_ends_with_the_calls_inside_it_that_have_no_end() -> None:
    stack: CallStack[str] = CallStack()
    for call in (("net", "a"), ("block", "b"), ("net", "c"), ("layer", "d")):
        stack.append(call)
    assert stack.sites == ["net", "block", "net", "layer"]
    assert stack.end("net") == "c"
    assert stack.sites == ["net", "block"]
    assert stack.end("layer") is None
    assert stack.sites == ["net", "block"]
    assert stack.end("net") == "a"
    assert not stack


def test_backward_is_known_in_its_hooks() -> None:
    found = []
    x = torch.ones(1, requires_grad=True)
    y = x * 2

    def hook(gradient: Tensor) -> None:
        found.append(in_backward())

    y.register_hook(hook)
    found.append(in_backward())
    y.sum().backward()
    assert found == [False, True]
    assert not in_backward()
