"""The colourful dimension: how a layer's values are spread, epoch by epoch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

import lightning_hooks.plots.canvas as canvas
from lightning_hooks.plots.canvas import Axes, Figure
from lightning_hooks.trackers.console import shortened
from lightning_hooks.trackers.tracker import Histogram

BINS = 120
MOST_PANELS = 24
SHARES = (1e-5, 1.0)
"""The colour scale: share of an epoch's values, in one of the axis's cells."""
ZERO = 1e-11
"""Smaller values are in a histogram's bin of zeros."""
FINEST = 1e-9
"""Of the largest value: an axis shows nothing smaller."""


@canvas.style()
def colourful_dimension(
    histograms: Mapping[str, Sequence[Histogram | None]],
    *,
    epochs: Sequence[int] | None = None,
    unit: str = "epoch",
    value: str = "activation",
) -> Figure:
    """Draw how each layer's values are spread in each epoch, on a logarithmic colour scale: fastai's colourful dimension.

    Healthy layers fill a band whose width stays; one that collapses to a line, or that grows and falls back in waves, does not
    learn (Howard and Gugger, Deep Learning for Coders, 2020, chapter 13).

    Args:
        histograms: Layer to one (edges, counts) per epoch, None for an epoch without; at most 24 layers. Edges may differ
            between epochs: values are laid on a common axis, by shares.
        epochs: What the columns are called; None for 0, 1, 2, ….
        unit: What these are.
        value: What was counted, for the axis.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If there are too many layers, if layers have different numbers of epochs, or if edges and counts do not fit.
    """
    lengths = {len(columns) for columns in histograms.values()}
    if len(lengths) > 1:
        raise ValueError(f"each layer needs one histogram per epoch (None where there is none); got {sorted(lengths)} of them.")
    if len(histograms) > MOST_PANELS:
        raise ValueError(f"one figure shows at most {MOST_PANELS} layers; got {len(histograms)}. Choose some of them.")
    n_epochs = lengths.pop() if lengths else 0
    named = list(range(n_epochs)) if epochs is None else list(epochs)
    if len(named) != n_epochs:
        raise ValueError(f"epochs must name each of the {n_epochs} columns; got {len(named)} names.")
    checked = {name: [_checked(name, column) for column in columns] for name, columns in histograms.items()}
    if not n_epochs:
        return canvas.nothing("Colourful dimension", "There is no histogram.")
    columns = 1 if len(checked) < 4 else 2 if len(checked) < 13 else 3
    rows = -(-len(checked) // columns)
    width = canvas.within(2.2 + 0.12 * n_epochs, 4.6, 9.0) * (1 if columns == 1 else 0.75 * columns)
    figure = canvas.sheet(min(width, 15.0), 0.9 + 2.0 * rows)
    grid = figure.subplots(rows, columns, sharex=True, squeeze=False)
    meshes = []
    for axes, (name, layer) in zip(grid.flat, checked.items(), strict=False):
        meshes.append(_panel(axes, layer))
        canvas.heading(axes, shortened(name, 40), "" if meshes[-1] else "no finite value", size=9.5)
    for axes in grid[:, 0]:
        axes.set_ylabel(value)
    for axes in grid.flat[len(checked) :]:
        axes.set_axis_off()
    for axes in grid.flat[max(len(checked) - columns, 0) : len(checked)]:
        canvas.name_epochs(axes, named, unit=unit)
        axes.tick_params(labelbottom=True)
    mesh = next(filter(None, reversed(meshes)), None)
    if mesh is not None:
        label = f"share of {'an epoch' if unit == 'epoch' else 'a window'}'s values in a cell of the axis"
        canvas.color_bar(figure, mesh, grid, label, aspect=30, fraction=0.04, anchor=(0, 0.5), format=canvas.signed_power)
    return figure


def _checked(name: str, column: Histogram | None) -> tuple[np.ndarray, np.ndarray] | None:
    if column is None:
        return None
    edges, counts = np.asarray(column[0], dtype=float), np.asarray(column[1], dtype=float)
    if edges.ndim != 1 or edges.size != counts.size + 1 or edges.size < 2:
        raise ValueError(f"{name}: a histogram of n counts needs n + 1 edges; got {edges.size} edges for {counts.size} counts.")
    if np.isnan(edges).any() or (np.diff(edges) < 0).any():
        raise ValueError(f"{name}: a histogram's edges must rise; got {edges[:5]}….")
    edges = _closed(edges)
    counts = np.where(np.isfinite(counts), counts, 0.0)
    return (edges, counts) if counts.sum() > 0 else None


def _closed(edges: np.ndarray) -> np.ndarray:
    """Infinite outer edges, as of bins for all that lies beyond, brought near."""
    inner = edges[np.isfinite(edges)]
    low, high = (float(inner[0]), float(inner[-1])) if inner.size else (0.0, 0.0)
    near = low - (abs(low) or 1.0) * 0.05, high + (abs(high) or 1.0) * 0.05
    return np.where(np.isfinite(edges), edges, canvas.within(edges, *near))


def _panel(axes: Axes, columns: Sequence[tuple[np.ndarray, np.ndarray] | None]) -> Any:
    from matplotlib.colors import LogNorm

    axes.set_facecolor(canvas.MISSING)
    axes.set_xlim(-0.5, len(columns) - 0.5)
    known = [column for column in columns if column is not None]
    if not known:
        axes.set_yticks([])
        return None
    grid, linear = _axis(known)
    missing = np.full(grid.size - 1, np.nan)
    shares = np.array([missing if column is None else _shares(*column, grid) for column in columns]).T
    shown = np.ma.masked_invalid(canvas.within(shares, *SHARES))
    x = np.arange(len(columns) + 1) - 0.5
    axes.set_yscale("asinh", linear_width=linear)
    mesh = axes.pcolormesh(x, grid, shown, norm=LogNorm(*SHARES), cmap="magma", rasterized=True)
    axes.set_yticks(canvas.one_digit(grid[10::20]))
    axes.yaxis.minorticks_off()
    axes.yaxis.set_major_formatter(canvas.signed)
    axes.set_ylim(grid[0], grid[-1])
    return mesh


def _shares(edges: np.ndarray, counts: np.ndarray, grid: np.ndarray) -> np.ndarray:
    """The share of a histogram's values in each cell of a common axis."""
    below = np.concatenate([[0.0], np.cumsum(counts / counts.sum())])
    step = np.flatnonzero(np.diff(edges) > 0)  # bins of no width would not be a function of the value
    kept = np.append(step if step.size else 0, edges.size - 1)
    return np.diff(np.interp(grid, edges[kept], below[kept], left=0.0, right=1.0))


def _axis(columns: Sequence[tuple[np.ndarray, np.ndarray]]) -> tuple[np.ndarray, float]:
    """The common axis, in cells that look equally wide: their edges, and below which magnitude it is linear.

    It is linear up to the median magnitude of the epoch with the smallest values, and logarithmic beyond, so that what shrinks by
    orders of magnitude is seen to.
    """
    used = [edges[np.flatnonzero(counts)[[0, -1]] + [0, 1]] for edges, counts in columns]
    low, high = min(float(pair[0]) for pair in used), max(float(pair[1]) for pair in used)
    if high <= low:
        low, high = low - 0.5, high + 0.5
    linear = max(min(_median(edges, counts) for edges, counts in columns), max(-low, high) * FINEST)
    grid = canvas.asinh_steps(low, high, linear, BINS + 1)
    grid[[0, -1]] = low, high
    return grid, linear


def _median(edges: np.ndarray, counts: np.ndarray) -> float:
    """The median magnitude of the values that are not zero; the largest where all are."""
    sizes = np.maximum(np.abs(edges[:-1]), np.abs(edges[1:]))
    counted = np.where((edges[:-1] < 0) & (edges[1:] > 0) & (sizes < ZERO), 0.0, counts)  # the bin of zero
    order = np.argsort(sizes)
    below = np.cumsum(counted[order])
    middle = sizes[order][np.searchsorted(below, 0.5 * below[-1])] if below[-1] else sizes[counts > 0].max()
    return float(middle) or 1.0
