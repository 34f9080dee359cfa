"""Observe, never alter; never wait for the device in a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from torch import Tensor, nn

from lightning_hooks import ActivationRangeObserver, AttentionMonitor, FeatureExtractor, LayerProfiler, monitors
from tests.support.host_reads import NETS, CountSyncs
from tests.support.models import Classifier, ResidualCNN, loader, trainer
from tests.support.reference import same_state


def observers() -> list[Callback]:
    return [*monitors(every_n_steps=1, summary=False), LayerProfiler(every_n_steps=1, warmup_steps=0, summary=False)]


@pytest.mark.parametrize("net", NETS)
def test_on_equals_off_bit_for_bit(net: str) -> None:
    build, shape = NETS[net]

    def fit(callbacks: list[Callback]) -> tuple[Classifier, torch.Tensor]:
        seed_everything(7, verbose=False)
        model = Classifier(build(), optimizer=torch.optim.Adam, lr=0.01)
        trainer(callbacks, max_epochs=2, gradient_clip_val=0.3).fit(model, loader(shape, shuffle=True))
        return model, torch.get_rng_state()

    without, rng_without = fit([])
    with_trio, rng_with = fit(observers())
    assert with_trio.losses == without.losses
    assert same_state(with_trio, without)
    assert torch.equal(rng_with, rng_without)


@pytest.mark.parametrize("net", NETS)
def test_no_host_sync_between_epoch_boundaries(net: str) -> None:
    build, shape = NETS[net]
    counts = []
    for callbacks in ([], observers()):
        torch.manual_seed(0)
        counter = CountSyncs()
        trainer([counter, *callbacks], gradient_clip_val=0.3).fit(Classifier(build()), loader(shape, n=320))
        counts.append(counter.mode.syncs)
    assert counts[0] >= 40  # the counter counts: the model itself reads its loss
    assert counts[1] == counts[0]


def test_features_are_kept_without_a_host_sync() -> None:
    counts = []
    for callbacks in ([], [FeatureExtractor(max_samples=50, sampling="reservoir", pool="mean", fields={"label": 1})]):
        torch.manual_seed(0)
        counter = CountSyncs()
        trainer([counter, *callbacks]).fit(Classifier(ResidualCNN()), loader((1, 6, 6), n=160))
        counts.append(counter.mode.syncs)
    assert counts[1] == counts[0] >= 20


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
    ranges = ActivationRangeObserver(channel_dim=-1, summary=False)
    without, with_us = fit([]), fit([*trio, AttentionMonitor(every_n_steps=1, summary=False), ranges])
    assert with_us.losses == without.losses
    assert same_state(with_us, without)
    assert not any(callback.faults.errors for callback in (*trio[:3], ranges))
    called = [stats.calls for name, stats in trio[0].report.sites.items() if name.startswith("teacher")]
    assert called
    assert set(called) == {7}
