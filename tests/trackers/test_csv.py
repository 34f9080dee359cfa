"""CSVLogger: read back with pandas, and from the files next to metrics.csv."""

from __future__ import annotations

import csv
import json
from pathlib import Path

import numpy as np
import pytest

from lightning_hooks.trackers import Trackers
from lightning_hooks.trackers.adapters import CSVTracker
from tests.support.tracker_story import (
    COLUMNS,
    EDGES,
    HOSTILE_TAGS,
    PACKAGES,
    SCALARS,
    STEPS,
    Faults,
    image,
    loggers_of,
    outside,
    pixels_of,
    write_all,
)


@pytest.fixture(scope="module", params=PACKAGES)
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("csv")
    logger = loggers_of(request.param).CSVLogger(folder, name="run", version=0)
    faults = Faults()
    trackers = Trackers([logger], faults)
    write_all(trackers, folder)
    assert faults == []
    assert isinstance(trackers._trackers[0], CSVTracker)
    assert outside(folder, folder / "run/version_0") == [folder / "report.html"]
    return folder / "run/version_0"


def test_scalars(run: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is of the files extra, and is not installed")
    table = pandas.read_csv(run / "metrics.csv").groupby("step").first()
    assert list(table.index) == list(STEPS)
    for tag, value in SCALARS.items():
        assert table[tag].tolist() == pytest.approx([value + step for step in STEPS], nan_ok=True)
    assert all((table[tag] == 2.0).all() for tag in HOSTILE_TAGS)


def test_files_are_in_one_folder_of_ours(run: Path) -> None:
    assert {path.name for path in run.iterdir()} == {"lightning_hooks", "metrics.csv"}
    run = run / "lightning_hooks"
    for step in STEPS:
        found = pixels_of((run / f"features/maps/net.0/step-{step:08d}.png").read_bytes())
        np.testing.assert_array_equal(found, image())
        assert pixels_of((run / f"features/figures/rms/step-{step:08d}.png").read_bytes()).shape == (50, 100, 3)
        histograms = json.loads((run / f"features/histograms/step-{step:08d}.json").read_text())
        assert histograms == {"features/net.0/histogram": {"edges": EDGES, "counts": [3.0, 0.0, 5.0]}}
        assert (run / f"notes/step-{step:08d}.md").read_text() == "**seen**"
        with (run / f"sites/step-{step:08d}.csv").open() as file:
            assert list(csv.reader(file)) == [COLUMNS, ["net.0", "0.5"], ["<b>|evil", ""]]
