"""The order in which sites were first called: as numbers that every rank packs alike, and merged over ranks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TypeVar

import torch
from torch import Tensor

NEVER = -1.0
"""The position of a site that was not called."""

T = TypeVar("T")


def positions(called: Iterable[int], n_sites: int, like: Tensor) -> Tensor:
    """Number the sites as they were first called.

    Args:
        called: The sites, first called first.
        n_sites: How many sites there are.
        like: A tensor with the wanted dtype and device.

    Returns:
        For each site its position from 0, or ``NEVER``; shape ``(n_sites,)``.
    """
    numbers = [NEVER] * n_sites
    for position, site in enumerate(called):
        numbers[site] = position
    return torch.tensor(numbers, dtype=like.dtype).to(like.device, non_blocking=True)


def sites_in_order(numbers: Tensor) -> list[int]:
    """The sites that were called, first called first, of what :func:`positions` gave."""
    known = [(position, site) for site, position in enumerate(numbers.tolist()) if position >= 0]
    return [site for _, site in sorted(known)]


def merge_positions(of_ranks: Tensor) -> Tensor:
    """Merge the positions of several ranks, ``(world, n_sites)`` to ``(n_sites,)``, alike on every rank.

    The order of the first rank counts. A site that only others called comes right after the one that it came after there.
    """
    first, others = of_ranks[0], of_ranks[1:]
    others = others[(others != first).any(1)]  # reads the device once, at the end of a window, where there are ranks to merge
    merged = sites_in_order(first)
    for numbers in torch.unique(others, dim=0) if len(others) else ():
        merged = _with(merged, sites_in_order(numbers))
    return positions(merged, of_ranks.shape[1], of_ranks)


def _with(merged: list[int], other: list[int]) -> list[int]:
    """Put what only ``other`` has into ``merged``."""
    known = set(merged)
    before: list[int] = []
    after: dict[int, list[int]] = {}
    previous = None
    for site in other:
        if site in known:
            previous = site
        else:
            (before if previous is None else after.setdefault(previous, [])).append(site)
    return [*before, *(site for known_site in merged for site in (known_site, *after.get(known_site, ())))]


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
        last = _place_of(name, place, last)
        placed.append((last, name))
    return [name for _, name in sorted(placed, key=lambda entry: entry[0])]


def _place_of(name: str, place: Mapping[str, int], last: int) -> int:
    owner = name.rpartition(".")[0]
    while owner:
        if owner in place:
            return place[owner]
        owner = owner.rpartition(".")[0]
    return last
