"""A picture, encoded once for all trackers."""

from __future__ import annotations

from dataclasses import dataclass
from io import BytesIO
from typing import Any

import numpy as np

from lightning_hooks.plots.canvas import Figure

PALETTE = 256
"""Colours a figure is reduced to: a third of the bytes, and no eye sees it in a plot."""


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG."""

    png: bytes  # the file's bytes
    width: int  # in pixels
    height: int  # in pixels

    @classmethod
    def of_figure(cls, figure: Figure) -> Picture:
        """Draw a matplotlib figure, without pyplot and its global state."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from PIL import Image

        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        drawn = Image.frombuffer("RGBA", canvas.get_width_height(), bytes(canvas.buffer_rgba()))
        paper = Image.new("RGBA", drawn.size, "white")
        whole = Image.alpha_composite(paper, drawn).convert("RGB")
        # Of all colours, not of the commonest: an alert's mark is few pixels, and must keep its colour.
        return _encoded(whole.quantize(PALETTE, Image.Quantize.MAXCOVERAGE))

    @classmethod
    def of_array(cls, image: np.ndarray) -> Picture:
        """Encode an array, uint8 of shape ``(height, width, 3)``.

        Raises:
            ImportError: If Pillow is not installed.
            ValueError: If it is of another type or shape.
        """
        image = np.asarray(image)
        if image.dtype != np.uint8 or image.ndim != 3 or image.shape[2] != 3:
            raise ValueError(f"image must be uint8 of shape (height, width, 3); got {image.dtype} of shape {image.shape}.")
        try:
            from PIL import Image
        except ImportError as error:
            raise ImportError("Pictures need Pillow: pip install pillow.") from error
        return _encoded(Image.fromarray(image))

    def array(self) -> np.ndarray:
        """Decode it: uint8 of shape ``(height, width, 3)``."""
        from PIL import Image

        return np.asarray(Image.open(BytesIO(self.png)).convert("RGB"))


def _encoded(image: Any) -> Picture:
    buffer = BytesIO()
    image.save(buffer, format="PNG", optimize=True)
    return Picture(buffer.getvalue(), image.width, image.height)
