"""MLflow in a local SQLite store: read back with MlflowClient."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_hooks import monitors
from lightning_hooks.trackers import Trackers
from lightning_hooks.trackers.adapters import MLflowTracker
from lightning_hooks.trackers.console import metric_name, safe_path
from tests.support.models import Classifier, loader, mlp, trainer
from tests.support.tracker_story import (
    COUNTS,
    EDGES,
    HOSTILE_TAGS,
    SCALARS,
    STEPS,
    Faults,
    image,
    loggers_of,
    outside,
    pixels_of,
    write_all,
)

mlflow = pytest.importorskip("mlflow", reason="mlflow is of the trackers extra, and is not installed")
pytest.importorskip("sqlalchemy", reason="MLflow's local store needs sqlalchemy, of the trackers extra")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore::FutureWarning"),
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a store: to make one takes seconds."""
    return tmp_path_factory.mktemp("mlflow")


def logger_in(store: Path, package: str, **kwargs: Any) -> Any:
    return loggers_of(package).MLFlowLogger(
        tracking_uri=f"sqlite:///{store}/mlflow.db", artifact_location=str(store / "artifacts"), run_name="<run>/../x", **kwargs
    )


@pytest.fixture(scope="module", params=("lightning.pytorch", "pytorch_lightning"))
def run(request: pytest.FixtureRequest, store: Path) -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        logger = logger_in(store, request.param)
        faults = Faults()
        trackers = Trackers([logger], faults)
        write_all(trackers, store)
        logger.finalize("success")
    assert faults == []
    assert isinstance(trackers._trackers[0], MLflowTracker)
    assert {path.name for path in outside(store, store / "artifacts")} == {"report.html", "mlflow.db"}
    return mlflow.MlflowClient(f"sqlite:///{store}/mlflow.db"), logger.run_id


def artifact(run: Any, path: str, tmp_path: Path) -> bytes:
    client, run_id = run
    return Path(client.download_artifacts(run_id, path, str(tmp_path))).read_bytes()


def test_metrics(run: Any) -> None:
    client, run_id = run
    for tag, value in SCALARS.items():
        history = client.get_metric_history(run_id, tag)
        assert [entry.step for entry in history] == list(STEPS)
        assert [entry.value for entry in history] == pytest.approx([value + step for step in STEPS], nan_ok=True)
    names = client.get_run(run_id).data.metrics
    assert set(names) == {*SCALARS, *map(metric_name, HOSTILE_TAGS)}
    assert all(names[metric_name(tag)] == 2.0 for tag in HOSTILE_TAGS)


@pytest.mark.parametrize("step", STEPS)
def test_artifacts(run: Any, step: int, tmp_path: Path) -> None:
    file = f"step-{step:08d}"
    np.testing.assert_array_equal(pixels_of(artifact(run, f"lightning_hooks/features/maps/net.0/{file}.png", tmp_path)), image())
    assert pixels_of(artifact(run, f"lightning_hooks/features/figures/rms/{file}.png", tmp_path)).shape == (50, 100, 3)
    assert artifact(run, f"lightning_hooks/notes/{file}.md", tmp_path) == b"**seen**"
    assert artifact(run, "lightning_hooks/report.html", tmp_path) == b"<p>fine</p>"
    assert json.loads(artifact(run, f"lightning_hooks/features/histograms/{file}.json", tmp_path)) == {
        "features/net.0/histogram": {"edges": EDGES, "counts": COUNTS}
    }
    escaped = safe_path("../../../escape/<i>")
    np.testing.assert_array_equal(pixels_of(artifact(run, f"lightning_hooks/{escaped}/{file}.png", tmp_path)), image())


def test_more_metrics_than_a_request_takes(store: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    logger = logger_in(store, "lightning.pytorch", prefix="mine")
    sizes = []
    client = logger.experiment
    log_batch = client.log_batch
    monkeypatch.setattr(client, "log_batch", lambda run_id, metrics: [sizes.append(len(metrics)), log_batch(run_id, metrics)])
    faults = Faults()
    values = {f"features/layer{i}/rms": float(i) for i in range(1234)}
    Trackers([logger], faults).scalars(values, 1)
    assert faults == []
    assert sizes == [1000, 234]
    assert client.get_run(logger.run_id).data.metrics == {f"mine-{tag}": value for tag, value in values.items()}


def messages(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "Health report: " in record.getMessage()]


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> pytest.LogCaptureFixture:
    """What a fit says."""
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    monkeypatch.setattr(logging.getLogger("lightning.pytorch"), "propagate", True)
    caplog.set_level(logging.INFO)
    return caplog


def test_the_health_report_of_a_fit_is_among_the_artifacts(store: Path, log: pytest.LogCaptureFixture, tmp_path: Path) -> None:
    """A store in a database has no directory of the run: Lightning's logger says None for it."""
    logger = logger_in(store, "lightning.pytorch")
    assert logger.save_dir is None
    fit = trainer(monitors(every_n_steps=1, summary=False), logger=logger, default_root_dir=tmp_path / "checkpoints")
    fit.fit(Classifier(mlp()), loader())
    (said,) = messages(log)
    folder = tmp_path / "checkpoints" / logger.name / logger.version / "lightning_hooks"
    assert said.endswith(f" {folder / 'report.html'}")
    found = (logger.experiment, logger.run_id)
    assert b"1 epoch, no rule broken." in artifact(found, "lightning_hooks/report.html", tmp_path)
    assert b"1 epoch, no rule broken." in artifact(found, "lightning_hooks/report.md", tmp_path)
    text = artifact(found, "lightning_hooks/reports.jsonl", tmp_path).decode()
    events = [json.loads(line)["event"] for line in text.splitlines()]
    assert events == ["fit", "report", "report", "report", "epoch", "end"]
