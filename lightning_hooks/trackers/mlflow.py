"""MLflow: metrics in a store, the rest as artifacts."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from typing_extensions import override

from lightning_hooks.trackers.names import metric_name, safe_path
from lightning_hooks.trackers.picture import Picture
from lightning_hooks.trackers.tracker import FOLDER, Histogram, Tracker

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

        now = int(time.time() * 1000)
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
