"""All numbers of a window as one vector, which the host gets in one copy, and the order of the sites' first calls."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from lightning_hooks.hooks.selection import outwards
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.reduction import REST, Merge, Span, Spans, largest, latest, merge_windows


class PackedTable(Protocol):
    """A window's numbers."""

    @property
    def spans(self) -> Spans:
        """How the packed numbers of ranks and of windows merge."""

    def pack(self) -> Tensor:
        """Return the window's numbers as one vector, of the same length on every rank."""

    def unpack(self, packed: Tensor) -> None:
        """Load what :meth:`pack` or a merge returned into the table of a new run."""

    def reset(self) -> None:
        """Start a new window."""


class ReportedTable(PackedTable, Protocol):
    """A table whose numbers are fields of a report."""

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Return the fields, of packed numbers on the host."""


class HostNumbers:
    """Numbers that the host knows, read when the table is packed.

    Args:
        read: Returns them, as many on every rank.
        over_ranks: How they merge.
        over_windows: How those of consecutive windows merge; None for the same way.
        load: Takes merged ones in a resumed run; None where nothing depends on them.
        size: Returns how many they are; None to count them.
    """

    def __init__(
        self,
        read: Callable[[], Sequence[float]],
        over_ranks: Merge,
        over_windows: Merge | None = None,
        load: Callable[[list[float]], None] | None = None,
        size: Callable[[], int] | None = None,
    ) -> None:
        self._read, self._merges, self._load = read, (over_ranks, over_windows), load
        self._size = size or (lambda: len(read()))

    @property
    def spans(self) -> Spans:
        """How the packed numbers of ranks and of windows merge."""
        return (Span(self._size(), *self._merges),)

    def pack(self) -> Tensor:
        """Return the numbers."""
        return torch.tensor(self._read(), dtype=torch.float64)

    def unpack(self, packed: Tensor) -> None:
        """Load what a merge returned."""
        if self._load is not None:
            self._load(packed.tolist())

    def reset(self) -> None:
        """Start a new window: whoever knows the numbers does."""


class Tables:
    """Tables that travel together: one merge over ranks and one copy to the host for all of them.

    Args:
        device: Of the packed vector.
        named: By name. One of them may have a span of the length ``REST``.

    Attributes:
        named: The tables by name.
    """

    def __init__(self, device: torch.device | str, **named: PackedTable) -> None:
        self._device, self._dtype, self.named = device, row_dtype(torch.device(device)), named

    @property
    def spans(self) -> Spans:
        """How the packed numbers of ranks and of windows merge."""
        return tuple(span for table in self.named.values() for span in table.spans)

    def pack(self) -> Tensor:
        """Return the numbers of all tables as one vector, of :func:`row_dtype`."""
        packed = [table.pack().to(self._device, self._dtype, non_blocking=True) for table in self.named.values()]
        return torch.cat(packed or [torch.empty(0, dtype=self._dtype, device=self._device)])

    def split(self, packed: Tensor) -> dict[str, Tensor]:
        """Separate the numbers of the tables.

        Args:
            packed: What :meth:`pack` or a merge returned.
        """
        lengths = [[span.length for span in table.spans] for table in self.named.values()]
        rest = packed.shape[-1] - sum(length for each in lengths for length in each if length != REST)
        sizes = [sum(rest if length == REST else length for length in each) for each in lengths]
        return dict(zip(self.named, torch.split(packed, sizes, -1), strict=True))

    def unpack(self, packed: Tensor) -> None:
        """Load what :meth:`pack` or a merge returned."""
        for name, numbers in self.split(packed).items():
            self.named[name].unpack(numbers)

    def merge_windows(self, earlier: Tensor, later: Tensor) -> Tensor:
        """Merge two windows in a row; ``later`` alone where parameters or optimizers are others since."""
        return merge_windows(self.spans, earlier, later) if earlier.shape == later.shape else later

    def reset(self) -> None:
        """Start a new window."""
        for table in self.named.values():
            table.reset()


class HostCopies:
    """Carries copies of small tensors to the host, in order.

    From a CUDA device a copy goes into pinned memory behind the work that is queued, with an event that marks its arrival; what
    is on the CPU is there at once.

    Args:
        polls: Whether :meth:`arrived` may return whatever happens to be there. Where several ranks must agree it may not: then
            it returns what it was asked to wait for, and nothing else.
    """

    def __init__(self, polls: bool = True) -> None:
        self._polls = polls
        self._under_way: deque[tuple[Tensor, Any, Any]] = deque()

    def send(self, values: Tensor, note: Any = None) -> None:
        """Start a copy of ``values`` to the host. They may be overwritten afterwards.

        Args:
            values: Outside autograd.
            note: Comes back with the copy.
        """
        if not values.is_cuda:
            self._under_way.append((values.to("cpu", copy=True), None, note))
            return
        there = torch.empty(values.shape, dtype=values.dtype, pin_memory=True)
        there.copy_(values, non_blocking=True)
        event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        event.record(torch.cuda.current_stream(values.device))
        self._under_way.append((there, event, note))

    def arrived(self, wait: bool = False) -> list[tuple[np.ndarray[Any, Any], Any]]:
        """Return the copies that are there, oldest first, each with its note; each is returned once.

        Args:
            wait: Wait for those still under way.
        """
        here = []
        while self._under_way:
            values, event, note = self._under_way[0]
            if event is not None:
                if wait:
                    event.synchronize()
                elif not (self._polls and event.query()):
                    break
            self._under_way.popleft()
            here.append((values.numpy(), note))
        return here

    def forget(self) -> None:
        """Drop what is under way."""
        self._under_way.clear()


NEVER = -1.0  # the position of a site that was not called

T = TypeVar("T")


class FirstCalls:
    """Sites in the order of their first calls.

    A site that is first called in a later batch, since its layer was dropped before (LayerDrop), comes right after the site that
    it is called after, not last: after the furthest of those that were called since the first one was, as one activation may be
    called in many places.

    Attributes:
        called: The sites that were called, call by call: a hook appends its own. They are taken up when the order is asked for.

    Example:
        >>> calls = FirstCalls()
        >>> calls.called.extend([0, 2, 0, 1, 2])
        >>> list(calls)
        [0, 1, 2]
    """

    def __init__(self, order: Iterable[int] = ()) -> None:
        self.called: list[int] = []
        self.load(order)

    def load(self, order: Iterable[int]) -> None:
        """Go on from an order."""
        self._order = [*order]
        self._places = {site: place for place, site in enumerate(self._order)}
        self._furthest: int | None = None  # a place

    def __iter__(self) -> Iterator[int]:
        """Iterate over the sites, first called first."""
        return iter(self.take())

    def take(self) -> list[int]:
        """Take up the calls that were made, and return the order."""
        order, places, furthest = self._order, self._places, self._furthest
        for site in self.called:
            place = places.get(site)
            if place is None:
                furthest = len(order) if furthest is None else furthest + 1
                order.insert(furthest, site)
                for later in range(furthest, len(order)):
                    places[order[later]] = later
            elif not place or (furthest is not None and place > furthest):  # the first one, or one further on
                furthest = place
        self._furthest = furthest
        self.called.clear()
        return order


def positions(called: Iterable[int], n_sites: int) -> list[float]:
    """Number the sites as they were first called.

    Args:
        called: The sites, first called first.
        n_sites: How many sites there are.

    Returns:
        For each site its position from 0, or ``NEVER``.
    """
    places = {site: position for position, site in enumerate(called)}
    return [places.get(site, NEVER) for site in range(n_sites)]


def sites_in_order(numbers: Iterable[float], backward: bool = False) -> list[int]:
    """The sites that were called, first called first, of what :func:`positions` gave.

    Those with one position, as of ranks that called them in different orders, follow the model's order, or ``backward`` the
    opposite one, in which gradients arrive.
    """
    known = [(position, -site if backward else site) for site, position in enumerate(numbers) if position >= 0]
    return [abs(site) for _, site in sorted(known)]


def first_calls(calls: FirstCalls, n_sites: int) -> HostNumbers:
    """The positions of a table's sites as numbers that merge; a run keeps them from window to window.

    Of several ranks the last position of each site counts: what only some of them called comes between the others.
    """
    return HostNumbers(
        lambda: positions(calls, n_sites), largest, latest, lambda numbers: calls.load(sites_in_order(numbers)), lambda: n_sites
    )


def in_order(table: Mapping[str, T], order: Iterable[str]) -> dict[str, T]:
    """The table with its sites in an order; those that it does not name come last, as they are."""
    return {site: table[site] for site in dict.fromkeys((*order, *table)) if site in table}


def parameters_in_order(names: Iterable[str], order: Sequence[str]) -> list[str]:
    """Parameters in the order in which their modules were first called.

    A parameter of a module that is not known there (it belongs to no site) stays behind the parameter before it.
    """
    place = {site: number for number, site in enumerate(order)}
    placed, last = [], -1
    for name in names:
        own = place.get(name.rpartition(".")[0])
        last = own if own is not None else next((place[owner] for owner in outwards(name)[1:-1] if owner in place), last)
        placed.append((last, name))
    return [name for _, name in sorted(placed, key=lambda entry: entry[0])]
