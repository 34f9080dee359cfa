"""All numbers of a window as one vector: tables packed one behind the other, by name."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.reduction import REST, Merge, Span, Spans, merge_windows


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
    """

    def __init__(
        self,
        read: Callable[[], Sequence[float]],
        over_ranks: Merge,
        over_windows: Merge | None = None,
        load: Callable[[list[float]], None] | None = None,
    ) -> None:
        self._read, self._merges, self._load = read, (over_ranks, over_windows), load

    @property
    def spans(self) -> Spans:
        """How the packed numbers of ranks and of windows merge."""
        return (Span(len(self._read()), *self._merges),)

    def pack(self) -> Tensor:
        """Return the numbers."""
        return torch.tensor(self._read(), dtype=torch.float64)

    def unpack(self, packed: Tensor) -> None:
        """Load what a merge returned."""
        if self._load is not None:
            self._load(packed.tolist())

    def reset(self) -> None:
        """Start a new window: whoever knows the numbers does."""


class Tables(Mapping[str, PackedTable]):
    """Tables that travel together: one merge over ranks and one copy to the host for all of them.

    Args:
        device: Of the packed vector.
        tables: By name. One of them may have a span of the length ``REST``.
    """

    def __init__(self, device: torch.device | str, **tables: PackedTable) -> None:
        self._device, self._dtype = device, row_dtype(torch.device(device))
        self._tables = tables

    def __getitem__(self, name: str) -> PackedTable:
        """Return a table."""
        return self._tables[name]

    def __iter__(self) -> Iterator[str]:
        """Iterate over the names, in order."""
        return iter(self._tables)

    def __len__(self) -> int:
        """Return the number of tables."""
        return len(self._tables)

    @property
    def spans(self) -> Spans:
        """How the packed numbers of ranks and of windows merge."""
        return tuple(span for table in self._tables.values() for span in table.spans)

    @property
    def length(self) -> int:
        """How many numbers :meth:`pack` returns, where no table has a span of the length ``REST``."""
        return sum(span.length for span in self.spans)

    def pack(self) -> Tensor:
        """Return the numbers of all tables as one vector, of :func:`row_dtype`."""
        packed = [table.pack().to(self._device, self._dtype, non_blocking=True) for table in self._tables.values()]
        return torch.cat(packed or [torch.empty(0, dtype=self._dtype, device=self._device)])

    def split(self, packed: Tensor) -> dict[str, Tensor]:
        """Separate the numbers of the tables.

        Args:
            packed: What :meth:`pack` or a merge returned.
        """
        lengths = [[span.length for span in table.spans] for table in self._tables.values()]
        rest = packed.shape[-1] - sum(length for each in lengths for length in each if length != REST)
        sizes = [sum(rest if length == REST else length for length in each) for each in lengths]
        return dict(zip(self._tables, torch.split(packed, sizes, -1), strict=True))

    def unpack(self, packed: Tensor) -> None:
        """Load what :meth:`pack` or a merge returned."""
        for name, numbers in self.split(packed).items():
            self._tables[name].unpack(numbers)

    def merge_windows(self, earlier: Tensor, later: Tensor) -> Tensor:
        """Merge two windows in a row; ``later`` alone where parameters or optimizers are others since."""
        return merge_windows(self.spans, earlier, later) if earlier.shape == later.shape else later

    def reset(self) -> None:
        """Start a new window."""
        for table in self._tables.values():
            table.reset()
