"""Half precision, loss scaling, overflow, fused optimizers."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hooks import GradientClipper, monitors
from tests.support.models import Classifier, ResidualCNN, loader, mlp, trainer
from tests.support.reference import Recorder, reference_stats, total_norm
from tests.support.trainings import BadBatch, amp


def fit(model: Classifier, plugin: Any, shape: tuple[int, ...] = (8,), callbacks: Any = (), **kwargs: Any) -> list[Any]:
    ours = monitors(every_n_steps=1, summary=False)
    trainer([*callbacks, *ours], plugins=plugin, gradient_clip_val=0.5, **kwargs).fit(model, loader(shape))
    return [callback.report for callback in ours[:3]]


def close(one: float | None, other: float | None, rel: float = 1e-3, scale: float = 0.0) -> bool:
    if one is None or other is None:
        return one is other
    return math.isclose(one, other, rel_tol=rel, abs_tol=rel * scale) or (math.isnan(one) and math.isnan(other))


@pytest.mark.parametrize(("net", "shape"), [(mlp, (8,)), (ResidualCNN, (1, 6, 6))], ids=["mlp", "cnn"])
def test_the_loss_scale_leaves_no_trace(net: Any, shape: tuple[int, ...]) -> None:
    found = []
    for scale in (1.0, 4096.0):
        torch.manual_seed(0)
        found.append(fit(Classifier(net(), lr=0.01), amp(scale), shape))
    (_, flow, clip), (_, other_flow, other_clip) = found
    for name, stats in flow.modules.items():
        for stat in ("mean", "std", "min", "max", "rms", "norm", "norm_max"):
            one, two = getattr(stats, stat), getattr(other_flow.modules[name], stat)
            # a single extreme value may differ by some float16 roundings: at scale 1 small gradients are subnormal
            rel = 5e-3 if stat in ("min", "max", "norm_max") else 1e-3
            assert close(one, two, rel, scale=stats.rms), (name, stat, one, two)
    for name, stats in flow.parameters.items():
        other = other_flow.parameters[name]
        assert (stats.steps, stats.nonfinite_steps, stats.missing_steps) == (7, 0, 0)
        if name == "net.stem.bias":  # a bias before batch norm has no gradient but rounding noise
            continue
        for stat in ("norm", "norm_max", "rms", "update_ratio"):
            assert close(getattr(stats, stat), getattr(other, stat), 1e-3), (name, stat)
    for stat in ("norm_before", "norm_after", "coefficient"):
        one, two = (getattr(c.optimizers["0-SGD"], stat) for c in (clip, other_clip))
        assert close(one, two, 1e-3), stat


@pytest.mark.parametrize("at", [0, 3, 6])
def test_overflow_steps_are_skipped_kept_out_of_the_means_and_raise_no_alert(at: int) -> None:
    torch.manual_seed(0)
    recorder = Recorder([])
    features, flow, clip = fit(BadBatch(mlp(), math.inf, at), amp(4.0), callbacks=[recorder])
    stats = clip.optimizers["0-SGD"]
    assert (stats.steps, stats.skipped_steps, stats.nonfinite_steps) == (6, 1, 0)
    finite = [step for step in recorder.steps if math.isfinite(total_norm(step))]
    assert close(flow.total_norm, sum(map(total_norm, finite)) / 6, 1e-5)
    assert close(stats.norm_before, flow.total_norm, 1e-9)
    assert all(s.nonfinite_fraction == 0 and s.calls == 6 for s in flow.modules.values())
    assert all((s.steps, s.nonfinite_steps) == (6, 0) for s in flow.parameters.values())
    assert [a for a in (*features.alerts, *flow.alerts, *clip.alerts) if a.severity != "info"] == []


@pytest.mark.parametrize("at", [None, 2])
def test_fused_optimizers_that_unscale_by_themselves(at: int | None) -> None:
    """They see scaled gradients, skip by themselves, and their post-hook runs all the same."""

    def run(fused: bool) -> list[Any]:
        torch.manual_seed(0)
        model = BadBatch(mlp(), math.inf, -1 if at is None else at)
        model.optimizer = lambda p, lr: torch.optim.Adam(p, lr=0.01, fused=fused)
        ours = monitors(every_n_steps=1, summary=False)  # no clipping: Lightning refuses it for fused optimizers
        trainer(ours, plugins=amp(1024.0)).fit(model, loader())
        assert not any(callback.faults.errors for callback in ours[:3])
        return [callback.report for callback in ours[:3]]

    (_, flow, clip), (_, plain_flow, plain_clip) = run(True), run(False)
    stats, plain = clip.optimizers["0-Adam"], plain_clip.optimizers["0-Adam"]
    assert (stats.steps, stats.skipped_steps) == (plain.steps, plain.skipped_steps) == ((7, 0) if at is None else (6, 1))
    assert close(stats.norm_before, plain.norm_before, 1e-3)
    assert stats.clipped_steps == 0
    for name, other in plain_flow.parameters.items():
        assert close(flow.parameters[name].norm, other.norm, 1e-3), name
        assert flow.parameters[name].steps == other.steps
        assert close(flow.parameters[name].update_ratio, other.update_ratio, 1e-2), name
    for name, other in plain_flow.modules.items():
        assert close(flow.modules[name].rms, other.rms, 1e-3), name
        assert flow.modules[name].nonfinite_fraction == 0


@pytest.mark.parametrize("policy", ["norm", "value", "tensor", "agc"])
def test_clippers_clip_alike_at_any_loss_scale(policy: str) -> None:
    threshold = {"norm": 0.3, "value": 0.05, "tensor": 0.1, "agc": 0.05}[policy]
    found = []
    for scale in (1.0, 1024.0):
        torch.manual_seed(0)
        clipper = GradientClipper(policy=policy, threshold=threshold, summary=False)
        trainer([clipper], plugins=amp(scale)).fit(Classifier(mlp()), loader())
        found.append(clipper.report.optimizers["0-SGD"])
    one, other = found
    assert one.clipped_steps == other.clipped_steps > 0
    assert close(one.norm_before, other.norm_before, 2e-3)
    assert close(one.norm_after, other.norm_after, 2e-3)


@pytest.mark.parametrize("precision", ["bf16-mixed", "bf16-true", "64-true", "32-true"])
def test_other_precisions_report_finite_numbers_near_those_of_float32(precision: str) -> None:
    torch.manual_seed(0)
    names = ["net.0", "net.3"]
    recorder = Recorder(names)
    ours = monitors(every_n_steps=1, summary=False)
    run = trainer([recorder, *ours], precision=precision, gradient_clip_val=0.5)

    class Cast(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step([batch[0].to(self.net[0].weight.dtype), batch[1]], batch_idx)

    # numpy has no bfloat16: the recorder widens first, so what it keeps is exactly what was there
    run.fit(Cast(mlp()), loader())
    features, flow, clip = (callback.report for callback in ours[:3])
    assert not any(callback.faults.errors for callback in ours[:3])
    for name in names:
        for report, kept in ((features.sites, recorder.outputs), (flow.modules, recorder.gradients)):
            expected = reference_stats(kept[name])
            for stat in ("count", "mean", "std", "min", "max", "rms", "zero_fraction"):
                assert close(getattr(report[name], stat), expected[stat], 1e-6, expected["rms"]), (name, stat)
    assert close(flow.total_norm, sum(map(total_norm, recorder.steps)) / 7, 1e-5)
    assert clip.optimizers["0-SGD"].steps == 7
