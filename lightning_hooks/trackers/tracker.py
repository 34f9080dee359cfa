"""What a tracker can show. This one, for any Lightning logger: scalars, and nothing else.

Pictures are encoded once for all trackers; charts of many curves are what TensorBoard calls Custom Scalars.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

import numpy as np

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


@dataclass(frozen=True, slots=True)
class Band:
    """A chart with a line and a band around it."""

    value: str  # the line's tag
    lower: str  # the band's lower side
    upper: str  # its upper side


Chart = str | Band
"""A regular expression, matched from a tag's start: a chart with a line for each tag that matches; or a band."""
Layout = Mapping[str, Mapping[str, Chart]]
"""Category to title to chart."""

_USUAL = {
    "loss": r"(?!features/|gradient_flow/|gradient_clip/|loss/(std|last|nonfinite_steps)$).*[Ll]oss.*",
    "learning rate": r"(lr-|lr$|learning_rate).*",
}

MOST_BANDS = 24
"""Layers that get a chart of their own."""
LONGEST_PATTERN = 4000
"""A browser asks for a pattern's curves in an address, and servers take no long ones."""


def training_charts(logged: Collection[str]) -> dict[str, Chart]:
    """Charts of what is logged under the usual names, losses and learning rates, of the tags that were logged so far."""
    return {title: pattern for title, pattern in _USUAL.items() if any(re.match(pattern, tag) for tag in logged)}


def by_statistic(prefix: str, statistics: Sequence[str], sites: Collection[str] = (), noun: str = "") -> dict[str, Chart]:
    """A chart per statistic, the end of its tags, with a line for each site.

    Without sites, or with more than a pattern can name, there is one for all but the alert counts. ``noun`` is what the sites are,
    for the titles.
    """
    pattern = any_of(sites) if sites else ""
    if not 0 < len(pattern) <= LONGEST_PATTERN:
        pattern = "(?!alerts/).+"
    return {
        f"{statistic} of {noun}" if noun else statistic: f"{re.escape(prefix)}/{pattern}/{re.escape(statistic)}$"
        for statistic in statistics
    }


def of_model(prefix: str, statistics: Sequence[str]) -> dict[str, Chart]:
    """A chart per statistic with its median over the sites and its worst value; one of all shares, some of which may stay at 0."""
    shares = [statistic for statistic in statistics if statistic.endswith(("_fraction", "_rows"))]
    lines = {statistic: re.escape(statistic) for statistic in statistics if statistic not in shares}
    if shares:
        lines["shares"] = any_of(shares)
    return {
        f"{title}: median and worst": f"{re.escape(prefix)}/model/{pattern}_(median|worst)$" for title, pattern in lines.items()
    }


def margins(prefix: str, sites: Sequence[str]) -> dict[str, Chart]:
    """A chart per site: the mean between the least and the largest; of sites spread evenly, where there are many."""
    step = -(-len(sites) // MOST_BANDS) or 1
    return {site: Band(f"{prefix}/{site}/mean", f"{prefix}/{site}/min", f"{prefix}/{site}/max") for site in sites[::step]}


def any_of(names: Collection[str]) -> str:
    """A pattern for exactly these names, which says once what several have before their last dot."""
    ends: dict[str, list[str]] = {}
    for name in sorted(set(names)):
        parent, dot, last = name.rpartition(".")
        ends.setdefault(parent + dot, []).append(re.escape(last))
    return "(" + "|".join(f"{re.escape(parent)}({'|'.join(last)})" for parent, last in ends.items()) + ")"


Histogram = tuple[Sequence[float], Sequence[float]]
"""Edges, and counts, one less: ``counts[i]`` values lie between ``edges[i]`` and ``edges[i + 1]``."""

FOLDER = "lightning_hooks"
"""The folder of our files, in a log directory or among a run's artifacts."""


class Tracker:
    """One of the trainer's loggers, and what can be shown there.

    Every method but :meth:`scalars` and :meth:`save` does nothing unless an adapter knows how. Methods may raise whatever the
    logger raises; :class:`~lightning_hooks.trackers.Trackers` sees to that.

    Args:
        logger: A Lightning logger, of whichever package.
    """

    shows_pictures: ClassVar[bool] = False
    """Whether it shows pictures: figures need not be drawn otherwise."""
    needs: ClassVar[tuple[str, ...]] = ()
    """The methods of the logger's ``experiment`` that this adapter calls."""

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
    def keeps_files_in(self) -> str:
        """Where :meth:`file` puts a file, in words; empty where it keeps none."""
        return ""

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

    def alert(self, title: str, text: str, severity: str) -> None:
        """Send the run's owner a message, where the tracker does (W&B, with ``LIGHTNING_HOOKS_WANDB_ALERTS=1``).

        Args:
            title: A line.
            text: What happened.
            severity: ``info``, ``warning`` or ``critical``.
        """

    def layout(self, layout: Layout) -> None:
        """Arrange charts, category to title to chart (TensorBoard's Custom Scalars); once per run, only the first counts."""

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
