"""What reaches the loggers, read back from the files they wrote."""

from __future__ import annotations

import csv
import math
import statistics
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from lightning.pytorch.callbacks import EarlyStopping, ModelCheckpoint
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_hooks import monitors
from tests.support.logged_tags import logged_tags
from tests.support.models import Classifier, Collecting, loader, mlp, trainer

OF_MODEL = {"min": min, "median": statistics.median, "max": max}


def worst(stat: str, values: list[float]) -> float:
    if stat.endswith("_fraction"):
        return max(values)
    if stat == "mean":
        return max(values, key=abs)
    median = statistics.median(values)
    return max(values, key=lambda value: abs(math.log(value) - math.log(median)))


class Keep(Callback):
    """Keeps the reports of every epoch."""

    def __init__(self, callbacks: list[Any]) -> None:
        self.callbacks, self.reports = list(callbacks), []

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.reports.append([callback.report for callback in self.callbacks])


def value_of(reports: list[Any], tag: str) -> float:
    """Find a tag's value in the reports, independently of how it was logged."""
    features, flow, clip = reports
    system, _, rest = tag.partition("/")
    site, _, stat = rest.rpartition("/")
    if site == "model":
        found = features.sites if system == "features" else flow.modules if stat.startswith("rms") else flow.parameters
        stat, _, which = stat.rpartition("_")
        values = [value for stats in found.values() if (value := getattr(stats, stat)) is not None]
        return OF_MODEL[which](values) if which != "worst" else worst(stat, values)
    if site == "alerts":
        alerts = {"features": features, "gradient_flow": flow, "gradient_clip": clip}[system].alerts
        return sum(alert.kind == stat for alert in alerts)
    if system == "features":
        return getattr(features.sites[site], stat)
    if system == "gradient_clip":
        return getattr(clip.optimizers["0-SGD"], stat)
    if tag == "gradient_flow/total_norm":
        return flow.total_norm
    if system == "loss":
        return getattr(flow.loss, stat)
    if site == "0-SGD":
        return max(flow.optimizers[site].lr) if stat == "lr" else getattr(flow.optimizers[site], stat)
    return getattr(flow.modules.get(site) or flow.parameters[site], stat)


def fit(tmp_path: Path, loggers: Any, epochs: int = 3, **kwargs: Any) -> list[Any]:
    torch.manual_seed(0)
    ours = monitors(every_n_steps=2, summary=False)
    keep = Keep(ours)
    trainer([*ours, keep], logger=loggers, max_epochs=epochs, gradient_clip_val=0.5, log_every_n_steps=1, **kwargs).fit(
        Classifier(mlp()), loader()
    )
    return keep.reports


def test_event_file_and_csv_hold_exactly_our_tags_once_per_epoch(tmp_path: Path) -> None:
    loggers = [TensorBoardLogger(tmp_path, name="tb", version=0), CSVLogger(tmp_path, name="csv", version=0)]
    reports = fit(tmp_path, loggers)
    events = EventAccumulator(str(tmp_path / "tb/version_0"), size_guidance={"scalars": 0}).Reload()
    of_learning = {f"learning/{stat}" for stat in ("predicted_gain", "coherence", "over_constant")}
    assert set(events.Tags()["scalars"]) - {"hp_metric", "epoch"} == logged_tags() | of_learning
    with (tmp_path / "csv/version_0/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    for tag in logged_tags():
        expected = [value_of(epoch, tag) for epoch in reports]
        points = events.Scalars(tag)
        assert [point.step for point in points] == [6, 13, 20], tag  # Lightning's own step for an epoch's end
        assert [point.value for point in points] == pytest.approx(expected, rel=1e-6), tag
        written = [(int(row["step"]), float(row[tag])) for row in rows if row[tag] != ""]
        assert written == [(step, pytest.approx(value)) for step, value in zip((6, 13, 20), expected, strict=True)], tag


def test_the_sequence_of_writes_to_a_logger() -> None:
    logger = Collecting()
    trainer(monitors(summary=False), logger=logger, max_epochs=2).fit(Classifier(mlp()), loader())
    ours = [(step, sorted({tag.split("/")[0] for tag in row})) for step, row in logger.rows if "epoch" not in row]
    assert ours == [
        (s, systems) for s in (6, 13) for systems in (["features"], ["gradient_flow", "learning", "loss"], ["gradient_clip"])
    ]


def test_early_stopping_and_checkpoints_follow_our_values_wherever_they_stand(tmp_path: Path) -> None:
    stopping = EarlyStopping(monitor="features/alerts/dead", mode="min", patience=0, stopping_threshold=-1, strict=True)
    checkpoint = ModelCheckpoint(tmp_path, monitor="gradient_flow/total_norm", filename="{epoch}")
    run = trainer([stopping, checkpoint, *monitors(summary=False)], max_epochs=5, enable_checkpointing=True)
    run.fit(Classifier(mlp()), loader())
    assert run.current_epoch == 2  # no fewer dead layers than none: stopped after the second epoch
    assert checkpoint.best_model_score is not None
