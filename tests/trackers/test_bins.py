"""What is read off a histogram."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from lightning_hooks.trackers.tracker import coarsened


@st.composite
def histograms(draw: st.DrawFn) -> tuple[list[float], list[float]]:
    widths = draw(st.lists(st.floats(1e-6, 10), min_size=1, max_size=60))
    counts = draw(st.lists(st.integers(0, 1000), min_size=len(widths), max_size=len(widths)).filter(any))
    return np.cumsum([draw(st.floats(-10, 10)), *widths]).tolist(), [float(count) for count in counts]


@given(histograms(), st.integers(1, 40))
def test_coarser_bins_keep_range_and_counts(histogram: tuple[list[float], list[float]], parts: int) -> None:
    edges, counts = histogram
    new_edges, new_counts = coarsened(edges, counts, parts)
    assert (new_edges[0], new_edges[-1]) == (edges[0], edges[-1])
    assert len(new_edges) == len(new_counts) + 1 <= parts + 2
    assert set(new_edges) <= set(edges)
    assert (np.diff(new_edges) > 0).all()
    cumulated = np.concatenate([[0], np.cumsum(counts)])
    at = [edges.index(edge) for edge in new_edges]
    assert np.cumsum(new_counts).tolist() == cumulated[at][1:].tolist()
