"""The outputs of a layer for a few samples, as pictures: maps, tokens, attention."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

import numpy as np

from lightning_hooks.plots.canvas import heading, nothing, sheet, style
from lightning_hooks.plots.tiles import coloured, tiled

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Kind = Literal["maps", "attention", "tokens", "signals", "vectors"]

HEAT_INCHES = 2.6


def kind_of(values: np.ndarray, channels_first: bool) -> Kind | None:
    """How to draw an output, by its shape.

    Args:
        values: ``(n, …)``.
        channels_first: Whether three dimensions are (n, channels, positions) rather than (n, tokens, features).

    Returns:
        ``attention`` where the last dimension holds shares that sum to 1, of (n, queries, keys) or (n, heads, queries, keys);
        ``maps`` for four and five dimensions, ``tokens`` or ``signals`` for three, ``vectors`` for two; None for others or none.
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


def feature_map(
    name: str,
    values: np.ndarray,
    kind: Kind | None,
    *,
    images: np.ndarray | None = None,
    max_maps: int = 8,
    when: str = "",
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
        with style():
            return nothing(sheet(6.4, 2.0), title, f"An output of shape {tuple(values.shape)} has no picture here.")
    if kind in ("maps", "attention"):
        return _grid(title, shape, values, kind, images, max_maps)
    return _heat(title, shape, values, kind)


def _grid(title: str, shape: str, values: np.ndarray, kind: Kind, images: np.ndarray | None, max_maps: int) -> Figure:
    if values.ndim == 3:
        values = values[:, None]
    if values.ndim == 5:
        values = values[:, :, values.shape[2] // 2]
    n, n_maps = values.shape[:2]
    shown = min(n_maps, max_maps)
    noun = "head" if kind == "attention" else "channel"
    low = 0.0 if kind == "attention" else None
    maps = [[coloured(values[i, j], low) for j in range(shown)] for i in range(n)]
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

    with style():
        height = HEAT_INCHES if kind != "vectors" else float(np.clip(0.3 * len(values), 0.8, HEAT_INCHES))
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
