"""What belongs to the feature statistics of a model that has attention."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import AttentionMonitor, FeatureStatsMonitor, RouterMonitor, TrainingMonitor, monitors
from lightning_hooks.alerts import AttentionReport
from tests.support.models import Classifier, TinyTransformer, loader, mlp, trainer
from tests.support.reference import assert_same


def fit(*callbacks: Any, net: nn.Module | None = None, **settings: Any) -> None:
    torch.manual_seed(0)
    transformer = TinyTransformer() if net is None else net
    trainer(callbacks, **settings).fit(Classifier(transformer), loader((5, 6)) if net is None else loader())


def test_attention_is_reported_without_being_asked_for() -> None:
    monitor, features, trio, alone = (
        TrainingMonitor(summary=False),
        FeatureStatsMonitor(summary=False),
        monitors(summary=False),
        AttentionMonitor(summary=False),
    )
    for callbacks in ([monitor], [features], trio, [alone]):
        fit(*callbacks)
    assert alone.report is not None
    assert list(alone.report.sites) == [f"net.encoder.layers.{i}.self_attn/sdpa" for i in range(2)]
    for found in (monitor.attention, features.attention, trio[0].attention):
        assert isinstance(found, AttentionReport)
        assert_same(found, alone.report, "attention")


@pytest.mark.parametrize("functional", [True, False])
def test_there_is_none_without_attention_or_functional_sites(functional: bool, capsys: pytest.CaptureFixture[str]) -> None:
    monitor = TrainingMonitor(functional=functional, summary="full")
    fit(monitor, net=mlp() if functional else None)
    assert monitor.attention is None
    assert "ttention" not in capsys.readouterr().out.replace("self_attn", "")


class Experts(nn.Module):
    """Two experts, and a gate that chooses one."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.experts = nn.Linear(8, 2, bias=False), nn.ModuleList(nn.Linear(8, 3) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.gate(x).softmax(-1)
        return sum(weights[:, i : i + 1] * expert(x) for i, expert in enumerate(self.experts))


def test_routers_are_reported_where_there_are_some() -> None:
    monitor, listed = TrainingMonitor(summary=False), RouterMonitor(summary=False)
    torch.manual_seed(0)
    net = nn.Sequential(Experts())
    fit(monitor, net=copy.deepcopy(net))
    assert list(monitor.routers.routers) == ["net.0.gate"]
    fit(TrainingMonitor(summary=False), listed, net=net)
    assert_same(listed.report, monitor.routers, "routers")
    fit(monitor)
    assert monitor.routers is None
