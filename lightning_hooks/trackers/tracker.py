"""What a tracker can show. This one, for any Lightning logger: scalars, and nothing else.

Pictures are encoded once for all trackers.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure


PALETTE = 256  # colours a figure is reduced to: a third of the bytes, and no eye sees it in a plot


@dataclass(frozen=True, slots=True)
class Picture:
    """A PNG."""

    png: bytes  # the file's bytes
    width: int  # in pixels
    height: int  # in pixels

    @classmethod
    def of_figure(cls, figure: Figure, reduced: bool = True) -> Picture:
        """Draw a matplotlib figure, without pyplot and its global state; with ``reduced`` colours, or with all, for photographs."""
        from matplotlib.backends.backend_agg import FigureCanvasAgg
        from PIL import Image

        canvas: Any = FigureCanvasAgg(figure)
        canvas.draw()
        drawn = Image.frombuffer("RGBA", canvas.get_width_height(), bytes(canvas.buffer_rgba()))
        image = Image.alpha_composite(Image.new("RGBA", drawn.size, "white"), drawn).convert("RGB")
        if reduced:  # of all colours, not of the commonest: an alert's mark is few pixels, and must keep its colour
            image = image.quantize(PALETTE, Image.Quantize.MAXCOVERAGE)
        buffer = BytesIO()
        image.save(buffer, format="PNG", optimize=True)
        return Picture(buffer.getvalue(), image.width, image.height)


# Edges, and counts, one less: counts[i] values lie between edges[i] and edges[i + 1].
Histogram = tuple[Sequence[float], Sequence[float]]

FOLDER = "lightning_hooks"  # the folder of our files, in a log directory or among a run's artifacts


class Tracker:
    """One of the trainer's loggers, and what can be shown there.

    Every method but :meth:`scalars` and :meth:`save` does nothing unless an adapter knows how. Methods may raise whatever the
    logger raises; :class:`~lightning_hooks.trackers.Trackers` sees to that.

    Args:
        logger: A Lightning logger, of whichever package.
    """

    shows_pictures: ClassVar[bool] = False  # whether it does: figures need not be drawn otherwise
    keeps_files: ClassVar[bool] = False  # whether it keeps files with the run
    needs: ClassVar[tuple[str, ...]] = ()  # the methods of the logger's experiment that this adapter calls

    def __init__(self, logger: Any) -> None:
        self.logger = logger

    @classmethod
    def suits(cls, logger: Any, experiment: Any) -> bool:  # noqa: ARG003  some adapters ask the logger, too
        """Whether the logger can do what this adapter asks of it.

        Args:
            logger: The logger.
            experiment: Its ``experiment``, None if it has none.
        """
        return all(callable(getattr(experiment, method, None)) for method in cls.needs)

    @property
    def experiment(self) -> Any:
        """The tracker's own object, behind the logger."""
        return self.logger.experiment

    def prefixed(self, tag: str) -> str:
        """The tag as the logger would write it, with the prefix that its user gave it."""
        prefix = getattr(self.logger, "_prefix", "")  # all of Lightning's loggers have it, under this name only
        return f"{prefix}{getattr(self.logger, 'LOGGER_JOIN_CHAR', '-')}{tag}" if prefix and isinstance(prefix, str) else tag

    def scalars(self, values: Mapping[str, float], step: int) -> None:
        """Write values, each under its tag, at a step."""
        self.logger.log_metrics(dict(values), step=step)

    def picture(self, tag: str, picture: Picture, step: int) -> None:
        """Show a picture that is encoded already: an image in TensorBoard and W&B, a PNG file in MLflow and with a CSVLogger."""

    def histograms(self, histograms: Mapping[str, Histogram], step: int) -> None:
        """Show distributions by tag; of none is the total zero, and all edges are finite and rise."""

    def text(self, tag: str, markdown: str, step: int) -> None:
        """Show text in Markdown."""

    def table(self, tag: str, columns: Sequence[str], rows: Sequence[Sequence[object]], step: int) -> None:
        """Show a table: text in TensorBoard, ``wandb.Table``, an artifact in MLflow, a CSV file with a CSVLogger."""

    def embedding(self, tag: str, features: np.ndarray, labels: Sequence[str] | None, step: int) -> None:
        """Show points of many dimensions, ``(n, dimensions)``, with a label each: TensorBoard's projector, a ``wandb.Table``."""

    def file(self, path: Path, step: int) -> None:
        """Keep a file with the run."""

    def save(self) -> None:
        """Write what is buffered."""
        self.logger.save()


def coarsened(edges: Sequence[float], counts: Sequence[float], parts: int = 256) -> tuple[list[float], list[float]]:
    """Join bins that are narrower than one of ``parts`` of the whole range: a chart shows about thirty."""
    width = (edges[-1] - edges[0]) / parts
    new_edges, new_counts, waiting = [edges[0]], [], 0.0
    for high, count in zip(edges[1:], counts, strict=True):
        waiting += count
        if high - new_edges[-1] >= width:
            new_edges.append(high)
            new_counts.append(waiting)
            waiting = 0.0
    if new_edges[-1] != edges[-1]:  # a narrow rest belongs to the last bin
        new_edges[-1 if new_counts else len(new_edges) :] = [edges[-1]]
        new_counts[-1:] = [(new_counts[-1] if new_counts else 0.0) + waiting]
    return new_edges, new_counts
