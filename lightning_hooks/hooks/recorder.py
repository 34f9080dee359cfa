"""Recording from inside a compiled graph: operators that ``torch.compile`` does not look into.

What a hook does to a table becomes a part of the graph it is traced into: autograd saves the table, the next graph changes it, and
backward ends with "modified by an inplace operation". Whether the hook records becomes a guard, so that what is recomputed in
backward may run another graph than the forward did.

A :class:`Recorder` always puts one operator call into the graph instead. The call takes the tensors to record and the number of the
hook. When the graph runs, the hook is found by its number and called as outside of any graph; whether it records is decided then.
The number is a tensor, an input of the graph as weights are: equal blocks of a model share one graph.

Where this torch has no such operators (:data:`IN_GRAPHS` is false), hooks are traced into graphs as any others are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from itertools import count
from typing import Any
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from lightning_hooks.hooks.listener import Listener
from lightning_hooks.hooks.tensors import float_tensors

_numbers = count()
_hooks: WeakValueDictionary[int, Callable[..., Any]] = WeakValueDictionary()


class Recorder(Listener, ABC):
    """A hook that only records, inside a compiled graph too."""

    __slots__ = ()

    @abstractmethod
    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Record: what PyTorch calls, and a compiled graph when it runs."""

    def skip(self) -> None:
        """A call cannot be recorded: its tensors stand for others."""

    @abstractmethod
    def trace(self, number: Tensor, *args: Any) -> None:
        """Put the operator call into the graph that is being traced, whether or not the hook records now.

        Args:
            number: From :func:`register`.
            *args: What the hook is called with.
        """


class OutputRecorder(Recorder):
    """A forward hook that records the output of a module.

    From inside a compiled graph it is called without the module (None) and with floating-point tensors only: those of the output,
    and the first of the input if it reads that.

    Attributes:
        reads_input: Whether it reads the first floating-point tensor of the input.
    """

    __slots__ = ()

    reads_input: bool = False

    def trace(self, number: Tensor, *args: Any) -> None:  # noqa: D102
        _, inputs, output = args
        read = float_tensors(inputs[:1]) or float_tensors(inputs) if self.reads_input else []
        torch.ops.lightning_hooks.record_output(number, [x.detach() for x in read[:1]], [x.detach() for x in float_tensors(output)])


class OutputTo(OutputRecorder):
    """Gives the outputs of a module to a function.

    Args:
        record: The function, of a number and an output.
        index: The module's number.
    """

    def __init__(self, record: Callable[[int, Any], None], index: int) -> None:
        self.record, self.index = record, index

    def __call__(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        """Record the output."""
        self.record(self.index, output)


class GradientRecorder(Recorder):
    """A tensor hook that records a gradient."""

    __slots__ = ()

    def trace(self, number: Tensor, *args: Any) -> None:  # noqa: D102
        torch.ops.lightning_hooks.record_gradient(number, args[0].detach())


def register(hook: Callable[..., Any]) -> Tensor:
    """Give ``hook`` a number, by which a compiled graph finds it as long as it is there."""
    number = next(_numbers)
    _hooks[number] = hook
    return torch.tensor(number, device="cpu")


def _record(number: Tensor, *args: Any) -> None:
    """Call the hook that has a number, if it is still there."""
    hook = _hooks.get(int(number))
    if hook is not None:
        hook(*args)


def _record_output(number: Tensor, inputs: list[Tensor], outputs: list[Tensor]) -> None:
    _record(number, None, tuple(inputs), outputs[0] if len(outputs) == 1 else outputs)


def _registered() -> torch.library.Library | None:
    """Register the operators, each with an effect: a call that returns nothing is left out of a graph otherwise, or moved."""
    try:
        from torch._higher_order_ops.effects import _EffectType, _register_effectful_op  # has no public name

        library = torch.library.Library("lightning_hooks", "FRAGMENT")  # type: ignore[no-untyped-call]
        # A CUDA graph would replay kernels without asking whether to record.
        tags = [tag for tag in (getattr(torch.Tag, "cudagraph_unsafe", None), getattr(torch.Tag, "flexible_layout", None)) if tag]
        for name, arguments, function in (
            ("record_output", "Tensor number, Tensor[] inputs, Tensor[] outputs", _record_output),
            ("record_gradient", "Tensor number, Tensor gradient", _record),
        ):
            library.define(f"{name}({arguments}) -> ()", tags=tags)  # type: ignore[no-untyped-call]
            library.impl(name, function, "CompositeExplicitAutograd")  # type: ignore[no-untyped-call]
            torch.library.register_fake(f"{library.ns}::{name}", lambda *_: None, lib=library)
            _register_effectful_op(getattr(torch.ops.lightning_hooks, name).default, _EffectType.ORDERED)
    except Exception:  # noqa: BLE001  a private name may change in any version of torch, and the package must still be imported
        return None
    return library


_library = _registered()  # the operators live as long as this does
IN_GRAPHS = _library is not None
"""Whether a compiled graph can record through an operator."""
