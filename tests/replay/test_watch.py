"""The evidence over a run: capsules on request and over a resume, spikes, compiled parts, and how much memory it takes."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import TrainingMonitor
from lightning_hooks.hooks.generators import GeneratorWatch
from lightning_hooks.replay.rows import MOST_BYTES, STEPS, BatchRows, Ring, StepEvidence
from tests.replay.planted import Net, data
from tests.support.models import trainer


def test_one_capsule_of_a_kind_also_over_a_resume(tmp_path: Path) -> None:
    saved = ModelCheckpoint(tmp_path / "saved", save_last=True, save_top_k=0)
    loader = DataLoader(data(), batch_size=8, shuffle=True)
    first = trainer([TrainingMonitor(summary=False, capsule=tmp_path / "a"), saved], enable_checkpointing=True, max_epochs=1)
    first.fit(Net(), loader)
    assert len(list((tmp_path / "a").iterdir())) == 1
    again = TrainingMonitor(summary=False, capsule=tmp_path / "b")
    path = tmp_path / "saved" / "last.ckpt"
    trainer(
        [again, ModelCheckpoint(tmp_path / "saved", save_last=True, save_top_k=0)], enable_checkpointing=True, max_epochs=2
    ).fit(Net(), loader, ckpt_path=path, weights_only=False)
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("kept", [0, 30])
def test_a_spike_names_its_batch_and_has_a_capsule_of_its_own(kept: int, tmp_path: Path) -> None:
    torch.manual_seed(0)
    x, y = torch.rand(240, 4), torch.randn(240, 3)
    y[200] = 1e5

    class Plain(Net):
        def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
            return (self.head(self.body(batch[0])) - batch[1]).square().mean()

    monitor = TrainingMonitor(summary=False, capsule=tmp_path, keep_batches=kept)
    trainer([monitor], max_epochs=1).fit(Plain(), DataLoader(TensorDataset(x, y), batch_size=8))
    alert = next(alert for alert in monitor.alerts if alert.kind in ("spike", "loss_spike"))
    assert alert.batch == 25
    assert alert.samples == tuple(range(200, 208))
    path = next(path for path in tmp_path.iterdir() if path.name == f"{alert.kind}-step25")
    record = json.loads((path / "capsule.json").read_text())
    assert record["samples"] == list(range(200, 208))
    assert record["batch_at_hand"] is bool(kept)
    assert not (path / "state.pt").exists()  # the weights are later ones
    assert any("the batch" in text for text in record["left_out"]) is not bool(kept)


def test_the_ring_keeps_within_its_memory_and_the_states_of_its_last_steps() -> None:
    ring, watch = Ring(), GeneratorWatch(torch.device("cpu"))
    for batch in range(400):
        torch.rand(1)
        entry = StepEvidence(0, batch, batch, BatchRows({"": array("q", range(1000))}, 8000))
        ring.add(entry)
        entry.generators = watch.read()
    assert ring.nbytes <= MOST_BYTES
    entries = [*ring._entries]
    assert [entry.generators is not None for entry in entries] == [False] * (len(entries) - STEPS) + [True] * STEPS
    assert len(entries) > STEPS
    assert ring.nbytes == sum(entry.nbytes for entry in entries)
    assert ring.of(0, 399) is entries[-1]
    assert ring.of(0, 0) is None
