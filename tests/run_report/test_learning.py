"""Shares by layer and the step ratio in the health report."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lightning_hooks import TrainingMonitor
from lightning_hooks.run_report import read_run
from lightning_hooks.run_report.data import whole
from lightning_hooks.run_report.training import learning_charts
from tests.support.models import Classifier, loader, mlp, trainer
from tests.support.pages import of_kind, section_of


def test_shares_over_time(tmp_path: Path) -> None:
    torch.manual_seed(0)
    monitor = TrainingMonitor(summary=False, report_dir=tmp_path, every_n_steps=1, learning=True)
    trainer([monitor], max_epochs=3).fit(Classifier(mlp()), loader())
    run = read_run(tmp_path)
    (shares,) = (block["chart"] for block in learning_charts(run))
    drawn = {line["label"]: line["values"] for line in shares["lines"]}
    by_epoch = [report.learning.modules for report in monitor.history["gradients"]]
    assert set(drawn) == {"net.0: share", "net.2: share", "net.4: share"}
    for label, values in drawn.items():
        assert values == pytest.approx([shares[label.removesuffix(": share")] for shares in by_epoch], rel=1e-3)
    titles = [chart["title"] for chart in of_kind(section_of(whole(run, 0.0), "training"), "chart")]
    assert titles[-1] == "Which layers the loss falls by"
