"""The evidence of the last steps: their samples, the states of the generators, and whether a micro-batch was bad.

Which samples a batch is made of is known by the indices that its loader draws, without a second pass and without touching what it
yields.
"""

from __future__ import annotations

from array import array
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter, not_
from typing import Any
from weakref import ref

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, IterableDataset

from lightning_hooks.declare.host import Host
from lightning_hooks.hooks.attributes import exchange
from lightning_hooks.hooks.generators import Generators
from lightning_hooks.hooks.tensors import copied

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


def samples_of(rows: BatchRows | None, places: Sequence[int] = ()) -> tuple[int | str, ...]:
    """The samples at these places, without any of all of them; empty where they are not known."""
    return () if rows is None else rows.samples(places or None)


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


STEPS = 32  # how many batches keep the states of the generators at their forward pass, of 10 kB each
# What the samples may take in memory, and so may the buffers that are kept. Those of older batches stay while there is room.
MOST_BYTES = 1 << 20
_ENTRY = 400  # what an entry takes besides


@dataclass(slots=True, eq=False)
class StepEvidence:
    """What is known of one training batch."""

    epoch: int
    batch: int  # the index of the training batch in it
    step: int  # the trainer's global_step
    rows: BatchRows | None = None  # its samples; None where they are not known
    generators: Generators | None = None  # the states at its forward pass; None of older batches
    flag: bool | Tensor = False  # whether its loss, or a gradient, was not finite: a bool, or a 0-d tensor on an accelerator
    nbytes: int = _ENTRY  # how much memory it takes, without the states


@dataclass(slots=True)
class BatchUnderWay:
    """The training batch under way, from its start to its end."""

    evidence: StepEvidence
    batch: Any = None  # as training_step was given it
    rest: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})  # its other arguments
    loss: Tensor | None = None  # as it came to backward
    returned: Tensor | None = None  # as it was returned, where that is known
    in_forward: bool = False


class Ring:
    """The evidence of the last batches, the newest last."""

    def __init__(self) -> None:
        self._entries: deque[StepEvidence] = deque()
        self.nbytes = 0

    def add(self, entry: StepEvidence) -> None:
        """Add a batch; the oldest leave where there is no room."""
        entries = self._entries
        entry.nbytes = _ENTRY if entry.rows is None else _ENTRY + entry.rows.nbytes
        entries.append(entry)
        self.nbytes += entry.nbytes
        if len(entries) > STEPS:
            entries[-STEPS - 1].generators = None
        while self.nbytes > MOST_BYTES and len(entries) > 1:
            self.nbytes -= entries.popleft().nbytes

    def of(self, epoch: int, batch: int) -> StepEvidence | None:
        """The batch with this index in an epoch; None if it is not remembered."""
        return next((entry for entry in reversed(self._entries) if (entry.epoch, entry.batch) == (epoch, batch)), None)

    def guilty(self, until: StepEvidence) -> StepEvidence:
        """Of the micro-batches of a step, up to the last one, the first whose flag is up; the last if none is."""
        found = [e for e in self._entries if e.step == until.step and e.epoch == until.epoch and e.batch <= until.batch]
        flags = torch.stack([torch.as_tensor(e.flag) for e in found]).tolist() if found else []  # one wait for all
        return next((entry for entry, bad in zip(found, flags, strict=True) if bad), until)


class ChangedBuffers:
    """Keeps the values of the buffers that a forward pass changes; which these are is known from the first one.

    Attributes:
        known: Whether the first forward pass was seen to its end.
    """

    def __init__(self) -> None:
        self._changing: list[Tensor] | None = None
        self._before: list[Tensor] = []
        self.known = False

    def keep(self, host: Host) -> None:
        """A forward pass of the loop's model starts: keep the values."""
        if self._changing is None:
            self._changing, room = [], MOST_BYTES
            for buffer in sorted(filter(torch.is_tensor, map(copied, host.model.buffers())), key=attrgetter("nbytes")):
                room -= buffer.nbytes
                self._changing += [buffer] * (room >= 0)
            self._before, self.known = [*map(torch.clone, self._changing)], False
        elif self._changing:
            for place, buffer in enumerate(self._changing):
                if buffer.shape != self._before[place].shape:
                    self._before[place] = torch.empty_like(buffer)
            torch._foreach_copy_(self._before, self._changing)

    def after_forward(self) -> None:
        """After the first forward pass: keep the values of those buffers only that it changed.

        Their version counters do not say it: batch normalisation changes its statistics without counting.
        """
        if self._changing is not None:
            differ = [*map(not_, map(torch.equal, self._changing, self._before))]
            self._changing, self._before = [*compress(self._changing, differ)], [*compress(self._before, differ)]
            self.known = True

    def pairs(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Each of them, with its value before the last forward pass."""
        return zip(self._changing or (), self._before, strict=True)

    def named(self, model: nn.Module) -> list[tuple[str, Tensor]]:
        """The name of each, with its value before the last forward pass."""
        names = {id(buffer): name for name, buffer in model.named_buffers()}
        return [(names.get(id(buffer), ""), before) for buffer, before in self.pairs()]

    def clear(self) -> None:
        """Let them go."""
        self._changing, self._before = None, []
