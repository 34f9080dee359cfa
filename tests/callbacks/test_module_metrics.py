"""metrics=: the user's torchmetrics, updated with what modules put out in sampled batches, logged and reset at each window."""

from __future__ import annotations

import math
import random
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torchmetrics import CosineSimilarity, MaxMetric, MeanMetric, Metric, MetricCollection, SumMetric
from torchmetrics.classification import MulticlassAccuracy, MulticlassConfusionMatrix

from lightning_hooks import FeatureStatsMonitor, TrainingMonitor, monitors, watch
from tests.support.models import Classifier, hook_counts, loader, mlp, trainer
from tests.support.reference import Recorder

QUIET: dict[str, Any] = {"summary": False, "every_n_steps": 1}
EXAMPLE = "such as {'encoder.*': MeanMetric(), ('student.h', 'teacher.h'): CosineSimilarity()}"


def fit(monitor: Any, net: nn.Module | None = None, seed: int = 0, **kwargs: Any) -> Any:
    torch.manual_seed(seed)
    model, run = Classifier(mlp() if net is None else net), trainer([monitor], **kwargs)
    run.fit(model, loader())
    return run, model


def values(report: Any) -> dict[str, float]:
    return {name: found.value for name, found in report.metrics.items()}


@pytest.mark.parametrize("kind", [FeatureStatsMonitor, TrainingMonitor])
@pytest.mark.parametrize("every", [1, 3])
def test_each_module_of_a_pattern_has_its_own_value(kind: Any, every: int) -> None:
    names = ["net.0", "net.1", "net.2", "net.3", "net.4"]
    recorder = Recorder(names, every)
    torch.manual_seed(0)
    monitor = kind(metrics={"net.?": MeanMetric(), nn.Tanh: MaxMetric()}, every_n_steps=every, summary=False)
    run = trainer([recorder, monitor], max_epochs=2)
    run.fit(Classifier(mlp()), loader())
    expected = {}
    for name in names:
        last = recorder.outputs[name][-math.ceil(7 / every) :]
        expected[f"{name}/MeanMetric"] = np.concatenate([out.ravel() for out in last]).mean()
    expected["net.3/MaxMetric"] = max(out.max() for out in recorder.outputs["net.3"][-math.ceil(7 / every) :])
    assert values(monitor.metrics) == pytest.approx(expected, rel=1e-5, abs=1e-7)
    assert (monitor.metrics.epoch, monitor.metrics.sampled_batches, monitor.metrics.batches) == (1, math.ceil(7 / every), 7)
    logged = {f"features/{name}": run.callback_metrics[f"features/{name}"].item() for name in expected}
    assert logged == pytest.approx({f"features/{name}": value for name, value in expected.items()}, rel=1e-5, abs=1e-7)


def test_two_modules_are_compared_call_by_call() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.student, self.teacher = nn.Linear(8, 3), nn.Linear(8, 3)

        def forward(self, x: Tensor) -> Tensor:
            first, second = self.teacher(x), self.teacher(x + 1)  # both of them come before the student's
            return self.student(x) + self.student(x + 1) + (first + second).detach()

    recorder = Recorder(["net.student", "net.teacher"])
    torch.manual_seed(0)
    monitor = FeatureStatsMonitor(metrics={("net.student", "net.teacher"): CosineSimilarity(reduction="mean")}, **QUIET)
    trainer([recorder, monitor]).fit(Classifier(Twice()), loader())
    student, teacher = (np.concatenate(recorder.outputs[name]) for name in recorder.names)
    norms = np.linalg.norm(student, axis=1) * np.linalg.norm(teacher, axis=1)
    assert values(monitor.metrics) == pytest.approx(
        {"net.student-net.teacher/CosineSimilarity": ((student * teacher).sum(1) / norms).mean()}, rel=1e-5
    )


def test_monitors_and_plain_loops_take_them() -> None:
    features, *_ = monitors(metrics={"net.0": MeanMetric()}, **QUIET)
    fit(features)
    torch.manual_seed(0)
    net = mlp()
    optimizer = torch.optim.SGD(net.parameters(), lr=0.1)
    outputs = []
    net[0].register_forward_hook(lambda module, args, output: outputs.append(output.detach().numpy().copy()))
    with watch(net, optimizer, metrics={"0": MeanMetric()}, **QUIET) as monitor:
        for x, y in loader():
            loss = nn.functional.cross_entropy(net(x), y)
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            monitor.step(loss)
        monitor.end_window()
        assert values(monitor.metrics)["0/MeanMetric"] == pytest.approx(np.concatenate(outputs).mean(), rel=1e-5)


# What it is given, and what it leaves as it was.


class Odd(Metric):
    """Keeps what it is given, changes it, draws random numbers, and asks whether it is in a graph."""

    full_state_update = False

    def __init__(self) -> None:
        super().__init__()
        self.add_state("seen", [], dist_reduce_fx="cat")
        self.add_state("attached", torch.tensor(0), dist_reduce_fx="sum")

    def update(self, values: Tensor) -> None:
        self.attached = self.attached + int(values.requires_grad)
        self.seen.append(values.clone())
        values.fill_(100.0)
        torch.rand(3), random.random(), np.random.rand()  # noqa: NPY002

    def compute(self) -> dict[str, Tensor]:
        torch.rand(1)
        return {"sum": torch.cat(self.seen).sum(), "attached": self.attached}


class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.act, self.drop, self.head = nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.drop(self.act(self.fc(x))))


def outcome(metrics: Any) -> tuple[Any, ...]:
    random.seed(0)
    np.random.seed(0)  # noqa: NPY002
    torch.manual_seed(0)
    monitor = FeatureStatsMonitor(metrics=metrics, **QUIET)
    _, model = fit(monitor, InPlace(), max_epochs=2)
    states = torch.get_rng_state(), random.getstate(), np.random.get_state()  # noqa: NPY002
    return model.losses, [p.detach().clone() for p in model.parameters()], states, monitor


def test_training_is_the_same_to_the_bit() -> None:
    losses, weights, (state, of_python, of_numpy), _ = outcome(None)
    *found, monitor = outcome({"net.*": Odd(), ("net.fc", "net.act"): CosineSimilarity()})
    assert found[0] == losses
    assert all(torch.equal(a, b) for a, b in zip(found[1], weights, strict=True))
    assert torch.equal(found[2][0], state)
    assert found[2][1] == of_python
    assert (found[2][2][1] == of_numpy[1]).all()
    assert found[2][2][2:] == of_numpy[2:]
    assert all(value == 0 for name, value in values(monitor.metrics).items() if name.endswith("attached"))


def test_the_users_metric_and_the_model_are_left_as_they_are() -> None:
    metric = MeanMetric()
    metric.update(5.0)
    _, model = fit(FeatureStatsMonitor(metrics={"net.0": metric}, **QUIET))
    assert metric.compute() == 5.0
    assert not any(hook_counts(model).values())


def test_validation_and_batches_that_are_not_sampled_do_not_count() -> None:
    recorder = Recorder(["net.0"], every=4)
    torch.manual_seed(0)
    monitor = FeatureStatsMonitor(metrics={"net.0": SumMetric()}, every_n_steps=4, summary=False)
    trainer([recorder, monitor], num_sanity_val_steps=2).fit(Classifier(mlp()), loader(), loader(seed=1))
    assert values(monitor.metrics)["net.0/SumMetric"] == pytest.approx(
        sum(out.sum() for out in recorder.outputs["net.0"]), rel=1e-5
    )


# What raises.


class Raises(MeanMetric):
    """Raises in its third update, in compute, or in reset."""

    def __init__(self, where: str) -> None:
        super().__init__()
        self.where, self.calls = where, 0

    def update(self, value: Tensor) -> None:
        self.calls += 1
        if self.where == "update" and self.calls == 3:
            raise ValueError("planted")
        super().update(value)

    def compute(self) -> Tensor:
        if self.where == "compute":
            raise ValueError("planted")
        return super().compute()


@pytest.mark.parametrize("where", ["update", "compute"])
def test_a_metric_that_raises_is_reported_once_and_disabled(where: str) -> None:
    monitor = FeatureStatsMonitor(metrics={"net.[04]": Raises(where), "net.1": MeanMetric()}, **QUIET)
    with pytest.warns(UserWarning, match="planted") as reported:
        fit(monitor, max_epochs=3)
    assert [str(warning.message) for warning in reported if "planted" in str(warning.message)] == [
        "FeatureStatsMonitor: the metric at 'net.0/Raises', 'net.4/Raises' raised ValueError: planted; it is switched off and "
        "training goes on without it."
    ]
    found = values(monitor.metrics)
    assert math.isnan(found["net.0/Raises"])
    assert found["net.1/MeanMetric"] == pytest.approx(monitor.report.sites["net.1"].mean, rel=1e-5)


def test_a_metric_of_two_outputs_at_one_module_is_reported() -> None:
    metrics = {"net.4": MulticlassConfusionMatrix(num_classes=3), "net.0": MulticlassAccuracy(num_classes=3)}
    with pytest.warns(UserWarning, match=r"the metric at .* raised TypeError: .*update\(\) missing 1 required") as reported:
        fit(FeatureStatsMonitor(metrics=metrics, **QUIET))
    assert len([warning for warning in reported if "the metric at" in str(warning.message)]) == 2


class Vector(MeanMetric):
    def compute(self) -> Tensor:
        return torch.ones(3)


def test_a_vector_is_reported() -> None:
    with pytest.warns(UserWarning, match=r"the metric at 'net.0/Vector' raised \w+: .*; it is switched off"):
        fit(FeatureStatsMonitor(metrics={"net.0": Vector()}, **QUIET))


@pytest.mark.parametrize(
    ("metrics", "error", "text"),
    [
        ([MeanMetric()], TypeError, f"{EXAMPLE}; got [MeanMetric()]."),
        ({}, ValueError, f"{EXAMPLE}; got {{}}, which names nothing."),
        ({"net.0": MeanMetric}, TypeError, "got <class 'torchmetrics.aggregation.MeanMetric'> for 'net.0'."),
        ({"net.0": nn.Linear(1, 1)}, TypeError, "for 'net.0'."),
        ({"": MeanMetric()}, TypeError, f"{EXAMPLE}; got the key ''."),
        ({("net.0",): MeanMetric()}, TypeError, f"{EXAMPLE}; got the key ('net.0',)."),
        ({("net.0", "net.1", "net.2"): MeanMetric()}, TypeError, "got the key ('net.0', 'net.1', 'net.2')."),
        ({3: MeanMetric()}, TypeError, f"{EXAMPLE}; got the key 3."),
    ],
)
@pytest.mark.parametrize("kind", [FeatureStatsMonitor, TrainingMonitor])
def test_bad_arguments_are_errors_at_construction(kind: Any, metrics: Any, error: Any, text: str) -> None:
    with pytest.raises(error) as raised:
        kind(metrics=metrics)
    assert str(raised.value).startswith(
        "metrics must map modules (a name, glob pattern or type), or pairs of them, to torchmetrics "
    )
    assert str(raised.value).endswith(text)


@pytest.mark.parametrize(
    "metrics",
    [{"net.0": MeanMetric(), "net.?": MeanMetric()}, {"net.0": MetricCollection({"rms": MeanMetric()})}],
    ids=["twice", "as a statistic"],
)
def test_two_values_of_one_tag_are_an_error(metrics: Any) -> None:
    expected = (
        r"^FeatureStatsMonitor: metrics would log a second value as features/net.0/(MeanMetric|rms)\. Give it another name, in a "
        r"collection: MetricCollection\(\{'my_name': …\}\)\.$"
    )
    with pytest.raises(ValueError, match=expected):
        fit(FeatureStatsMonitor(metrics=metrics, **QUIET))
