"""The sites of functional calls, by numbers that are the same on every rank."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import torch.distributed

from lightning_hooks.declare.collector import Events
from lightning_hooks.declare.functional import FunctionalSite
from lightning_hooks.statistics.reduction import all_ranks


class NumberedSites:
    """The sites of functional calls, each known from its first call on.

    Ranks agree on the numbers after the first sampled batch. A site that only comes later has one once they have agreed on it, at
    the end of the window in which the first rank called it.

    Args:
        capacity: The most sites there can be: tables have as many lines, the same on every rank.

    Attributes:
        sites: Those with a number, in order.
        agreed: Whether ranks have agreed once, or there is but one.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.sites: list[FunctionalSite] = []
        self._numbers: dict[str, int] = {}
        self._among = all_ranks()
        self.agreed = self._among is None
        self._waiting: dict[str, FunctionalSite] = {}  # called on this rank, and ranks have not agreed
        self._changed: bool | None = None  # numbers, since collectors were notified

    def new_site(self, name: str, function: str, module: str) -> FunctionalSite | None:
        """The site of a first call; None where it gets no number (yet)."""
        site = FunctionalSite(len(self.sites), name, function, module)
        if self.agreed and self._among is not None:
            self._waiting.setdefault(name, site)
            return None
        return self._add(site)

    def _add(self, site: FunctionalSite) -> FunctionalSite | None:
        if len(self.sites) == self.capacity:
            return None
        self.sites.append(site)
        self._numbers[site.name] = site.index
        return site

    @property
    def waiting(self) -> bool:
        """Whether a function was called at a site that other ranks may not know."""
        return bool(self._waiting)

    def notify(self, collectors: Iterable[Events]) -> None:
        """Where ranks have numbered sites since the last time, collectors take them up."""
        changed, self._changed = self._changed, None
        for collector in collectors if changed is not None else ():
            collector.calls_numbered(changed is True)

    def agree(self) -> None:
        """Number the sites alike on all ranks, which all call this where one of them is waiting."""
        assert self._among is not None
        first, self.agreed = not self.agreed, True
        own = [(site.name, site.function, site.module) for site in (*self.sites, *self._waiting.values())]
        of_ranks: list[Any] = [None] * self._among.count
        torch.distributed.all_gather_object(of_ranks, own)
        known = [] if first else own[: len(self.sites)]
        self.sites, self._numbers, self._waiting = [], {}, {}
        for entry in dict.fromkeys((*known, *(entry for entries in of_ranks for entry in entries))):
            self._add(FunctionalSite(len(self.sites), *entry))
        self._changed = first and any(entries != of_ranks[0] for entries in of_ranks)

    def state(self) -> list[tuple[str, str, str]]:
        """The sites, in plain types."""
        return [(site.name, site.function, site.module) for site in self.sites]

    def restore(self, state: Sequence[Sequence[str]]) -> None:
        """Restore the sites of an earlier run, before any other is known."""
        for name, function, module in state:
            if name not in self._numbers:
                self._add(FunctionalSite(len(self.sites), name, function, module))
