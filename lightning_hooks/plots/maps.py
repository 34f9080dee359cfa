"""The outputs of a layer for a few samples, as pictures: maps, tokens, attention, and Grad-CAM over its images."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal

import numpy as np

from lightning_hooks.plots.canvas import INK, VERMILLION, Figure, heading, nothing, plain, sheet, single, style, within

if TYPE_CHECKING:
    from torch import Tensor

Kind = Literal["maps", "attention", "tokens", "signals", "vectors"]

HEAT_INCHES = 2.6

GAP = 0.06  # white between tiles, in tile heights

SIDES = (48, 256)  # a tile's height in image points is that of the largest picture in it, within these

CONSTANT = (190, 194, 200)  # grey: a map that has one value all over has no darkest and no brightest place

STRENGTH = 0.65  # how much of the colour is laid over the image where a map is strongest


def kind_of(values: np.ndarray, channels_first: bool) -> Kind | None:
    """How to draw an output ``(n, …)``, by its shape; None where it has no picture.

    It is ``attention`` where the last dimension holds shares that sum to 1, of (n, queries, keys) or (n, heads, queries, keys);
    ``maps`` for four and five dimensions; for three ``signals`` of (n, channels, positions) or ``tokens`` of (n, tokens,
    features); ``vectors`` for two.
    """
    if values.size == 0 or values.ndim not in (2, 3, 4, 5):
        return None
    if values.ndim in (3, 4) and values.shape[-1] > 1 and (values >= 0).all() and np.allclose(values.sum(-1), 1, atol=1e-2):
        return "attention"
    if values.ndim >= 4:
        return "maps"
    if values.ndim == 3:
        return "signals" if channels_first else "tokens"
    return "vectors"


@style()
def feature_map(
    name: str, values: np.ndarray, kind: Kind | None, *, images: np.ndarray | None = None, max_maps: int = 8, when: str = ""
) -> Figure:
    """Draw the output of one module for a few samples.

    Args:
        name: The module's.
        values: ``(n, channels, height, width)`` or with depth before the height, of which the middle is shown; ``(n, heads,
            queries, keys)`` or without heads; ``(n, tokens, features)``; ``(n, channels, positions)``; ``(n, features)``.
        kind: What :func:`kind_of` says of them.
        images: The samples, uint8 of shape ``(n, height, width, 3)``, drawn next to the maps; None for none.
        max_maps: The first channels or heads are shown, no more than these.
        when: Shown in the title, such as ``epoch 3``.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    site, _, of = name.partition("#")
    what = f"{site}, attention weights" if of == "weights" else name
    title = f"{what}, {when}" if when else what
    shape = "x".join(map(str, values.shape[1:]))
    if kind is None:
        return nothing(title, f"An output of shape {tuple(values.shape)} has no picture here.")
    gridded = kind in ("maps", "attention")
    return _grid(title, shape, values, kind, images, max_maps) if gridded else _heat(title, shape, values, kind)


def _grid(title: str, shape: str, values: np.ndarray, kind: Kind, images: np.ndarray | None, max_maps: int) -> Figure:
    if values.ndim == 3:
        values = values[:, None]
    if values.ndim == 5:
        values = values[:, :, values.shape[2] // 2]
    n, n_maps = values.shape[:2]
    shown = min(n_maps, max_maps)
    noun = "head" if kind == "attention" else "channel"
    maps = [[coloured(values[i, j], 0.0 if kind == "attention" else None) for j in range(shown)] for i in range(n)]
    columns = [str(j) for j in range(shown)]
    if images is not None and len(images) == n and kind == "maps":
        maps = [[image, *row] for image, row in zip(images, maps, strict=True)]
        columns = ["input", *columns]
    scale = "0 to its maximum; query down, key across" if kind == "attention" else "its minimum to its maximum; grey is constant"
    line = f"{noun}s {f'0 to {shown - 1}' if shown > 1 else '0'} of {n_maps} ({shape}), each from {scale}"
    return tiled(title, line, maps, row_names=[f"sample {i}" for i in range(n)], column_names=columns, below=noun)


def _heat(title: str, shape: str, values: np.ndarray, kind: Kind) -> Figure:
    down, across = {"tokens": ("token", "feature"), "signals": ("channel", "position"), "vectors": ("sample", "feature")}[kind]
    panels = values[None] if kind == "vectors" else values
    from matplotlib.ticker import MaxNLocator

    height = HEAT_INCHES if kind != "vectors" else within(0.3 * len(values), 0.8, HEAT_INCHES)
    figure = sheet(max(HEAT_INCHES * len(panels), 6.0), height + 1.1)
    grid = figure.subplots(1, len(panels), sharex=True, sharey=True, squeeze=False)[0]
    line = f"{down} x {across} ({shape}); blue is below zero, red above, each picture on its own scale"
    for index, (axes, panel) in enumerate(zip(grid, panels, strict=True)):
        finite = np.abs(panel[np.isfinite(panel)])
        limit = float(finite.max()) if finite.size and finite.max() > 0 else 1.0
        axes.set_facecolor("black")  # shows where a value is not finite
        axes.imshow(panel, aspect="auto", cmap="RdBu_r", vmin=-limit, vmax=limit, interpolation="nearest")
        axes.set_xlabel(f"{across}\n±{limit:.3g}" if kind == "vectors" else f"{across}\nsample {index}: ±{limit:.3g}")
        for axis in (axes.xaxis, axes.yaxis):
            axis.set_major_locator(MaxNLocator(6, integer=True))
    grid[0].set_ylabel(down)
    heading(grid[0], title, line, max(HEAT_INCHES * len(panels), 6.0) - 1.0)
    return figure


def array_of(tensor: Tensor) -> np.ndarray:
    """A tensor of any device and number type as an array; what NumPy does not know, such as bfloat16, in float32."""
    tensor = tensor.detach().cpu()
    return (tensor.float() if tensor.is_floating_point() else tensor).numpy()


def as_images(values: np.ndarray) -> np.ndarray:
    """Make images of model inputs.

    Args:
        values: ``(n, channels, height, width)``. One channel is grey, three are red, green and blue; of any other number the
            mean is shown. Values from 0 to 1, or uint8, are taken as they are; anything else (normalised inputs) is scaled image by
            image from its minimum to its maximum.

    Returns:
        uint8, shape ``(n, height, width, 3)``.
    """
    if values.dtype == np.uint8:
        scaled = values.astype(np.float64) / 255
    else:
        scaled = np.nan_to_num(values.astype(np.float64))
        if scaled.min() < 0 or scaled.max() > 1:
            low, high = (extreme(scaled, axis=(1, 2, 3), keepdims=True) for extreme in (np.min, np.max))
            scaled = (scaled - low) / np.where(high > low, high - low, 1)
    if scaled.shape[1] != 3:
        scaled = scaled.mean(axis=1, keepdims=True).repeat(3, axis=1)
    return (scaled.transpose(0, 2, 3, 1) * 255).round().astype(np.uint8)


def overlaid(image: np.ndarray, cam: np.ndarray) -> np.ndarray:
    """Lay a map over an image of the same size: the stronger the map, the more of its colour, over the image in grey.

    Both images are uint8 of shape ``(height, width, 3)``; the map, at least 0, is scaled by its maximum.
    """
    from matplotlib import colormaps

    peak = cam.max()
    strength = within(cam / peak if peak > 0 else np.zeros_like(cam), 0, 1)
    colour = colormaps["inferno"](0.25 + 0.75 * strength)[..., :3] * 255
    alpha = (STRENGTH * np.sqrt(strength))[..., None]
    return np.asarray((1 - alpha) * image.mean(-1, keepdims=True) + alpha * colour).round().astype(np.uint8)


def cam_figure(title: str, line: str, maps: np.ndarray, images: np.ndarray | None, names: Sequence[str]) -> Figure:
    """Draw Grad-CAM maps: the images, and the maps over them.

    Args:
        title: Above all.
        line: Below it.
        maps: Of the images' size, shape ``(n, height, width)``.
        images: uint8, shape ``(n, height, width, 3)``; None to draw the maps alone.
        names: What to write below each.

    Raises:
        ImportError: If matplotlib is not installed.
    """
    if images is None:
        return tiled(title, line, [[coloured(cam, 0.0, "inferno") for cam in maps]], column_names=names, inches=1.9)
    over = [overlaid(image, cam) for image, cam in zip(images, maps, strict=True)]
    return tiled(title, line, [list(images), over], row_names=["input", "Grad-CAM"], column_names=names, inches=1.9)


def coloured(values: np.ndarray, low: float | None = None, colours: str = "viridis") -> np.ndarray:
    """Colour a map by itself, from its minimum, or ``low``, to its maximum: uint8, shape ``(height, width, 3)``.

    What is not finite is vermillion; a constant map is grey.
    """
    from matplotlib import colormaps
    from matplotlib.colors import to_rgb

    values = np.asarray(values, dtype=np.float64)
    finite = np.isfinite(values)
    start = values.min(where=finite, initial=np.inf) if low is None else low
    span = values.max(where=finite, initial=-np.inf) - start
    picture: np.ndarray = np.full((*values.shape, 3), CONSTANT, dtype=np.uint8)
    if span > 0:
        scaled = within(np.where(finite, (values - start) / span, 0.0), 0, 1)
        picture = (colormaps[colours](scaled)[..., :3] * 255).round().astype(np.uint8)
    picture[~finite] = (np.array(to_rgb(VERMILLION)) * 255).astype(np.uint8)
    return picture


def resized(picture: np.ndarray, height: int, width: int) -> np.ndarray:
    """Scale a picture to a size, each point the nearest one of the original."""
    rows, columns = (np.arange(new) * old // new for new, old in zip((height, width), picture.shape, strict=False))
    return np.asarray(picture[rows][:, columns])


@style()
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
    """Lay pictures, uint8 of shape ``(height, width, 3)``, out in rows and columns below a title; None stays empty.

    ``row_names`` stand to the left, ``column_names`` below each column, and below these what the columns are. A row is as high as
    ``inches``.
    """
    pictures = [picture for row in rows for picture in row if picture is not None]
    side = int(within(max(picture.shape[0] for picture in pictures), *SIDES))
    width = int(side * within(max(picture.shape[1] / picture.shape[0] for picture in pictures), 0.5, 4.0))
    gap = max(1, round(GAP * side))
    n_columns = max(map(len, rows))
    whole = np.full((len(rows) * (side + gap) - gap, n_columns * (width + gap) - gap, 3), 255, dtype=np.uint8)
    for y, row in enumerate(rows):
        for x, picture in enumerate(row):
            if picture is not None:
                top, left = y * (side + gap), x * (width + gap)
                whole[top : top + side, left : left + width] = resized(picture, side, width)
    across = max(inches * whole.shape[1] / side + 0.9, 5.0)
    figure, axes = single(across, inches * whole.shape[0] / side + (1.25 if below else 1.05))
    heading(axes, title, line, across - 1.4)
    axes.imshow(whole, interpolation="nearest")
    axes.spines[:].set_visible(False)
    axes.tick_params(length=0, labeltop=False, labelbottom=bool(column_names), labelcolor=INK)
    axes.set_xticks([x * (width + gap) + width / 2 for x in range(len(column_names))], [plain(name) for name in column_names])
    axes.set_xlabel(below)
    axes.set_yticks([y * (side + gap) + side / 2 for y in range(len(row_names))], [plain(name) for name in row_names])
    return figure
