"""CSVLogger: read back with pandas, and from the files next to metrics.csv."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from lightning_hooks.trackers import Trackers
from lightning_hooks.trackers.adapters import CSVTracker
from tests.support.tracker_story import (
    COLUMNS,
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


def test_scalars_and_quantiles(run: Path) -> None:
    pandas = pytest.importorskip("pandas", reason="pandas is of the files extra, and is not installed")
    table = pandas.read_csv(run / "metrics.csv").groupby("step").first()
    assert list(table.index) == list(STEPS)
    for tag, value in SCALARS.items():
        assert table[tag].tolist() == pytest.approx([value + step for step in STEPS], nan_ok=True)
    assert all((table[tag] == 2.0).all() for tag in HOSTILE_TAGS)
    quantiles = {name.rpartition("/")[2]: table[name].iloc[0] for name in table if "/histogram/" in name}
    # 8 values: 3 spread over [-1, 0], 5 over [0.5, 2]
    expected = {
        "q0": -1.0,
        "q5": -1 + 0.4 / 3,
        "q25": -1 + 2 / 3,
        "q50": 0.5 + 0.3,
        "q75": 0.5 + 0.9,
        "q95": 0.5 + 1.5 * 4.6 / 5,
        "q100": 2.0,
    }
    assert quantiles == pytest.approx(expected)


def test_files_are_in_one_folder_of_ours(run: Path) -> None:
    assert {path.name for path in run.iterdir()} == {"lightning_hooks", "metrics.csv"}
    run = run / "lightning_hooks"
    for step in STEPS:
        found = pixels_of((run / f"features/maps/net.0/step-{step:08d}.png").read_bytes())
        np.testing.assert_array_equal(found, image())
        assert pixels_of((run / f"features/figures/rms/step-{step:08d}.png").read_bytes()).shape == (50, 100, 3)
        assert (run / f"notes/step-{step:08d}.md").read_text() == "**seen**"
        with (run / f"sites/step-{step:08d}.csv").open() as file:
            assert list(csv.reader(file)) == [COLUMNS, ["net.0", "0.5"], ["<b>|evil", ""]]


def test_hostile_tags_have_files_of_plain_names(run: Path) -> None:
    (folder,) = [path for path in (run / "lightning_hooks").iterdir() if path.name.startswith("_-")]
    assert len([path for path in folder.rglob("step-*") if path.is_file()]) == 3 * len(STEPS)
    assert all(str(path.relative_to(run)).isascii() and "<" not in str(path) for path in run.rglob("*"))


def test_lightnings_own_columns_stay_as_they_are(tmp_path: Path) -> None:
    logger: Any = loggers_of("lightning.pytorch").CSVLogger(tmp_path, name="run", version=0)
    trackers = Trackers([logger], Faults())
    logger.log_metrics({"loss": 0.5}, 6)
    write_all(trackers, tmp_path)
    logger.finalize("success")
    with (tmp_path / "run/version_0/metrics.csv").open() as file:
        rows = list(csv.DictReader(file))
    assert [(row["step"], row["loss"]) for row in rows if row["loss"]] == [("6", "0.5")]
