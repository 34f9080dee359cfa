"""CSVLogger: metrics.csv, and files in a folder of ours."""

from __future__ import annotations

import csv
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from typing_extensions import override

from lightning_hooks.trackers.bins import QUANTILES, quantiles
from lightning_hooks.trackers.names import safe_path
from lightning_hooks.trackers.picture import Picture
from lightning_hooks.trackers.tracker import FOLDER, Histogram, Tracker


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
