"""Hooks that a copied or saved model does not keep, and the record of hooks that failed."""

from __future__ import annotations

from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import Any


class Listener:
    """Base class of the hooks that observe.

    Averaging callbacks deep-copy a model in the middle of training and users ``torch.save`` it. A bound method would drag
    its callback along, a closure would not pickle, and either would go on listening from the copy. A listener therefore
    copies and pickles as a function of the standard library that takes any arguments and returns None: a saved model loads where
    this package is not installed.
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
    """What a hook's ``__reduce__`` returns so that its copies do nothing and need nothing but the standard library."""
    return (getattr, (nullcontext(), "__exit__"))


@dataclass(slots=True)
class Faults:
    """The sites whose hook raised: each is noted once, with its first error, and stays off.

    Attributes:
        errors: Site name to the error's text, in the order of the faults.
        unreported: Sites not yet told to the user.
    """

    errors: dict[str, str] = field(default_factory=dict)
    unreported: list[str] = field(default_factory=list)

    def __call__(self, site: str, error: Exception) -> None:
        """Note ``error`` at ``site``; this is the ``on_fault`` of :func:`lightning_hooks.hooks.guarded`."""
        if site not in self.errors:
            self.errors[site] = f"{type(error).__name__}: {error}"
            self.unreported.append(site)

    def take(self) -> list[tuple[str, str]]:
        """Return the (site, error) pairs not yet reported, and mark them reported."""
        news = [(site, self.errors[site]) for site in self.unreported]
        self.unreported.clear()
        return news
