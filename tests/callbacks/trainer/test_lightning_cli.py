"""The callbacks from a LightningCLI configuration."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from lightning.pytorch.cli import LightningCLI
from torch import Tensor, nn

from lightning_hooks import (
    FeatureExtractor,
    FeatureMapVisualizer,
    FeatureStatsMonitor,
    GradCAM,
    GradientClipper,
    GradientFlowMonitor,
)
from lightning_hooks.alerts import Dead, Saturated
from tests.support.models import Classifier, loader, mlp
from tests.support.trainings import dying

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
      init_args:
        modules: "net.?"
        every_n_steps: 2
        on_alert: warn
        summary: false
        rules:
          - class_path: lightning_hooks.alerts.Dead
            init_args: {threshold: 0.8, sites: [net.1, "net.3*"], times: 2, of: 3}
          - class_path: lightning_hooks.alerts.Mute
            init_args: {kind: silent}
          - {kind: saturated, threshold: 0.9}
          - "-constant at net.0"
    - class_path: lightning_hooks.GradientFlowMonitor
      init_args: {modules: [net.0, "net.[24]"], on_alert: [log, warn, tests.support.trainings.dying], summary: false}
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
def test_yaml_says_all_that_python_says(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.argv", ["pytest"])  # Lightning warns of arguments next to its own
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    cli = LightningCLI(FromConfig, args=["fit", "--config", str(path)], save_config_callback=None)
    features, flow, clipper = (
        next(c for c in cli.trainer.callbacks if type(c) is kind)
        for kind in (FeatureStatsMonitor, GradientFlowMonitor, GradientClipper)
    )
    assert features.member.settings.every_n_steps == 2
    book = features.member.alerting.rules
    dead = [rule for rule in book.rules if isinstance(rule, Dead)]
    assert [(rule.threshold, rule.sites, rule.times, rule.of) for rule in dead] == [
        (0.7, "*", 1, 1),
        (0.8, ["net.1", "net.3*"], 2, 3),
    ]
    assert [rule.threshold for rule in book.rules if isinstance(rule, Saturated)] == [0.9]
    assert [(mute.kind, mute.sites) for mute in book.mutes] == [("silent", "*"), ("constant", "net.0")]
    assert list(features.report.sites) == ["net.0", "net.1", "net.2", "net.3", "net.4"]
    assert flow.member.settings.on_alert == ["log", "warn", dying]
    assert list(flow.report.modules) == ["net.0", "net.2", "net.4"]
    assert (clipper.policy.z, clipper.policy.warmup, clipper.policy.alpha) == (2.0, 3, 0.97)
    with pytest.raises(SystemExit):
        LightningCLI(FromConfig, args=["fit", "--config", str(path), "--print_config"], save_config_callback=None)
    assert "every_n_steps: 2" in capsys.readouterr().out


LOOKS = """
seed_everything: 1
trainer:
  max_epochs: 1
  accelerator: cpu
  logger: false
  enable_checkpointing: false
  enable_progress_bar: false
  enable_model_summary: false
  callbacks:
    - class_path: lightning_hooks.FeatureExtractor
      init_args: {modules: "net.?", pool: mean, max_samples: 20, fields: {label: 1}, stage: train}
    - class_path: lightning_hooks.FeatureMapVisualizer
      init_args: {modules: [net.0], n_samples: 2, forward: net, folder: FOLDER}
    - class_path: lightning_hooks.GradCAM
      init_args: {module: net.0, target: [0, 2], n_samples: 2, forward: net, reshape: [1, 1]}
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_yaml_says_what_to_look_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["pytest"])  # Lightning warns of arguments next to its own

    class Tokens(FromConfig):
        def __init__(self) -> None:
            super().__init__()
            self.net = Unsqueezed(*mlp())

    path = tmp_path / "config.yaml"
    path.write_text(LOOKS.replace("FOLDER", str(tmp_path)))
    cli = LightningCLI(Tokens, args=["fit", "--config", str(path)], save_config_callback=None)
    keep, maps, cam = (
        next(c for c in cli.trainer.callbacks if type(c) is kind) for kind in (FeatureExtractor, FeatureMapVisualizer, GradCAM)
    )
    assert (len(keep.report), list(keep.report.fields)) == (20, ["label"])
    assert maps.report.sites["net.0"].shape == (2, 1, 16)
    assert (tmp_path / "feature_maps" / "epoch=0" / "net.0.png").is_file()
    assert cam.report.classes.tolist() == [0, 2]
    assert cam.report.maps.shape == (2, 1, 1)


class Unsqueezed(nn.Sequential):
    """As if each sample were one token."""

    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x[:, None])[:, 0]


TOOLBOX = """
trainer:
  max_epochs: 3
  accelerator: cpu
  logger: false
  enable_checkpointing: false
  enable_progress_bar: false
  enable_model_summary: false
  callbacks:
    - class_path: lightning_hooks.LayerProfiler
      init_args: {modules: [net.0, "net.[24]"], every_n_steps: 2, warmup_steps: 1, summary: false}
    - class_path: lightning_hooks.InputNormalizer
      init_args: {modules: net, mean: [0.0, 0.1, 0.0, 0.0, 0.0, 0.0, 0.0, 0.0], std: [1, 2, 1, 1, 1, 1, 1, 1.5], dim: 1}
    - class_path: lightning_hooks.InputNormalizer
      init_args: {modules: net.2, learn_batches: 3, dim: -1}
    - class_path: lightning_hooks.GradientTransform
      init_args: {transform: scale, factor: {0: 0.0, 1: 0.5}, parameters: ["net.0.*"]}
    - class_path: lightning_hooks.GradientTransform
      init_args: {transform: noise, factor: 0.001, modules: net.2, seed: 3, name: shaken}
    - class_path: lightning_hooks.ActivationPruner
      init_args: {modules: torch.nn.ReLU, amount: 0.5, start_epoch: 0, end_epoch: 2, summary: false}
    - class_path: lightning_hooks.ActivationRangeObserver
      init_args: {modules: "net.?", method: percentile, dtype: uint8, scheme: symmetric, summary: false}
    - class_path: lightning_hooks.HookDebugger
      init_args: {modules: net.0, steps: [0, 2], statistics: true, break_when: nonfinite, on_break: raise, show: false}
"""


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_yaml_says_the_rest_of_the_toolbox(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["pytest"])
    path = tmp_path / "config.yaml"
    path.write_text(TOOLBOX)
    cli = LightningCLI(FromConfig, args=["fit", "--config", str(path)], save_config_callback=None)
    profiler, given, learned, scale, noise, pruner, ranges, debugger = (
        callback for callback in cli.trainer.callbacks if type(callback).__module__.startswith("lightning_hooks")
    )
    assert list(profiler.report.sites) == ["net.0", "net.2", "net.4"]
    assert (profiler.report.measured_steps, given.std[1], given.frozen) == (4, 2, True)
    assert (len(learned.statistics["net.2"].mean), learned.batches, learned.frozen) == (16, 3, True)
    assert [scale.factor_at(epoch) for epoch in range(3)] == [0.0, 0.5, 0.5]
    assert noise.factor_at(0) == 0.001
    assert (pruner.report.sites.keys(), pruner.report.target) == ({"net.1"}, 0.5)
    assert (ranges.dtype, ranges.report.sites["net.1"].zero_point) == ("uint8", 128)
    assert debugger.trace.title == "Step 2 (epoch 0, batch 2)"
    assert debugger.break_when == "nonfinite"
