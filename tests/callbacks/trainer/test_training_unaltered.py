"""Observe, never alter; never wait for the device in a step."""

from __future__ import annotations

import pytest
import torch
from lightning.pytorch import Callback, seed_everything

from lightning_hooks import FeatureExtractor, LayerProfiler, monitors
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
