"""Tables with a row for each site of some functions."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from operator import attrgetter
from typing import ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.declare.functional_calls import FunctionalCall, FunctionalCalls, FunctionalSite
from lightning_hooks.statistics.columns import RowTable


class CallSites:
    """The sites of some functions, in an order that is the same on every rank."""

    def __init__(self, functional: FunctionalCalls | None, functions: Sequence[str]) -> None:
        self._functional, self._functions = functional, functions
        self._places: dict[int, int] = {}  # by the number of a site

    @property
    def names(self) -> list[str]:
        """Of those known by now."""
        sites = [] if self._functional is None else self._functional.sites
        return [site.name for site in sites if site.function in self._functions]

    def place(self, site: FunctionalSite) -> int:
        """The place of a site among them."""
        place = self._places.get(site.index)
        if place is None:
            sites = [] if self._functional is None else self._functional.sites[: site.index]
            before = [*map(attrgetter("function"), sites)]
            place = self._places[site.index] = sum(map(before.count, self._functions))
        return place

    def renumbered(self) -> None:
        """Ranks have changed the numbers of the sites."""
        self._places.clear()


class CallTable(RowTable):
    """A row for each site of some functions; calls at sites beyond the last row are not recorded.

    What the host knows of a call is kept there, which is cheaper than a tensor, and merged with the rows when they are packed.

    Args:
        functional: The calls of the run; None where they are not seen.
        n_rows: How many sites there can be.
        device: Where the rows live.

    Attributes:
        functions: Whose calls are recorded.
    """

    functions: ClassVar[tuple[str, ...]]

    def __init__(self, functional: FunctionalCalls | None, n_rows: int, device: torch.device | str = "cpu") -> None:
        super().__init__(n_rows, device)
        self._sites = CallSites(functional, self.functions)
        self._on_host: dict[int, list[float]] = {}

    def index_of(self, call: FunctionalCall) -> int | None:
        """The row of a call; None where there is none left."""
        place = self._sites.place(call.site)
        return place if place < len(self.rows) else None

    def host_row(self, index: int) -> list[float]:
        """What the host knows of a site in this window, to be changed in place."""
        return self._on_host.setdefault(index, [0.0] * self.rows.shape[1])

    def named_lines(self, packed: Tensor) -> Iterator[tuple[str, list[float]]]:
        """The name of each site with its row, of a packed table on the host."""
        return zip(self._sites.names, self.lines(packed), strict=False)

    @override
    def pack(self) -> Tensor:
        known = self.columns.empty(len(self.rows), more=self.more)
        for index, row in self._on_host.items():
            known[index] = torch.tensor(row, dtype=known.dtype)
        return self.columns.merged(torch.stack((self.rows, known.to(self.rows, non_blocking=True)))).flatten()

    @override
    def reset(self) -> None:
        super().reset()
        self._on_host.clear()

    def renumbered(self) -> None:
        """Ranks have changed the numbers of the sites."""
        self._sites.renumbered()
        self.reset()
