"""Base class of hooks that copies of a model do not keep, and the record of hooks that raised."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any

from lightning_hooks.hooks.tensors import UnreadableError


class Listener:
    """Base class of the hooks that observe.

    Averaging callbacks deep-copy a model during training, and users ``torch.save`` it. A bound method would be copied with its
    callback, a closure cannot be pickled, and both would keep recording in the copy. An instance of this class is therefore copied
    and pickled as a function of the standard library that takes any arguments and returns None: a saved model loads where this
    package is not installed.
    """

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
