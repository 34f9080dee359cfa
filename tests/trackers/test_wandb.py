"""W&B, offline: read back from the run's file."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest

from lightning_hooks.trackers import Trackers
from lightning_hooks.trackers.adapters import WandbTracker
from tests.support.offline_wandb import read_run
from tests.support.tracker_story import (
    COLUMNS,
    COUNTS,
    EDGES,
    HOSTILE_TAGS,
    PACKAGES,
    ROWS,
    SCALARS,
    STEPS,
    Faults,
    image,
    loggers_of,
    outside,
    pixels_of,
    write_all,
)

pytest.importorskip("wandb", reason="wandb is of the trackers extra, and is not installed")
pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning", "ignore:.*wandb.*"),
]


@pytest.fixture(scope="module", params=PACKAGES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("wandb")
    with pytest.MonkeyPatch.context() as patch:
        for name, value in {"MODE": "offline", "SILENT": "true", "ERROR_REPORTING": "false", "CONSOLE": "off"}.items():
            patch.setenv(f"WANDB_{name}", value)
        logger = loggers_of(request.param).WandbLogger(save_dir=folder, name="<run>", offline=True)
        faults = Faults()
        trackers = Trackers([logger], faults)
        write_all(trackers, folder)
        logger.log_metrics({"own": 1.0}, step=20)
        trackers.scalars({"late": 1.0}, 3)  # a step that goes back
        logger.experiment.finish()
    assert faults == []
    assert isinstance(trackers._trackers[0], WandbTracker)
    assert [path for path in outside(folder, folder / "wandb") if path.name != "report.html"] == []
    return read_run(folder)


def column(rows: list[dict[str, Any]], tag: str) -> list[tuple[int, Any]]:
    return [(row["trainer/global_step"], row[tag]) for row in rows if tag in row]


def test_scalars_stand_at_lightnings_step_and_none_is_dropped(run: Any) -> None:
    rows, _ = run
    for tag, value in SCALARS.items():
        found = column(rows, tag)
        assert [step for step, _ in found] == list(STEPS)
        assert [float(number) for _, number in found] == pytest.approx([value + step for step in STEPS], nan_ok=True)
    assert all(column(rows, tag) == [(step, 2.0) for step in STEPS] for tag in HOSTILE_TAGS)
    assert column(rows, "own") == [(20, 1.0)]
    assert column(rows, "late") == [(3, 1.0)]


def test_histograms(run: Any) -> None:
    rows, _ = run
    found = column(rows, "features/net.0/histogram")
    assert [(step, value["_type"], value["values"], value["bins"]) for step, value in found] == [
        (step, "histogram", COUNTS, EDGES) for step in STEPS
    ]
    assert column(rows, "features/empty/histogram") == []


def test_pictures(run: Any) -> None:
    rows, files = run
    for step, value in column(rows, "features/maps/net.0"):
        assert step in STEPS
        assert (value["_type"], value["width"], value["height"]) == ("image-file", 6, 4)
        np.testing.assert_array_equal(pixels_of((files / value["path"]).read_bytes()), image())
    assert len(column(rows, "features/figures/rms")) == len(STEPS)


def test_tables(run: Any) -> None:
    rows, files = run
    ((_, first), _) = column(rows, "sites")
    assert first["_type"] == "table-file"
    table = json.loads((files / first["path"]).read_text())
    assert (table["columns"], table["data"]) == (COLUMNS, ROWS)
    ((_, first), _) = column(rows, "features/net.0/space")
    table = json.loads((files / first["path"]).read_text())
    assert table["columns"] == ["label", "d0", "d1", "d2"]
    assert table["data"] == [["a", 0.0, 1.0, 2.0], ["b", 3.0, 4.0, 5.0]]


def test_the_file(run: Any) -> None:
    _, files = run
    assert (files / "report.html").read_text() == "<p>fine</p>"
