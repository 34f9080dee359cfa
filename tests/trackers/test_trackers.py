"""Any logger at all: scalars always, nothing raises, and an error is reported once."""

from __future__ import annotations

import errno
import resource
import signal
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from lightning.pytorch.loggers import CSVLogger, TensorBoardLogger

from lightning_hooks.trackers import Tracker, Trackers
from lightning_hooks.trackers.adapters import CSVTracker, TensorBoardTracker
from tests.support.models import Collecting
from tests.support.tracker_story import SCALARS, STEPS, Faults, write_all

# Where a disk is full TensorBoard's writing thread ends, and pytest hears of it some tests later.
pytestmark = pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")


class WithoutExperiment(Collecting):
    @property
    def experiment(self) -> Any:
        raise RuntimeError("no server")


def test_a_users_logger_gets_scalars_and_declines_the_rest(tmp_path: Path) -> None:
    logger, faults = Collecting(), Faults()
    write_all(Trackers([logger], faults), tmp_path)
    assert faults == []
    assert [(step, set(row)) for step, row in logger.rows][::2] == [(step, set(SCALARS)) for step in STEPS]


def test_a_logger_whose_experiment_raises_is_reported_once_and_still_gets_scalars(tmp_path: Path) -> None:
    broken, faults = WithoutExperiment(), Faults()
    write_all(Trackers([broken], faults), tmp_path)
    assert [(name, str(error)) for name, error in faults] == [("WithoutExperiment", "no server")]
    assert len(broken.rows) == 2 * len(STEPS)


@pytest.mark.parametrize("kind", [CSVLogger, TensorBoardLogger])
def test_a_disk_that_is_full(kind: Any, tmp_path: Path) -> None:
    """Files may not grow beyond 4 kB: what the system then raises is reported once, without other effects."""
    faults = Faults()
    trackers = Trackers([kind(tmp_path, name="run", version=0)], faults)
    old, handler = resource.getrlimit(resource.RLIMIT_FSIZE), signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    try:
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, old[1]))
        for step in range(5):
            trackers.scalars({f"features/{'x' * 60}{i}/rms": float(step) for i in range(200)}, step)
            trackers.table("sites", ["a"], [["b" * 100]] * 100, step)
            trackers.save()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    ((name, error),) = faults
    assert name == kind.__name__
    assert isinstance(error, OSError)
    assert error.errno == errno.EFBIG


def test_what_a_logger_can_do_decides(tmp_path: Path) -> None:
    class MyTensorBoard(TensorBoardLogger):
        pass

    class Around:
        """A logger that hands everything to another, as some wrappers do."""

        def __init__(self, inner: Any) -> None:
            self.inner = inner
            self.experiment = inner.experiment

        def log_metrics(self, metrics: Any, step: Any = None) -> None:
            self.inner.log_metrics(metrics, step)

        def save(self) -> None:
            self.inner.save()

    inner = CSVLogger(tmp_path, name="b")
    trackers = Trackers([MyTensorBoard(tmp_path, name="a"), Around(inner), Around(TensorBoardLogger(tmp_path, name="c"))], Faults())
    assert [type(tracker) for tracker in trackers._trackers] == [TensorBoardTracker, CSVTracker, TensorBoardTracker]
    write_all(trackers, tmp_path)


def test_a_histogram_must_fit_and_what_cannot_be_placed_is_left_out() -> None:
    seen = []

    class Keeping(Tracker):
        def histograms(self, histograms: Any, step: int) -> None:
            seen.append((histograms, step))

    trackers = Trackers([Collecting()], Faults())
    trackers._trackers = [Keeping(Collecting())]
    with pytest.raises(ValueError, match="h: edges must be one more than counts; got 2 edges and 2 counts"):
        trackers.histograms({"h": ([0.0, 1.0], [1, 2])}, 1)
    trackers.histograms({"h": ([-np.inf, 0.0, 1.0, 2.0, np.inf], [9, 1, np.nan, 8])}, 1)
    trackers.histograms({"nothing": ([0.0, 1.0], [0])}, 1)
    trackers.histograms({"unbounded": ([-np.inf, np.inf], [5])}, 1)
    assert seen == [({"h": ([0.0, 1.0, 2.0], [1, 0.0])}, 1)]
