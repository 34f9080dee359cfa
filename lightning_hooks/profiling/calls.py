"""Who called whom: the accounts that time is divided among."""

from __future__ import annotations

from enum import IntEnum

ROOT = 0
"""The place outside every module."""


class Phase(IntEnum):
    """What a step is doing."""

    FORWARD = 0
    BACKWARD = 1
    RECOMPUTE = 2
    """Forward again, inside backward: activation checkpointing."""
    OTHER = 3
    """The optimizer, callbacks, logging."""


class CallTree:
    """The places in the tree of calls, each numbered when it is first met: a site, called from a place.

    One module called from two others has two places, so that time inside it counts for whoever called. An account is a place
    in a phase, as one number.
    """

    def __init__(self) -> None:
        self.sites = [-1]
        self.parents = [ROOT]
        self._known: dict[tuple[int, int], int] = {}

    def called(self, place: int, site: int) -> int:
        """Return the place of ``site`` when called from ``place``."""
        found = self._known.get((place, site))
        if found is None:
            found = self._known[place, site] = len(self.sites)
            self.sites.append(site)
            self.parents.append(place)
        return found

    def called_again(self, place: int, site: int) -> int:
        """Return the place of ``site`` when backward recomputes it while at ``place``: beside it, or beside a caller of it."""
        above = place
        while True:
            found = self._known.get((above, site))
            if found is not None:
                return found
            if above == ROOT:
                return self.called(place, site)
            above = self.parents[above]

    def sites_at(self, place: int) -> set[int]:
        """Return the site of ``place`` and those it was called from."""
        found = set()
        while place != ROOT:
            found.add(self.sites[place])
            place = self.parents[place]
        return found


def account(place: int, phase: Phase) -> int:
    """Number a place in a phase."""
    return place * len(Phase) + phase


def place_of(account: int) -> int:
    """The place of an account."""
    return account // len(Phase)


def phase_of(account: int) -> Phase:
    """The phase of an account."""
    return Phase(account % len(Phase))
