"""FeatureStatsMonitor against the concatenated data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

from lightning_hooks import FeatureStatsMonitor, monitors
from tests.support.models import NETS, Classifier, hook_counts, loader, mlp, trainer
from tests.support.reference import Recorder, assert_stats, reference_stats


@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("every", [1, 3])
def test_epoch_values_are_those_of_the_concatenated_data(net: str, every: int) -> None:
    build, shape, names = NETS[net]
    torch.manual_seed(0)
    monitor, recorder = FeatureStatsMonitor(every_n_steps=every, summary=False), Recorder(names, every)
    trainer([recorder, monitor]).fit(Classifier(build()), loader(shape))
    assert list(monitor.report.sites) == names
    assert (monitor.report.batches, monitor.report.sampled_batches) == (7, math.ceil(7 / every))
    for name in names:
        expected = reference_stats(recorder.outputs[name])
        expected["calls"] = math.ceil(7 / every)  # an LSTM call returns three tensors
        assert_stats(monitor.report.sites[name], expected, context=name)


def test_each_epoch_starts_again() -> None:
    torch.manual_seed(0)
    monitor, recorder = FeatureStatsMonitor(every_n_steps=1, summary=False), Recorder(["net.0"])
    trainer([recorder, monitor], max_epochs=3).fit(Classifier(mlp()), loader())
    assert monitor.report.epoch == 2
    assert_stats(monitor.report.sites["net.0"], reference_stats(recorder.outputs["net.0"][-7:]))


class Shifted(nn.Module):
    """Adds a constant a thousand times the spread."""

    def forward(self, x: Tensor) -> Tensor:
        return x + 1000.0


def test_mean_and_std_survive_a_large_offset() -> None:
    monitor, recorder = FeatureStatsMonitor(modules="net.0", every_n_steps=1, summary=False), Recorder(["net.0"])
    trainer([recorder, monitor]).fit(Classifier(nn.Sequential(Shifted(), nn.Linear(8, 3))), loader())
    assert_stats(monitor.report.sites["net.0"], reference_stats(recorder.outputs["net.0"]), rel=1e-4)


@pytest.mark.parametrize("batch_size", [2, 64])
def test_dead_fraction_is_the_union_over_the_epoch(batch_size: int) -> None:
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 3))
    nn.init.normal_(net[0].bias, -3.0, 1.5)  # units that fire always, rarely and never
    monitor, recorder = FeatureStatsMonitor(every_n_steps=1, summary=False), Recorder(["net.1"])
    trainer([recorder, monitor]).fit(Classifier(net, lr=0.0), loader(n=128, batch_size=batch_size))
    fired = (np.concatenate(recorder.outputs["net.1"]) > 0).any(0)
    assert 0 < fired.sum() < 64
    assert monitor.report.sites["net.1"].dead_fraction == pytest.approx(1 - fired.mean(), abs=1e-12)


def test_saturated_tanh_is_distinguished_from_a_healthy_one() -> None:
    torch.manual_seed(0)
    net = mlp(depth=3)
    with torch.no_grad():
        net[2].weight *= 100
    monitor, recorder = FeatureStatsMonitor(every_n_steps=1, summary=False), Recorder(["net.3", "net.5"])
    trainer([recorder, monitor]).fit(Classifier(net, lr=0.0), loader())
    for name in ("net.3", "net.5"):
        expected = (np.abs(np.concatenate(recorder.outputs[name])) >= 0.98).mean()
        assert monitor.report.sites[name].saturated_fraction == pytest.approx(expected, abs=1e-9)
    assert [a.site for a in monitor.report.alerts if a.kind == "saturated"] == ["net.3"]


class Odd(nn.Module):
    """Returns what it was reported to, then passes its input on."""

    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.value = value

    def forward(self, x: Tensor) -> Tensor:
        return self.value


class WithOdd(nn.Module):
    def __init__(self, value: Tensor) -> None:
        super().__init__()
        self.odd = Odd(value)
        self.head = nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        self.odd(x)
        return self.head(x)


@pytest.mark.parametrize(
    ("value", "count", "nonfinite"),
    [
        (torch.full((4, 3), torch.nan), 0, 1.0),
        (torch.full((4, 3), torch.inf), 0, 1.0),
        (torch.tensor([1.0, -torch.inf, torch.nan, 3.0]), 2, 0.5),
        (torch.tensor(2.5), 1, 0.0),
        (torch.zeros((0, 3)), 0, math.nan),
        (torch.randn(5, 3).bfloat16(), 15, 0.0),
        (torch.randn(5, 3).half(), 15, 0.0),
        (torch.randn(5, 3).double(), 15, 0.0),
    ],
    ids=["nan", "inf", "mixed", "0-d", "empty", "bf16", "fp16", "fp64"],
)
def test_odd_outputs_are_counted_and_never_raise(value: Tensor, count: int, nonfinite: float) -> None:
    monitor = FeatureStatsMonitor(modules="net.odd", every_n_steps=1, summary=False)
    trainer([monitor]).fit(Classifier(WithOdd(value)), loader(n=16))
    assert not monitor.faults.errors
    stats = monitor.report.sites["net.odd"]
    assert_stats(stats, {**reference_stats([value.double().numpy()]), "calls": 2, "count": 2 * count})
    assert math.isclose(stats.nonfinite_fraction, nonfinite) or math.isnan(nonfinite)
    found = [alert.kind for alert in monitor.report.alerts if alert.kind == "nonfinite"]
    assert found == (["nonfinite"] if nonfinite > 0 else [])


def test_modules_never_called_are_silent_not_zero() -> None:
    net = nn.Sequential(nn.Linear(8, 3))
    net.unused = nn.Linear(2, 2)
    net.forward = lambda x: net[0](x)
    monitor = FeatureStatsMonitor(every_n_steps=1, summary=False)
    trainer([monitor]).fit(Classifier(net), loader())
    assert monitor.report.silent == ("net.unused",)
    assert list(monitor.report.sites) == ["net.0"]
    assert [(a.kind, a.severity) for a in monitor.report.alerts if a.site == "net.unused"] == [("silent", "info")]


def test_hooks_are_in_place_in_sampled_batches_only() -> None:
    class Look(Callback):
        def on_before_zero_grad(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:
            seen.append(sum(count for key, count in hook_counts(pl_module).items() if key.endswith("_forward_hooks")))

    seen: list[int] = []
    ours = monitors(every_n_steps=3, summary=False)
    run = trainer([*ours, Look()], max_epochs=2)
    run.fit(Classifier(mlp()), loader(n=56))
    # One hook per module, shared by all monitors; in the first sampled batches of a run one more for each of the three modules that
    # may call functions, and in later ones only for the net, as training_step is known to call one.
    assert seen == [*(8, 0, 0, 8, 0, 0, 8), *(6, 0, 0, 6, 0, 0, 6)]
    assert [stats.calls for stats in ours[0].report.sites.values()] == 5 * [3]
