"""The rules of learning, on reports that were made up; and on trainings."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import TrainingMonitor
from lightning_hooks.alerts import (
    Alert,
    GradientFlowReport,
    LearningReport,
    LossReport,
    NoProgress,
    OptimizerStats,
    ParameterLearning,
    ParameterSetup,
    PartNotLearning,
    StepTooLong,
    StepTooShort,
)
from lightning_hooks.diagnostics.gradients.tables import ParameterGradientStats
from tests.alerts.conftest import MODULE
from tests.support.models import Classifier, loader, trainer

LOSS = LossReport(100, 2.0, 0.1, 1.9, 2.1, 2.0, recent=(2.01, 1.99) * 32, start=2.05, lowest=1.95)
STEP = LearningReport(steps=10, reruns=6, gain=0.08, step_ratio=0.9, progress=0.3, coherence=0.1, over_constant=None)


def report(learning: LearningReport | None, step: int = 1000, **fields: Any) -> GradientFlowReport:
    return GradientFlowReport(0, step, {}, {}, 1.0, loss=LOSS, learning=learning, **fields)


@pytest.mark.parametrize("ratio", [0.09, 0.0, -3.0])
def test_steps_are_too_long(ratio: float) -> None:
    (alert,) = StepTooLong()(report(replace(STEP, step_ratio=ratio)))
    assert (alert.kind, alert.site, alert.value, alert.severity) == ("step_too_long", "loss", ratio, "info")
    assert alert.advice[0] == f"Divide the learning rate by {2 * (1 - ratio):.2g}, or by more"
    assert ("they raise its loss" in alert.message) is (ratio < 0)


@pytest.mark.parametrize("fields", [{"step_ratio": 0.1}, {"step_ratio": None}, {"step_ratio": 0.0, "reruns": 3}])
def test_steps_are_not_too_long(fields: dict[str, Any]) -> None:
    assert not [*StepTooLong()(report(replace(STEP, **fields)))]
    assert not [*StepTooLong()(report(None))]


def course(*means: float, ratio: float | None = None, size: float = 0.2, over: float | None = None) -> GradientFlowReport:
    """The last of windows whose loss has these means and began with 2; in the first a step changed weights by ``size``."""
    held = ParameterSetup(64, 2, True, True, ("0-SGD",), 10, 1.0, 1.0)
    windows = []
    for place, mean in enumerate(means):
        largest = size if not place else 1e-4
        moved = ParameterGradientStats(4, 1.0, 1.0, 0.1, 0.0, 0, 0, largest / 2, update_ratio_max=largest)
        loss = LossReport(8, mean, 0.1, 1.9, 2.1, mean, recent=(2.0, *[mean] * (8 * place + 7)), start=3.0)
        given = replace(STEP, step_ratio=ratio, over_constant=over)
        known = {"parameters": {"a.weight": moved, "b.weight": moved}, "setups": {"a.weight": held, "b.weight": held}}
        windows.append(replace(report(given, step=8 * place + 8), loss=loss, **known))
    return windows[-1].after(windows[:-1])


def test_long_steps_that_ruin_the_loss_are_a_warning() -> None:
    (alert,) = StepTooLong()(course(36.0, ratio=-0.031))
    assert (alert.severity, alert.value, alert.threshold) == ("warning", -0.031, 0.1)
    assert alert.message == (
        "steps gain -3.1% of what their gradients predict on their own batch (limit 10%; the best length gains 50%): they raise "
        "its loss, and the loss has been 18 times that before the first step."
    )
    (alert,) = StepTooLong()(course(2.9, ratio=0.05, over=17.0))  # it began far above that of a constant
    assert alert.severity == "info"
    assert not [*StepTooLong()(course(2.1, over=17.0))]


@pytest.mark.parametrize(("ratio", "size", "found"), [(None, 0.2, True), (0.6, 0.2, True), (None, 0.09, False)])
def test_steps_that_nearly_replace_weights_and_ruin_the_loss(ratio: float | None, size: float, found: bool) -> None:
    """Also where nothing says what they gain, as by default."""
    alerts = [*StepTooLong()(course(36.0, 3.2, ratio=ratio, size=size))]
    assert [(alert.severity, alert.value, alert.threshold) for alert in alerts] == [("warning", 18.0, 1.5)] * found
    assert not found or alerts[0].message == (
        "the loss has been 18 times that before the first step (limit 1.5 times), and a step changed weights by up to 20% of their "
        "size (median of all weights; limit 10%)."
    )


@pytest.mark.parametrize(
    ("means", "severities"),
    [
        ((36.0, 3.1), ["warning"]),
        ((36.0, 2.9), ["info"]),  # it recovers
        ((36.0, 2.9, 2.9), []),
        ((36.0,), ["info"]),
        ((2.1e4,), ["warning"]),
        ((1.9e4,), ["info"]),
        ((2.9,), []),
        ((-3.0,), []),
    ],
)
def test_a_loss_that_stays_ruined_is_a_warning(means: tuple[float, ...], severities: list[str]) -> None:
    assert [alert.severity for alert in StepTooLong()(course(*means))] == severities
    measured = ["warning"] if severities else ["info"]
    assert [alert.severity for alert in StepTooLong()(course(*means, ratio=0.05))] == measured


@pytest.mark.parametrize(
    ("first", "last", "found"),
    [
        ((8, 8), (8, 8), True),
        ((16, 16), (16, 16), True),
        ((12, 12), (16, 16), False),
        ((16, 24), (24, 24), False),
        ((6, 8), (7, 8), True),  # a module that is left out at times
        ((15, 15), (16, 16), True),  # two ranks, one of which had a batch less
    ],
)
def test_a_loss_is_not_compared_with_the_first_one_if_the_number_of_calls_in_a_batch_varies(
    first: tuple[int, int], last: tuple[int, int], found: bool
) -> None:
    """As that of a sum over episodes, which become longer the better an agent is. A module that is left out says nothing."""
    late = course(36.0, 3.1)
    windows = [
        replace(
            window, sampled_batches=8, modules={str(place): replace(MODULE, calls=calls) for place, calls in enumerate(numbers)}
        )
        for window, numbers in ((late.first, first), (late, last))
    ]
    alerts = [*StepTooLong()(windows[1].after(windows[:1]))]
    assert any(alert.severity == "warning" for alert in alerts) == found


@pytest.mark.parametrize("learning", [True, "auto"])
@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adam])
def test_a_rate_that_is_far_too_high_is_one_warning_that_names_it(learning: Any, optimizer: Any) -> None:
    found: list[Alert] = []
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 64), nn.Tanh(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    model = Classifier(net)
    model.configure_optimizers = lambda: optimizer(net.parameters(), 100.0)  # type: ignore[method-assign]
    monitor = TrainingMonitor(summary=False, report_dir=None, learning=learning, on_alert=found.append)
    trainer([monitor], max_epochs=1).fit(model, loader(n=64))
    assert [alert.kind for alert in found if alert.severity != "info"] == ["step_too_long"]
    (alert,) = (alert for alert in found if alert.severity != "info")
    assert alert.causes[0].name == "rate_too_high"
    assert "The learning rate is 100;" in alert.diagnosis
    assert "nothing shows that it does harm" not in " ".join(map(str, found))


@pytest.mark.parametrize(("size", "found"), [(200.0, ["no_progress"]), (1.0, [])])
def test_targets_in_hundreds_that_outputs_do_not_come_near(size: float, found: list[str]) -> None:
    """The steps of Adam do not grow with the loss; the targets as the remedy makes them are learned."""

    class Regression(LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))

        def training_step(self, batch: Any, batch_idx: int) -> Any:
            return nn.functional.mse_loss(self.net(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            return torch.optim.Adam(self.parameters(), 2e-3)

    torch.manual_seed(0)
    x = torch.randn(512, 8)
    data = DataLoader(TensorDataset(x, size * (0.8 + 0.3 * x[:, :1].tanh())), 16, shuffle=True)
    alerts: list[Alert] = []
    trainer([TrainingMonitor(summary=False, report_dir=None, on_alert=alerts.append)], max_epochs=8).fit(Regression(), data)
    serious = [alert for alert in alerts if alert.severity != "info"]
    assert [alert.kind for alert in serious] == found
    for alert in serious:
        assert alert.causes[0].name == "large_targets"
        assert alert.remedies[0].text == "Multiply targets by 0.005: target = target / 200"


SHORT = replace(STEP, step_ratio=0.9999, coherence=0.97, gain=1.2e-4)


def test_steps_are_too_short_where_all_three_say_so() -> None:
    (alert,) = StepTooShort()(report(SHORT))
    assert (alert.kind, alert.severity) == ("step_too_short", "info")
    assert alert.advice == ("Multiply the learning rate by up to 1e+02, in steps of ten",)
    for fields in ({"step_ratio": 0.98}, {"coherence": 0.12}, {"gain": 8e-3}, {"gain": -1e-4}, {"coherence": None}, {"reruns": 4}):
        assert not [*StepTooShort()(report(replace(SHORT, **fields)))]


def test_no_progress() -> None:
    (alert,) = NoProgress()(report(replace(STEP, progress=0.001)))
    assert "lowers its own batch's loss by 4%, and new batches get 0.1% of that (limit 2%)" in alert.message
    (alert,) = NoProgress()(report(replace(STEP, over_constant=1.01)))
    assert alert.message == "the loss is 1.01 of that of the best constant answer (limit 0.98) and stands still."
    for fields in ({}, {"progress": 0.1}, {"progress": 0.001, "over_constant": 0.5}, {"progress": 0.001, "gain": 1e-3}):
        assert not [*NoProgress()(report(replace(STEP, **fields)))]
    for over in (0.975, 1.04):  # it has learned something, or is on its way
        assert not [*NoProgress()(report(replace(STEP, over_constant=over)))]
    far = [[*NoProgress()(report(replace(STEP, over_constant=1.3), planned_steps=planned))] for planned in (2000, 2001)]
    assert [[alert.severity for alert in found] for found in far] == [["warning"], []]  # nothing will come of it; or it may
    assert not [*NoProgress()(report(replace(STEP, progress=0.001), step=39))]
    fallen = replace(report(replace(STEP, progress=0.001)), loss=replace(LOSS, lowest=1.0))
    assert not [*NoProgress()(fallen)]


def parts(**shares: float) -> GradientFlowReport:
    parameters = {f"{name}.0.weight": ParameterLearning(10, share, 0.0, share) for name, share in shares.items()}
    modules = {f"{name}{deeper}": share for name, share in shares.items() for deeper in ("", ".0")}
    learning = replace(STEP, predicted_gain=0.1, parameters=parameters, modules=modules)
    return report(learning, setups={name: ParameterSetup(100, 2, True, True) for name in parameters})


def test_a_part_that_brings_nothing_is_named_once() -> None:
    (alert,) = PartNotLearning()(parts(head=0.9, body=0.09999, stem=1e-5))
    assert (alert.site, alert.severity) == ("stem", "info")
    assert alert.message.startswith("it holds 33.3% of the parameters, and 0.001% of the predicted fall of the loss comes from it")
    assert not [*PartNotLearning()(parts(head=0.9, body=0.09, stem=0.01))]
    assert not [*PartNotLearning(size=0.5)(parts(head=0.9, body=0.09999, stem=1e-5))]
    unsure = parts(head=0.9, stem=1e-5)
    assert unsure.learning is not None
    unsure.learning.parameters["stem.0.weight"] = ParameterLearning(10, 1e-5, 1e-3, 1e-5)
    assert not [*PartNotLearning()(unsure)]


def test_a_loss_that_was_at_the_level_of_a_constant_for_half_of_the_training() -> None:
    falls = replace(LOSS, recent=tuple(2.1 - 0.002 * step for step in range(64)))  # by what is added to the distance

    def found(levels: tuple[float, ...], begun: int = 100, every: int = 50, **fields: Any) -> list[Any]:
        given = [
            replace(report(replace(STEP, over_constant=level), step=begun + every * place, **fields), loss=falls)
            for place, level in enumerate(levels)
        ]
        return [*NoProgress()(given[-1].after(given[:-1]))]

    (alert,) = found((1.3, 1.03, 1.02, 1.01, 1.012), begun=50)
    assert alert.message == (
        "the loss is 1.02 of that of the best constant answer (limit 0.98), and has been for 200 of 250 steps."
    )
    assert alert.severity == "warning"
    (alert,) = found((1.02, 1.02), planned_steps=1501)
    assert alert.severity == "info"
    for levels in ((1.03, 1.02), (1.05, 1.04), (0.97, 0.97), (1.02, 1.1, 1.02)):  # it falls, is above, is below, was above
        assert not found(levels)
    assert not found((1.02, 1.02), begun=200)  # for less than half of the training
    assert not found((1.02, 1.02), begun=49, every=49)  # a short one
    assert not found((1.02, 1.02), loss_sign=1)  # nothing is added: it is the distance that falls, steadily
    falls = replace(falls, optimized=False)  # manual optimization: the level of the loss that the model calls is known all the same
    assert len(found((1.02, 1.02), optimizers={"0-Adam": OptimizerStats()})) == 1
    assert not found((1.02, 1.02), optimizers=dict.fromkeys(("0-Adam", "1-Adam"), OptimizerStats()))  # a game may stay there


@pytest.mark.parametrize(
    ("planned", "fields", "severity"),
    [
        (None, {"over_constant": 1.01}, "warning"),
        (10_000, {"over_constant": 1.01}, "warning"),
        (10_001, {"over_constant": 1.01}, "info"),  # a long training has only begun
        (None, {"progress": 0.001}, "info"),  # no level to compare with
    ],
)
def test_a_loss_at_the_level_of_a_constant_is_a_warning_once_training_should_be_past_it(
    planned: int | None, fields: dict[str, Any], severity: str
) -> None:
    (alert,) = NoProgress()(report(replace(STEP, **fields), planned_steps=planned))
    assert alert.severity == severity


@pytest.mark.parametrize(
    ("latest", "step", "planned", "fields", "found"),
    [
        (3.2, 500, 1000, {}, True),
        (2.9, 500, 1000, {}, False),  # it may get there
        (3.2, 499, 1000, {}, False),
        (3.2, 500, None, {}, False),
        (3.2, 500, 1000, {"loss_sign": 0}, False),  # something is added to it
    ],
)
def test_a_loss_far_above_that_of_a_constant_when_half_of_the_steps_are_taken(
    latest: float, step: int, planned: int | None, fields: dict[str, Any], found: bool
) -> None:
    loss = replace(LOSS, recent=(latest,) * 32, mean=9.0)
    given = report(replace(STEP, over_constant=4.5, constant_loss=2.0), step=step, planned_steps=planned)
    given = replace(given, **{"loss": loss, "loss_sign": 1, **fields})
    spike = replace(loss, recent=(1.0,) * 17 + (99.0,) * 15)
    assert not [*NoProgress()(replace(given, loss=spike))]
    alerts = [*NoProgress()(given)]
    assert [alert.message for alert in alerts] == [
        "the loss is 1.6 times that of the best constant answer (limit 1.5) after 500 of 1000 steps."
    ] * found


@pytest.mark.parametrize(
    ("step", "planned", "slope", "found"),
    [
        (750, 1000, 0.0, True),
        (749, 1000, 0.0, False),
        (100, 120, 0.0, True),
        (99, 120, 0.0, False),  # training may have just begun
        (750, 1000, -0.005, False),  # it falls, by 4 % from a quarter of these losses to the next
    ],
)
def test_a_loss_that_is_no_better_than_a_constant_when_most_steps_are_taken(
    step: int, planned: int, slope: float, found: bool
) -> None:
    """Its batches are too unlike to say that it stands still."""
    recent = tuple(2.02 + 0.5 * (-1) ** place + slope * (place - 47.5) for place in range(64))
    given = report(replace(STEP, over_constant=1.01, constant_loss=2.0), step=step, planned_steps=planned)
    alerts = [*NoProgress()(replace(given, loss=replace(LOSS, recent=recent), loss_sign=1))]
    assert [alert.message for alert in alerts] == [
        f"the loss is 1.01 times that of the best constant answer (limit 0.98) after {step} of {planned} steps."
    ] * found


@pytest.mark.parametrize(
    ("recent", "found"),
    [
        ((2.0,) * 64, True),
        ((2.2,) * 16 + (2.0,) * 48, True),  # down to the level of a constant, and no further
        ((2.0,) * 32 + (1.93,) * 16 + (2.0,) * 16, True),
        ((2.1,) * 32 + (1.9,) * 32, False),  # it falls
        ((1.9,) * 32 + (2.1,) * 32, False),  # it rises
        ((2.5, 1.5) * 32, False),  # nobody can tell
        ((2.0,) * 39, False),
        ((), False),
    ],
)
def test_a_loss_that_changes_does_not_stand_still(recent: tuple[float, ...], found: bool) -> None:
    given = replace(report(replace(STEP, over_constant=1.0)), loss=replace(LOSS, recent=recent))
    assert bool([*NoProgress()(given)]) is found
