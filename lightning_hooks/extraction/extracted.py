"""The features of an epoch, merged over all ranks, and their files."""

from __future__ import annotations

import heapq
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_hooks.extraction.store import FeatureStore

FORMATS = ("npz", "safetensors")
"""The file formats, which are also the suffixes."""


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
            wide = {name: values.float() for name, values in tensors.items() if values.dtype == torch.bfloat16}
            arrays = {name: values.numpy() for name, values in (tensors | wide).items()}
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
        tensors: dict[str, Tensor]
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


def choose(ranks: Sequence[Sequence[tuple[float, int, int]]], capacity: int) -> list[tuple[int, int]]:
    """Return the (rank, slot) of the samples to keep, in the order of arrival, of each rank's :meth:`Reservoir.kept`."""
    entries = [(key, arrival, rank, slot) for rank, kept in enumerate(ranks) for key, arrival, slot in kept]
    return [(rank, slot) for _, _, rank, slot in sorted(heapq.nsmallest(capacity, entries), key=lambda entry: entry[1])]


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


def merge_ranks(store: FeatureStore, on_fault: Callable[[str, Exception], None]) -> tuple[dict[str, Tensor], dict[str, Any], int]:
    """Copy the samples of a store to the host, merged over all ranks: features by site, fields by name, the number of samples seen.

    Ranks first exchange the keys of their samples, then send only those that are kept of all: two collectives. Every rank has the
    same result. ``on_fault`` is called with (site, error) for a site that cannot be merged.
    """
    offers = gather((store.reservoir.kept(), store.reservoir.seen))
    chosen = choose([kept for kept, _ in offers], store.reservoir.capacity)
    parts = gather(store.collect([slot for rank, slot in chosen if rank == store.reservoir.rank]))
    sites, fields = join(parts, [rank for rank, _ in chosen], on_fault)
    return sites, fields, sum(seen for _, seen in offers)


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
            shown = ", ".join(map(str, sorted(shapes)))
            on_fault(name, ValueError(f"ranks have features of different shapes per sample, {shown}; pool them (pool='mean')"))
        else:
            nothing = repeat(known[0].new_full(known[0].shape[1:], torch.nan))
            sites[name] = torch.stack(in_order([features.get(name, nothing) for features in of_sites]))
    fields = {name: in_order([found.get(name, ()) for found in of_fields]) for name in dict.fromkeys(chain(*of_fields))}
    return sites, {name: torch.stack(found) if isinstance(found[0], Tensor) else found for name, found in fields.items()}
