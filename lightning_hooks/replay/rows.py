"""Which samples a batch is made of: the indices that a loader draws, without a second pass and without touching what it yields."""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any
from weakref import ref

import numpy as np
from torch.utils.data import DataLoader, IterableDataset

from lightning_hooks.hooks.attributes import exchange

BEHIND = 4  # how many batches are remembered behind the one under way: what has been fetched in advance
KEPT = 4 * BEHIND  # from so many on the oldest are dropped


class DrawnIndices:
    """The iterator of a sampler, of a batch's indices at a time, which remembers what it gave and has not been used.

    Attributes:
        drawn: What was given, the oldest first.
        dropped: How many of the oldest are not remembered any more.
    """

    __slots__ = ("_indices", "drawn", "dropped")

    def __init__(self, indices: Iterator[Any]) -> None:
        self._indices = indices
        self.drawn: deque[Any] = deque()
        self.dropped = 0

    def __iter__(self) -> DrawnIndices:
        return self

    def __next__(self) -> Any:
        indices = next(self._indices)
        self.drawn.append(indices)
        return indices

    def of(self, place: int) -> Any:
        """The indices of the batch with this number; None if it is not known."""
        while self.drawn and self.dropped < place - BEHIND:
            self.drawn.popleft()
            self.dropped += 1
        at = place - self.dropped
        return self.drawn[at] if 0 <= at < len(self.drawn) else None


class _Recorded:
    def __init__(self, sampler: Any) -> None:
        self.sampler = sampler

    def __iter__(self) -> DrawnIndices:
        return DrawnIndices(iter(self.sampler))

    def __len__(self) -> int:
        return len(self.sampler)


class _Recording:
    """Makes a loader's iterators as the loader does, of a sampler that is recorded.

    The loader has its own sampler before and after: what an iterator draws from is taken from the loader when it is made.
    """

    def __init__(self, loader: DataLoader[Any], before: Any) -> None:
        self.loader, self.before = loader, before  # what stood on the instance
        self.latest: Callable[[], Any] = lambda: None

    def __call__(self) -> Any:
        loader = self.loader
        name = "sampler" if loader.batch_sampler is None else "batch_sampler"
        own = vars(loader)
        sampler = own[name]
        own[name] = _Recorded(sampler)  # DataLoader's __setattr__ does not allow it
        try:
            iterator = type(loader)._get_iterator(loader) if self.before is None else self.before()
        finally:
            own[name] = sampler
        self.latest = ref(iterator)
        return iterator

    def __reduce__(self) -> tuple[Any, ...]:
        return getattr, (self.loader, "_get_iterator")


class LoaderRows:
    """The loaders whose indices are recorded."""

    def __init__(self) -> None:
        self._recordings: list[_Recording] = []
        self._exchanged = ExitStack()

    def record(self, loader: Any) -> None:
        """Record the indices that a loader draws from now on; one of another kind than torch's is left alone."""
        known = any(loader is recording.loader for recording in self._recordings)
        if isinstance(loader, DataLoader) and not known and {"sampler", "batch_sampler"} <= vars(loader).keys():
            recording = _Recording(loader, vars(loader).get("_get_iterator"))
            self._exchanged.callback(exchange(loader, _get_iterator=recording))  # torch has no public way to see what is drawn
            self._recordings.append(recording)

    def latest(self) -> Any:
        """The iterator that was made last of the loader that was recorded last; None where there is none any more."""
        return self._recordings[-1].latest() if self._recordings else None

    def release(self) -> None:
        """Leave every loader as it was."""
        self._exchanged.close()
        self._recordings.clear()


@dataclass(frozen=True, slots=True)
class BatchRows:
    """The samples of a batch, in order.

    By the name of each loader, empty for a single one: the indices of a map-style data set, integers as an array and others as a
    list, and of a stream (``worker``, ``position``) of its first sample.
    """

    of: dict[str, Any]
    nbytes: int = 0  # about how much memory they take

    def __len__(self) -> int:
        """How many samples a batch has; 0 where that is not known."""
        sizes = {len(rows) for rows in self.of.values() if not isinstance(rows, tuple)}
        return sizes.pop() if len(sizes) == 1 else 0

    def samples(self, places: Sequence[int] | None = None) -> tuple[int | str, ...]:
        """The samples at these places, None for all, as an alert names them: indices, or words for several loaders and streams."""
        found: list[int | str] = []
        for name, rows in self.of.items():
            prefix = f"{name}: " if name else ""
            if isinstance(rows, tuple):
                worker, position = rows
                where = f"{prefix}worker {worker}, " if worker is not None else prefix
                found += [f"{where}position {position + place}" for place in ([0] if places is None else places)]
            else:
                chosen = rows if places is None else [rows[place] for place in places if place < len(rows)]
                plain = [int(row) if isinstance(row, int | np.integer) else str(row) for row in chosen]
                found += [f"{prefix}{row}" for row in plain] if prefix else plain
        return tuple(found)


def rows_of(iterators: Iterable[tuple[str, Any]], fetched: int) -> BatchRows | None:
    """The samples of the batch under way, by the iterator over each loader; ``fetched`` batches have been fetched after it.

    Returns:
        None where no loader says what it drew: of another kind than torch's, or with its workers out of order.
    """
    found, nbytes = dict[str, Any](), 0
    for name, iterator in iterators:
        drawn = getattr(iterator, "_sampler_iter", None)  # torch's iterators have no public names
        if isinstance(drawn, DrawnIndices) and getattr(iterator, "_in_order", True):
            place: int = iterator._num_yielded - 1 - fetched
            at = place - drawn.dropped
            indices = drawn.drawn[at] if 0 <= at <= KEPT and at < len(drawn.drawn) else drawn.of(place)
            if isinstance(iterator._dataset, IterableDataset):
                rows: Any = _in_stream(iterator, place, indices)
            elif type(indices) is list and indices and isinstance(indices[0], int | np.integer):
                try:
                    rows = array("q", indices)
                except (TypeError, OverflowError):  # not all of them are integers of 64 bits
                    rows = indices
            else:
                rows = [*indices] if isinstance(indices, list | tuple) else None if indices is None else [indices]
            if rows is not None:
                found[name] = rows
                nbytes += (8 if type(rows) is array else 64) * len(rows)
    return BatchRows(found, nbytes) if found else None


def _in_stream(iterator: Any, place: int, indices: Any) -> tuple[int | None, int] | None:
    """Which worker read a batch of an iterable data set, and the position of its first sample in what that worker reads."""
    size, workers = len(indices) if isinstance(indices, list) else 1, getattr(iterator, "_num_workers", 0)
    # Workers that are left once others have ended take turns in an order that is not known here.
    if place < 0 or indices is None or (workers and not all(iterator._workers_status)):
        return None
    return (place % workers, place // workers * size) if workers else (None, place * size)
