"""Heat maps as small PNG images: made of bytes, so that no picture library is needed where training runs."""

from __future__ import annotations

import base64
import math
import struct
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from lightning_hooks.plots.canvas import Labels, labels, within
from lightning_hooks.plots.series import FRACTIONS, Series, relative_to_first
from lightning_hooks.run_report.charts import Tick, Zone, epoch_ticks
from lightning_hooks.run_report.recorded import Run
from lightning_hooks.run_report.text import number, percent

HEATS = (
    ("gradient_flow", "modules", "rms", "Gradient RMS at each module's output"),
    ("gradient_flow", "parameters", "update_ratio", "Update ratio of each parameter"),
    ("features", "sites", "std", "Spread (std) of each module's output"),
    ("features", "sites", "zero_fraction", "Share of zeros in each module's output"),
    ("features", "sites", "dead_fraction", "Share of dead units of each rectifier"),
    ("features", "sites", "saturated_fraction", "Share of saturated values of each bounded activation"),
    ("features", "sites", "nonfinite_fraction", "Share of NaN and infinite values in the outputs"),
    ("gradient_flow", "modules", "nonfinite_fraction", "Share of NaN and infinite values in the gradients"),
)
"""The heat maps: prefix, table, statistic, caption."""
NEEDS_MORE_THAN_ZERO = ("dead_fraction", "saturated_fraction", "nonfinite_fraction")


def heat_series(run: Run) -> Iterator[tuple[int, str, str, str, Series]]:
    """The heat maps of a run: the place of a monitor, table, statistic, caption, numbers."""
    for prefix, table, stat, caption in HEATS:
        for place, record in enumerate(run.monitors):
            series = record.series(table, stat) if record.prefix == prefix else None
            if series and series.names and (stat not in NEEDS_MORE_THAN_ZERO or np.nansum(series.values)):
                yield place, table, stat, caption, series


# Viridis (Smith and van der Walt, 2015), which people with any colour vision read in the same order; 16 of its colours.
VIRIDIS = (
    *("440154", "481a6c", "472f7d", "414487", "39568c", "31688e", "2a788e", "23888e"),
    *("1f988b", "22a884", "35b779", "54c568", "7ad151", "a5db36", "d2e21b", "fde725"),
)
# From blue (less) over grey to vermillion (more), which can be distinguished with any colour vision.
DIVERGING = ("0a3d6b", "0072b2", "56a5d0", "a9cfe4", "e6e6e6", "f3c6a5", "e8935b", "d55e00", "7f2d00")
SHADES = 48
"""How many colours an image has, not counting transparent (not measured): enough to see, few enough to compress."""
MOST_TITLED_CELLS = 1200
"""Up to so many cells of a heat map have a title each; above, each row has one."""


@dataclass(frozen=True)
class HeatMap:
    """A heat map, ready for a page."""

    png: bytes  # the image, a pixel per name and epoch; transparent where nothing was measured
    low: float  # the number of the darkest colour
    high: float  # that of the brightest
    log: bool  # whether the scale between is logarithmic
    values: np.ndarray  # shares, sizes, or sizes over the first of their row; shape (names, epochs)
    names: tuple[str, ...]  # of the rows
    epochs: tuple[int, ...]  # of the columns
    unit: str  # epoch or step
    relative: bool = False  # whether sizes are relative to the first of their row

    @cached_property
    def labels(self) -> Labels:
        """What is written next to the rows."""
        return labels(self.names)

    @property
    def uri(self) -> str:
        """The image as a ``data:`` address."""
        return "data:image/png;base64," + base64.b64encode(self.png).decode()

    @property
    def gradient(self) -> str:
        """The scale's colours as a CSS gradient, left to right."""
        colors = DIVERGING if self.relative else VIRIDIS
        return f"linear-gradient(to right,{','.join(f'#{color}' for color in colors)})"

    @property
    def height(self) -> int:
        """In pixels."""
        rows = len(self.names)
        return rows * 14 if rows <= 60 else min(max(3 * rows, 840), 900)

    @property
    def names_shown(self) -> list[Tick]:
        """Names of rows, at so many percent from the top."""
        places = zip(self.labels.positions, self.labels.texts, strict=True)
        return [Tick(round(100 * (at + 0.5) / len(self.names), 2), text) for at, text in places]

    @property
    def epochs_shown(self) -> list[Tick]:
        """Numbers of epochs, at so many percent from the left."""
        n = len(self.epochs)
        return epoch_ticks(self.epochs, [round(100 * (place + 0.5) / n, 2) for place in range(n)], self.unit)

    @property
    def zones(self) -> list[Zone]:
        """A title for each number; of a large one for the last number of each row."""
        columns = len(self.epochs)
        each = len(self.names) * columns <= MOST_TITLED_CELLS
        places = [(x, 1, x) for x in range(columns)] if each else [(0, columns, columns - 1)]  # from where, how wide, of which
        return [
            Zone(left, y, width, 1, f"{name}, {self.unit} {self.epochs[x]}: {self._shown(float(self.values[y, x]))}")
            for y, name in enumerate(self.names)
            for left, width, x in places
        ]

    @property
    def scale_shown(self) -> list[str]:
        """Numbers at the beginning, at a quarter, in the middle, at three quarters, and at the end of the scale."""
        shares = (0.0, 0.25, 0.5, 0.75, 1.0)
        if not self.log:
            return [percent(self.low + share * (self.high - self.low)) for share in shares]
        low, high = math.log10(self.low), math.log10(self.high)
        values = [10 ** (low + share * (high - low)) for share in shares]
        if not self.relative:
            return [f"{value:.2g}" for value in values]
        return ["the same" if value == 1 else f"{value:.0e}x" if value >= 100 else f"{value:.2g}x" for value in values]

    def _shown(self, value: float) -> str:
        if not math.isfinite(value):
            return "not measured"
        return f"{value:.3g} times the first" if self.relative else number(value) if self.log else percent(value)


def heat_map(table: Series, stat: str, most_rows: int = 400, most_columns: int = 300, relative: bool = False) -> HeatMap | None:
    """Draw a statistic of names by epochs, of too many of either every k-th; None if there is no number in it.

    Shares have a scale from 0 to 1, others the logarithm of their size; ``relative`` draws sizes over the first of their row, since
    layers of different types differ a thousandfold in healthy runs, and would be stripes.
    """
    every_row = max(1, -(-len(table.names) // most_rows))
    every_column = max(1, -(-len(table.epochs) // most_columns))
    values = table.values[::every_row, ::every_column]
    log = stat not in FRACTIONS
    relative = relative and log
    if relative:
        values = relative_to_first(values)
    finite = np.isfinite(values)
    if not finite.any():
        return None
    with np.errstate(divide="ignore"):
        heights = np.log10(np.abs(np.where(finite, values, 1.0))) if log else np.where(finite, values, 0.0)
    known = heights[finite & np.isfinite(heights)]
    low, high = (float(known.min()), float(known.max())) if log and known.size else (-1.0, 0.0) if log else (0.0, 1.0)
    if relative:
        high = min(max(-low, high, 0.5), 300.0) if known.size else 0.5
        low = -high
    elif log and high - low < 1:
        low, high = low - 0.5, high + 0.5
    place = (heights - low) / (high - low)
    if log:
        low, high = 10.0**low, 10.0**high
    shades = np.where(finite, 1 + within(place, 0, 1) * (SHADES - 1), 0).round().astype(np.uint8)
    image = png(shades, DIVERGING if relative else VIRIDIS)
    return HeatMap(image, low, high, log, values, table.names[::every_row], table.epochs[::every_column], table.unit, relative)


def png(indices: np.ndarray, colors: Sequence[str] = VIRIDIS) -> bytes:
    """Encode ``(rows, columns)`` indices into the palette as a PNG; 0 is transparent."""
    rows, columns = indices.shape
    scanlines = np.concatenate([np.zeros((rows, 1), np.uint8), indices], axis=1).tobytes()  # filter 0 before each
    header = struct.pack(">IIBBBBB", columns, rows, 8, 3, 0, 0, 0)
    palette = bytes(channel for color in ["000000", *shades(colors)] for channel in bytes.fromhex(color))
    chunks = ((b"IHDR", header), (b"PLTE", palette), (b"tRNS", b"\x00"), (b"IDAT", zlib.compress(scanlines, 9)), (b"IEND", b""))
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )


def shades(colors: Sequence[str] = VIRIDIS) -> list[str]:
    """The colours, dark to bright, as hexadecimal."""
    anchors = np.array([list(bytes.fromhex(color)) for color in colors], dtype=float)
    at = np.linspace(0, len(anchors) - 1, SHADES)
    channels = [np.interp(at, np.arange(len(anchors)), anchors[:, channel]) for channel in range(3)]
    return ["".join(f"{round(value):02x}" for value in color) for color in np.transpose(channels)]
