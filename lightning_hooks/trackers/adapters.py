"""Adapters to the loggers of TensorBoard, Weights & Biases, MLflow and CSV files."""

from __future__ import annotations

import csv
import os
import re
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from io import BytesIO
from itertools import islice, pairwise
from pathlib import Path
from time import time
from typing import Any
from weakref import WeakSet

import numpy as np
from typing_extensions import override

from lightning_hooks.trackers.console import markdown_table, markdown_text, metric_name, safe_path
from lightning_hooks.trackers.tracker import FOLDER, Band, Chart, Histogram, Layout, Picture, Tracker, coarsened

VALUES_PER_EVENT = 1000

_ARRANGED: WeakSet[Any] = WeakSet()
"""The writers whose run has a layout: TensorBoard reads the first alone, and a trainer may fit more than once."""


class TensorBoardTracker(Tracker):
    """Writes to a ``SummaryWriter``."""

    shows_pictures = True
    needs = ("add_scalar", "add_histogram_raw", "add_text", "add_image", "add_custom_scalars")

    @override
    def scalars(self, values: Mapping[str, float], step: int) -> None:
        if not self._writes_plainly():
            super().scalars(values, step)
            return
        from tensorboard.compat.proto.summary_pb2 import Summary

        items = iter(values.items())
        while batch := list(islice(items, VALUES_PER_EVENT)):
            summary = Summary()
            for tag, value in batch:
                text = self.prefixed(tag).encode("utf-8", "replace").decode()  # a lone surrogate would raise
                summary.value.add(tag=text, simple_value=value)
            self._add(summary, step)

    @override
    def picture(self, tag: str, picture: Picture, step: int) -> None:
        if self._is_torchs():
            from tensorboard.compat.proto.summary_pb2 import Summary

            image = Summary.Image(height=picture.height, width=picture.width, colorspace=3, encoded_image_string=picture.png)
            self._add(Summary(value=[Summary.Value(tag=self.prefixed(tag), image=image)]), step)
        else:
            self.experiment.add_image(self.prefixed(tag), picture.array(), step, dataformats="HWC")

    @override
    def histograms(self, histograms: Mapping[str, Histogram], step: int) -> None:
        for tag, histogram in histograms.items():
            edges, counts = coarsened(*histogram)
            middles = [(low + high) / 2 for low, high in pairwise(edges)]
            self.experiment.add_histogram_raw(
                self.prefixed(tag),
                min=edges[0],
                max=edges[-1],
                num=sum(counts),
                sum=sum(count * middle for count, middle in zip(counts, middles, strict=True)),
                sum_squares=sum(count * middle**2 for count, middle in zip(counts, middles, strict=True)),
                bucket_limits=edges[1:],
                bucket_counts=counts,
                global_step=step,
            )

    @override
    def text(self, tag: str, markdown: str, step: int) -> None:
        self.experiment.add_text(self.prefixed(tag), markdown, step)

    @override
    def table(self, tag: str, columns: Sequence[str], rows: Sequence[Sequence[object]], step: int) -> None:
        self.text(tag, markdown_table(columns, rows), step)

    @override
    def embedding(self, tag: str, features: np.ndarray, labels: Sequence[str] | None, step: int) -> None:
        self.experiment.add_embedding(features, metadata=None if labels is None else list(labels), global_step=step, tag=tag)

    @override
    def layout(self, layout: Layout) -> None:
        if self.experiment in _ARRANGED:
            return
        _ARRANGED.add(self.experiment)
        self.experiment.add_custom_scalars(
            {category: {title: self._content(chart) for title, chart in charts.items()} for category, charts in layout.items()}
        )

    def _content(self, chart: Chart) -> list[Any]:
        if isinstance(chart, Band):
            return ["Margin", [self.prefixed(tag) for tag in (chart.value, chart.lower, chart.upper)]]
        return ["Multiline", [re.escape(self.prefixed("")) + chart]]

    def _writes_plainly(self) -> bool:
        """Whether the logger's log_metrics is Lightning's own, which calls add_scalar for each."""
        module = type(self.logger).log_metrics.__module__
        return module in ("lightning.fabric.loggers.tensorboard", "lightning_fabric.loggers.tensorboard") and self._is_torchs()

    def _is_torchs(self) -> bool:
        """Whether the writer is torch's, not tensorboardX's with messages of its own."""
        return type(self.experiment).__module__.startswith("torch.utils.tensorboard")

    def _add(self, summary: Any, step: int) -> None:
        self.experiment._get_file_writer().add_summary(summary, step)  # as Lightning does; there is no public name


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


METRICS_PER_BATCH = 1000
"""The most that an MLflow server takes at once."""


class MLflowTracker(Tracker):
    """Writes through an ``MlflowClient``: metrics in batches, pictures, texts, tables and histograms as artifacts."""

    shows_pictures = True
    needs = ("log_batch", "log_artifact", "log_text", "log_dict")

    @classmethod
    @override
    def suits(cls, logger: Any, experiment: Any) -> bool:
        return super().suits(logger, experiment) and isinstance(logger.run_id, str)

    @override
    def scalars(self, values: Mapping[str, float], step: int) -> None:
        from mlflow.entities import Metric

        now = int(time() * 1000)
        metrics = [Metric(metric_name(self.prefixed(tag)), float(value), now, step) for tag, value in values.items()]
        for start in range(0, len(metrics), METRICS_PER_BATCH):
            self.experiment.log_batch(self.logger.run_id, metrics=metrics[start : start + METRICS_PER_BATCH])

    @override
    def picture(self, tag: str, picture: Picture, step: int) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"step-{step:08d}.png"
            path.write_bytes(picture.png)
            self.experiment.log_artifact(self.logger.run_id, str(path), f"{FOLDER}/{safe_path(tag)}")

    @override
    def histograms(self, histograms: Mapping[str, Histogram], step: int) -> None:
        contents = {tag: {"edges": list(edges), "counts": list(counts)} for tag, (edges, counts) in histograms.items()}
        folder = safe_path(next(iter(histograms)).partition("/")[0])  # one file for all: each would be a request of its own
        self.experiment.log_dict(self.logger.run_id, contents, f"{FOLDER}/{folder}/histograms/step-{step:08d}.json")

    @override
    def text(self, tag: str, markdown: str, step: int) -> None:
        self.experiment.log_text(self.logger.run_id, markdown, f"{FOLDER}/{safe_path(tag)}/step-{step:08d}.md")

    @override
    def table(self, tag: str, columns: Sequence[str], rows: Sequence[Sequence[object]], step: int) -> None:
        file, columns = f"{FOLDER}/{safe_path(tag)}.json", ["step", *columns]
        data = [[step, *row] for row in rows]
        if find_spec("pandas") is not None:  # one table for the run, with more rows each time: what mlflow.load_table reads
            by_column = zip(*data, strict=True) if data else [[] for _ in columns]
            self.experiment.log_table(self.logger.run_id, dict(zip(columns, map(list, by_column), strict=True)), file)
        else:
            file = f"{FOLDER}/{safe_path(tag)}/step-{step:08d}.json"
            self.experiment.log_dict(self.logger.run_id, {"columns": columns, "data": data}, file)

    @property
    @override
    def keeps_files_in(self) -> str:
        return f"the artifacts of MLflow's run {self.logger.run_id}, in {FOLDER}/"

    @override
    def file(self, path: Path, step: int) -> None:
        self.experiment.log_artifact(self.logger.run_id, str(path), FOLDER)


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
    """Compute quantiles of a histogram at ascending shares; values are taken as spread evenly in each bin.

    Edges are ascending, one more than counts, which are not negative nor all zero. The shares 0 and 1 give the edges of the first
    and last bin that are not empty.
    """
    sides, values = np.asarray(edges, dtype=float), np.asarray(counts, dtype=float)
    above, filled = np.cumsum(values), np.flatnonzero(values)
    wanted = np.asarray(shares) * above[-1]
    place = np.minimum(np.maximum(np.searchsorted(above, wanted), filled[0]), filled[-1])
    within = np.minimum(np.maximum((wanted - (above - values)[place]) / values[place], 0.0), 1.0)
    found: list[float] = (sides[place] + np.diff(sides)[place] * within).tolist()
    return found
