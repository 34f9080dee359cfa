"""Histograms over an epoch: bins that are the same for all sites, batches and ranks, so that counts simply add.

A bin is a quarter of the way from one power of two to the next, on either side of zero: wide where values are large, narrow where
they are small, and read straight off a float32's bits (its exponent and the first two digits behind it).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache

import numpy as np
import torch
from torch import Tensor

from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.reduction import Span, added

QUARTERS = 4
# Powers of two between which magnitudes are distinguished: 1e-12 to 1.7e7. Less counts as zero, more as the most.
LOWEST, HIGHEST = -40, 24
N_SIDE = (HIGHEST - LOWEST) * QUARTERS
N_BINS = 2 * N_SIDE + 1

_EXPONENT_BIAS = 127
_SHIFT = 21  # of a float32's 32 bits this leaves the sign, 8 of the exponent and 2 of the fraction
_KEYS = 1 << (32 - _SHIFT)
_NONFINITE = 255 * QUARTERS  # NaN and infinity have the largest exponent
_FIRST = (_EXPONENT_BIAS + LOWEST) * QUARTERS
_CHUNK = 1 << 22  # values placed at a time on an accelerator: their int64 places take eight bytes each

Histogram = tuple[list[float], list[int]]  # edges, rising, and one count less


@cache
def bin_edges() -> np.ndarray:
    """The edges of all bins, rising, shape ``(n_bins + 1,)``; the middle one holds zero."""
    powers = np.exp2(np.arange(LOWEST, HIGHEST))
    side = np.append((powers[:, None] * (1 + np.arange(QUARTERS) / QUARTERS)).ravel(), 2.0**HIGHEST)
    return np.concatenate((-side[::-1], side))


class HistogramTable:
    """A histogram of each of some sites, on the device.

    Args:
        sites: Indices of these sites among all.
        names: The names of all sites.
        device: Where the counts live.
    """

    def __init__(self, sites: Sequence[int], names: Sequence[str], device: torch.device | str = "cpu") -> None:
        self.lines = {site: line for line, site in enumerate(sites)}
        self.names = [names[site] for site in sites]
        self.counts = torch.zeros((len(sites), N_BINS), dtype=torch.int64, device=device)
        self.spans = (Span(self.counts.numel(), added),)

    def add(self, site: int, values: Tensor) -> None:
        """Count values: floating point, plain, any shape and device; NaN and infinite ones are passed over. No host sync."""
        line = self.lines.get(site)
        if line is not None and values.numel():
            self.counts[line] += bin_counts(values).to(self.counts.device, non_blocking=True)

    def pack(self) -> Tensor:
        """Return the counts as one vector of the row's dtype."""
        return self.counts.flatten().to(row_dtype(self.counts.device))

    def unpack(self, packed: Tensor) -> None:
        """Load a vector that :meth:`pack` gave."""
        self.counts.copy_(packed.view_as(self.counts))

    def read(self, packed: Tensor, factor: float = 1.0) -> dict[str, Histogram]:
        """Turn a packed vector on the host into histograms by site, without empty bins at the ends; none for a site without values.

        Args:
            packed: From :meth:`pack`.
            factor: What values are multiplied by.
        """
        edges = bin_edges() * factor
        found: dict[str, Histogram] = {}
        for name, counts in zip(self.names, packed.view(-1, N_BINS).numpy(), strict=True):
            occupied = np.flatnonzero(counts)
            if occupied.size:
                first, last = occupied[0], occupied[-1]
                found[name] = edges[first : last + 2].tolist(), counts[first : last + 1].astype(np.int64).tolist()
        return found

    def reset(self) -> None:
        """Start a new epoch."""
        self.counts.zero_()


def bin_counts(values: Tensor) -> Tensor:
    """How many values fall in each bin: int64, ``(n_bins,)``, on the values' device."""
    flat = values.detach().reshape(-1).to(torch.float32)
    if flat.is_cpu and not torch.compiler.is_compiling():
        keys = np.right_shift(flat.contiguous().numpy().view(np.uint32), _SHIFT)
        counts = np.zeros(N_BINS + 1, dtype=np.int64)
        np.add.at(counts, _bin_of_key(), np.bincount(keys.astype(np.intp), minlength=_KEYS))
        return torch.from_numpy(counts[:N_BINS])
    return counts_of(flat, _places, N_BINS)


def counts_of(flat: Tensor, places_of: Callable[[Tensor], Tensor], bins: int) -> Tensor:
    """How many values fall in each bin, without a host sync: int64, ``(bins,)``.

    Args:
        flat: The values, in one dimension.
        places_of: Gives the bin of each of some values, int64; ``bins`` for one that does not count.
        bins: How many bins there are.
    """
    counted = torch.zeros(bins + 1, dtype=torch.int64, device=flat.device)
    one = torch.ones((), dtype=torch.int64, device=flat.device)
    for chunk in torch.split(flat, _CHUNK):
        places = places_of(chunk)
        counted.scatter_add_(0, places, one.expand(places.shape))
    return counted[:bins]


def _places(values: Tensor) -> Tensor:
    """The bin of each float32: int64; ``n_bins`` for what is not finite."""
    bits = values.contiguous().view(torch.int32)
    magnitude = (bits & 0x7FFFFFFF) >> _SHIFT
    side = (magnitude - (_FIRST - 1)).clamp(0, N_SIDE)
    return torch.where(magnitude < _NONFINITE, N_SIDE + torch.where(bits < 0, -side, side), N_BINS).to(torch.int64)


@cache
def _bin_of_key() -> np.ndarray:
    keys = np.arange(_KEYS, dtype=np.uint32) << np.uint32(_SHIFT)
    return _places(torch.from_numpy(keys.view(np.float32))).numpy()
