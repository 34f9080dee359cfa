"""Adapters to the loggers of TensorBoard, Weights & Biases, MLflow and CSV files; all of the trainer's loggers as one object."""

from __future__ import annotations

import csv
import json
import math
import shutil
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, wraps
from io import BytesIO, StringIO
from itertools import islice, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

import numpy as np
from typing_extensions import override

from lightning_hooks.trackers.console import markdown_table, metric_name, safe_path
from lightning_hooks.trackers.tracker import FOLDER, Histogram, Picture, Tracker, coarsened

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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
        shown = Summary.Value(tag=self.prefixed(tag), image=image)
        self.experiment._get_file_writer().add_summary(Summary(value=[shown]), step)  # there is no public way for a PNG

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
        names = map(str, range(len(features)) if labels is None else labels)
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


ADAPTERS: tuple[type[Tracker], ...] = (TensorBoardTracker, WandbTracker, MLflowTracker, CSVTracker)


P = ParamSpec("P")


def _of_each(method: Callable[Concatenate[Tracker, P], None]) -> Callable[Concatenate[Trackers, P], None]:
    """A method that calls the one of the same name of each tracker."""

    @wraps(method)
    def call(trackers: Trackers, /, *args: P.args, **kwargs: P.kwargs) -> None:
        trackers._each(method.__name__, *args, **kwargs)

    return call


class Trackers:
    """The trainer's loggers as one object.

    Each is written to by the adapter that suits it. Any logger gets scalars; what a logger cannot show is skipped. The first error
    of a logger is passed to ``on_fault``; it affects neither the others nor training.

    Args:
        loggers: The trainer's loggers, of whichever package; none is fine.
        on_fault: Called once per logger with (its class's name, what it raised).
    """

    def __init__(self, loggers: Iterable[object], on_fault: Callable[[str, Exception], None]) -> None:
        self._loggers = list(loggers)
        self._on_fault = on_fault
        self._reported: set[int] = set()

    def __len__(self) -> int:
        return len(self._loggers)

    @property
    def shows_pictures(self) -> bool:
        """Whether any shows pictures: figures need not be drawn otherwise."""
        return any(tracker.shows_pictures for tracker in self._trackers)

    scalars = _of_each(Tracker.scalars)
    picture = _of_each(Tracker.picture)
    text = _of_each(Tracker.text)
    table = _of_each(Tracker.table)
    embedding = _of_each(Tracker.embedding)
    save = _of_each(Tracker.save)
    file = _of_each(Tracker.file)

    def figure(self, tag: str, figure: Figure, step: int, reduced: bool = True) -> None:
        """Show a matplotlib figure: an image in TensorBoard and W&B, a PNG file in MLflow and with a CSVLogger."""
        if self.shows_pictures:
            self.picture(tag, Picture.of_figure(figure, reduced), step)

    def histograms(self, histograms: Mapping[str, Histogram], step: int) -> None:
        """Show distributions by tag: ``counts[i]`` values between ``edges[i]`` and ``edges[i + 1]``.

        Raises:
            ValueError: If one has not one more edges than counts.
        """
        kept = {tag: _bounded(tag, *histogram) for tag, histogram in histograms.items()}
        filled = {tag: coarsened(*histogram) for tag, histogram in kept.items() if sum(histogram[1]) > 0}
        if filled:
            self._each("histograms", filled, step)

    @property
    def keep_files(self) -> bool:
        """Whether any keeps files with the run (W&B, MLflow)."""
        return any(tracker.keeps_files for tracker in self._trackers)

    def _each(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Call a method of each."""
        for tracker in self._trackers:
            try:
                getattr(tracker, method)(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  an error of a tracker must not end training
                self._fault(tracker.logger, error)

    @cached_property
    def _trackers(self) -> list[Tracker]:
        # On first use: to ask W&B or MLflow for its experiment starts a run there.
        return [self._adapter_of(logger)(logger) for logger in self._loggers]

    def _adapter_of(self, logger: object) -> type[Tracker]:
        try:
            experiment = getattr(logger, "experiment", None)
            if _answers_anything(logger) or _answers_anything(experiment):
                experiment = None  # Lightning's DummyLogger, mocks: what they can do cannot be asked
            return next((known for known in ADAPTERS if known.suits(logger, experiment)), Tracker)
        except Exception as error:  # noqa: BLE001
            self._fault(logger, error)
            return Tracker

    def _fault(self, logger: object, error: Exception) -> None:
        if id(logger) not in self._reported:
            self._reported.add(id(logger))
            cause = error.__cause__  # Lightning takes whatever add_scalar raises for a value that cannot be logged
            self._on_fault(type(logger).__name__, cause if isinstance(cause, Exception) else error)


def _bounded(tag: str, edges: Sequence[float], counts: Sequence[float]) -> Histogram:
    """A histogram without what a tracker cannot place: unbounded bins, uncounted ones."""
    if len(edges) != len(counts) + 1:
        raise ValueError(f"{tag}: edges must be one more than counts; got {len(edges)} edges and {len(counts)} counts.")
    bins = [(*sides, count) for sides, count in zip(pairwise(edges), counts, strict=True) if all(map(math.isfinite, sides))]
    if not bins:
        return (0.0, 0.0), (0.0,)
    return [bins[0][0], *(high for _, high, _ in bins)], [count if math.isfinite(count) else 0.0 for _, _, count in bins]


def _answers_anything(thing: object) -> bool:
    return hasattr(thing, "lightning_hooks_asks_for_what_no_logger_has")
