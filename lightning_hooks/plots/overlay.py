"""Grad-CAM over the images it explains."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from lightning_hooks.plots.tiles import coloured, tiled

if TYPE_CHECKING:
    from matplotlib.figure import Figure
    from torch import Tensor

STRENGTH = 0.65
"""How much of the colour is laid over the image where a map is strongest."""


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


def overlaid(image: np.ndarray, cam: np.ndarray, colours: str = "inferno") -> np.ndarray:
    """Lay a map over an image of the same size: the stronger the map, the more of its colour, over the image in grey.

    Args:
        image: uint8, shape ``(height, width, 3)``.
        cam: At least 0, shape ``(height, width)``; scaled by its maximum.
        colours: A matplotlib colour map.

    Returns:
        uint8, shape ``(height, width, 3)``.
    """
    from matplotlib import colormaps

    peak = cam.max()
    strength = np.clip(cam / peak if peak > 0 else np.zeros_like(cam), 0, 1)
    colour = colormaps[colours](0.25 + 0.75 * strength)[..., :3] * 255
    grey = np.broadcast_to(image.mean(-1, keepdims=True), image.shape)
    alpha = (STRENGTH * np.sqrt(strength))[..., None]
    return np.asarray((1 - alpha) * grey + alpha * colour).round().astype(np.uint8)


def cam_figure(
    title: str,
    line: str,
    maps: np.ndarray,
    images: np.ndarray | None,
    names: Sequence[str],
) -> Figure:
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
