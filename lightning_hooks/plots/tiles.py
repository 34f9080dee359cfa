"""Small pictures in rows and columns, as one image: what a grid of many axes would take seconds to draw."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from lightning_hooks.plots.canvas import INK, VERMILLION, heading, plain, sheet, style

if TYPE_CHECKING:
    from matplotlib.figure import Figure

GAP = 0.06
"""White between tiles, in tile heights."""

SIDES = (48, 256)
"""A tile's height in image points is that of the largest picture in it, within these."""

CONSTANT = (190, 194, 200)
"""Grey: a map that has one value all over has no darkest and no brightest place."""


def coloured(values: np.ndarray, low: float | None = None, colours: str = "viridis") -> np.ndarray:
    """Colour one map by itself, from its minimum to its maximum.

    Args:
        values: Shape ``(height, width)``.
        low: Where the scale starts instead of at the minimum.
        colours: A matplotlib colour map.

    Returns:
        uint8, shape ``(height, width, 3)``. What is not finite is vermillion; a constant map is grey.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_rgb

    values = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(values)
    shape = (*values.shape, 3)
    picture = np.empty(shape, dtype=np.uint8)
    picture[:] = CONSTANT
    if finite.any():
        start = values[finite].min() if low is None else low
        span = values[finite].max() - start
        if span > 0:
            scaled = np.where(finite, (values - start) / span, 0.0).clip(0, 1)
            picture = (colormaps[colours](scaled)[..., :3] * 255).round().astype(np.uint8)
    picture[~finite] = (np.array(to_rgb(VERMILLION)) * 255).astype(np.uint8)
    return picture


def resized(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """Scale a picture to a size, each point the nearest one of the original."""
    rows = np.arange(height) * picture.shape[0] // height
    columns = np.arange(width) * picture.shape[1] // width
    return np.asarray(picture[rows][:, columns])


def pixels(figure: Figure) -> np.ndarray:
    """A figure as an image, uint8 of shape ``(height, width, 3)``, in all its colours."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg

    canvas: Any = FigureCanvasAgg(figure)  # without types of its own
    canvas.draw()
    return np.asarray(canvas.buffer_rgba())[..., :3].copy()


def tiled(
    title: str,
    line: str,
    rows: Sequence[Sequence[np.ndarray | None]],
    *,
    row_names: Sequence[str] = (),
    column_names: Sequence[str] = (),
    below: str = "",
    inches: float = 1.05,
) -> Figure:
    """Lay pictures out in rows and columns, below a title.

    Args:
        title: Above all.
        line: Below the title: what is seen.
        rows: Rows of pictures, uint8 of shape ``(height, width, 3)``; None for a place that stays empty.
        row_names: Written to the left of each row.
        column_names: Written below each column.
        below: What the columns are, below them.
        inches: The height of a row.
    """
    pictures = [picture for row in rows for picture in row if picture is not None]
    side = int(np.clip(max(picture.shape[0] for picture in pictures), *SIDES))
    wide = max(picture.shape[1] / picture.shape[0] for picture in pictures)
    width = int(side * float(np.clip(wide, 0.5, 4.0)))
    gap = max(1, round(GAP * side))
    n_columns = max(map(len, rows))
    whole = np.full((len(rows) * (side + gap) - gap, n_columns * (width + gap) - gap, 3), 255, dtype=np.uint8)
    for y, row in enumerate(rows):
        for x, picture in enumerate(row):
            if picture is not None:
                top, left = y * (side + gap), x * (width + gap)
                whole[top : top + side, left : left + width] = resized(picture, side, width)
    with style():
        across = max(inches * whole.shape[1] / side + 0.9, 5.0)
        figure = sheet(across, inches * whole.shape[0] / side + (1.25 if below else 1.05))
        axes = figure.add_subplot()
        heading(axes, title, line, across - 1.4)
        axes.imshow(whole, interpolation="nearest")
        for spine in axes.spines.values():
            spine.set_visible(False)
        axes.tick_params(length=0, labeltop=False, labelbottom=bool(column_names), labelcolor=INK)
        axes.set_xticks([x * (width + gap) + width / 2 for x in range(len(column_names))], [plain(name) for name in column_names])
        axes.set_xlabel(below)
        axes.set_yticks([y * (side + gap) + side / 2 for y in range(len(row_names))], [plain(name) for name in row_names])
    return figure
