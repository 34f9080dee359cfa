"""The row is a commutative monoid, and merging parts is summarising the whole."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from lightning_hooks.statistics.kernels import summarize
from lightning_hooks.statistics.rows import Column, empty_table, merge, scaled

# Squares of the tiniest values vanish, here and in the reference, each in its own way: test_summarize has those.
ordinary = st.floats(-1e6, 1e6).map(lambda value: 0.0 if abs(value) < 1e-9 else value)
values = st.one_of(ordinary, st.sampled_from([np.nan, np.inf, -np.inf, 0.0, -0.0]))
arrays = hnp.arrays(np.float64, st.integers(0, 20), elements=values)


def row_of(array, units=0.0):
    row = summarize(torch.from_numpy(array.copy()), moments=True)
    row[Column.SATURATED], row[Column.SATURABLE], row[Column.UNITS] = len(array) // 3, len(array), units
    return row


def joined(*rows):
    return merge(torch.stack(rows))


def assert_same(one, two):
    scale = max(1.0, float(one[Column.MAX].abs().nan_to_num(posinf=0)), float(one[Column.MIN].abs().nan_to_num(posinf=0)))
    units = torch.full_like(one, scale)
    units[Column.MOMENT_M3], units[Column.MOMENT_M4] = scale**3, scale**4
    np.testing.assert_allclose((one / units).tolist(), (two / units).tolist(), rtol=1e-12, atol=1e-9 * scale)


@given(arrays, arrays, arrays)
def test_merge_is_associative_and_commutative(a, b, c):
    x, y, z = row_of(a, 3), row_of(b), row_of(c, 8)
    assert_same(joined(joined(x, y), z), joined(x, joined(y, z)))
    assert_same(joined(x, y), joined(y, x))
    assert_same(joined(joined(x, y), z), joined(x, y, z))


@given(arrays)
def test_the_empty_row_is_the_identity(a):
    row, empty = row_of(a, 5), empty_table(1)[0]
    assert_same(joined(row, empty), row)
    assert_same(joined(empty, row), row)
    assert torch.equal(joined(empty, empty, empty), empty)


@given(st.lists(arrays, min_size=1, max_size=5))
def test_merged_parts_equal_the_whole(parts):
    whole, merged = row_of(np.concatenate(parts)), joined(*(row_of(part) for part in parts))
    same = [c for c in Column if c not in (Column.CALLS, Column.NORM, Column.NORM_MAX, Column.SATURATED)]
    assert_same(_only(merged, same), _only(whole, same))
    norms = [np.linalg.norm(part[np.isfinite(part)]) for part in parts]
    assert merged[Column.CALLS] == len(parts)
    assert merged[Column.NORM] == pytest.approx(sum(norms), rel=1e-12)
    assert merged[Column.NORM_MAX] == pytest.approx(max(norms), rel=1e-12)
    assert merged[Column.SATURATED] == sum(len(part) // 3 for part in parts)


def _only(row, columns):
    kept = torch.zeros_like(row)
    kept[columns] = row[columns]
    return kept


@given(arrays, st.floats(1e-3, 1e3))
def test_scaled_is_the_row_of_the_scaled_values(a, factor):
    row = row_of(a, 4)
    before = row.clone()
    assert_same(scaled(row, factor), row_of(a * factor, 4))
    assert torch.equal(row, before)
