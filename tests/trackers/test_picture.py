"""A figure as a small PNG."""

from __future__ import annotations

import numpy as np
from matplotlib.colors import to_rgb
from matplotlib.figure import Figure

from lightning_hooks.trackers.tracker import Picture


def test_a_mark_of_few_pixels_keeps_its_colour() -> None:
    """Among all the colours of a heat map; the picture is still a third of what it would be."""
    drawn = Figure((6, 6), dpi=100)
    axes = drawn.subplots()
    shades = np.random.default_rng(0).normal(size=(40, 40))
    axes.pcolormesh(shades, cmap="RdBu_r", edgecolors="white", linewidth=0.4)
    axes.scatter([20], [20], marker="^", color="#e69f00", s=48, ec="white", zorder=5)
    picture = Picture.of_figure(drawn)
    pixels = picture.array().astype(float) / 255
    assert (picture.width, picture.height) == (600, 600)
    near = np.abs(pixels - to_rgb("#e69f00")).max(axis=-1) < 0.03
    assert near.sum() > 15
    assert len(picture.png) < 600 * 600 * 3 / 8
