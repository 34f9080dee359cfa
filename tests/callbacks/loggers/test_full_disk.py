"""What a full disk comes to."""

from __future__ import annotations

import errno
import resource
import signal
import warnings
from pathlib import Path

import torch
from lightning.pytorch.loggers import CSVLogger

from lightning_hooks import monitors
from tests.support.models import Classifier, loader, mlp, trainer


def dying() -> Classifier:
    torch.manual_seed(0)
    model = Classifier(mlp())
    torch.nn.init.constant_(model.net[0].bias, -100.0)
    return model


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
    assert len(full) <= 3
