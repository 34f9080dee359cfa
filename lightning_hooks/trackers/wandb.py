"""Weights & Biases."""

from __future__ import annotations

import os
import shutil
from collections.abc import Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from lightning_hooks.trackers.names import markdown_text, safe_path
from lightning_hooks.trackers.picture import Picture
from lightning_hooks.trackers.tracker import Histogram, Tracker, coarsened

ALERTS_VARIABLE = "LIGHTNING_HOOKS_WANDB_ALERTS"
"""Set to 1, alerts are sent by ``run.alert`` too: W&B mails them or posts them to Slack."""
LEVELS = {"info": "INFO", "warning": "WARN", "critical": "ERROR"}


class WandbTracker(Tracker):
    """Writes to a ``wandb.Run``.

    Everything goes by the logger's ``log_metrics``, which adds Lightning's step as a value: with a step in
    ``run.log``, W&B would drop every row whose step is lower than the last one.
    """

    shows_pictures = True
    needs = ("log", "define_metric", "log_artifact", "alert", "save")

    @override
    def picture(self, tag: str, picture: Picture, step: int) -> None:
        import wandb
        from PIL import Image

        self._media({tag: wandb.Image(Image.open(BytesIO(picture.png)))}, step)

    @override
    def histograms(self, histograms: Mapping[str, Histogram], step: int) -> None:
        import wandb

        shown = {}
        for tag, histogram in histograms.items():
            edges, counts = coarsened(*histogram)
            shown[tag] = wandb.Histogram(np_histogram=(np.asarray(counts), np.asarray(edges)))
        self._media(shown, step)

    @override
    def text(self, tag: str, markdown: str, step: int) -> None:
        self.table(tag, ["text"], [[markdown]], step)

    @override
    def table(self, tag: str, columns: Sequence[str], rows: Sequence[Sequence[object]], step: int) -> None:
        import wandb

        self._media({tag: wandb.Table(columns=list(columns), data=[list(row) for row in rows])}, step)

    @override
    def embedding(self, tag: str, features: np.ndarray, labels: Sequence[str] | None, step: int) -> None:
        names = [str(label) for label in labels] if labels is not None else [str(index) for index in range(len(features))]
        columns = ["label", *(f"d{index}" for index in range(features.shape[1]))]
        self.table(tag, columns, [[name, *row] for name, row in zip(names, features.tolist(), strict=True)], step)

    @property
    @override
    def keeps_files_in(self) -> str:
        return f"the files of W&B's run {self.experiment.id}"

    @override
    def file(self, path: Path, step: int) -> None:
        folder = Path(self.experiment.dir)
        if folder.is_dir():  # W&B prints a line for each file that it has to link into its folder
            path = Path(shutil.copyfile(path, folder / path.name))
        self.experiment.save(str(path), base_path=str(path.parent), policy="now")

    @override
    def alert(self, title: str, text: str, severity: str) -> None:
        if os.environ.get(ALERTS_VARIABLE) != "1":  # off unless asked for: it sends mail
            return
        self.experiment.alert(title=title[:63], text=markdown_text(text), level=LEVELS.get(severity, "WARN"))

    @override
    def save(self) -> None:
        """Nothing: the run writes by itself."""

    def _media(self, media: Mapping[str, Any], step: int) -> None:
        shown = {safe_path(tag): entry for tag, entry in media.items()}  # W&B makes a file's path of the name
        self.logger.log_metrics(shown, step=step)
