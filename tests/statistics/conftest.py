"""The slow reference: numpy, float64, on the concatenated data."""

import numpy as np
import pytest
import torch

from lightning_hooks.statistics.kernels import kernels_for
from lightning_hooks.statistics.rows import Column


def reference_row(*tensors):
    """The row that these calls' tensors should give, without the saturation and unit columns."""
    calls = [tensor.detach().double().contiguous().numpy().ravel() for tensor in tensors]
    values = np.concatenate(calls) if calls else np.zeros(0)
    kept = values[np.isfinite(values)]
    deviations = kept - kept.mean() if kept.size else kept
    with np.errstate(over="ignore"):
        powers = [(deviations**power).sum() for power in (2, 3, 4)]
    norms = [float(np.sqrt(np.square(call[np.isfinite(call)]).sum())) for call in calls]
    return {
        Column.CALLS: len(calls),
        Column.COUNT: kept.size,
        Column.MEAN: kept.mean() if kept.size else 0.0,
        Column.M2: np.square(kept - kept.mean()).sum() if kept.size else 0.0,
        Column.MIN: kept.min(initial=np.inf),
        Column.MAX: kept.max(initial=-np.inf),
        Column.ZEROS: (values == 0).sum(),
        Column.NONFINITE: values.size - kept.size,
        Column.NORM: sum(norms),
        Column.NORM_MAX: max(norms, default=0.0),
        Column.MOMENT_COUNT: kept.size,
        Column.MOMENT_MEAN: kept.mean() if kept.size else 0.0,
        Column.MOMENT_M2: powers[0],
        Column.MOMENT_M3: powers[1],
        Column.MOMENT_M4: powers[2],
    }


EXACT = (Column.CALLS, Column.COUNT, Column.ZEROS, Column.NONFINITE, Column.MIN, Column.MAX)


@pytest.fixture
def assert_row():
    """Compare a row with the reference: counts and extremes exactly, the mean within ``rel`` standard deviations."""

    def check(row, *tensors, rel=1e-6):
        expected = reference_row(*tensors)
        row = row.tolist() if isinstance(row, torch.Tensor) else list(row)
        assert {c: row[c] for c in EXACT} == {c: float(expected[c]) for c in EXACT}
        std = np.sqrt(expected[Column.M2] / max(expected[Column.COUNT], 1))
        rounding = 1e-14 * abs(expected[Column.MEAN])
        assert row[Column.MEAN] == pytest.approx(expected[Column.MEAN], rel=0, abs=rel * std + rounding)
        assert np.sqrt(row[Column.M2] / max(row[Column.COUNT], 1)) == pytest.approx(std, rel=rel, abs=rounding)
        for column in (Column.NORM, Column.NORM_MAX):
            assert row[column] == pytest.approx(expected[column], rel=rel)

    return check


@pytest.fixture
def assert_moments():
    """Compare the higher moments of a row with the reference, relative to what their absolute powers add up to."""

    def check(row, *tensors, rel=1e-5):
        expected = reference_row(*tensors)
        row = row.tolist()
        count, m2, m4 = (expected[column] for column in (Column.MOMENT_COUNT, Column.MOMENT_M2, Column.MOMENT_M4))
        rounding = 1e-14 * abs(expected[Column.MEAN])
        assert row[Column.MOMENT_COUNT] == count
        assert row[Column.MOMENT_MEAN] == pytest.approx(row[Column.MEAN], rel=1e-12)
        assert row[Column.MOMENT_M2] == pytest.approx(row[Column.M2], rel=1e-9)
        assert row[Column.MOMENT_M3] == pytest.approx(expected[Column.MOMENT_M3], abs=rel * np.sqrt(m2 * m4) + count * rounding**3)
        assert row[Column.MOMENT_M4] == pytest.approx(m4, rel=rel, abs=count * rounding**4)

    return check


@pytest.fixture(params=["compiled", "torch"])
def each_path(request, monkeypatch):
    """A test that asks for it runs on both paths for CPU memory."""
    monkeypatch.setenv("LIGHTNING_HOOKS_NATIVE", "1" if request.param == "compiled" else "0")
    kernels_for.cache_clear()
    if request.param == "compiled" and kernels_for("cpu").name != "c":
        pytest.skip("the C library is not built: python hatch_build.py")
    yield request.param
    kernels_for.cache_clear()


@pytest.fixture(autouse=True)
def path(each_path):
    """Every test here does."""
    return each_path
