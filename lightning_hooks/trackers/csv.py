"""CSVLogger: metrics.csv, and files in a folder of ours."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from lightning_hooks.trackers.names import safe_path
from lightning_hooks.trackers.picture import Picture
from lightning_hooks.trackers.tracker import FOLDER, Histogram, Tracker

QUANTILES = (0.0, 0.05, 0.25, 0.5, 0.75, 0.95, 1.0)


class CSVTracker(Tracker):
    """Writes to a CSVLogger.

    Its metrics.csv takes numbers: a histogram becomes columns of quantiles; pictures, texts and tables become files below
    ``lightning_hooks/`` in its log directory.
    """

    shows_pictures = True

    @classmethod
    @override
    def suits(cls, logger: Any, experiment: Any) -> bool:
        return isinstance(getattr(experiment, "metrics_file_path", None), str) and isinstance(experiment.log_dir, str)

    @override
    def picture(self, tag: str, picture: Picture, step: int) -> None:
        self._file(tag, f"step-{step:08d}.png").write_bytes(picture.png)

    @override
    def histograms(self, histograms: Mapping[str, Histogram], step: int) -> None:
        columns: dict[str, float] = {}
        for tag, (edges, counts) in histograms.items():
            values = quantiles(edges, counts, QUANTILES)
            columns |= {f"{tag}/q{share * 100:g}": value for share, value in zip(QUANTILES, values, strict=True)}
        self.scalars(columns, step)

    @override
    def text(self, tag: str, markdown: str, step: int) -> None:
        self._file(tag, f"step-{step:08d}.md").write_text(markdown, encoding="utf-8")

    @override
    def table(self, tag: str, columns: Sequence[str], rows: Sequence[Sequence[object]], step: int) -> None:
        with self._file(tag, f"step-{step:08d}.csv").open("w", encoding="utf-8", newline="") as file:
            csv.writer(file).writerows([columns, *rows])

    def _file(self, tag: str, name: str) -> Path:
        folder = Path(self.experiment.log_dir) / FOLDER / safe_path(tag)
        folder.mkdir(parents=True, exist_ok=True)
        return folder / name


def quantiles(edges: Sequence[float], counts: Sequence[float], shares: Sequence[float]) -> list[float]:
    """Compute quantiles of a histogram; values are taken as spread evenly in each bin.

    Args:
        edges: Ascending, one more than counts.
        counts: Not negative, not all zero.
        shares: Ascending, 0 to 1.

    Returns:
        A value per share; 0 and 1 give the edges of the first and last bin that are not empty.
    """
    sides, values = np.asarray(edges, dtype=float), np.asarray(counts, dtype=float)
    above, filled = np.cumsum(values), np.flatnonzero(values)
    wanted = np.asarray(shares) * above[-1]
    place = np.clip(np.searchsorted(above, wanted), filled[0], filled[-1])
    within = np.clip((wanted - (above - values)[place]) / values[place], 0.0, 1.0)
    found: list[float] = (sides[place] + np.diff(sides)[place] * within).tolist()
    return found
