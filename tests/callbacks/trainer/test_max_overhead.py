"""max_overhead: what a monitor costs is measured, and it samples so thinly that it stays within the budget."""

from __future__ import annotations

import copy
import math
import pickle
import time
from typing import Any

import pytest
from torch import Tensor

from lightning_hooks import FeatureStatsMonitor, GradientFlowMonitor, monitors
from lightning_hooks.diagnostics.features import collector as features
from lightning_hooks.session.sampling import Sampling, stride_within
from tests.support.models import Classifier, loader, mlp, trainer
from tests.support.reference import assert_stats, reference_stats

STEP, HOOK = 0.020, 0.004


class Slow(Classifier):
    """A step of at least ``STEP`` seconds."""

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        time.sleep(STEP)
        return super().training_step(batch, batch_idx)


@pytest.fixture
def slow_hooks(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Every hook takes ``HOOK`` seconds; gives the batches in which hooks ran."""
    recorded: list[int] = []
    add = features.FeatureTable.add

    def slowly(table: Any, index: int, args: Any, output: Any) -> None:
        time.sleep(HOOK)
        if index == 0:
            recorded.append(table.clock.batch)
        add(table, index, args, output)

    monkeypatch.setattr(features.FeatureTable, "add", slowly)
    return recorded


def fit(callbacks: list[Any], n: int = 400, epochs: int = 1) -> Any:
    fitted = trainer(callbacks, max_epochs=epochs)
    fitted.fit(Slow(mlp()), loader(n=n, batch_size=8))
    return fitted


def test_sampling_thins_to_the_budget(slow_hooks: list[int]) -> None:
    monitor = FeatureStatsMonitor(every_n_steps=1, max_overhead=0.1, summary=False)
    fit([monitor], epochs=2)
    report = monitor.report
    expected = 5 * HOOK / (0.1 * STEP)  # five sites: about 10 steps apart
    assert 0.5 * expected <= report.every_n_steps <= 3 * expected  # a machine that is busy sleeps longer in hooks
    assert report.sampled_batches == math.ceil(report.batches / report.every_n_steps)
    assert 0.02 < report.overhead < 0.3


def test_statistics_are_those_of_the_sampled_batches(slow_hooks: list[int]) -> None:
    outputs: dict[int, Tensor] = {}
    module = Slow(mlp())
    monitor = FeatureStatsMonitor(modules="net.0", every_n_steps=1, max_overhead=0.05, summary=False)
    batch = 0

    def keep(net: Any, args: Any, output: Tensor) -> None:
        nonlocal batch
        outputs[batch] = output.detach().clone()
        batch += 1

    module.net[0].register_forward_hook(keep)
    trainer([monitor]).fit(module, loader(n=160, batch_size=8))
    recorded = [outputs[index].double().numpy() for index in slow_hooks]
    assert 3 < len(slow_hooks) < 20
    assert_stats(monitor.report.sites["net.0"], reference_stats(recorded), rel=1e-5)


@pytest.mark.filterwarnings("ignore::FutureWarning", "ignore:.*val_dataloader.*")
def test_a_budget_that_cannot_be_kept_is_reported() -> None:
    trio = monitors(every_n_steps=1, max_overhead=1e-7, summary=False)
    with pytest.warns(
        UserWarning, match="max_overhead=1e-07 is less than what the monitors do at every step, whatever the sampling"
    ):
        fit(trio, n=80, epochs=2)
    assert (trio[0].report.sampled_batches, trio[0].report.every_n_steps) == (1, 10)
    assert trio[2].report.optimizers["0-SGD"].steps == 10


@pytest.mark.parametrize("value", [0, -0.1, 1.5, math.nan])
def test_a_budget_that_is_no_share(value: float) -> None:
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        GradientFlowMonitor(max_overhead=value)


@pytest.mark.parametrize("value", ["1%", True, [0.1]])
def test_a_budget_of_another_type(value: Any) -> None:
    with pytest.raises(TypeError, match=r"such as 0\.01; got"):
        monitors(max_overhead=value)


def test_strides() -> None:
    assert stride_within(0.01, [(1.0, 0.0, 0.2)], 1) == 20
    assert stride_within(0.01, [(1.0, 0.0, 0.2)], 50) == 50
    assert stride_within(0.5, [(1.0, 0.0, 0.5), (1.0, 0.25, 0.25)], 1) == 3
    assert stride_within(0.01, [(1.0, 0.02, 0.2)], 1) is None


def test_compared_batches() -> None:
    """Where hooks cannot be timed: by the medians of sampled and other batches."""
    sampling = Sampling("Monitor", 1, None, every_step=False)
    assert sampling.costs() is None
    sampling.sampled = [(seconds, 0.0) for seconds in (9.0, 1.5, 1.5, 30.0, 1.4)]
    sampling.others = [(seconds, 0.0) for seconds in (1.0, 1.0, 7.0, 1.0)]
    sampling.batches, sampling.sampled_batches = 9, 5
    assert sampling.costs() == (1.0, 0.0, 0.5)
    assert sampling.window_end(9) == (pytest.approx(0.5 * 5 / 9), 1)
    assert sampling.window_end(9) == (None, 1)
    assert sampling.costs() == (1.0, 0.0, 0.5)
    assert sampling.meter is None


def test_copies_and_pickles_hold_no_measurements() -> None:
    monitor = FeatureStatsMonitor(max_overhead=0.5, summary=False)
    fit([monitor], n=16)
    for twin in (copy.deepcopy(monitor), pickle.loads(pickle.dumps(monitor))):
        assert (twin.member.sampling.costs(), twin.member.sampling.meter) == (None, None)
        assert twin.member.settings.max_overhead == 0.5
