"""TensorBoard: read back from the event file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from lightning_hooks.trackers import Trackers
from lightning_hooks.trackers.adapters import TensorBoardTracker
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
    pixels_of,
    write_all,
)


def events(folder: Path) -> EventAccumulator:
    return EventAccumulator(str(folder), size_guidance=dict.fromkeys(("scalars", "images", "histograms", "tensors"), 0)).Reload()


@pytest.fixture(scope="module", params=PACKAGES)
def written(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, EventAccumulator]:
    folder = tmp_path_factory.mktemp("tensorboard")
    logger = loggers_of(request.param).TensorBoardLogger(folder, name="run", version=0)
    faults = Faults()
    trackers = Trackers([logger], faults)
    write_all(trackers, folder)
    assert faults == []
    assert isinstance(trackers._trackers[0], TensorBoardTracker)
    return folder, events(folder / "run/version_0")


def test_scalars(written: Any) -> None:
    _, found = written
    assert set(found.Tags()["scalars"]) == {*SCALARS, *HOSTILE_TAGS}
    for tag, value in SCALARS.items():
        points = found.Scalars(tag)
        assert [point.step for point in points] == list(STEPS)
        assert [point.value for point in points] == pytest.approx([value + step for step in STEPS], nan_ok=True)


def test_pictures(written: Any) -> None:
    _, found = written
    assert set(found.Tags()["images"]) == {"features/figures/rms", "features/maps/net.0", "../../../escape/<i>"}
    last = found.Images("features/maps/net.0")[-1]
    assert (last.step, last.width, last.height) == (STEPS[-1], 6, 4)
    np.testing.assert_array_equal(pixels_of(last.encoded_image_string), image())
    drawn = pixels_of(found.Images("features/figures/rms")[0].encoded_image_string)
    assert drawn.shape == (50, 100, 3)
    assert len(np.unique(drawn.reshape(-1, 3), axis=0)) > 3


def test_histograms(written: Any) -> None:
    _, found = written
    assert found.Tags()["histograms"] == ["features/net.0/histogram"]  # of one without values there is nothing
    histogram = found.Histograms("features/net.0/histogram")[0].histogram_value
    assert (histogram.min, histogram.max, histogram.num) == (-1.0, 2.0, 8.0)
    assert list(histogram.bucket_limit) == EDGES[1:]
    assert list(histogram.bucket) == [3.0, 0.0, 5.0]
    assert histogram.sum == pytest.approx(3 * -0.5 + 5 * 1.25)
    assert histogram.sum_squares == pytest.approx(3 * 0.25 + 5 * 1.25**2)


def test_text_and_tables(written: Any) -> None:
    _, found = written
    assert found.Tensors("notes/text_summary")[0].tensor_proto.string_val[0] == b"**seen**"
    table = found.Tensors("sites/text_summary")[0].tensor_proto.string_val[0].decode()
    assert table.splitlines() == [f"| {' | '.join(COLUMNS)} |", "| --- | --- |", "| net.0 | 0.5 |", "| &lt;b&gt;\\|evil | - |"]


def test_the_users_prefix_stands_before_every_tag(tmp_path: Path) -> None:
    logger = loggers_of("lightning.pytorch").TensorBoardLogger(tmp_path, name="run", version=0, prefix="a.b")
    write_all(Trackers([logger], Faults()), tmp_path)
    logger.log_metrics({"own": 1.0}, 1)
    logger.save()
    found = events(tmp_path / "run/version_0")
    tags = [*found.Tags()["scalars"], *found.Tags()["images"], *found.Tags()["histograms"], "a.b-notes/text_summary"]
    assert "a.b-own" in tags
    assert all(tag.startswith("a.b-") for tag in tags)
    assert set(tags[-1:]) <= set(found.Tags()["tensors"])
