"""What is kept of a training comes back as it was, is small, and changes nothing."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, Trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import monitors
from lightning_hooks.alerts import Dead, FeatureReport
from lightning_hooks.diagnostics.features.table import FeatureStats
from tests.evidence.faults.training import QUIET
from tests.evidence.population import record
from tests.evidence.population.findings import findings


class Net(LightningModule):
    """A classifier whose first bias kills its rectifier."""

    def __init__(self, bias: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.last = nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3)
        nn.init.constant_(self.first.bias, bias)

    def training_step(self, batch: Any, batch_idx: int) -> torch.Tensor:
        return nn.functional.cross_entropy(self.last(self.act(self.first(batch[0]))), batch[1])

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), 0.1)


def trained(bias: float, callbacks: list[Any], epochs: int = 6) -> Net:
    net, generator = Net(bias), torch.Generator().manual_seed(0)
    x = torch.randn(200, 8, generator=generator)
    loader = DataLoader(TensorDataset(x, (x[:, 0] > 0).long() + (x[:, 1] > 0)), 10)
    Trainer(**QUIET, max_epochs=epochs, callbacks=callbacks).fit(net, loader)
    return net


@pytest.fixture(scope="module")
def kept() -> dict[str, Any]:
    recorder, callbacks = record.recording(every_n_steps=1)
    trained(-9.0, callbacks)
    return record.row_of(
        "hand", "dead", 3, recorder.row(), operators=["bias"], groups=["model"], causes=["offset_bias"], score=math.nan
    )


def test_a_row_comes_back_as_it_was(kept: dict[str, Any], tmp_path: Path) -> None:
    path = tmp_path / "table.jsonl.gz"

    sizes = [record.append(path, {**kept, "seed": seed}) for seed in range(3)]

    assert [row["seed"] for row in record.read(path)] == [0, 1, 2]
    assert next(record.read(path)) == json.loads(json.dumps({**kept, "seed": 0}))
    assert max(sizes) < 10_000
    assert path.stat().st_size == sum(sizes)


def test_windows_are_the_first_a_third_of_the_way_and_the_last(kept: dict[str, Any]) -> None:
    assert [(window["places"], window["batches"], window["epoch"]) for window in kept["windows"]] == [
        (["first"], 20, 0),
        (["third"], 40, 1),
        (["last"], 120, 5),
    ]
    assert (kept["batches"], kept["epochs"], kept["first_epoch"]) == (120, 6, 20)


def test_findings_causes_and_alerts(kept: dict[str, Any]) -> None:
    found = {(rule, site): rest for rule, _, site, *rest in kept["windows"][0]["findings"]}
    causes = {(cause, site): score for cause, _, site, score, _ in kept["windows"][0]["causes"]}
    assert found["Dead", "act"] == [1.0, 0.7, "critical", "", 1.0]
    assert causes["offset_bias", "act"] >= 0.5
    assert [alert["kind"] for alert in kept["alerts"] if alert["severity"] == "critical"] == ["dead"]
    assert kept["alerts"][0]["causes"][0][0] == "offset_bias"
    assert kept["score"] == "nan"


def test_a_value_below_the_limit_is_kept_with_what_was_in_its_way() -> None:
    stats = FeatureStats(10, 64_000, 0.0, 1.0, -1.0, 1.0, 1.0, 0.5, 0.0, dead_fraction=0.25, unit_samples=1000)
    report = FeatureReport(0, 9, {"act": stats})

    (finding,) = findings(report, [Dead()])

    assert finding == ("Dead", "dead", "act", 0.25, 0.7, "warning", "threshold", 1 / 3)
    assert list(Dead()(report)) == []


def test_the_recorder_changes_neither_weights_nor_alerts() -> None:
    recorder, callbacks = record.recording(every_n_steps=1)
    with_recorder = trained(-9.0, callbacks, epochs=3)
    alerts: list[Any] = []
    without = trained(-9.0, list(monitors(every_n_steps=1, summary=False, on_alert=alerts.append)), epochs=3)
    recorder.row()

    assert all(torch.equal(a, b) for a, b in zip(with_recorder.parameters(), without.parameters(), strict=True))
    assert [(alert["kind"], alert["site"]) for alert in recorder.alerts] == [(alert.kind, alert.site) for alert in alerts]
