"""The lines of the losses in the tables of what they are given."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

from lightning_hooks.declare.functional import Functional, FunctionalSite

MOST_LOSSES = 16
"""Losses of a model that a table holds, at most."""


class LossLines:
    """Gives the calls of some losses their lines in a table, in an order that is the same on every rank.

    Args:
        functional: The calls of the run.
        functions: The names of the losses.
    """

    def __init__(self, functional: Functional, functions: Sequence[str]) -> None:
        self._functional, self._functions = functional, functions
        self._known: dict[int, int] = {}  # the number of a site to its line

    def of(self, site: FunctionalSite) -> int | None:
        """The line of a loss; None where the table has none left."""
        line = self._known.get(site.index)
        if line is None:
            line = self._known[site.index] = [known.index for known in self._sites()].index(site.index)
        return line if line < MOST_LOSSES else None

    def named(self, lines: Iterable[list[float]]) -> Iterator[tuple[str, list[float]]]:
        """The name of the loss of each line, with the line."""
        return zip((site.name for site in self._sites()), lines, strict=False)

    def renumbered(self) -> None:
        """Ranks have changed the numbers of the sites."""
        self._known.clear()

    def _sites(self) -> list[FunctionalSite]:
        return [site for site in self._functional.sites if site.function in self._functions]
