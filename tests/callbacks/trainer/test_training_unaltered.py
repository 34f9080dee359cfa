"""Observe, never alter; never wait for the device in a step."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_hooks import FeatureExtractor, LayerProfiler, monitors
from tests.support.models import Classifier, ResidualCNN, TinyLSTM, TinyTransformer, loader, trainer
from tests.support.reference import same_state

NETS = {"cnn": (ResidualCNN, (1, 6, 6)), "transformer": (TinyTransformer, (5, 6)), "lstm": (TinyLSTM, (5, 6))}


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


class _Counter(TorchDispatchMode):
    def __init__(self) -> None:
        super().__init__()
        self.syncs = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.syncs += func is torch.ops.aten._local_scalar_dense.default
        return func(*args, **(kwargs or {}))


class CountSyncs(Callback):
    """Counts reads of single values between the first batch's start and the last one's end."""

    def __init__(self) -> None:
        self.mode = _Counter()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 0:
            self.mode.__enter__()

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == trainer.num_training_batches - 1:
            self.mode.__exit__(None, None, None)


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
