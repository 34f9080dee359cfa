"""The metrics of lightning_hooks against a float64 reference on the concatenated data, and what every torchmetrics Metric can do.

The installed torchmetrics has no tester; these are its checks.
"""

from __future__ import annotations

import copy
import math
import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torchmetrics import Metric, MetricCollection
from typing_extensions import override

from lightning_hooks.diagnostics.features.stats import feature_stats
from lightning_hooks.metrics import DeadUnits, GradientNorm, TensorStatistics, UpdateRatio
from tests.support.metrics import CASES, NAMES, flat, gradient_steps, tensors, weight_steps
from tests.support.models import loader, trainer


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


@pytest.mark.parametrize("name", NAMES)
def test_it_is_plotted(name: str) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    mpl.use("agg")
    make, inputs, _ = CASES[name]
    metric = make()
    values = [metric(entry) for entry in inputs()]
    for drawn in (metric.plot(), metric.plot(values)):
        figure, axes = drawn
        assert axes.figure is figure
        pyplot.close(figure)


@pytest.mark.parametrize("name", NAMES)
def test_states_of_inference_mode_are_updated_outside_of_it(name: str) -> None:
    metric = CASES[name][0]()
    with torch.inference_mode():  # as Lightning's validation ends with a reset
        metric.reset()
    assert value_of(updated(name, metric)) == pytest.approx(CASES[name][2](), rel=1e-6, nan_ok=True)


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
    assert value_of(metric) == pytest.approx({name: getattr(expected, name) for name in value_of(metric)})


def test_large_offsets_and_counts_do_not_cancel() -> None:
    metric, values = TensorStatistics(), torch.randn(1000, dtype=torch.float64) + 1e8
    for part in values.split(7):
        metric.update(part)
    assert value_of(metric)["std"] == pytest.approx(values.numpy().std(), rel=1e-6)


def test_units_of_another_number_are_an_error() -> None:
    with pytest.raises(ValueError, match=r"^DeadUnits expects 3 units in dimension 1; got shape \(2, 4\)\.$"):
        DeadUnits(3).update(torch.ones(2, 4))
    with pytest.raises(ValueError, match=r"^num_units must be at least 1; got 0\.$"):
        DeadUnits(0)


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


def test_frozen_parameters_of_a_module_do_not_count() -> None:
    net, ratio = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2)), UpdateRatio()
    net[0].requires_grad_(False)
    ratio.update(net)
    with torch.no_grad():
        for parameter in net[1].parameters():
            parameter.mul_(3.0)
    ratio.update(net)
    assert ratio.compute() == pytest.approx(2.0)


class Logged(LightningModule):
    """Logs metrics as users of Lightning do."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.statistics, self.dead = nn.Linear(8, 3), TensorStatistics(), DeadUnits(3)
        self.steps = MetricCollection([GradientNorm(), UpdateRatio()])
        self.outputs: list[np.ndarray] = []
        self.weights: list[np.ndarray] = []
        self.norms: list[float] = []

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        out = self.net(batch[0]).relu()
        self.outputs.append(out.detach().double().numpy())
        self.statistics.update(out)
        self.dead(out)
        self.log("dead", self.dead, on_step=False, on_epoch=True)
        return out.square().mean()

    @override
    def on_train_start(self) -> None:
        self.steps["UpdateRatio"].update(self.net)
        self.keep()

    def keep(self) -> None:
        self.weights.append(flat(list(self.net.parameters())))

    @override
    def on_before_optimizer_step(self, optimizer: Any) -> None:
        self.steps["GradientNorm"].update(self.net)
        self.norms.append(float(np.linalg.norm(flat([p.grad for p in self.net.parameters() if p.grad is not None]))))

    @override
    def on_train_batch_end(self, *args: Any) -> None:
        self.steps["UpdateRatio"].update(self.net)
        self.keep()

    @override
    def on_train_epoch_end(self) -> None:
        self.log_dict({f"out/{name}": value for name, value in self.statistics.compute().items()})
        self.statistics.reset()
        self.log_dict(self.steps.compute())

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.1)


def test_lightning_logs_them() -> None:
    torch.manual_seed(0)
    model, fit = Logged(), trainer()
    fit.fit(model, loader())
    values, logged = np.concatenate([out.ravel() for out in model.outputs]), fit.callback_metrics
    ratios = [np.linalg.norm(after - before) / np.linalg.norm(before) for before, after in pairwise(model.weights)]
    assert float(logged["out/std"]) == pytest.approx(values.std(), rel=1e-5)
    assert float(logged["dead"]) == (np.concatenate(model.outputs) == 0).all(0).mean()
    assert float(logged["GradientNorm"]) == pytest.approx(np.mean(model.norms), rel=1e-5)
    assert float(logged["UpdateRatio"]) == pytest.approx(np.mean(ratios), rel=1e-4)


def test_references_are_of_several_batches() -> None:
    assert len(tensors()) > 2
    assert len(list(gradient_steps())) > 2
    assert len(list(weight_steps())) > 2
