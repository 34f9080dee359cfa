"""When a hook may record, the base class of hooks that copies of a model do not keep, and the record of hooks that raised."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

from lightning_hooks.hooks.tensors import UnreadableError


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


_UNDER_WAY: dict[int, Gate] = {}
"""The gates of the batches under way."""


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

    __slots__ = ()

    def __reduce__(self) -> tuple[Any, ...]:
        return no_hook()

    @property
    def __name__(self) -> str:
        """No name.

        Raises:
            AttributeError: Always; ``torch.jit.script`` asks for the name of each hook it is going to compile.
        """
        raise AttributeError(NO_SCRIPT)


NO_SCRIPT = (
    "a hook of lightning_hooks has no __name__. torch.jit.script compiles a module's hooks, and those of lightning_hooks are in "
    "place while the training batches of an epoch run. Script the model in validation, at the end of the epoch or after training."
)


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
        found = [(site, self.errors[site]) for site in self.unreported]
        self.unreported.clear()
        return found
