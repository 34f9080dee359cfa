"""The tree of calls, and the accounts to which time is assigned."""

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
    """The places in the tree of calls, numbered in the order of first use. A place is a site called from another place.

    A module called from two others has two places, so that its time counts for its caller. An account is a place in a phase, as one
    number.
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
        """Return the place of ``site`` recomputed in backward at ``place``: next to that place, or next to one of its callers."""
        above = place
        while True:
            found = self._known.get((above, site))
            if found is not None:
                return found
            if above == ROOT:
                return self.called(place, site)
            above = self.parents[above]

    def sites_at(self, place: int) -> set[int]:
        """Return the site of ``place`` and the sites of its callers."""
        found = set()
        while place != ROOT:
            found.add(self.sites[place])
            place = self.parents[place]
        return found


def account(place: int, phase: Phase) -> int:
    """Return the account of a place in a phase."""
    return place * len(Phase) + phase


def place_of(account: int) -> int:
    """The place of an account."""
    return account // len(Phase)


def phase_of(account: int) -> Phase:
    """The phase of an account."""
    return Phase(account % len(Phase))
