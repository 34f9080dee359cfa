"""Observe, never alter; never wait for the device in a step."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from torch import Tensor, nn

from lightning_hooks import (
    ActivationRangeObserver,
    AttentionMonitor,
    FeatureExtractor,
    GradientTransform,
    HookDebugger,
    InputNormalizer,
    LayerProfiler,
    TrainingMonitor,
    monitors,
)
from tests.support.host_reads import NETS, CountSyncs
from tests.support.models import Classifier, loader, mlp, trainer
from tests.support.reference import same_state

QUIET: dict[str, Any] = {"every_n_steps": 1, "summary": False}
OBSERVERS: dict[str, Callable[[Path], list[Any]]] = {
    "monitors": lambda folder: [*monitors(**QUIET), LayerProfiler(**QUIET, warmup_steps=0)],
    "checks": lambda folder: monitors(every_n_steps=3, check_every_n_steps=2, summary=False),
    "a record": lambda folder: [TrainingMonitor(**QUIET, histograms=True, report_dir=folder)],
    "windows": lambda folder: monitors(every_n_steps=2, report_every_n_steps=3, histograms=True, report_dir=folder, summary=False),
    "ranges": lambda folder: [ActivationRangeObserver(method="percentile", summary=False)],
    "average ranges": lambda folder: [ActivationRangeObserver(method="moving_average", summary=False)],
    "features": lambda folder: [FeatureExtractor(max_samples=50, pool="mean", fields={"label": 1})],
    "features in validation": lambda folder: [FeatureExtractor(stage="validate", max_samples=7)],
    "debugger": lambda folder: [HookDebugger(steps=[1, 2], statistics=True, break_when=lambda call: False, show=False)],
    "idle debugger": lambda folder: [HookDebugger(steps=(), show=False)],
}
WAITS = ("windows", "debugger")
"""What reads numbers within an epoch: at a window's end, and of a step that is traced."""


def fit(net: str, callbacks: list[Any]) -> tuple[Classifier, list[Any], int]:
    build, shape = NETS[net]
    seed_everything(7, verbose=False)
    model, counter = Classifier(build(), optimizer=torch.optim.Adam, lr=0.01), CountSyncs()
    trainer([counter, *callbacks], max_epochs=2, gradient_clip_val=0.3).fit(model, loader(shape, shuffle=True), loader(shape))
    random_states = [torch.get_rng_state().tolist(), random.getstate(), repr(np.random.get_state())]  # noqa: NPY002
    return model, random_states, counter.mode.syncs


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("what", OBSERVERS)
def test_on_equals_off_bit_for_bit_and_nothing_waits_for_the_device(what: str, net: str, tmp_path: Path) -> None:
    plain, random_states, reads = fit(net, [])
    ours = OBSERVERS[what](tmp_path)
    observed, random_states_with, reads_with = fit(net, ours)
    assert observed.losses == plain.losses
    assert same_state(observed, plain)
    assert random_states_with == random_states
    assert reads >= 14  # the model itself reads its loss
    assert reads_with == reads or what in WAITS
    assert not any(part.faults.errors for callback in ours for part in getattr(callback, "members", [callback]))


@pytest.mark.parametrize(
    "ours",
    [
        lambda: GradientTransform(transform="clamp", factor=0.1, parameters="*", modules="*"),
        lambda: InputNormalizer(modules="net.*", dim=-1),
    ],
)
def test_what_alters_training_does_not_wait_either(ours: Any) -> None:
    reads = []
    for callbacks in ([], [ours()]):
        counter = CountSyncs()
        trainer([counter, *callbacks]).fit(Classifier(mlp()), loader(n=64))
        reads.append(counter.mode.syncs)
    assert reads[0] == reads[1] > 0


class _Attending(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        states = torch.relu(self.a(x)).view(1, 2, -1, 4)
        return nn.functional.scaled_dot_product_attention(states, states, states).softmax(-1)


TEACHERS = {
    "rectifier": lambda: nn.Sequential(nn.Linear(8, 8), nn.ReLU(), nn.Sigmoid()),
    "convolution": lambda: nn.Sequential(nn.Unflatten(1, (1, 8)), nn.Conv1d(1, 3, 3), nn.ReLU(), nn.BatchNorm1d(3)),
    "attention": _Attending,
    "encoder": lambda: nn.Sequential(nn.Unflatten(1, (1, 8)), nn.TransformerEncoderLayer(8, 2, 16, batch_first=True, dropout=0.0)),
}


@pytest.mark.filterwarnings("ignore:AttentionMonitor has seen no attention")
@pytest.mark.parametrize("loss", [False, True])
@pytest.mark.parametrize("teacher", TEACHERS)
def test_a_teacher_under_inference_mode(teacher: str, loss: bool) -> None:
    """Tables that are made at its first call are written into outside of that mode."""

    class Distilled(Classifier):
        def __init__(self) -> None:
            super().__init__(nn.Linear(8, 3))
            self.teacher = TEACHERS[teacher]().requires_grad_(False)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            with torch.inference_mode():
                taught = self.teacher(batch[0]).flatten()
                if loss:
                    nn.functional.mse_loss(taught, torch.zeros_like(taught))
                    nn.functional.cross_entropy(self.net(batch[0]), batch[1])
            return super().training_step(batch, batch_idx)

    def fit(callbacks: list[Callback]) -> Distilled:
        seed_everything(7, verbose=False)
        model = Distilled()
        trainer(callbacks, max_epochs=2).fit(model, loader())
        return model

    trio = monitors(every_n_steps=1, summary=False, report_every_n_steps=3)
    ranges = ActivationRangeObserver(summary=False)
    without, with_us = fit([]), fit([*trio, AttentionMonitor(every_n_steps=1, summary=False), ranges])
    assert with_us.losses == without.losses
    assert same_state(with_us, without)
    assert not any(callback.faults.errors for callback in (*trio[:3], ranges))
    called = [stats.calls for name, stats in trio[0].report.sites.items() if name.startswith("teacher")]
    assert called
    assert set(called) == {7}
