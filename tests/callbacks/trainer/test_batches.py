"""Batches of any kind: nothing of theirs is run, and none ends the run or disables a site."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch import seed_everything
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lightning_hooks import TrainingMonitor
from tests.support.models import Classifier, mlp, trainer
from tests.support.reference import same_state


class Fed(Classifier):
    """Trains on what a function makes of the batch, or on numbers of its own."""

    def __init__(self, net: nn.Module, read: Any = None) -> None:
        super().__init__(net)
        self.read = read

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = torch.randn(8, 8, generator=torch.Generator().manual_seed(batch_idx)) if self.read is None else self.read(batch)
        return super().training_step((x, torch.arange(len(x)) % 3), batch_idx)


def fit(batches: Any, read: Any = None, net: Any = mlp, on: bool = True) -> tuple[Fed, TrainingMonitor, Tensor]:
    seed_everything(0, verbose=False)
    model, monitor = Fed(net(), read), TrainingMonitor(every_n_steps=1, summary=False)
    data = DataLoader(batches(), batch_size=None, collate_fn=lambda batch: batch)  # type: ignore[arg-type]
    trainer([monitor] if on else []).fit(model, data)
    return model, monitor, torch.get_rng_state()


class Augmenting(dict[str, Any]):
    """Draws when it is read, as lazy batches do."""

    def __getitem__(self, key: str) -> Any:
        return super().__getitem__(key) + 0.1 * torch.randn(8, 8)

    def items(self) -> Any:
        return [(key, self[key]) for key in super().keys()]  # noqa: SIM118

    values = __iter__ = None  # type: ignore[assignment]


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize(
    ("batches", "read"),
    [
        (lambda: [torch.zeros(0, 8)] * 4, None),
        (lambda: [(torch.zeros(0, 8), torch.zeros(0, dtype=torch.long))] * 4, None),
        (lambda: [Augmenting(x=torch.ones(8, 8)) for _ in range(4)], lambda batch: batch["x"]),
        (lambda: [torch.quantize_per_tensor(torch.randn(8, 8), 0.1, 0, torch.qint8) for _ in range(4)], Tensor.dequantize),
        (lambda: [torch.randn(8, 8).to_sparse() for _ in range(4)], Tensor.to_dense),
    ],
    ids=["empty", "empty pair", "lazy", "quantised", "sparse"],
)
def test_a_batch_of_any_kind(batches: Any, read: Any) -> None:
    without, _, state = fit(batches, read, on=False)
    with_us, monitor, state_with = fit(batches, read)
    assert without.losses == with_us.losses
    assert same_state(without, with_us)
    assert torch.equal(state, state_with)
    assert {name: stats.calls for name, stats in monitor.features.sites.items()} == dict.fromkeys([f"net.{i}" for i in range(5)], 4)
