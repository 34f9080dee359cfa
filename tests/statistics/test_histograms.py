"""Histograms in bins that are the same everywhere."""

from __future__ import annotations

import math

import numpy as np
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

from lightning_hooks.statistics.histograms import HIGHEST, LOWEST, N_BINS, N_SIDE, HistogramTable, bin_counts, bin_edges
from lightning_hooks.statistics.histograms import _places as places


def reference(values: np.ndarray) -> np.ndarray:
    """Each value looked up among the edges by its magnitude, in float64."""
    magnitudes = bin_edges()[N_SIDE + 1 :]
    counts = np.zeros(N_BINS, dtype=np.int64)
    for value in values[np.isfinite(values)].astype(np.float64).ravel():
        place = np.clip(np.searchsorted(magnitudes, abs(value), side="right"), 0, N_SIDE)
        counts[N_SIDE + int(np.sign(value)) * place] += 1
    return counts


def test_edges_rise_and_are_a_quarter_of_a_doubling_apart() -> None:
    edges = bin_edges()
    assert edges.shape == (N_BINS + 1,)
    assert (np.diff(edges) > 0).all()
    np.testing.assert_array_equal(edges, -edges[::-1])
    positive = edges[N_SIDE + 1 :]
    assert (positive[0], positive[-1]) == (2.0**LOWEST, 2.0**HIGHEST)
    np.testing.assert_array_equal(positive[:-1].reshape(-1, 4) / positive[:-1:4, None], [[1, 1.25, 1.5, 1.75]] * (HIGHEST - LOWEST))


@settings(deadline=None)
@given(arrays(np.float32, array_shapes(max_dims=3, max_side=9), elements=st.floats(width=32)))
def test_counts_equal_the_reference_on_both_paths(values: np.ndarray) -> None:
    tensor = torch.from_numpy(values)
    np.testing.assert_array_equal(bin_counts(tensor).numpy(), reference(values))
    np.testing.assert_array_equal(torch.bincount(places(tensor.flatten()), minlength=N_BINS + 1)[:-1].numpy(), reference(values))


def test_edges_and_extremes_fall_where_they_should() -> None:
    edges = bin_edges()[N_SIDE + 1 :].astype(np.float32)
    counts = bin_counts(torch.tensor([*edges, *-edges]))
    assert counts[N_SIDE + 1 : -1].tolist() == counts[1:N_SIDE].tolist() == [1] * (N_SIDE - 1)
    assert counts[-1] == counts[0] == 2  # the last edge belongs to the last bin
    zero = bin_counts(torch.tensor([0.0, -0.0, 1e-45, -1e-30, 2.0**LOWEST * 0.999]))
    assert zero[N_SIDE] == zero.sum() == 5
    assert bin_counts(torch.tensor([1e30, 3e38]))[-1] == 2
    assert bin_counts(torch.tensor([math.nan, math.inf, -math.inf])).sum() == 0


def table() -> HistogramTable:
    return HistogramTable([1, 3], ["a", "b", "c", "d"])


def test_the_table_counts_its_sites_adds_batches_and_merges_ranks() -> None:
    generator = torch.Generator().manual_seed(0)
    values = torch.randn(4, 50, generator=generator)
    ranks = [table(), table()]
    for batch in range(2):
        for rank, one in enumerate(ranks):
            one.add(1, values[2 * batch + rank])
            one.add(0, values[0])  # not asked for
    packed = torch.stack([one.pack() for one in ranks]).sum(0)
    found = table().read(packed)
    assert list(found) == ["b"]  # nothing came at d
    edges, counts = found["b"]
    full = reference(values.numpy())
    occupied = np.flatnonzero(full)
    assert counts == full[occupied[0] : occupied[-1] + 1].tolist()
    assert edges == bin_edges()[occupied[0] : occupied[-1] + 2].tolist()
    half = table().read(packed, 0.5)["b"]
    assert half == ([edge / 2 for edge in edges], counts)
