"""One training, all trackers at once, each read back by its own reader; and what a full disk comes to."""

from __future__ import annotations

import csv
import errno
import json
import resource
import signal
import warnings
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.loggers import CSVLogger
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_hooks import monitors
from tests.support.models import Classifier, loader, mlp, trainer
from tests.support.offline_wandb import read_run
from tests.support.tracker_story import loggers_of

EPOCHS = 2
STEPS = [6, 13]
ALERT = ["critical", "dead", "net.1"]
FIGURES = ["features/figures/dead units", "gradient_flow/figures/gradient flow", "gradient_clip/figures/clip history"]
TAG = "features/net.1/dead_fraction"


def dying() -> Classifier:
    torch.manual_seed(0)
    model = Classifier(mlp())
    torch.nn.init.constant_(model.net[0].bias, -100.0)
    return model


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Loggers of both Lightning packages next to one another."""
    for package in ("wandb", "mlflow", "sqlalchemy", "pytorch_lightning"):
        pytest.importorskip(package)
    folder = tmp_path_factory.mktemp("everywhere")
    one, other = loggers_of("lightning.pytorch"), loggers_of("pytorch_lightning")
    with pytest.MonkeyPatch.context() as patch, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for name, value in {"MODE": "offline", "SILENT": "true", "ERROR_REPORTING": "false", "CONSOLE": "off"}.items():
            patch.setenv(f"WANDB_{name}", value)
        patch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
        loggers = [
            one.TensorBoardLogger(folder, name="tb", version=0),
            other.WandbLogger(save_dir=folder, name="<script>../run", offline=True),
            one.MLFlowLogger(tracking_uri=f"sqlite:///{folder}/mlflow.db", artifact_location=str(folder / "artifacts")),
            other.CSVLogger(folder, name="csv", version=0),
        ]
        ours = monitors(every_n_steps=1, summary=False, histograms=["net.0"], figures=EPOCHS)
        trainer(ours, logger=loggers, max_epochs=EPOCHS, gradient_clip_val=0.1).fit(dying(), loader())
        loggers[1].experiment.finish()
    return folder, loggers


def test_tensorboard(run: Any) -> None:
    folder, _ = run
    found = EventAccumulator(str(folder / "tb/version_0"), size_guidance={"images": 0, "tensors": 0}).Reload()
    assert [(point.step, point.value) for point in found.Scalars(TAG)] == [(step, 1.0) for step in STEPS]
    assert set(FIGURES) <= set(found.Tags()["images"])
    assert "features/net.0/histogram" in found.Tags()["histograms"]
    table = found.Tensors("alerts/text_summary")[0].tensor_proto.string_val[0].decode()
    assert f"| {' | '.join(ALERT)} |" in table
    assert len(found.Tensors("custom_scalars__config__")) == 1


def test_wandb(run: Any) -> None:
    folder, _ = run
    rows, files = read_run(folder)
    assert [(row["trainer/global_step"], row[TAG]) for row in rows if TAG in row] == [(step, 1.0) for step in STEPS]
    (table,) = [json.loads((files / row["alerts"]["path"]).read_text()) for row in rows if "alerts" in row]
    assert [row[:3] for row in table["data"]] == [ALERT]
    pictures = {key for row in rows for key, value in row.items() if isinstance(value, dict) and value.get("_type") == "image-file"}
    assert len(pictures) >= len(FIGURES)
    assert {"report.html", "report.md", "reports.jsonl"} <= {path.name for path in files.iterdir()}
    assert any(row.get("features/net.0/histogram", {}).get("_type") == "histogram" for row in rows)


def test_mlflow(run: Any, tmp_path: Path) -> None:
    import mlflow

    folder, loggers = run
    client, run_id = mlflow.MlflowClient(f"sqlite:///{folder}/mlflow.db"), loggers[2].run_id
    assert [(entry.step, entry.value) for entry in client.get_metric_history(run_id, TAG)] == [(step, 1.0) for step in STEPS]
    names = {Path(item.path).name for item in client.list_artifacts(run_id, "lightning_hooks")}
    assert {"report.html", "report.md", "reports.jsonl", "alerts.json"} <= names
    table = json.loads(Path(client.download_artifacts(run_id, "lightning_hooks/alerts.json", str(tmp_path))).read_text())
    assert [row[1:4] for row in table["data"]] == [ALERT]
    drawn = [item.path for item in client.list_artifacts(run_id, "lightning_hooks/features/figures")]
    assert any("dead units" in path for path in drawn)


def test_csv(run: Any) -> None:
    folder, _ = run
    with (folder / "csv/version_0/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(int(row["step"]), float(row[TAG])) for row in rows if row[TAG]] == [(step, 1.0) for step in STEPS]
    histograms = [json.loads(file.read_text()) for file in (folder / "csv/version_0/lightning_hooks/features/histograms").iterdir()]
    assert len(histograms) == EPOCHS
    assert all("features/net.0/histogram" in found for found in histograms)
    assert list((folder / "csv/version_0").glob("lightning_hooks/features/figures/dead units/step-*.png"))
    (table,) = (folder / "csv/version_0/lightning_hooks/alerts").glob("*.csv")
    assert table.read_text().splitlines()[1].startswith(",".join(ALERT))


class Unfinished(CSVLogger):
    """Lightning itself has every logger finish, and lets what that raises end the fit."""

    def finalize(self, status: str) -> None:
        pass


def test_a_full_disk_is_reported_once_by_each_who_writes_and_training_goes_on(tmp_path: Path) -> None:
    """Files may not grow beyond 512 bytes: the system then raises as it does when there is no room."""
    ours = monitors(every_n_steps=1, summary=False, report_dir=tmp_path / "report")
    fit = trainer(ours, logger=Unfinished(tmp_path, name="csv", version=0), max_epochs=4)
    old, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (512, old[1]))
        with warnings.catch_warnings(record=True) as reported:
            warnings.simplefilter("always")
            fit.fit(dying(), loader())
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert fit.state.finished
    assert ours[1].report.epoch == 3
    full = [str(warning.message) for warning in reported if f"[Errno {errno.EFBIG}]" in str(warning.message)]
    assert sum("Unfinished raised OSError" in text for text in full) == 1
    assert sum("The health report in" in text for text in full) == 1
    assert sum("The alerts could not be written" in text for text in full) <= 1
    assert len(full) <= 3
