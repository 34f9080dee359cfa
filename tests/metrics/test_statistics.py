"""The metrics of lightning_hooks against a float64 reference on the concatenated data, and what every torchmetrics Metric can do.

The installed torchmetrics has no tester; these are its checks.
"""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torchmetrics import Metric, MetricCollection

from lightning_hooks.diagnostics.features.table import feature_stats
from lightning_hooks.metrics import DeadUnits, GradientNorm, TensorStatistics, UpdateRatio
from tests.support.metrics import CASES, NAMES, tensors


def value_of(metric: Metric) -> dict[str, float]:
    found: Any = metric.compute()
    return {name: float(value) for name, value in (found if isinstance(found, dict) else {"": found}).items()}


def updated(name: str, metric: Metric | None = None) -> Metric:
    make, inputs, _ = CASES[name]
    metric = make() if metric is None else metric
    for values in inputs():
        metric.update(values)
    return metric


@pytest.mark.parametrize("name", NAMES)
def test_the_value_is_that_of_the_concatenated_data(name: str) -> None:
    _, _, reference = CASES[name]
    assert value_of(updated(name)) == pytest.approx(reference(), rel=1e-6, nan_ok=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
def test_before_any_update_and_after_a_reset_it_is_not_a_number(name: str) -> None:
    metric = updated(name)
    metric.reset()
    for empty in (metric, CASES[name][0]()):
        assert all(math.isnan(value) for value in value_of(empty).values())


@pytest.mark.parametrize("name", NAMES)
def test_it_has_states_with_a_reduction(name: str) -> None:
    metric = CASES[name][0]()
    assert metric.metric_state.keys() == metric._defaults.keys()
    assert all(callable(reduction) for reduction in metric._reductions.values())
    assert all(state.device == metric.device for state in metric.metric_state.values())


@pytest.mark.parametrize("name", NAMES)
def test_forward_returns_the_batch_and_accumulates(name: str) -> None:
    make, inputs, reference = CASES[name]
    metric, alone = make(), make()
    for values in inputs():
        found = metric(values)
        if name != "UpdateRatio":  # whose first call compares with none
            alone.reset()
            alone.update(values)
            expected: Any = alone.compute()
            torch.testing.assert_close(found, expected, rtol=0, atol=0, equal_nan=True)
    assert value_of(metric) == pytest.approx(reference(), rel=1e-6, nan_ok=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("copied", [lambda m: pickle.loads(pickle.dumps(m)), copy.deepcopy, Metric.clone])
def test_a_copy_has_the_value_and_goes_on_alone(name: str, copied: Callable[[Metric], Metric]) -> None:
    metric = updated(name)
    other, value = copied(metric), value_of(metric)
    assert value_of(other) == pytest.approx(value, rel=0, nan_ok=True)
    other.reset()
    updated(name, other)
    assert value_of(other) == pytest.approx(value, rel=0, nan_ok=True)
    assert value_of(metric) == pytest.approx(value, rel=0, nan_ok=True)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:The ``compute`` method of metric")
def test_states_are_in_a_checkpoint_where_they_are_persistent(name: str) -> None:
    metric = updated(name)
    assert metric.state_dict() == {}
    metric.persistent(True)
    other = CASES[name][0]()
    other.persistent(True)
    other.load_state_dict(metric.state_dict())
    assert value_of(other) == pytest.approx(value_of(metric), rel=0, nan_ok=True)


def test_in_a_collection_each_has_its_own_states() -> None:
    net = nn.Linear(3, 2)
    collection = MetricCollection([GradientNorm(), UpdateRatio()])
    collection.update(net)  # both are as they were: no gradients, and no weights before
    net(torch.ones(1, 3)).sum().backward()
    with torch.no_grad():
        net.weight.mul_(1.5)
        net.bias.mul_(1.5)
    collection.update(net)
    norm = math.sqrt(sum(float(p.grad.square().sum()) for p in net.parameters() if p.grad is not None))
    assert {name: float(value) for name, value in collection.compute().items()} == pytest.approx(
        {"GradientNorm": norm, "UpdateRatio": 0.5}, rel=1e-6
    )
    of_outputs = MetricCollection({"a": TensorStatistics(), "b": TensorStatistics(), "dead": DeadUnits(4)})
    for values in tensors():
        of_outputs.update(values)
    assert sorted(map(sorted, of_outputs.compute_groups.values())) == [["a", "b"], ["dead"]]
    found = of_outputs.compute()
    assert found["a_mean"] == found["b_mean"] == value_of(updated("TensorStatistics"))["mean"]


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16, torch.float64, torch.int64, torch.bool])
def test_statistics_of_any_dtype(dtype: torch.dtype) -> None:
    metric, values = TensorStatistics(), torch.tensor([0.0, 1.0, 3.0, 1.0]).to(dtype)
    metric.update(values)
    array = values.double().numpy()
    assert value_of(metric)["mean"] == array.mean()
    assert value_of(metric)["std"] == pytest.approx(array.std())


def test_statistics_are_those_of_the_monitor() -> None:
    """The tensor arithmetic of ``compute`` gives the numbers that a report has."""
    metric = updated("TensorStatistics")
    row: Any = metric.row
    expected = feature_stats(row.tolist())
    found = value_of(metric)
    del found["kurtosis"]
    assert found == pytest.approx({name: getattr(expected, name) for name in found})


@pytest.mark.parametrize(("shape", "dim"), [((2, 3), None), ((2, 5, 3), None), ((2, 3, 4, 4), None), ((2, 3, 7), 1), ((3,), 0)])
def test_units_lie_where_they_are_said_to(shape: tuple[int, ...], dim: int | None) -> None:
    metric, values = DeadUnits(3, dim=dim), torch.zeros(shape)
    values.movedim(1 if dim is None and len(shape) == 4 else -1 if dim is None else dim, 0)[1].fill_(2.0)
    metric.update(values)
    assert metric.compute() == pytest.approx(2 / 3)
    metric.update(torch.zeros(0, *shape[1:]) if len(shape) > 1 else values)
    assert metric.compute() == pytest.approx(2 / 3)


def test_a_step_that_is_not_finite_does_not_count() -> None:
    norm, ratio, weight = GradientNorm(), UpdateRatio(), nn.Parameter(torch.tensor([3.0, 4.0]))
    for gradient, factor in (([3.0, 4.0], 1.0), ([math.nan, 1.0], 2.0), ([0.0, 7.0], math.inf)):
        weight.grad = torch.tensor(gradient)
        norm.update([weight])
        with torch.no_grad():
            weight.mul_(factor)
        ratio.update([weight])
    assert norm.compute() == 6.0
    assert ratio.compute() == 1.0
