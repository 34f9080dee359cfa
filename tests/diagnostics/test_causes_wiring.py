"""Hypotheses about what the model is given, how it is wired, and how its weights start: what speaks for them and against them."""

from __future__ import annotations

import dataclasses
import math
from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks import TrainingMonitor
from lightning_hooks.alerts import Alert, ClipReport, FeatureReport, GradientFlowReport, LossReport, OptimizerStats, ParameterSetup
from lightning_hooks.clipping.stats import ClipStats
from lightning_hooks.declare.host import TrainingSetup
from lightning_hooks.diagnostics.causes import code, data, rates, weights, wiring
from lightning_hooks.diagnostics.causes.facts import Facts, TensorFacts
from lightning_hooks.diagnostics.features.table import FeatureStats
from lightning_hooks.diagnostics.gradients.tables import ParameterGradientStats
from lightning_hooks.diagnostics.learning.report import LearningReport
from lightning_hooks.diagnostics.loss_inputs.targets import TargetStats
from lightning_hooks.diagnostics.optimizer.table import GroupSettings, ScheduleStats
from lightning_hooks.diagnostics.representations import RepresentationStats
from tests.support.bad_steps import failed
from tests.support.causes import judged
from tests.support.models import Classifier, loader, trainer
from tests.support.plain_loop import trained

MODULES = {"net.a": "Linear", "net.b": "Linear", "net": "Sequential"}
START = {"net.a.weight": TensorFacts(64, 0.0, -0.5, 0.5), "net.b.weight": TensorFacts(64, 0.0, -0.5, 0.5)}


def alert(kind: str, site: str = "loss", value: float = 1.0, **changes: Any) -> Alert:
    return Alert(kind, site, value, 0.7, 0, 10, changes.pop("severity", "warning"), "seen.", **changes)


def stats(mean: float, std: float, low: float, high: float, calls: int = 4) -> FeatureStats:
    return FeatureStats(calls, 400, mean, std, low, high, math.hypot(mean, std), 0.0, 0.0)


def features(ratio: float = 0.4, **fields: Any) -> FeatureReport:
    varied = {name: RepresentationStats(4, ratio, ratio) for name in ("net.a", "net.b")}
    return FeatureReport(0, 10, fields.pop("sites", {}), representations=varied, input_place="[0]", sampled_batches=4, **fields)


def gradient(rms: float = 0.1, zeros: float = 0.0, ratio: float | None = 3e-3, norm: float = 1.0) -> ParameterGradientStats:
    return ParameterGradientStats(10, norm, norm, rms, zeros, 0, 0, ratio)


def flow(ratio: float | None = 3e-3, over: float | None = 1.0, lr: float = 1e-3, kind: str = "Adam", **fields: Any) -> Any:
    name = f"0-{kind}"
    held = ParameterSetup(64, 2, True, True, (name,), 10, lr, lr)
    setups = {"net.a.weight": held, "net.b.weight": held}
    settings = GroupSettings(lr=lr, lr_peak=lr, lr_initial=lr)
    known = {"setups": setups, "optimizers": {name: OptimizerStats((lr,), (lr,), groups=(settings,))}}
    parameters = {"net.a.weight": gradient(ratio=ratio), "net.b.weight": gradient(ratio=ratio)}
    return GradientFlowReport(
        0, 10, fields.pop("modules", {}), fields.pop("parameters", parameters), 1.0, learning=LearningReport(over_constant=over),
        sampled_batches=4, **{**known, **fields},
    )  # fmt: skip


def training(**known: Any) -> TrainingSetup:
    return TrainingSetup(device=torch.device("cpu"), **known)


def facts(given: FeatureReport | None = None, report: Any = None, **fields: Any) -> Facts:
    report = report or flow()
    known: dict[str, Any] = {"modules": MODULES, "start": START, "optimizers": report.optimizers}
    return Facts(given or features(), report, **{**known, **fields})


@pytest.mark.parametrize(
    ("mean", "std", "first"),
    [
        (6.0, 0.5, "its values, standardised"),
        (60.0, 50.0, 0.013),
        (0.0, 1.0, None),
        (1.5, 1.0, None),
    ],
)
def test_inputs_off_their_centre_are_standardised_and_large_ones_scaled(mean: float, std: float, first: Any) -> None:
    given = features(inputs={"training": stats(mean, std, mean - 2 * std, mean + 2 * std)})
    cause = judged(data.large_inputs, alert("saturated", "net.a"), facts(given))
    assert (cause is None) if first is None else (cause is not None and cause.decisive and cause.remedies[0].to == first)


@pytest.mark.parametrize(("low", "found"), [(-9999.0, True), (-9998.7, False), (-3000.0, False)])
def test_a_number_that_stands_for_what_is_missing(low: float, found: bool) -> None:
    given = features(inputs={"training": stats(-100.0, 990.0, low, 4.0)})
    cause = judged(data.placeholder, alert("poor_init"), facts(given))
    assert (cause is not None) is found
    assert cause is None or (cause.remedies[0].code, cause.remedies[0].from_) == ("x[x == -9999] = 0", low)


def test_a_rate_that_is_0_at_the_start_and_a_schedule_of_steps_that_is_stepped_by_epochs() -> None:
    schedule = ScheduleStats("LambdaLR", "", 0, False, 0, False)
    begun, half, short = (
        flow(optimizers={"0-Adam": OptimizerStats(groups=(GroupSettings(lr=5e-6, lr_peak=peak, lr_initial=1e-3, low_steps=low),))})
        for peak, low in ((4.9e-4, 0), (5e-4, 0), (1e-3, 5))
    )
    known = facts(report=begun, schedules=(schedule,), first_rates={(0, 0): 0.0})
    later = facts(report=half, schedules=(schedule,), first_rates={(0, 0): 0.0})
    assert judged(rates.wrong_schedule, alert("update_too_small", "0-Adam", 0.0), later) is None, "an ordinary warm-up"
    for planned, found in ((100, True), (101, False)):
        over = facts(report=short, schedules=(schedule,), setup=training(planned_steps=planned))
        cause = judged(rates.wrong_schedule, alert("update_too_small", "0-Adam", 0.0), over)
        assert (cause is not None and cause.decisive) is found, "a cosine is near 0 in its last steps"
    cause = judged(rates.wrong_schedule, alert("update_too_small", "0-Adam", 0.0), known)
    assert cause is not None
    assert (cause.decisive, cause.remedies[0].op, cause.remedies[0].target) == (True, "remove", "scheduler")
    back = judged(code.written_back, alert("update_too_small", "0-Adam", 0.0), known)
    assert back is None or not back.decisive
    by_epoch = ScheduleStats("OneCycleLR", "total_steps", 224, False, 0, True)
    low = flow(optimizers={"0-Adam": OptimizerStats(groups=(GroupSettings(lr=1e-5, lr_peak=1e-5, lr_initial=1e-3),))})
    cause = judged(
        rates.wrong_schedule,
        alert("lr_zero", "0-Adam"),
        facts(report=low, schedules=(by_epoch,), setup=training(planned_steps=224)),
    )
    assert cause is not None
    assert (cause.remedies[0].target, cause.remedies[0].to) == ("scheduler.interval", "step")


def test_frozen_parameters_in_the_optimizer_and_a_frozen_head() -> None:
    frozen = ParameterSetup(64, 2, False, False, ("0-Adam",), 10, 1e-3)
    report = flow(setups={"net.a.weight": ParameterSetup(64, 2, True, True, ()), "net.b.weight": frozen})
    for site in ("0-Adam", "net.b"):
        cause = judged(wiring.frozen_by_mistake, alert("not_optimized", site), facts(report=report))
        assert cause is not None
        assert (cause.decisive, cause.remedies[0].target) == (True, "requires_grad_(True) on net.b")
    assert judged(wiring.frozen_by_mistake, alert("not_optimized", "net.a.weight"), facts()) is None
    free, frozen = ParameterSetup(4, 1, True, True, ()), ParameterSetup(64, 2, False, False)
    report = flow(setups={"net.a.weight": frozen, "net.b.weight": frozen, "net.a.bias": free})
    for high, found in ((0.49, True), (0.7, False)):  # as PyTorch draws weights, and as a training leaves them
        start = {**START, "net.b.weight": TensorFacts(64, 0.0, -0.5, high)}
        cause = judged(wiring.frozen_by_mistake, alert("not_optimized", "net.a.bias"), facts(report=report, start=start))
        assert (cause is not None) is found


def test_an_optimizer_that_is_never_stepped() -> None:
    held = ParameterSetup(64, 2, True, False, ("0-Adam",), 0, 1e-3)
    loss = LossReport(40, 2.0, 0.1, 1.9, 2.1, 2.0)
    report = flow(setups={"net.a.weight": held}, loss=loss)
    cause = judged(
        wiring.another_optimizer,
        alert("not_updated", "0-Adam", 0.0),
        facts(report=report, setup=training(automatic_optimization=False)),
    )
    assert cause is not None
    assert cause.decisive
    assert judged(wiring.another_optimizer, alert("not_updated", "0-Adam", 0.0), facts(report=report)) is None


def test_what_else_is_known_for_certain() -> None:
    strided = judged(wiring.strided_weight, alert("not_updated", "net.a.weight", 0.0), facts(strided=("net.a.weight",)))
    assert strided is not None
    assert strided.remedies[0].target == "net.a.weight.data"
    gains = {"net.a": 0.6, "net.b": 0.6}
    chain = facts(features(initial_gains=gains), flow(linear_layers=("net.a", "net.b", 2)))
    between = judged(wiring.no_activation, alert("settings", "net.a"), chain)
    assert between is not None
    assert (between.remedies[0].op, between.remedies[0].target) == ("insert", "net.b")
    paired = features(targets={"mse_loss": TargetStats(4, 4, 32, 32, 1024, 0, 0)})
    cause = judged(wiring.compared_in_pairs, alert("output_range", "mse_loss"), facts(paired))
    assert cause is not None
    assert judged(wiring.compared_in_pairs, alert("output_range", "cross_entropy"), facts(paired)) is None
    clip = ClipReport(0, 10, {"0-SGD": ClipStats(50, 50, 1.0, 9.0, 9.0, 1.0, 1.0, 0.1, 0, 0, (), None)})
    loss = LossReport(40, 2.0, 0.1, 1.9, 2.1, 2.0, scaled=True)
    known = facts(report=flow(loss=loss), clip=clip)
    assert judged(wiring.clipped_while_scaled, alert("always_clipped", "0-SGD"), known) is not None
    assert (
        judged(
            wiring.clipped_while_scaled, alert("always_clipped", "0-SGD"), dataclasses.replace(known, setup=training(clip_norm=1.0))
        )
        is None
    )
    one = facts(features(sites={"net.b": stats(1.0, 0.0, 1.0, 1.0)}), modules={**MODULES, "net.b": "Softmax"})
    single = judged(code.softmax_of_one, alert("constant", "net.b"), one)
    assert single is not None
    assert single.remedies[0].to == "nn.Sigmoid"


@pytest.mark.parametrize(
    ("low", "high", "elements", "remedy"), [(-20.0, 20.0, 128, ("scale", 0.087)), (14.3, 14.3, 1, ("fill", 2.66))]
)
def test_a_parameter_that_starts_far_larger_than_the_others(low: float, high: float, elements: int, remedy: Any) -> None:
    start = {**START, "net.c.weight": TensorFacts(64, 0.0, -0.5, 0.5), "net.x": TensorFacts(elements, (low + high) / 2, low, high)}
    cause = judged(weights.large_start, alert("poor_init", "net.b"), facts(start=start))
    assert cause is not None
    assert cause.decisive
    assert (cause.remedies[0].op, cause.remedies[0].to) == remedy
    drawn = {**START, "net.c.weight": TensorFacts(64, 0.0, -0.5, 0.5), "net.x": TensorFacts(6144, 0.0, -4.0, 4.0)}  # an embedding
    assert judged(weights.large_start, alert("poor_init", "net.b"), facts(start=drawn)) is None


def test_a_row_that_a_mask_empties_and_a_batch_of_one() -> None:
    first, later = (
        judged(
            code.nonfinite_operation,
            alert("nonfinite", "net"),
            facts(bad_step=failed("softmax", "net", settings={"empty": 3, "slices": 8}, samples=(7,), first=first)),
        )
        for first in (True, False)
    )
    assert first is not None
    assert later is not None
    assert [first.remedies[0].code, later.remedies[0].target] == ["~mask", "-inf before the softmax in net"]
    single = failed("std", "net", settings={"size": 1})
    cause = judged(code.nonfinite_operation, alert("loss_nonfinite", batch=7), facts(bad_step=single))
    assert cause is not None
    assert (cause.remedies[0].target, cause.remedies[0].to) == ("dataloader.drop_last", True)


class Places(nn.Module):
    """A recurrent layer that takes samples for places."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.body, self.head = nn.Linear(8, 8), nn.GRU(8, 8), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head(self.body(self.embed(x)[:, None])[0][:, 0])


def test_facts_of_a_training_hold_what_is_swapped_and_what_is_strided(monkeypatch: pytest.MonkeyPatch) -> None:
    known: list[Facts] = []
    monkeypatch.setattr("lightning_hooks.judge.diagnosis.with_causes", lambda alert, facts, _: known.append(facts) or alert)
    net = Places()
    net.head.weight.data = torch.full((8, 3), torch.nan).t()  # not contiguous, and an alert
    trainer([TrainingMonitor(summary=False, report_dir=None)], max_epochs=1).fit(Classifier(net), loader())
    assert (list(known[0].time_first), list(known[0].strided)) == (["net.body"], ["net.head.weight"])


class Order(nn.Module):
    """A recurrent layer, or attention, over sequences whose last place gives the class."""

    def __init__(self, kind: type[nn.GRU] | type[nn.TransformerEncoderLayer], batch_first: bool) -> None:
        super().__init__()
        sizes = (8, 8) if kind is nn.GRU else (8, 2, 16)
        self.body, self.head = kind(*sizes, batch_first=batch_first), nn.Linear(8, 3)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        found = self.body(x)
        return self.head((found[0] if isinstance(found, tuple) else found)[:, -1])


@pytest.mark.parametrize("kind", [nn.GRU, nn.TransformerEncoderLayer])
@pytest.mark.parametrize(
    ("batch_first", "places", "per_place", "found"), [(False, 5, 0, 1), (True, 5, 0, 0), (False, 1, 0, 0), (False, 5, 1, 0)]
)
def test_a_module_that_runs_over_the_samples_of_a_batch(
    kind: Any, batch_first: bool, places: int, per_place: int, found: int
) -> None:
    """Labels of their own for each place may come in batches with the places first."""
    torch.manual_seed(0)
    batches = [(torch.randn(12, places, 8), torch.randint(3, (12, *[places] * per_place))) for _ in range(10)]

    def loss(given: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.cross_entropy(given, labels.reshape(len(given), -1)[:, 0])

    _, raised = trained(Order(kind, batch_first), batches, loss, "softmax_dim")
    alerts = [(one.site, one.causes[0].name, one.remedies[0].code) for one in raised]
    site = "0.body" if kind is nn.GRU else "0.body.self_attn"
    assert alerts == [(site, "wrong_axis", "batch_first=True")] * found
