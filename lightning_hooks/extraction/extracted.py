"""The features of an epoch: stored batch by batch, merged over all ranks, and in files."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_hooks.extraction.batches import Field, batch_size, field_of, to_host
from lightning_hooks.extraction.capture import call_name

FORMATS = ("npz", "safetensors")  # the file formats, which are also the suffixes


@dataclass(frozen=True, slots=True)
class ExtractedFeatures:
    """Outputs of selected modules for the same samples.

    Attributes:
        epoch: The epoch, from 0.
        step: The step at which Lightning logs what belongs to the end of that epoch.
        sites: Module name to features, ``(n, …)``, CPU; row ``i`` of each entry belongs to the same sample. NaN where a module was
            not called for a sample. Further calls in a batch are ``name#2``, ``name#3``, ….
        fields: Name to entries of the batch: a tensor ``(n, …)``, or a list of n.
        silent: Selected modules without an output.
        seen: Number of samples from which these were selected.
    """

    epoch: int
    step: int
    sites: dict[str, Tensor]
    fields: dict[str, Any] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    seen: int = 0

    def __len__(self) -> int:
        """The number of samples."""
        return next((len(values) for values in (*self.sites.values(), *self.fields.values())), 0)

    def save(self, path: str | Path) -> Path:
        """Write to a ``.npz`` or ``.safetensors`` file, by its suffix; missing folders are created.

        Features are named ``features/<module>`` and tensor fields ``fields/<name>``; the rest is JSON, in the array ``json`` or in
        the metadata of safetensors. NumPy has no bfloat16: npz files have float32 instead.

        Returns:
            The path.

        Raises:
            ValueError: If the suffix is another.
            ImportError: If the suffix is ``.safetensors`` and safetensors is not installed.
        """
        path = Path(path)
        kind = _kind(path)
        lists = {name: values for name, values in self.fields.items() if not isinstance(values, Tensor)}
        tensors = {f"features/{name}": values for name, values in self.sites.items()}
        tensors |= {f"fields/{name}": values for name, values in self.fields.items() if name not in lists}
        tensors = {name: values.detach().cpu().contiguous() for name, values in tensors.items()}
        rest = json.dumps({"epoch": self.epoch, "step": self.step, "silent": self.silent, "seen": self.seen, "fields": lists})
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written under another name first: a reader never finds an incomplete file.
        partial = path.with_name(f".{path.name}.partial")
        if kind == "npz":
            arrays = {name: (x.float() if x.dtype == torch.bfloat16 else x).numpy() for name, x in tensors.items()}
            with partial.open("wb") as file:
                np.savez_compressed(file, json=np.array(rest), **arrays)  # type: ignore[arg-type]  # names are free
        else:
            safetensors_for("write").save_file(tensors, partial, metadata={"json": rest})
        partial.replace(path)
        return path

    @classmethod
    def load(cls, path: str | Path) -> ExtractedFeatures:
        """Read a file written by :meth:`save`.

        Raises:
            ValueError: If the suffix is neither ``.npz`` nor ``.safetensors``.
            ImportError: If it is a safetensors file and safetensors is not installed.
        """
        path = Path(path)
        if _kind(path) == "npz":
            with np.load(path, allow_pickle=False) as file:
                rest = json.loads(str(file["json"]))
                tensors = {name: torch.from_numpy(file[name]) for name in file.files if name != "json"}
        else:
            with safetensors_for("read").safe_open(path, framework="pt") as file:
                rest = json.loads(file.metadata()["json"])
                tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118  not a mapping
        sites = {name.removeprefix("features/"): values for name, values in tensors.items() if name.startswith("features/")}
        fields = {name.removeprefix("fields/"): values for name, values in tensors.items() if name.startswith("fields/")}
        return cls(rest["epoch"], rest["step"], sites, fields | rest["fields"], tuple(rest["silent"]), rest["seen"])


def safetensors_for(what: str) -> Any:
    """Return ``safetensors.torch``, or raise ImportError."""
    try:
        import safetensors.torch
    except ImportError as error:
        raise ImportError(f"safetensors is needed to {what} such files: pip install safetensors, or use npz.") from error
    return safetensors.torch


def _kind(path: Path) -> str:
    kind = path.suffix.removeprefix(".")
    if kind not in FORMATS:
        raise ValueError(
            f"features are saved in files with the suffix {' or '.join(f'.{known}' for known in FORMATS)}; got {str(path)!r}."
        )
    return kind


Collected = tuple[dict[str, Tensor], dict[str, Any]]


class FeatureStore:
    """Stores the outputs of the first samples of an epoch on the device, and entries of their batches. No host sync.

    Args:
        capacity: The number of samples to store.
        fields: Name to the entry of the batch that is stored with the features.
        on_fault: Called with (site, error) for a site whose features cannot be stored; it has none for the rest of the epoch.
    """

    outputs: list[tuple[str, Tensor]]  # the rows of this batch's outputs that are stored, by site

    def __init__(self, capacity: int, fields: Mapping[str, Field], on_fault: Callable[[str, Exception], None]) -> None:
        self.capacity, self.fields, self.on_fault = capacity, dict(fields), on_fault
        self.reset()

    def reset(self) -> None:
        """Start a new epoch."""
        self.seen = self.kept = 0  # samples
        self._parts: dict[str, dict[int, Tensor]] = {}  # by site, each by its first sample
        self._entries: dict[str, list[Any]] = {name: [] for name in self.fields}  # of the batch
        self._broken: set[str] = set()
        self.stop()

    def start(self, batch: Any) -> bool:
        """Start a batch.

        Returns:
            Whether any of its samples is stored, so that hooks need to record.

        Raises:
            ValueError: If the batch has no tensor, or a field is missing or does not have one entry per sample.
        """
        self.stop()
        size = batch_size(batch)
        if size is None:
            raise ValueError(
                f"FeatureExtractor counts samples by the first tensor in a batch; got {type(batch).__name__} without one."
            )
        found = {name: _checked(name, field_of(batch, field, name), size) for name, field in self.fields.items()}
        self._size, self._rows = size, min(size, self.capacity - self.kept)
        self.seen += size
        for name, values in found.items():
            rows = values[: self._rows]
            self._entries[name].extend(rows.detach().clone().unbind() if isinstance(rows, Tensor) else rows)
        return self._rows > 0

    def take(self, site: str, values: Tensor) -> Tensor:
        """Return a copy of the rows of ``values`` to store; raise ValueError if their number is not the batch size."""
        if values.dim() == 0 or values.shape[0] != self._size:
            raise ValueError(
                f"its output has shape {tuple(values.shape)}, where the batch has {self._size} samples: features are stored by the "
                "first dimension"
            )
        return values[: self._rows].clone()

    def commit(self) -> None:
        """End the batch: store its outputs."""
        calls: Counter[str] = Counter()
        for site, values in self.outputs:
            name = call_name(site, calls[site])
            calls[site] += 1
            if name in self._broken:
                continue
            parts = self._parts.setdefault(name, {})
            known = next(iter(parts.values()), values)
            if values.shape[:1] == (self._rows,) and values.shape[1:] == known.shape[1:]:
                parts[self.kept] = values
            else:
                self._broken.add(name)
                del self._parts[name]
                self.on_fault(name, _other_shape(name, values, known))
        self.kept += self._rows
        self.stop()

    def stop(self) -> None:
        """Discard the current batch."""
        self._size, self._rows, self.outputs = 0, 0, []

    def collect(self, count: int) -> Collected:
        """Copy the first samples to the host, with one host sync for all sites.

        Returns:
            Features by site, NaN for samples for which it was not called, and fields by name (tensors or lists).
        """
        found: dict[tuple[str, str], Tensor] = {}
        for name, parts in self._parts.items():
            values = next(iter(parts.values()))
            nothing = torch.nan if values.is_floating_point() else 0
            whole = found["site", name] = values.new_full((count, *values.shape[1:]), nothing)
            for place, part in parts.items():
                rows = whole[place : place + len(part)]
                rows.copy_(part[: len(rows)])
        fields: dict[str, Any] = {name: entries[:count] for name, entries in self._entries.items() if entries}
        for name in [name for name, entries in fields.items() if entries and all(isinstance(each, Tensor) for each in entries)]:
            other = next((entry for entry in fields[name] if entry.shape != fields[name][0].shape), None)
            if other is None:
                found["field", name] = torch.stack(fields[name])
            else:
                self.on_fault(name, _other_shape(name, other[None], fields.pop(name)[0][None]))
        on_host = to_host(found)
        sites = {name: values for (kind, name), values in on_host.items() if kind == "site"}
        return sites, {name: on_host.get(("field", name), entries) for name, entries in fields.items()}


def _checked(name: str, value: Any, size: int) -> Any:
    """Return a field of a batch, if it has one entry per sample."""
    whole = len(value) if isinstance(value, list | tuple) or (isinstance(value, Tensor) and value.dim()) else 0
    if whole != size:
        raise ValueError(
            f"the field {name!r} must hold one entry for each of the batch's {size} samples; got {type(value).__name__}"
            f"{f' of shape {tuple(value.shape)}' if isinstance(value, Tensor) else f' of length {whole}' if whole else ''}."
        )
    return value


def _other_shape(name: str, now: Tensor, then: Tensor) -> ValueError:
    if now is then:
        return ValueError(f"{name!r} is pooled to shape {tuple(now.shape)}, which has no row for each sample")
    return ValueError(
        f"{name!r} has shape {tuple(now.shape[1:])} per sample here and had {tuple(then.shape[1:])} before; pool it (pool='mean'), "
        "or pad batches to one length"
    )


def gather(own: Any) -> list[Any]:
    """Return what each rank passes, in the order of ranks: a collective of all processes of the group, or of this one alone."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [own]
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, own)
    return gathered


def gather_by_name(own: Mapping[str, Any]) -> dict[str, list[Any]]:
    """Return what each rank that has a name passes under it, in the order of ranks: a collective."""
    ranks = gather(own)
    return {name: [rank[name] for rank in ranks if name in rank] for name in dict.fromkeys(chain(*ranks))}


def merge_ranks(store: FeatureStore) -> tuple[dict[str, Tensor], dict[str, Any], int]:
    """Copy the samples of a store to the host, merged over all ranks: features by site, fields by name, the number of samples seen.

    Ranks first exchange how many samples they have, then send only those that are kept of all: two collectives. The first samples
    of all ranks come first, then the second, as one process would see them. Every rank has the same result.
    """
    counts = gather((store.kept, store.seen))
    places = sorted((place, rank) for rank, (kept, _) in enumerate(counts) for place in range(kept))
    ranks = [rank for _, rank in places[: store.capacity]]
    own = torch.distributed.get_rank() if len(counts) > 1 else 0
    sites, fields = join(gather(store.collect(ranks.count(own))), ranks, store.on_fault)
    return sites, fields, sum(seen for _, seen in counts)


def join(parts: Sequence[Collected], ranks: Sequence[int], on_fault: Callable[[str, Exception], None]) -> Collected:
    """Put the samples of the ranks in the merged order, which ``ranks`` says: features, NaN where a rank has none, and fields.

    ``on_fault`` is called with (site, error) for a site whose features differ in shape between ranks; it is left out.
    """
    if len(parts) == 1:
        return parts[0]

    def in_order(found: Sequence[Iterable[Any]]) -> list[Any]:
        entries = [iter(each) for each in found]
        return [next(entries[rank]) for rank in ranks]

    of_sites, of_fields = zip(*parts, strict=True)
    sites: dict[str, Tensor] = {}
    for name in dict.fromkeys(chain(*of_sites)):
        known = [features[name] for features in of_sites if name in features]
        shapes = {tuple(values.shape[1:]) for values in known}
        if len(shapes) > 1:
            on_fault(
                name,
                ValueError(
                    f"ranks have features of different shapes per sample, {', '.join(map(str, sorted(shapes)))}; pool them "
                    "(pool='mean')"
                ),
            )
        else:
            nothing = repeat(known[0].new_full(known[0].shape[1:], torch.nan))
            sites[name] = torch.stack(in_order([features.get(name, nothing) for features in of_sites]))
    fields = {name: in_order([found.get(name, ()) for found in of_fields]) for name in dict.fromkeys(chain(*of_fields))}
    return sites, {name: torch.stack(found) if isinstance(found[0], Tensor) else found for name, found in fields.items()}
