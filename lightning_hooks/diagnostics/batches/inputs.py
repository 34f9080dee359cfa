"""What a model is fed: how large inputs are, whether samples differ, and whether a batch is that of another step or rank."""

from __future__ import annotations

import functools
from collections import UserDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import fields, is_dataclass
from itertools import islice
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.diagnostics.features.stats import feature_stats
from lightning_hooks.hooks.tensors import MAX_DEPTH, as_real, dense, plain_values
from lightning_hooks.statistics.columns import MAXIMUM, Columns, RowTable, row_dtype
from lightning_hooks.statistics.host_copies import number
from lightning_hooks.statistics.kernels import kernels_for
from lightning_hooks.statistics.reduction import Span, Spans, added, largest, paired
from lightning_hooks.statistics.rows import Clock, Column, ValueTable
from lightning_hooks.statistics.tables import Tables

PARTS = ("training", "validation")
COMPARED = 8
"""Samples of a batch that are compared with one another."""
LEAST = 4
"""A batch with fewer samples is not compared: few may be alike by chance."""


class SampleColumn(Columns):
    """What became of comparing the samples of a batch."""

    COMPARED = MAXIMUM  # 0: not compared, 1: the same, 2: not


class SampleTable(RowTable):
    """One row."""

    columns: ClassVar[type[Columns]] = SampleColumn


class InputTable(Tables):
    """A row for the inputs of training, one for those of validation, and what became of comparing the samples of a batch.

    The input is the floating-point tensor of the batch with the most elements; in validation, the one at the same place. The
    samples are taken to be along its first dimension, and that of all tensors of the same size with more than one dimension: a mask
    of ones may come with token ids. Of whole numbers all samples are compared, since a few may hold one prompt on purpose.

    Args:
        clock: Of the training batch.
        device: Where the numbers live.

    Attributes:
        place: Where in the batch the input is, such as ``[0]`` or ``['image']``; empty while none was found.
        images: Whether it looks like images: four dimensions, of which the second or the last one has 1, 3 or 4 channels.
    """

    def __init__(self, clock: Clock, device: torch.device | str = "cpu") -> None:
        self._samples, self._values = SampleTable(1, device), ValueTable(len(PARTS), device)
        super().__init__(device, samples=self._samples, values=self._values)
        self._kernels = kernels_for(self._values.rows.device.type)
        self._clock = clock
        self.place, self.images = "", False
        self._nonfinite: Tensor | None = None  # whether there was such a value in this window, and the place of the first

    def train(self, batch: Any, compare: bool) -> None:
        """Record a training batch; no host sync, no tensor is kept.

        Args:
            batch: As the model gets it.
            compare: Whether to compare its samples.
        """
        tensors = {place: tensor for place, tensor in tensors_in(batch) if tensor.dim() > 1}
        found = {place: tensor for place, tensor in tensors.items() if tensor.is_floating_point()}
        if found:
            self.place = self.place if self.place in found else max(found, key=lambda place: found[place].numel())
            values = self._add(0, found[self.place])
            self._look_for_nonfinite(values)
            self.images = values.dim() == 4 and not {values.shape[1], values.shape[-1]}.isdisjoint((1, 3, 4))
        if compare:
            self._compare(tensors)

    def _look_for_nonfinite(self, values: Tensor) -> None:
        """Note where the first value is that is not finite. On the CPU the counts say at once whether there is one."""
        known, rows = self._nonfinite, self._values.rows
        if rows.is_cpu and (known is not None or not number(rows[0, Column.NONFINITE])):
            return
        bad = values.isfinite().logical_not()
        new = torch.stack((bad.any().long(), *torch.unravel_index(bad.flatten().to(torch.uint8).argmax(), values.shape)))
        self._nonfinite = new if known is None or known.shape != new.shape else torch.where(known[0] > 0, known, new)

    def _compare(self, tensors: Mapping[str, Tensor]) -> None:
        """Compare the samples of a batch: they are the same where those of each of its tensors are."""
        compared = {
            place: tensor
            for place, tensor in tensors.items()
            if tensor.shape[0] >= LEAST and (tensor.numel() > tensor.shape[0] or not tensor.is_floating_point())
        }
        if not compared:
            return
        self.place = self.place or next(iter(compared))
        size, differ = tensors[self.place].shape[0] if self.place in tensors else None, []
        for tensor in compared.values():
            if tensor.shape[0] == size:
                values = unexpanded(plain_values(tensor))
                rows = values[1:COMPARED] if tensor.is_floating_point() else values[1:]
                differ.append((rows != values[:1]).any().to(self._samples.rows.device))
        if differ:
            self._samples.rows.clamp_(min=1 + torch.stack(differ).any().to(self._samples.rows.dtype))

    def validate(self, batch: Any) -> None:
        """Record a validation batch."""
        found = dict(tensors_in(batch)).get(self.place)
        if found is not None and found.is_floating_point():
            self._add(1, found)

    def _add(self, line: int, tensor: Tensor) -> Tensor:
        values = plain_values(tensor)
        self._kernels.record(self._values.rows, line, values, self._clock)
        return values

    @override
    def reset(self) -> None:
        super().reset()
        self._nonfinite = None

    def read(self, packed: Tensor) -> dict[str, Any]:
        """Name the numbers of a packed vector on the host.

        Returns:
            ``inputs``: ``training`` and ``validation`` to the statistics of the inputs, where there were some; ``input_place``:
            where in the batch they are; ``input_nonfinite``: where the first such value is; ``images``: whether they look like
            images; ``same_samples``: whether all samples compared were the same to the bit, None if none were.
        """
        parts = self.split(packed)
        ((same,),) = self._samples.lines(parts["samples"])
        rows = self._values.lines(parts["values"])
        inputs = {part: feature_stats(row) for part, row in zip(PARTS, rows, strict=True) if row[Column.CALLS]}
        bad, *index = (0,) if self._nonfinite is None else self._nonfinite.tolist()
        where = {"input_place": self.place, "input_nonfinite": tuple(index) if bad else ()}
        return {"inputs": inputs, **where, "images": self.images, "same_samples": same < 2 if same else None}


def tensors_in(batch: Any, place: str = "", depth: int = 0) -> Iterator[tuple[str, Tensor]]:
    """The tensors of a batch of lists, tuples, dictionaries and dataclasses, each with the place where it is.

    What a class of the user's computes when it is asked (``__getitem__``, ``items``, a property) is not read.
    """
    kind = type(batch)  # also isinstance asks an object for its class
    if issubclass(kind, Tensor):
        if batch.layout == torch.strided and not (batch.is_nested or batch.is_quantized):
            yield place or "batch", batch
        return
    for key, inner in _entries(batch, kind) if depth < MAX_DEPTH else ():
        yield from tensors_in(inner, f"{place}{key}", depth + 1)


def _entries(batch: Any, kind: type) -> Iterable[tuple[str, Any]]:
    """What a container stores, with its place in it."""
    if issubclass(kind, UserDict):  # such as transformers' BatchEncoding
        batch = _stored(batch).get("data")
        kind = type(batch)
    if issubclass(kind, dict):
        return [(f"[{key!r}]", inner) for key, inner in dict.items(batch) if isinstance(key, str | int)]
    if issubclass(kind, list):
        return [(f"[{number}]", inner) for number, inner in enumerate(list.__iter__(batch))]
    if issubclass(kind, tuple):
        return [(f"[{number}]", inner) for number, inner in enumerate(tuple.__iter__(batch))]
    if is_dataclass(kind):
        stored = _stored(batch)
        return [(f".{field.name}", stored[field.name]) for field in fields(kind) if field.name in stored]
    return ()


def _stored(batch: Any) -> Mapping[str, Any]:
    try:
        return object.__getattribute__(batch, "__dict__")  # type: ignore[no-any-return]
    except AttributeError:  # it has slots
        return {}


def unexpanded(values: Tensor) -> Tensor:
    """A view of each number once: without the dimensions along which a tensor is expanded."""
    return values[tuple([slice(None, 1 if step == 0 else None) for step in values.stride()])]


SAMPLE = 1024
"""Numbers of each tensor that are hashed, evenly spread over it."""
MOST_TENSORS = 8
"""Tensors of a batch that are hashed: the first ones."""
FEWEST_NUMBERS = 16
"""Batches with fewer numbers are not hashed: they may be alike by chance."""
VARIED = 32
"""Different numbers from which on a tensor of a batch is compared by itself: it is hardly the same twice by chance."""
SLOTS = 16
"""Hashes of a window's sampled batches that are kept: the last ones."""
N_PAIRS = 2
"""Numbers of pairs of batches in a packed table: those compared, and those that were the same."""
BITS = 24
"""Of a hash: a whole number that float32 holds too."""

_INTEGERS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}
_ODD, _MIX, _STEP = 0x9E3779B97F4A7C1, 0x2545F4914F6CDD1D, 1_000_003  # any large odd numbers


def batch_hash(batch: Any) -> Tensor | None:
    """The hash of a batch's tensors: of their bits, their order in the batch and the order of their numbers. No host sync.

    Args:
        batch: As the model gets it: tensors in lists, tuples and dictionaries.

    Returns:
        A whole number from 1 to 2 ** 24 - 1, shape ``()``, int64; 0 where all numbers of each tensor are equal, as in
        data that only stand in for some. None without tensors, or with too few numbers.
    """
    found = _hashes(batch)
    return None if found is None else found[0]


def _hashes(batch: Any) -> tuple[Tensor, Tensor] | None:
    """The hash of a batch, and those of its tensors, shape ``(MOST_TENSORS,)``: 0 for all that are not compared by themselves."""
    tensors = list(islice(((tensor, _sample(tensor)) for _, tensor in tensors_in(batch)), MOST_TENSORS))
    tensors = [(tensor, bits) for tensor, bits in tensors if bits.numel()]
    tensors = [(tensor, bits) for tensor, bits in tensors if bits.device == tensors[0][1].device]
    if sum(bits.numel() for _, bits in tensors) < FEWEST_NUMBERS:
        return None
    first = tensors[0][1][0]
    total, varies = torch.zeros_like(first), torch.zeros_like(first, dtype=torch.bool)
    alone = [torch.zeros_like(first)] * MOST_TENSORS
    for place, (tensor, bits) in enumerate(tensors):
        mixed = bits * _odd_numbers(bits.numel(), bits.device)
        mixed = ((mixed ^ (mixed >> 29)) * _MIX).sum()
        total = total * _STEP + mixed
        varies = varies | (bits != bits[0]).any()
        if tensor.is_floating_point() and bits.numel() >= VARIED:
            different = (bits.sort().values.diff() != 0).sum() + 1
            alone[place] = torch.where(different >= VARIED, mixed, 0)
    return torch.where(varies, ((total >> 17) & (2**BITS - 1)).clamp_min(1), 0), torch.stack(alone)


@functools.lru_cache(maxsize=32)
def _odd_numbers(count: int, device: torch.device) -> Tensor:
    return torch.arange(1, 2 * count, 2, device=device) * _ODD


def _sample(tensor: Tensor) -> Tensor:
    """The bits of some of a tensor's numbers as integers, shape ``(n,)``, int64."""
    values = as_real(plain_values(tensor))
    count, step = values.numel(), max(1, values.numel() // SAMPLE)
    # A batch in another order of dimensions (channels last) is read as it lies in memory, without a copy.
    if dense(values):
        some = values.as_strided((count,), (1,))[::step].contiguous()
    else:  # such as a mask that is expanded over all queries, whose copy may be as large as the memory
        left, places = torch.arange(0, count, step, device=values.device), []
        for size in reversed(values.shape):
            places.append(left % size)
            left = left // size
        some = values[tuple(reversed(places))]
    return (some if some.dtype == torch.bool else some.view(_INTEGERS[some.element_size()])).to(torch.int64)


class BatchHashes:
    """How often a sampled batch was the same as the next one, and the last hashes, to be compared over ranks.

    A batch counts as the same too where one of its tensors of floating-point numbers is, though that tensor is not always the same:
    noise that is drawn by loader workers with equal seeds comes with other images.

    Args:
        device: Where the numbers live.
    """

    def __init__(self, device: torch.device | str = "cpu") -> None:
        dtype = row_dtype(torch.device(device))
        self._sums = torch.zeros(N_PAIRS, dtype=dtype, device=device)  # pairs compared, pairs that were the same
        # The largest hash over the ranks and the largest of its negative are the same number where all ranks have the same hash.
        self._slots = torch.zeros((2, SLOTS), dtype=dtype, device=device)
        self._next = 0
        self.before: Tensor | None = None  # the hash of the batch before, if that was sampled
        self._parts: Tensor | None = None  # the hashes of the tensors of the last batch that was hashed
        self._changing: Tensor | None = None  # which of them have been seen to change

    def add(self, batch: Any, sampled: bool) -> None:
        """Record a sampled batch, or the one after it; others are skipped."""
        if not sampled and self.before is None:
            return
        hashes, before = _hashes(batch), self.before
        if hashes is None:
            self.before = self._parts = None
            return
        found, parts = hashes
        self.before = found if sampled else None
        same_part = self._compare_parts(parts)
        if before is not None and before.device == found.device:
            compared = (before > 0) & (found > 0)
            pair = torch.stack((compared, compared & ((before == found) | same_part)))
            self._sums += pair.to(self._sums.device, self._sums.dtype)
        if sampled:
            self._slots[:, self._next] = torch.stack((found, -found)).to(self._slots.device, self._slots.dtype)
            self._next = (self._next + 1) % SLOTS

    def _compare_parts(self, parts: Tensor) -> Tensor:
        """Whether a tensor that changes at times is the same as in the last batch that was hashed, shape ``()``."""
        last, self._parts = self._parts, parts
        if last is None or self._changing is None or last.device != parts.device:
            self._changing = torch.zeros_like(parts, dtype=torch.bool)
            last = torch.zeros_like(parts)
        compared = (parts != 0) & (last != 0)
        self._changing = self._changing | (compared & (parts != last))
        return (compared & self._changing & (parts == last)).any()

    @property
    def spans(self) -> Spans:
        """How packed numbers merge: pairs, and the last hashes."""
        return Span(N_PAIRS, added), Span(2 * SLOTS, largest, paired(merge_windows))

    def pack(self) -> Tensor:
        """Return the window's numbers as one vector."""
        return torch.cat((self._sums, self._slots.flatten()))

    def unpack(self, packed: Tensor) -> None:
        """Load what :meth:`pack` or a merge returned."""
        self._sums.copy_(packed[:N_PAIRS])
        self._slots.copy_(packed[N_PAIRS:].view_as(self._slots))
        self._next = int((self._slots[0] > 0).sum()) % SLOTS

    def reset(self) -> None:
        """Start a new window. The first batch of an epoch is not compared with the last one of the epoch before."""
        self._sums.zero_()
        self._slots.zero_()
        self._next, self.before = 0, None
        self._parts = None


def merge_windows(earlier: Tensor, later: Tensor) -> Tensor:
    """The last hashes of two consecutive windows, each as :class:`BatchHashes` packs them, on the host."""
    hashes = torch.cat((earlier.view(2, SLOTS), later.view(2, SLOTS)), dim=1)
    merged = torch.zeros_like(hashes[:, :SLOTS])
    kept = hashes[:, hashes[0] > 0][:, -SLOTS:]
    merged[:, : kept.shape[1]] = kept
    return merged.flatten()


def same_on_all(packed: Tensor) -> tuple[int, int, int]:
    """How many batches were hashed, how many of them were the same on all ranks, and how many different ones these are."""
    largest, negative = packed[N_PAIRS:].view(2, SLOTS).tolist()
    hashed = [(high, -low) for high, low in zip(largest, negative, strict=True) if high > 0]
    same = [high for high, low in hashed if high == low]
    return len(hashed), len(same), len(set(same))
