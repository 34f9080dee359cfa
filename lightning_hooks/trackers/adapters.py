"""Adapters to the loggers of TensorBoard, Weights & Biases, MLflow and CSV files."""

from __future__ import annotations

import csv
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from io import BytesIO, StringIO
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from typing_extensions import override

from lightning_hooks.trackers.console import markdown_table, metric_name, safe_path
from lightning_hooks.trackers.tracker import FOLDER, Histogram, Picture, Tracker


class TensorBoardTracker(Tracker):
    """Writes to a ``SummaryWriter``."""

    shows_pictures = True
    needs = ("add_scalar", "add_histogram_raw", "add_text", "add_image")

    @override
    def scalars(self, values: Mapping[str, float], step: int) -> None:
        super().scalars(
            {tag.encode("utf-8", "replace").decode(): value for tag, value in values.items()}, step
        )  # no lone surrogate

    @override
    def picture(self, tag: str, picture: Picture, step: int) -> None:
        from tensorboard.compat.proto.summary_pb2 import Summary

        image = Summary.Image(height=picture.height, width=picture.width, colorspace=3, encoded_image_string=picture.png)
        summary = Summary(value=[Summary.Value(tag=self.prefixed(tag), image=image)])
        self.experiment._get_file_writer().add_summary(summary, step)  # there is no public way for a PNG

    @override
    def histograms(self, histograms: Mapping[str, Histogram], step: int) -> None:
        for tag, (edges, counts) in histograms.items():
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


class WandbTracker(Tracker):
    """Writes to a ``wandb.Run``.

    Everything goes by the logger's ``log_metrics``, which adds Lightning's step as a value: with a step in
    ``run.log``, W&B would drop every row whose step is lower than the last one.
    """

    shows_pictures = True
    keeps_files = True
    needs = ("log", "define_metric", "log_artifact", "save")

    @override
    def picture(self, tag: str, picture: Picture, step: int) -> None:
        import wandb
        from PIL import Image

        self._media({tag: wandb.Image(Image.open(BytesIO(picture.png)))}, step)

    @override
    def histograms(self, histograms: Mapping[str, Histogram], step: int) -> None:
        import wandb

        pairs = {tag: (np.asarray(counts), np.asarray(edges)) for tag, (edges, counts) in histograms.items()}
        self._media({tag: wandb.Histogram(np_histogram=pair) for tag, pair in pairs.items()}, step)

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

    @override
    def file(self, path: Path, step: int) -> None:
        folder = Path(self.experiment.dir)
        if folder.is_dir():  # W&B prints a line for each file that it has to link into its folder
            path = Path(shutil.copyfile(path, folder / path.name))
        self.experiment.save(str(path), base_path=str(path.parent), policy="now")

    @override
    def save(self) -> None:
        """Nothing: the run writes by itself."""

    def _media(self, media: Mapping[str, Any], step: int) -> None:
        # W&B makes a file's path of the name.
        self.logger.log_metrics({safe_path(tag): entry for tag, entry in media.items()}, step=step)


class FileTracker(Tracker):
    """Keeps pictures, histograms and texts as files: one for each tag and step, and of histograms one for all."""

    shows_pictures = True

    @override
    def picture(self, tag: str, picture: Picture, step: int) -> None:
        self._keep(tag, f"step-{step:08d}.png", picture.png)

    @override
    def histograms(self, histograms: Mapping[str, Histogram], step: int) -> None:
        plain = {tag: {"edges": list(edges), "counts": list(counts)} for tag, (edges, counts) in histograms.items()}
        tag = f"{next(iter(histograms)).partition('/')[0]}/histograms"
        self._keep(tag, f"step-{step:08d}.json", json.dumps(plain).encode())

    @override
    def text(self, tag: str, markdown: str, step: int) -> None:
        self._keep(tag, f"step-{step:08d}.md", markdown.encode())

    def _keep(self, tag: str, name: str, content: bytes) -> None:
        raise NotImplementedError


METRICS_PER_BATCH = 1000  # the most that an MLflow server takes at once


class MLflowTracker(FileTracker):
    """Writes through an ``MlflowClient``: metrics in batches, and the rest as artifacts."""

    keeps_files = True
    needs = ("log_batch", "log_artifact", "log_table")

    @classmethod
    @override
    def suits(cls, logger: Any, experiment: Any) -> bool:
        return super().suits(logger, experiment) and isinstance(logger.run_id, str)

    @override
    def scalars(self, values: Mapping[str, float], step: int) -> None:
        named = iter([(metric_name(tag), value) for tag, value in values.items()])
        while batch := dict(islice(named, METRICS_PER_BATCH)):
            super().scalars(batch, step)

    @override
    def _keep(self, tag: str, name: str, content: bytes) -> None:
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / name
            path.write_bytes(content)
            self.experiment.log_artifact(self.logger.run_id, str(path), f"{FOLDER}/{safe_path(tag)}")

    @override
    def table(self, tag: str, columns: Sequence[str], rows: Sequence[Sequence[object]], step: int) -> None:
        columns = ["step", *columns]
        by_column = zip(*([step, *row] for row in rows), strict=True) if rows else [[] for _ in columns]
        # One table for the run, with more rows each time, which needs pandas: what mlflow.load_table reads.
        table = dict(zip(columns, map(list, by_column), strict=True))
        self.experiment.log_table(self.logger.run_id, table, f"{FOLDER}/{safe_path(tag)}.json")

    @override
    def file(self, path: Path, step: int) -> None:
        self.experiment.log_artifact(self.logger.run_id, str(path), FOLDER)


class CSVTracker(FileTracker):
    """Writes to a CSVLogger.

    Its metrics.csv takes numbers. Pictures, histograms, texts and tables become files below ``lightning_hooks/`` in its log folder.
    """

    @classmethod
    @override
    def suits(cls, logger: Any, experiment: Any) -> bool:
        return isinstance(getattr(experiment, "metrics_file_path", None), str) and isinstance(experiment.log_dir, str)

    @override
    def table(self, tag: str, columns: Sequence[str], rows: Sequence[Sequence[object]], step: int) -> None:
        file = StringIO(newline="")
        csv.writer(file).writerows([columns, *rows])
        self._keep(tag, f"step-{step:08d}.csv", file.getvalue().encode())

    @override
    def _keep(self, tag: str, name: str, content: bytes) -> None:
        folder = Path(self.experiment.log_dir) / FOLDER / safe_path(tag)
        folder.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(content)
