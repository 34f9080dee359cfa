"""The callbacks from a LightningCLI configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.cli import LightningCLI

from lightning_hooks import FeatureStatsMonitor, GradientClipper, GradientFlowMonitor
from tests.models import Classifier, loader, mlp

CONFIG = """
seed_everything: 1
trainer:
  max_epochs: 1
  accelerator: cpu
  logger: false
  enable_checkpointing: false
  enable_progress_bar: false
  enable_model_summary: false
  callbacks:
    - class_path: lightning_hooks.FeatureStatsMonitor
      init_args: {modules: "net.?", every_n_steps: 2, on_alert: warn, summary: false}
    - class_path: lightning_hooks.GradientFlowMonitor
      init_args: {modules: [net.0, "net.[24]"], summary: false}
    - class_path: lightning_hooks.GradientClipper
      init_args:
        policy: {class_path: lightning_hooks.clipping.ZClip, init_args: {z: 2.0, warmup: 3}}
        exclude: [net.4.*]
        summary: false
"""


class FromConfig(Classifier):
    def __init__(self) -> None:
        super().__init__(mlp())

    def train_dataloader(self) -> Any:
        return loader()


@pytest.mark.filterwarnings("ignore:.*run=.*", "ignore::DeprecationWarning")
def test_yaml_says_all_that_python_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    cli = LightningCLI(FromConfig, args=["fit", "--config", str(path)], save_config_callback=None)
    features, flow, clipper = (
        next(c for c in cli.trainer.callbacks if type(c) is kind)
        for kind in (FeatureStatsMonitor, GradientFlowMonitor, GradientClipper)
    )
    assert features.every_n_steps == 2
    assert list(features.report.sites) == ["net.0", "net.1", "net.2", "net.3", "net.4"]
    assert list(flow.report.modules) == ["net.0", "net.2", "net.4"]
    assert (clipper.policy.z, clipper.policy.warmup, clipper.policy.alpha) == (2.0, 3, 0.97)
    with pytest.raises(SystemExit):
        LightningCLI(FromConfig, args=["fit", "--config", str(path), "--print_config"], save_config_callback=None)
    assert "every_n_steps: 2" in capsys.readouterr().out
