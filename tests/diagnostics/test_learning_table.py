"""What each parameter brings and how coherent gradients are, against sums over all elements in float64."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from lightning_hooks.declare.step import Step
from lightning_hooks.diagnostics.learning.report import learning_report
from lightning_hooks.diagnostics.learning.steps import SEEN, ConstantTable
from lightning_hooks.diagnostics.learning.table import SAMPLE, GradientSample, LearningColumn, LearningTable, spread_places
from lightning_hooks.statistics.reduction import merge_ranks, merge_windows


def a_step(parameters: list[nn.Parameter], **settings: Any) -> Step:
    known: dict[str, Any] = {"loss_scale": None, "carries_scale": False, "skips_nonfinite": False, "global_step": 0, **settings}
    return Step(0, len(parameters), list(range(len(parameters))), [], parameters, **known)


def taken(
    parameters: list[nn.Parameter], gradients: list[Tensor], update: float = -0.1, tables: Any = (), **settings: Any
) -> GradientSample:
    for parameter, gradient in zip(parameters, gradients, strict=True):
        parameter.grad = gradient
    found = GradientSample(a_step(parameters, **settings), {*tables}, {})
    for parameter, gradient in zip(parameters, gradients, strict=True):
        dense = gradient.to_dense() if gradient.is_sparse else gradient
        parameter.data += update * dense + 0.01 * parameter.data  # with something like weight decay
        gradient.mul_(0.5) if not gradient.is_sparse else None  # clipped afterwards
    return found


def test_gains_and_cosines_are_those_of_all_elements_where_parameters_are_small() -> None:
    torch.manual_seed(0)
    parameters = [nn.Parameter(torch.randn(30, 40)), nn.Parameter(torch.randn(7))]
    table, expected, before = LearningTable(3), [], None
    for _ in range(3):
        gradients = [torch.randn(30, 40), torch.randn(7)]
        exact, old = [g.double().clone() for g in gradients], [p.detach().double().clone() for p in parameters]
        sample = taken(parameters, gradients)
        new = [p.detach().double() for p in parameters]
        expected.append((exact, [-(g * (w - o)).sum().item() for g, w, o in zip(exact, new, old, strict=True)]))
        table.add(sample.places, sample.rows(before))
        before = sample.paired.clone()
    rows = table.lines(table.pack())
    gains = torch.tensor([gain for _, gain in expected], dtype=torch.float64).sum(0)
    assert [row[LearningColumn.GAIN] for row in rows] == pytest.approx([gains.sum().item(), *gains.tolist()], rel=1e-5)
    assert [row[LearningColumn.ERROR] for row in rows] == [0, 0, 0]
    assert [row[LearningColumn.STEPS] for row in rows] == [3, 3, 3]
    both = [torch.cat([g.flatten() for g in exact]) for exact, _ in expected]
    cosines = [torch.cosine_similarity(one, other, 0).item() for one, other in ((both[0], both[1]), (both[1], both[2]))]
    assert rows[0][LearningColumn.COSINE] == pytest.approx(sum(cosines), rel=1e-5)
    own = [torch.cosine_similarity(expected[i][0][1], expected[i + 1][0][1], 0).item() for i in range(2)]
    assert rows[2][LearningColumn.COSINE] == pytest.approx(sum(own), rel=1e-5)
    report = learning_report(["a.b.weight", "a.bias"], rows, None, {})
    assert report.predicted_gain == pytest.approx(gains.sum().item() / 3, rel=1e-5)
    assert report.parameters["a.b.weight"].share == pytest.approx((gains[0] / gains.sum()).item(), rel=1e-5)
    assert report.modules["a"] == pytest.approx(1.0)
    assert report.modules["a.b"] == report.parameters["a.b.weight"].share
    assert report.noise_scale is None
    assert "size of a batch" in report.why_not["noise_scale"]


def test_a_large_parameter_is_estimated_with_its_standard_error() -> None:
    torch.manual_seed(1)
    misses = []
    for _ in range(30):
        parameter = nn.Parameter(torch.zeros(300, 200))
        gradient = torch.randn(300, 200) + 0.5
        exact = 0.1 * gradient.double().square().sum().item()
        rows = taken([parameter], [gradient]).rows(None)[0]
        places = spread_places(60_000)
        x = 0.1 * (2 * gradient.flatten()[places].double()).square()  # it was halved since
        count = SAMPLE / 60_000
        assert rows[LearningColumn.GAIN].item() == pytest.approx(x.mean().item() * 60_000, rel=1e-5)
        error = 60_000 * math.sqrt(x.var().item() / SAMPLE * (1 - count))
        assert rows[LearningColumn.ERROR].item() == pytest.approx(error, rel=1e-4)
        misses.append((rows[LearningColumn.GAIN].item() - exact) / error)
    assert 0.6 < torch.tensor(misses).std().item() < 1.5


def test_a_step_that_is_not_finite_or_not_taken_does_not_count() -> None:
    parameter, table = nn.Parameter(torch.zeros(4)), LearningTable(2)
    for gradient, valid in ((torch.tensor([1.0, math.nan, 0, 0]), None), (torch.ones(4), torch.tensor(False))):
        sample = taken([parameter], [gradient])
        table.add(sample.places, sample.rows(None), valid)
        parameter.data.zero_()
    assert table.rows.abs().sum() == 0


def test_ranks_that_take_the_same_step_count_once_and_others_are_averaged() -> None:
    tables = [LearningTable(2), LearningTable(2)]
    for table, gain in zip(tables, (1.0, 3.0), strict=True):
        table.rows[:, LearningColumn.STEPS], table.rows[:, LearningColumn.GAIN] = 1, gain
    one, other = (table.pack() for table in tables)
    for packed, steps, gain in (
        (merge_ranks(tables[0].spans, [one, one]), 1, 1.0),
        (merge_ranks(tables[0].spans, [one, other]), 2, 2.0),
    ):
        report = learning_report(["w"], tables[0].lines(packed), None, {})
        assert (report.steps, report.predicted_gain) == (steps, gain)
    report = learning_report(["w"], tables[0].lines(merge_windows(tables[0].spans, one, other)), None, {})
    assert (report.steps, report.predicted_gain) == (2, 2.0)


def test_the_noise_scale_is_that_of_the_samples_gradients() -> None:
    torch.manual_seed(3)
    mean, noise, size, table, before = torch.full((200,), 0.1), 1.5, 20, LearningTable(2), None
    parameter = nn.Parameter(torch.zeros(200))
    for _ in range(200):
        sample = taken([parameter], [mean + noise * torch.randn(size, 200).mean(0)])
        table.add(sample.places, sample.rows(before))
        before = sample.paired.clone()
    exact = noise**2 * 200 / mean.square().sum().item()  # trace of the samples' covariance over the squared mean: 225
    report = learning_report(["w"], table.lines(table.pack()), float(size), {})
    assert report.noise_scale == pytest.approx(exact, rel=0.1)


class Call:
    """A call of a loss."""

    def __init__(self, function: str, given: Tensor, target: Tensor, **arguments: Any) -> None:
        functions = {"bce_with_logits": nn.functional.binary_cross_entropy_with_logits}
        self.function, self.site = function, type("Site", (), {"name": function})
        self.arguments = {"input": given, "target": target, **arguments}
        self.output = functions.get(function, getattr(nn.functional, function, None))(given, target, **arguments)


def test_the_best_constant_answer() -> None:
    torch.manual_seed(4)
    labels, numbers = torch.multinomial(torch.tensor([0.5, 0.3, 0.2]), 4000, replacement=True), torch.randn(4000, 3).abs()
    shares = torch.bincount(labels).double() / 4000
    binary = (torch.rand(4000, 2) < torch.tensor([0.1, 0.6])).float()
    p = binary.double().mean(0)
    constants = {
        "cross_entropy": -(shares * shares.log()).sum().item(),
        "nll_loss": -(shares * shares.log()).sum().item(),
        "mse_loss": numbers.double().var(0, correction=0).mean().item(),
        "l1_loss": (numbers - numbers.median(0).values).abs().mean().item(),
        "binary_cross_entropy": -(p * p.log() + (1 - p) * (1 - p).log()).mean().item(),
        "bce_with_logits": -(p * p.log() + (1 - p) * (1 - p).log()).mean().item(),
    }
    assert {*constants, "smooth_l1_loss", "huber_loss"} == {*SEEN}
    for function, constant in constants.items():
        target = labels if function in ("cross_entropy", "nll_loss") else numbers if function in ("mse_loss", "l1_loss") else binary
        given = torch.rand(4000, 3 if target is not binary else 2)
        given = given.log_softmax(1) if function == "nll_loss" else given
        table = ConstantTable()
        calls = [Call(function, given[i : i + 200], target[i : i + 200]) for i in range(0, 4000, 200)]
        for call in calls:
            table.record(call)  # type: ignore[arg-type]
        mean = sum(call.output.item() for call in calls) / len(calls)
        found, best, why = table.read(table.pack())
        assert found == pytest.approx(mean / constant, rel=0.02), function
        assert best == pytest.approx(constant, rel=0.02), function
        assert not why


@pytest.mark.parametrize(
    ("function", "arguments", "columns"),
    [
        ("huber_loss", {"delta": 0.4}, 3),
        ("huber_loss", {}, 1),
        ("smooth_l1_loss", {"beta": 0.4}, 3),
        ("smooth_l1_loss", {"beta": 0.0}, 3),
    ],
)
def test_the_best_constant_answer_of_a_huber_loss(function: str, arguments: dict[str, float], columns: int) -> None:
    torch.manual_seed(5)
    target = torch.randn(400, columns).exp()
    call = Call(function, torch.rand(400, columns), target, **arguments)
    table = ConstantTable()
    table.record(call)  # type: ignore[arg-type]

    def of_constant(values: Tensor) -> float:
        def loss(constant: float) -> float:
            return float(getattr(nn.functional, function)(torch.full_like(values, constant), values, **arguments))

        return float(minimize_scalar(loss, bounds=(0, 10), method="bounded", options={"xatol": 1e-9}).fun)

    expected = sum(of_constant(column) for column in target.double().T) / columns
    assert table.read(table.pack()) == (
        pytest.approx(call.output.item() / expected, rel=1e-3),
        pytest.approx(expected, rel=1e-3),
        "",
    )


@pytest.mark.parametrize("scale", [1.0, 1e-3])
def test_the_best_constant_answer_of_a_loss_with_weights_of_classes(scale: float) -> None:
    torch.manual_seed(6)
    labels, weight = torch.multinomial(torch.tensor([0.7, 0.2, 0.1]), 4000, replacement=True), scale * torch.tensor([0.3, 1.0, 4.0])
    calls = [Call("cross_entropy", torch.rand(200, 3), labels[i : i + 200], weight=weight) for i in range(0, 4000, 200)]
    table = ConstantTable()
    for call in calls:
        table.record(call)  # type: ignore[arg-type]
    logits = torch.zeros(3, dtype=torch.double, requires_grad=True)
    optimizer = torch.optim.LBFGS([logits], max_iter=100)

    def loss() -> Tensor:
        optimizer.zero_grad()
        found = nn.functional.cross_entropy(logits.expand(4000, 3), labels, weight.double())
        found.backward()
        return found

    optimizer.step(loss)  # type: ignore[no-untyped-call]
    mean = sum(call.output.item() for call in calls) / len(calls)
    over, constant, why = table.read(table.pack())
    assert constant == pytest.approx(loss().item(), rel=0.01)
    assert over == pytest.approx(mean / loss().item(), rel=0.01)
    assert not why
