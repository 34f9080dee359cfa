"""Selection of an epoch's samples, on the host, and their storage: features on the device and fields of the batch, bounded."""

from __future__ import annotations

import heapq
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import torch
from torch import Tensor

from lightning_hooks.extraction.batches import Field, batch_size, field_of
from lightning_hooks.extraction.capture import call_name

Sampling = Literal["first", "reservoir"]
SAMPLINGS = ("first", "reservoir")


@dataclass(slots=True)
class Reservoir:
    """Bounded selection of samples from a stream of unknown length.

    Each sample gets a key on arrival, and the samples with the smallest keys are kept ("bottom-k sampling", Cohen and Kaplan 2007,
    "Summarizing data using bottom-k sketches"). Random keys select uniformly; arrival numbers as keys select the first. The
    selection of several ranks is the bottom-k of all their keys. Keys come from a separate generator.

    Attributes:
        capacity: Number of samples to keep.
        sampling: ``first`` or ``reservoir``.
        seed: Seeds the keys of ``reservoir``.
        rank: This process, whose arrivals are numbered ``rank``, ``rank + world``, …
        world: Number of processes.
        seen: Samples that have arrived here.
    """

    capacity: int
    sampling: Sampling = "first"
    seed: int = 0
    rank: int = 0
    world: int = 1
    seen: int = 0
    _heap: list[tuple[float, int, int]] = field(default_factory=list)  # (-key, -arrival, slot): the next to be replaced on top
    _random: random.Random = field(default_factory=random.Random)

    def __post_init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Start a new stream, with the same keys as the last."""
        self.seen = 0
        self._heap.clear()
        self._random.seed(f"{self.seed}-{self.rank}")

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
            if len(self._heap) < self.capacity:
                slot = len(self._heap)
                heapq.heappush(self._heap, (-key, -arrival, slot))
            elif key < -self._heap[0][0]:
                slot = self._heap[0][2]
                heapq.heapreplace(self._heap, (-key, -arrival, slot))
            else:
                continue
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

    def __init__(self, reservoir: Reservoir, fields: Mapping[str, Field], on_fault: Callable[[str, Exception], None]) -> None:
        self.reservoir = reservoir
        self.fields = dict(fields)
        self.on_fault = on_fault
        self.rows: Tensor | None = None  # indices of this batch's selected rows
        self.outputs: list[tuple[str, Tensor]] = []
        self._size = 0
        self._slots: dict[int, int] = {}
        self._tensors: dict[str, Tensor] = {}
        self._lists: dict[str, list[Any]] = {}
        self._broken: set[str] = set()

    def reset(self) -> None:
        """Start a new epoch."""
        self.reservoir.reset()
        self._tensors.clear()
        self._lists.clear()
        self._broken.clear()
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
        found = {name: self._checked(name, field_of(batch, field, name)) for name, field in self.fields.items()}
        self._slots = self.reservoir.admit(size)
        if not self._slots:
            return False
        self.rows = _index(list(self._slots.values()), device)
        for name, value in found.items():
            if isinstance(value, Tensor):
                rows = _index(list(self._slots.values()), value.device)
                self._try_to_store(f"{_FIELD}{name}", value.detach().index_select(0, rows))
            else:
                kept = self._lists.setdefault(name, [])
                kept.extend([None] * (max(self._slots) + 1 - len(kept)))
                for slot, row in self._slots.items():
                    kept[slot] = value[row]
        return True

    def take(self, site: str, values: Tensor) -> Tensor:
        """Return a copy of the selected rows of ``values``, ``(n, …)``.

        Raises:
            ValueError: If the first dimension is not the batch size.
        """
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
            for site, buffer in self._tensors.items():
                if site not in found and not site.startswith(_FIELD):
                    stale = [slot for slot in self._slots if slot < buffer.shape[0]]
                    buffer.index_fill_(0, _index(stale, buffer.device), torch.nan)
        for site, values in found.items():
            self._try_to_store(site, values)
        self.stop()

    def stop(self) -> None:
        """Discard the current batch."""
        self.rows = None
        self.outputs.clear()

    def collect(self, slots: Sequence[int]) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """Copy stored samples to the host, with one host sync for all sites.

        Args:
            slots: The slots of the samples, in order.

        Returns:
            Features by site, and fields by name (tensors or lists).
        """
        found: dict[str, Tensor] = {}
        for name, buffer in self._tensors.items():
            missing = max(slots, default=-1) + 1 - buffer.shape[0]
            if missing > 0:  # the site was not called for the last samples
                buffer = torch.cat((buffer, _empty(buffer, missing)))
            found[name] = buffer.index_select(0, _index(slots, buffer.device))
        found = to_host(found)
        fields: dict[str, Any] = {name: [kept[slot] for slot in slots] for name, kept in self._lists.items()}
        fields |= {name.removeprefix(_FIELD): values for name, values in found.items() if name.startswith(_FIELD)}
        sites = {name: values for name, values in found.items() if not name.startswith(_FIELD)}
        return sites, {name: fields[name] for name in self.fields if name in fields}

    def _checked(self, name: str, value: Any) -> Any:
        whole = (
            len(value) if isinstance(value, list | tuple) else value.shape[0] if isinstance(value, Tensor) and value.dim() else 0
        )
        if whole != self._size:
            raise ValueError(
                f"the field {name!r} must hold one entry for each of the batch's {self._size} samples; got {type(value).__name__}"
                f"{f' of shape {tuple(value.shape)}' if isinstance(value, Tensor) else f' of length {whole}' if whole else ''}."
            )
        return value

    def _try_to_store(self, name: str, values: Tensor) -> None:
        if name in self._broken:
            return
        try:
            with torch.inference_mode(False), torch.no_grad():
                self._write(name, values, _index(list(self._slots), values.device))
        except Exception as error:  # noqa: BLE001  reported, and training continues
            self._broken.add(name)
            self._tensors.pop(name, None)
            self.on_fault(name.removeprefix(_FIELD), error)

    def _write(self, name: str, values: Tensor, index: Tensor) -> None:
        known = self._tensors.get(name)
        if known is None:
            known = values.new_empty((0, *values.shape[1:]))
        if known.shape[1:] != values.shape[1:]:
            now, then = tuple(values.shape[1:]), tuple(known.shape[1:])
            raise ValueError(
                f"{name.removeprefix(_FIELD)!r} has shape {now} per sample here and had {then} before; pool it (pool='mean'), "
                "or pad batches to one length"
            )
        need = max(self._slots) + 1
        if known.shape[0] < need:
            rows = min(self.reservoir.capacity, max(need, 2 * known.shape[0]))
            known = torch.cat((known, _empty(known, rows - known.shape[0])))
        self._tensors[name] = known.index_copy_(0, index, values)


def _empty(like: Tensor, rows: int) -> Tensor:
    return like.new_full((rows, *like.shape[1:]), torch.nan if like.is_floating_point() else 0)


def _index(numbers: Sequence[int], device: torch.device) -> Tensor:
    return torch.tensor(numbers, dtype=torch.long).to(device, non_blocking=True)


_FIELD = "field:"  # no module's name holds a colon and a field's name may be anything


def to_host(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
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
