"""Hooks that copies of a model leave behind, and the record of hooks that failed."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class Silent:
    """What a :class:`Listener` becomes in a copy or a pickle: a hook that does nothing."""

    def __call__(self, *args: Any, **kwargs: Any) -> None:
        """Do nothing, and return None so that nothing is replaced."""


class Listener:
    """Base class of the hooks that observe.

    Averaging callbacks deep-copy a model in the middle of training and users ``torch.save`` it. A bound method would drag
    its callback along, a closure would not pickle, and either would go on listening from the copy. A listener therefore
    copies and pickles as :class:`Silent`.
    """

    def __reduce__(self) -> tuple[type[Silent], tuple[()]]:
        return (Silent, ())


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
