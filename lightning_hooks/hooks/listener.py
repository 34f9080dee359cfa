"""Hooks that observe: when they record, in compiled graphs too, what copies of a model keep of them, and those that raised.

What a hook does to a table would become a part of the graph of ``torch.compile`` that it is traced into: autograd saves the
table, the next graph changes it, and backward ends with "modified by an inplace operation". Whether the hook records would become
a guard, so that what is recomputed in backward may run another graph than the forward did.

A :class:`Recorder` always puts one operator call into the graph instead. The call takes the tensors to record and the number of the
hook. When the graph runs, the hook is found by its number and called as outside of any graph; whether it records is decided then.
The number is a tensor, an input of the graph as weights are: equal blocks of a model share one graph.

Where this torch has no such operators (:data:`IN_GRAPHS` is false), hooks are traced into graphs as any others are.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from itertools import count
from typing import Any, TypeVar
from weakref import WeakValueDictionary

import torch
from torch import Tensor

from lightning_hooks.hooks.tensors import UnreadableError, float_tensors

C = TypeVar("C")


@dataclass(slots=True)
class Gate:
    """A switch that many hooks read and one callback turns.

    A forward hook fires in validation, in sanity checks, in prediction and again when activation checkpointing recomputes
    a layer during backward. Only the first forward of a sampled training batch is wanted, so the gate opens when such a
    batch starts and closes while backward runs and when the batch ends.

    Attributes:
        open: Whether hooks record now.
        sampled: Whether the batch under way is a sampled one.
        in_detail: Whether costly statistics are taken in it too.
        running: Whether a batch is under way.
    """

    open: bool = False
    sampled: bool = False
    in_detail: bool = False
    running: bool = False

    def __bool__(self) -> bool:
        return self.open

    def start(self, sampled: bool) -> None:
        """A training batch starts; ``sampled`` says whether it is recorded."""
        self.open = self.sampled = sampled
        self.running = True
        if sampled:
            _UNDER_WAY[id(self)] = self

    def pause(self) -> None:
        """Backward starts: what fires now is recomputation."""
        self.open = False

    def resume(self) -> None:
        """Backward is over; a manual loop may run forward again in the same batch."""
        self.open = self.sampled

    def stop(self) -> None:
        """The batch is over."""
        self.open = self.sampled = self.in_detail = self.running = False
        _UNDER_WAY.pop(id(self), None)


_UNDER_WAY: dict[int, Gate] = {}  # the gates of the batches under way


@contextmanager
def all_closed() -> Iterator[None]:
    """Close every gate in this block: a model that runs for other purposes in the middle of a batch is not its training."""
    closed = [gate for gate in _UNDER_WAY.values() if gate.open]
    for gate in closed:
        gate.open = False
    try:
        yield
    finally:
        for gate in closed:
            gate.open = gate.sampled


class Listener:
    """Base class of the hooks that observe.

    Averaging callbacks deep-copy a model during training, and users ``torch.save`` it. A bound method would be copied with its
    callback, a closure cannot be pickled, and both would keep recording in the copy. An instance of this class is therefore copied
    and pickled as a function of the standard library that takes any arguments and returns None: a saved model loads where this
    package is not installed.
    """

    def __reduce__(self) -> tuple[Any, ...]:
        return no_hook()


def no_hook() -> tuple[Any, ...]:
    """Return the ``__reduce__`` value of a hook whose copies do nothing and need only the standard library."""
    return (getattr, (nullcontext(), "__exit__"))


@dataclass(slots=True)
class Faults:
    """The sites whose hook raised: each is recorded once, with its first error, and stays disabled.

    A call whose tensors cannot be read is no fault.

    Attributes:
        errors: Site name to the error's text, in the order of the faults.
        unreported: Sites of which the user has not been warned yet.
        skipped: Calls that could not be read.
    """

    errors: dict[str, str] = field(default_factory=dict)
    unreported: list[str] = field(default_factory=list)
    skipped: int = 0

    def __call__(self, site: str, error: Exception) -> None:
        """Record ``error`` at ``site``; this is the ``on_fault`` of :func:`lightning_hooks.hooks.guarded`."""
        if isinstance(error, UnreadableError):
            self.skipped += 1
        elif site not in self.errors:
            self.errors[site] = f"{type(error).__name__}: {error}"
            self.unreported.append(site)

    def take(self) -> list[tuple[str, str]]:
        """Return the (site, error) pairs not yet reported, and mark them reported."""
        sites, self.unreported = self.unreported, []
        return [(site, self.errors[site]) for site in sites]


_numbers = count()
_hooks: WeakValueDictionary[int, Callable[..., Any]] = WeakValueDictionary()


class Recorder(Listener, ABC):
    """A hook that only records, inside a compiled graph too."""

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

    def __init__(self, record: Callable[..., None], index: int) -> None:
        self.record, self.index = record, index

    def __call__(self, module: Any, args: tuple[Any, ...], output: Any) -> None:
        """Record the output."""
        self.record(self.index, output)


class GradientRecorder(Recorder):
    """A tensor hook that records a gradient."""

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
IN_GRAPHS = _library is not None  # whether a compiled graph can record through an operator


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
    return torch._C._current_graph_task_id() != -1
