"""Accumulated gradients, short windows, schedules."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import GradientAccumulationScheduler

from lightning_hooks import monitors
from tests.support.models import Classifier, loader, mlp, trainer
from tests.support.reference import Recorder, total_norm


def fit(batch_size: int, window: int, n: int = 36, every: int = 1, callbacks: Any = (), epochs: int = 1) -> list[Any]:
    torch.manual_seed(0)
    ours = monitors(every_n_steps=every, summary=False)
    kwargs = {} if callbacks else {"accumulate_grad_batches": window}
    trainer([*callbacks, *ours], gradient_clip_val=0.5, max_epochs=epochs, **kwargs).fit(
        Classifier(mlp()), loader(n=n, batch_size=batch_size)
    )
    return [callback.report for callback in ours[:3]]


def test_three_batches_of_two_equal_one_of_six() -> None:
    (small_features, small, small_clip), (features, whole, clip) = fit(2, 3), fit(6, 1)
    for name, stats in whole.parameters.items():
        for stat in ("norm", "norm_max", "rms", "update_ratio"):
            assert getattr(small.parameters[name], stat) == pytest.approx(getattr(stats, stat), rel=1e-4), (name, stat)
        assert small.parameters[name].steps == stats.steps == 6
    for name, stats in whole.modules.items():  # Lightning divides the loss by the window: element for element the same
        other = small.modules[name]
        assert other.count == stats.count
        for stat in ("mean", "std", "min", "max", "rms"):
            assert getattr(other, stat) == pytest.approx(getattr(stats, stat), rel=1e-4, abs=1e-6 * stats.rms), (name, stat)
    for name, stats in features.sites.items():
        assert small_features.sites[name].std == pytest.approx(stats.std, rel=1e-4)
    one, other = clip.optimizers["0-SGD"], small_clip.optimizers["0-SGD"]
    assert (one.steps, one.clipped_steps) == (other.steps, other.clipped_steps)
    assert other.norm_before == pytest.approx(one.norm_before, rel=1e-4)


@pytest.mark.parametrize("every", [1, 4])
def test_a_short_last_window_counts_as_a_step(every: int) -> None:
    recorder = Recorder([])
    torch.manual_seed(0)
    ours = monitors(every_n_steps=every, summary=False)
    trainer([recorder, *ours], accumulate_grad_batches=3).fit(Classifier(mlp()), loader(n=16, batch_size=2))
    _, flow, clip = (callback.report for callback in ours[:3])
    norms = [total_norm(step) for step in recorder.steps]
    assert len(norms) == 3  # windows of 3, 3 and 2 batches
    assert clip.optimizers["0-SGD"].norm_before == pytest.approx(sum(norms) / 3, rel=1e-5)
    # batches 0 and 4 are sampled when every is 4: the steps at or after them are the first and the second
    expected = norms if every == 1 else norms[:2]
    assert flow.parameters["net.0.weight"].steps == len(expected)
    assert flow.total_norm == pytest.approx(sum(expected) / len(expected), rel=1e-5)


def test_an_accumulation_schedule() -> None:
    _, flow, clip = fit(2, 0, callbacks=[GradientAccumulationScheduler({0: 1, 1: 3})], epochs=2)
    assert clip.optimizers["0-SGD"].steps == 6  # 18 batches in windows of three in the second epoch
    assert flow.parameters["net.0.weight"].steps == 6
