"""Merging of the features of all ranks."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.extraction.store import FeatureStore

Collected = tuple[dict[str, Tensor], dict[str, Any]]


def choose(ranks: Sequence[Sequence[tuple[float, int, int]]], capacity: int) -> list[tuple[int, int]]:
    """Select from the samples of several ranks.

    Args:
        ranks: Each rank's :meth:`Reservoir.kept`.
        capacity: Number of samples to keep.

    Returns:
        The (rank, slot) of each kept sample, in the order of arrival.
    """
    entries = [(key, arrival, rank, slot) for rank, kept in enumerate(ranks) for key, arrival, slot in kept]
    return [(rank, slot) for _, _, rank, slot in sorted(heapq.nsmallest(capacity, entries), key=lambda entry: entry[1])]


def gather(own: Any) -> list[Any]:
    """Return what each rank passes, in the order of ranks: a collective of all processes of the group, or of this one alone."""
    if not (torch.distributed.is_available() and torch.distributed.is_initialized()):
        return [own]
    gathered: list[Any] = [None] * torch.distributed.get_world_size()
    torch.distributed.all_gather_object(gathered, own)
    return gathered


def merge_ranks(store: FeatureStore, on_fault: Callable[[str, Exception], None]) -> tuple[dict[str, Tensor], dict[str, Any], int]:
    """Copy the samples of a store to the host, merged over all ranks.

    Ranks first exchange the keys of their samples, then send only those that are kept of all: two collectives. Every rank has the
    same result.

    Args:
        store: The store of this rank.
        on_fault: Called with (site, error) for a site that cannot be merged.

    Returns:
        Features by site; fields by name; the number of samples seen.
    """
    offers = gather((store.reservoir.kept(), store.reservoir.seen))
    chosen = choose([kept for kept, _ in offers], store.reservoir.capacity)
    parts = gather(store.collect([slot for rank, slot in chosen if rank == store.reservoir.rank]))
    sites, fields = join(parts, [rank for rank, _ in chosen], on_fault)
    return sites, fields, sum(seen for _, seen in offers)


def join(parts: Sequence[Collected], ranks: Sequence[int], on_fault: Callable[[str, Exception], None]) -> Collected:
    """Put the samples of the ranks in order.

    Args:
        parts: The features and fields of each rank.
        ranks: The rank of each sample, in the merged order.
        on_fault: Called with (site, error) for a site whose features differ in shape between ranks; it is left out.

    Returns:
        Features by site, NaN where a rank has none, and fields by name.
    """
    if len(parts) == 1:
        return parts[0]
    sites: dict[str, Tensor] = {}
    for name in dict.fromkeys(name for features, _ in parts for name in features):
        known = [features[name] for features, _ in parts if name in features]
        shapes = {tuple(values.shape[1:]) for values in known}
        if len(shapes) > 1:
            shown = ", ".join(map(str, sorted(shapes)))
            on_fault(name, ValueError(f"ranks have features of different shapes per sample, {shown}; pool them (pool='mean')"))
            continue
        whole = known[0].new_full((len(ranks), *known[0].shape[1:]), torch.nan)
        for rank, (features, _) in enumerate(parts):
            if name in features:
                whole[[place for place, owner in enumerate(ranks) if owner == rank]] = features[name]
        sites[name] = whole
    fields: dict[str, Any] = {}
    for name in dict.fromkeys(name for _, found in parts for name in found):
        entries = [iter(found.get(name, ())) for _, found in parts]
        values = [next(entries[rank]) for rank in ranks]
        fields[name] = torch.stack(values) if values and isinstance(values[0], Tensor) else values
    return sites, fields
