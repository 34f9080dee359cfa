"""Shares by layer and the step ratio in the health report."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from lightning_hooks import TrainingMonitor
from lightning_hooks.run_report import health_page, read_run
from lightning_hooks.run_report.training import learning_charts
from tests.support.models import Classifier, loader, mlp, trainer


def test_shares_and_step_ratio_over_time(tmp_path: Path) -> None:
    torch.manual_seed(0)
    monitor = TrainingMonitor(summary=False, report_dir=tmp_path, every_n_steps=1, learning=True)
    trainer([monitor], max_epochs=3).fit(Classifier(mlp()), loader())
    run = read_run(tmp_path)
    (_, shares), (_, ratios) = learning_charts(run)
    drawn = {curve.line.label: curve.line.values for curve in shares.curves}
    by_epoch = [report.learning.modules for report in monitor.history["gradients"]]
    assert set(drawn) == {"net.0: share", "net.2: share", "net.4: share"}
    for label, values in drawn.items():
        assert values == pytest.approx([shares[label.removesuffix(": share")] for shares in by_epoch], rel=1e-4)
    (line,) = [curve.line for curve in ratios.curves if curve.line.label.startswith("gain of a step")]
    assert line.values == pytest.approx([report.learning.step_ratio for report in monitor.history["gradients"]], rel=1e-4)
    assert {curve.level is not None for curve in ratios.curves if curve.line.dashed} == {True}
    page = health_page(run)
    assert "Step ratio" in page
    assert "Which layers the loss falls by" in page


def test_without_learning_there_are_no_charts(tmp_path: Path) -> None:
    monitor = TrainingMonitor(summary=False, report_dir=tmp_path, learning=False)
    trainer([monitor]).fit(Classifier(mlp()), loader())
    assert learning_charts(read_run(tmp_path)) == []
