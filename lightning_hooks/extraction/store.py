"""Selection of an epoch's samples, on the host, and their storage: features on the device and fields of the batch, bounded."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import torch
from torch import Tensor

from lightning_hooks.extraction.batches import Field, batch_size, field_of
from lightning_hooks.extraction.capture import call_name

K = TypeVar("K")
Sampling = Literal["first", "reservoir"]
SAMPLINGS = ("first", "reservoir")


class Reservoir:
    """Bounded selection of samples from a stream of unknown length.

    Each sample gets a key on arrival, and the samples with the smallest keys are kept ("bottom-k sampling", Cohen and Kaplan 2007,
    "Summarizing data using bottom-k sketches"). Random keys select uniformly; arrival numbers as keys select the first. The
    selection of several ranks is the bottom-k of all their keys. Keys come from a separate generator.

    Args:
        capacity: Number of samples to keep.
        sampling: ``first`` or ``reservoir``.
        seed: Seeds the keys of ``reservoir``.
        rank: This process, whose arrivals are numbered ``rank``, ``rank + world``, …
        world: Number of processes.
    """

    def __init__(self, capacity: int, sampling: Sampling = "first", seed: int = 0, rank: int = 0, world: int = 1) -> None:
        self.capacity, self.sampling, self.seed, self.rank, self.world = capacity, sampling, seed, rank, world
        self.reset()

    def reset(self) -> None:
        """Start a new stream, with the same keys as the last."""
        self.seen = 0  # samples that have arrived here
        self._heap: list[tuple[float, int, int]] = []  # (-key, -arrival, slot): the next to be replaced on top
        self._random = random.Random(f"{self.seed}-{self.rank}")

    def admit(self, n: int) -> dict[int, int]:
        """Add ``n`` samples of the stream.

        Returns:
            Slot to row, of those of the ``n`` samples that are kept. Slots count from 0 and are filled in order.
        """
        placed: dict[int, int] = {}
        if self.sampling == "first" and self.seen >= self.capacity:
            self.seen += n
            return placed
        for row in range(n):
            arrival = self.seen * self.world + self.rank
            key = float(arrival) if self.sampling == "first" else self._random.random()
            self.seen += 1
            full = len(self._heap) == self.capacity
            if full and key >= -self._heap[0][0]:
                continue
            slot = heapq.heappop(self._heap)[2] if full else len(self._heap)
            heapq.heappush(self._heap, (-key, -arrival, slot))
            placed[slot] = row
        return placed

    def kept(self) -> list[tuple[float, int, int]]:
        """Return the (key, arrival, slot) of each kept sample, in the order of arrival."""
        return sorted(((-key, -arrival, slot) for key, arrival, slot in self._heap), key=lambda entry: entry[1])


class FeatureStore:
    """Stores selected samples of a stream of batches, without a host sync.

    The selection is made on the host from the batch size. Rows are copied on the device into buffers of at most
    ``reservoir.capacity`` rows, which :meth:`collect` copies to the host.

    Args:
        reservoir: Selects the samples.
        fields: Name to the entry of the batch that is stored with the features.
        on_fault: Called with (site, error) for a site whose features cannot be stored; it has none for the rest of the epoch.
    """

    rows: Tensor | None
    """The indices of this batch's selected rows."""
    outputs: list[tuple[str, Tensor]]
    """The selected rows of this batch's outputs, by site."""
    _slots: dict[int, int]

    def __init__(self, reservoir: Reservoir, fields: Mapping[str, Field], on_fault: Callable[[str, Exception], None]) -> None:
        self.reservoir = reservoir
        self.fields = dict(fields)
        self.on_fault = on_fault
        self.reset()

    def reset(self) -> None:
        """Start a new epoch."""
        self.reservoir.reset()
        self._tensors: dict[str, Tensor] = {}  # features by site
        self._entries: dict[str, dict[int, Any]] = {name: {} for name in self.fields}  # of the batch, by slot
        self._broken: set[str] = set()
        self.stop()

    def start(self, batch: Any, device: torch.device) -> bool:
        """Start a batch.

        Returns:
            Whether any of its samples is selected, so that hooks need to record.

        Raises:
            ValueError: If the batch has no tensor, or a field is missing or does not have one entry per sample.
        """
        self.stop()
        size = batch_size(batch)
        if size is None:
            raise ValueError(
                f"FeatureExtractor counts samples by the first tensor in a batch; got {type(batch).__name__} without one."
            )
        self._size = size
        found = {name: _checked(name, field_of(batch, field, name), size) for name, field in self.fields.items()}
        self._slots = self.reservoir.admit(size)
        if not self._slots:
            return False
        chosen = list(self._slots.values())
        self.rows = _index(chosen, device)
        for name, values in found.items():
            if isinstance(values, Tensor):
                rows: Sequence[Any] = values.detach().index_select(0, _index(chosen, values.device)).unbind()
            else:
                rows = [values[row] for row in chosen]
            self._entries[name].update(zip(self._slots, rows, strict=True))
        return True

    def take(self, site: str, values: Tensor) -> Tensor:
        """Return a copy of the selected rows of ``values``; raise ValueError if their number is not the batch size."""
        if values.dim() == 0 or values.shape[0] != self._size:
            raise ValueError(
                f"its output has shape {tuple(values.shape)}, where the batch has {self._size} samples: features are stored by the "
                "first dimension"
            )
        assert self.rows is not None
        return values.index_select(0, self.rows)

    def commit(self) -> None:
        """End the batch: store its outputs. A known site that was not called has NaN for these samples."""
        if self.rows is None:
            return
        calls: Counter[str] = Counter()
        found: dict[str, Tensor] = {}
        for site, values in self.outputs:
            found[call_name(site, calls[site])] = values
            calls[site] += 1
        with torch.inference_mode(False), torch.no_grad():
            for site in self._tensors.keys() - found.keys():
                buffer = self._tensors[site]
                stale = [slot for slot in self._slots if slot < buffer.shape[0]]
                buffer.index_fill_(0, _index(stale, buffer.device), torch.nan)
            for site in [site for site in found if site not in self._broken]:
                try:
                    self._write(site, found[site])
                except Exception as error:  # noqa: BLE001  reported, and training continues
                    self._broken.add(site)
                    self._tensors.pop(site, None)
                    self.on_fault(site, error)
        self.stop()

    def stop(self) -> None:
        """Discard the current batch."""
        self._size, self._slots, self.rows, self.outputs = 0, {}, None, []

    def collect(self, slots: Sequence[int]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Copy the samples in these slots to the host, with one host sync for all sites.

        Returns:
            Features by site, and fields by name (tensors or lists).
        """
        found: dict[tuple[str, str], Tensor] = {}
        for name, buffer in self._tensors.items():
            # The site may not have been called for the last samples.
            found["site", name] = _grown(buffer, max(slots, default=-1) + 1).index_select(0, _index(slots, buffer.device))
        fields: dict[str, Any] = {name: [entries[slot] for slot in slots] for name, entries in self._entries.items() if entries}
        for name in [name for name, entries in fields.items() if entries and all(isinstance(each, Tensor) for each in entries)]:
            shapes = list(dict.fromkeys(tuple(entry.shape) for entry in fields[name]))
            if len(shapes) == 1:
                found["field", name] = torch.stack(fields[name])
            else:
                del fields[name]
                self.on_fault(name, _other_shape(name, shapes[1], shapes[0]))
        on_host = to_host(found)
        sites = {name: values for (kind, name), values in on_host.items() if kind == "site"}
        return sites, {name: on_host.get(("field", name), entries) for name, entries in fields.items()}

    def _write(self, name: str, values: Tensor) -> None:
        known = self._tensors.get(name, values[:0])
        if known.shape[1:] != values.shape[1:]:
            raise _other_shape(name, tuple(values.shape[1:]), tuple(known.shape[1:]))
        need = max(self._slots) + 1
        if known.shape[0] < need:
            known = _grown(known, min(self.reservoir.capacity, max(need, 2 * known.shape[0])))
        self._tensors[name] = known.index_copy_(0, _index(list(self._slots), values.device), values)


def _checked(name: str, value: Any, size: int) -> Any:
    """Return a field of a batch, if it has one entry per sample."""
    whole = len(value) if isinstance(value, list | tuple) or (isinstance(value, Tensor) and value.dim()) else 0
    if whole != size:
        raise ValueError(
            f"the field {name!r} must hold one entry for each of the batch's {size} samples; got {type(value).__name__}"
            f"{f' of shape {tuple(value.shape)}' if isinstance(value, Tensor) else f' of length {whole}' if whole else ''}."
        )
    return value


def _other_shape(name: str, now: tuple[int, ...], then: tuple[int, ...]) -> ValueError:
    return ValueError(
        f"{name!r} has shape {now} per sample here and had {then} before; pool it (pool='mean'), or pad batches to one length"
    )


def _grown(buffer: Tensor, rows: int) -> Tensor:
    """Return a buffer with at least so many rows, the new ones NaN."""
    new = rows - buffer.shape[0]
    nothing = torch.nan if buffer.is_floating_point() else 0
    return buffer if new <= 0 else torch.cat((buffer, buffer.new_full((new, *buffer.shape[1:]), nothing)))


def _index(numbers: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.long).to(device, non_blocking=True)


def to_host(tensors: Mapping[K, Tensor]) -> dict[K, Tensor]:
    """Copy tensors to CPU memory, outside inference mode; from CUDA devices asynchronously, with one sync per device."""
    with torch.inference_mode(False):
        devices = {tensor.device for tensor in tensors.values() if tensor.device.type == "cuda"}
        if not devices:
            return {name: tensor.detach().to("cpu", copy=True) for name, tensor in tensors.items()}
        copies = {
            name: torch.empty(tensor.shape, dtype=tensor.dtype, pin_memory=True).copy_(tensor, non_blocking=True)
            for name, tensor in tensors.items()
        }
        for device in devices:
            torch.cuda.synchronize(device)
        return {name: copy.clone() for name, copy in copies.items()}  # pinned memory is scarce
