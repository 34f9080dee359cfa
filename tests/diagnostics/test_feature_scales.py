"""Features of very different sizes, at the layers that are given them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import FeatureStatsMonitor
from lightning_hooks.alerts import FeatureReport, FeatureScale
from lightning_hooks.diagnostics.batches.inputs import FeatureScales
from tests.support.models import Classifier, mlp, trainer


def trained(net: nn.Module, x: Any, **kwargs: Any) -> FeatureStatsMonitor:
    monitor = FeatureStatsMonitor(summary=False, every_n_steps=1, **kwargs)
    data = DataLoader(TensorDataset(x, torch.arange(len(x)) % 3), 10)
    trainer([monitor]).fit(Classifier(net, lr=1e-12), data)
    return monitor


def test_sizes_are_those_of_the_batch_that_differs_most() -> None:
    x = torch.randn(30, 8, generator=torch.Generator().manual_seed(0))
    x[:, 3] *= 50
    x[:, 5] = 0
    rms = x.double().view(3, 10, 8).square().mean(1).sqrt()
    ratios = torch.tensor([sizes.max() / sizes[sizes > 0].median() for sizes in rms])
    ((site, scales),) = trained(mlp(), x).report.feature_scales.items()  # later layers are given what has a gradient
    assert (site, scales.feature, scales.features) == ("net.0", 3, 8)
    assert scales.ratio == pytest.approx(float(ratios.max()), rel=1e-6)
    assert scales.rms == pytest.approx(float(rms.max()), rel=1e-6)


@pytest.mark.parametrize(("ratio", "found"), [(1e3, 0), (1.1e3, 1)])
def test_the_limit(ratio: float, found: int) -> None:
    report = FeatureReport(0, 10, {}, feature_scales={"net.0": FeatureScales(ratio, 2, 8, 1e6)})
    assert [(a.kind, a.site, a.severity) for a in FeatureScale()(report)] == [("feature_scale", "net.0", "warning")] * found
