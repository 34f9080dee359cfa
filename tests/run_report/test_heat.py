"""Heat maps as PNG images: each pixel the colour of its number."""

import io

import numpy as np
import pytest

from lightning_hooks.plots.series import Series
from lightning_hooks.run_report.heat import DIVERGING, SHADES, VIRIDIS, heat_map, png, shades


def decoded(data):
    """Read a PNG with a library that is not ours: (rows, columns, 4)."""
    image = pytest.importorskip("PIL.Image")
    return np.asarray(image.open(io.BytesIO(data)).convert("RGBA"))


def series(values):
    values = np.asarray(values, dtype=float)
    return Series(tuple(f"net.{i}" for i in range(values.shape[0])), tuple(range(values.shape[1])), values, "module")


def test_shares_are_shaded_from_0_to_1():
    drawn = heat_map(series([[0.0, 1.0], [np.nan, 0.5]]), "dead_fraction")
    pixels = decoded(drawn.png)
    assert pixels.shape == (2, 2, 4)
    assert "".join(f"{value:02x}" for value in pixels[0, 0, :3]) == VIRIDIS[0]
    assert "".join(f"{value:02x}" for value in pixels[0, 1, :3]) == VIRIDIS[-1]
    assert pixels[..., 3].tolist() == [[255, 255], [0, 255]]
    assert (drawn.low, drawn.high, drawn.log) == (0.0, 1.0, False)


def test_sizes_are_shaded_by_decades():
    drawn = heat_map(series([[1e-6, 1e-3, 1.0, 0.0, -1.0]]), "rms")
    pixels = decoded(drawn.png)[0, :, :3].astype(int)
    middle = bytes.fromhex(shades()[round((SHADES - 1) / 2)])
    assert abs(pixels[1] - list(middle)).max() <= 8  # half way between two shades
    np.testing.assert_array_equal(pixels[3], pixels[0])  # zero is the scale's bottom
    np.testing.assert_array_equal(pixels[4], pixels[2])  # a sign is not shown
    assert (drawn.low, drawn.high, drawn.log) == (1e-6, 1.0, True)


def test_a_single_size_is_shaded_in_the_middle():
    drawn = heat_map(series([[0.01]]), "rms")
    assert drawn.low < 0.01 < drawn.high


def test_nothing_finite_is_no_picture():
    assert heat_map(series([[np.nan, np.nan]]), "rms") is None


def test_large_ones_are_thinned():
    drawn = heat_map(series(np.ones((1000, 900))), "rms", most_rows=100, most_columns=50)
    assert (len(drawn.names), len(drawn.epochs)) == (100, 50)
    assert len(drawn.labels.texts) <= 80


def test_any_index_survives_the_encoding():
    indices = np.random.default_rng(0).integers(0, SHADES + 1, (13, 7)).astype(np.uint8)
    table = np.array([[0, 0, 0], *(list(bytes.fromhex(color)) for color in shades())])
    np.testing.assert_array_equal(decoded(png(indices))[..., :3], table[indices])


def test_sizes_relative_to_the_first_of_their_row():
    drawn = heat_map(series([[np.nan, 1e-6, 1e-5], [1e3, 1e3, 1e1], [0.0, 2.0, 2.0]]), "rms", relative=True)
    np.testing.assert_allclose(drawn.values, [[np.nan, 1, 10], [1, 1, 0.01], [0, 1, 1]])
    assert (drawn.low, drawn.high, drawn.relative) == (pytest.approx(0.01), pytest.approx(100), True)
    pixels = decoded(drawn.png)
    assert pixels[0, 0, 3] == 0
    assert "".join(f"{value:02x}" for value in pixels[1, 2, :3]) == DIVERGING[0]
    np.testing.assert_array_equal(pixels[0, 1], pixels[1, 0])  # layers that did not change look alike, whatever their size
    shares = series([[0.5, 1.0]])
    assert not heat_map(shares, "dead_fraction", relative=True).relative
