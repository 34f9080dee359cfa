"""Copies of modules: how they follow what they are copies of, and those that do not."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import Alert, watch
from lightning_hooks.alerts import GradientFlowReport
from lightning_hooks.diagnostics.causes.facts import Facts
from lightning_hooks.diagnostics.setup.checks import ModelSetup
from lightning_hooks.diagnostics.setup.module_rules import CopyFollows
from lightning_hooks.diagnostics.setup.outside import CopyStats
from lightning_hooks.diagnostics.setup.parameters import copies_in
from lightning_hooks.judge.diagnosis import with_causes
from tests.support.judged import judged


class Learner(nn.Module):
    """A net that comes near to its copy's output plus one, as with a target network."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))
        self.target = copy.deepcopy(self.policy)

    def forward(self, inputs: Tensor) -> Tensor:
        with torch.no_grad():
            wanted = 0.9 * self.target(inputs) + 1
        loss: Tensor = (self.policy(inputs) - wanted).square().mean()
        return loss


def nothing(net: Learner, step: int) -> None:
    """The copy is forgotten."""


def follow(net: Learner, step: int) -> None:
    """Update the copy every few steps."""
    if step % 3 == 2:
        net.target.load_state_dict(net.policy.state_dict())


def alerts_of(net: Learner, parameters: list[nn.Parameter], update: Callable[[Learner, int], None]) -> list[Alert]:
    optimizer = torch.optim.SGD(parameters, lr=0.1)
    with watch(net, optimizer, every_n_steps=1, summary=False) as monitor:
        for step in range(8):
            optimizer.zero_grad()
            loss = net(torch.randn(16, 4))
            loss.backward()
            optimizer.step()
            update(net, step)
            monitor.step(loss)
        monitor.end_window()
        assert monitor.gradients is not None
        return [alert for alert in monitor.gradients.alerts if (alert.kind, alert.site) == ("module_copy", "target")]


@pytest.mark.parametrize("frozen", [False, True])
def test_a_copy_that_nothing_updates(frozen: bool) -> None:
    torch.manual_seed(0)
    net = Learner()
    net.target.requires_grad_(not frozen)
    (alert,) = alerts_of(net, [*net.policy.parameters()], nothing)
    assert alert.severity == "info"
    assert alert.message.startswith("it has the weights that policy had when training started, and policy has changed since")


@pytest.mark.parametrize(
    ("how", "planned", "step", "severity"),
    [("drawn", 100, 50, "warning"), ("drawn", 100, 49, "info"), ("drawn", None, 50, "info"), ("zeros", 100, 50, "info"),
     ("", 100, 50, "info")],
)  # fmt: skip
def test_a_copy_with_random_weights_that_stands_still_is_a_warning(how: str, planned: int | None, step: int, severity: str) -> None:
    """What was trained before may be a reference; what is random is to follow."""
    setup = ModelSetup(copies={"teacher": CopyStats("student", 0.2, changed=False)}, made={"teacher.0": how, "teachers": "drawn"})
    (alert,) = judged(CopyFollows(), GradientFlowReport(0, step, {}, {}, 1.0, planned_steps=planned, model_setup=setup))
    assert alert.severity == severity
    assert ("the random weights" in alert.message) is (how == "drawn")


def test_a_copy_that_an_optimizer_holds_and_that_is_frozen_is_one() -> None:
    torch.manual_seed(0)
    net = Learner()
    net.target.requires_grad_(False)
    assert len(alerts_of(net, [*net.parameters()], nothing)) == 1
    assert copies_in(net.requires_grad_(True), [torch.optim.SGD(net.parameters(), 0.1)]) == {}


Update = Callable[[Learner, int], None]


def pairs(net: Learner) -> Any:
    return zip(net.target.parameters(), net.policy.parameters(), strict=True)


def average(decay: float | Callable[[int], float]) -> Update:
    def update(net: Learner, step: int) -> None:
        for mean, parameter in pairs(net):
            mean.data.lerp_(parameter.data, 1 - (decay if isinstance(decay, float) else decay(step)))

    return update


def every(steps: int) -> Update:
    def update(net: Learner, step: int) -> None:
        if step % steps == steps - 1:
            net.target.load_state_dict(net.policy.state_dict())

    return update


def wrong_sign(net: Learner, step: int) -> None:
    for mean, parameter in pairs(net):
        mean.data.add_(mean.data - parameter.data, alpha=0.01)


def reports_of(update: Update, before_the_step: bool = False, windows: int = 4) -> list[GradientFlowReport]:
    torch.manual_seed(0)
    net = Learner()
    net.target.requires_grad_(False)
    optimizer = torch.optim.Adam(net.policy.parameters(), lr=1e-3)
    with watch(net, optimizer, every_n_steps=5, batches_per_epoch=25, summary=False) as monitor:
        for step in range(25 * windows):
            optimizer.zero_grad()
            loss = net(torch.randn(16, 4))
            loss.backward()
            if before_the_step:
                update(net, step)
            optimizer.step()
            if not before_the_step:
                update(net, step)
            monitor.step(loss)
            if step % 25 == 24:
                monitor.end_window()
        return [*monitor.history["gradients"]]


def found(reports: list[GradientFlowReport]) -> list[list[tuple[str, str]]]:
    return [[(alert.severity, alert.site) for alert in report.alerts if alert.kind == "module_copy"] for report in reports]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("update", "before_the_step"),
    [(average(decay), before) for decay in (0.9, 0.99, 0.999, 0.9999) for before in (False, True)]
    + [(average(lambda step: min(0.999, (1 + step) / (10 + step))), False), (average(lambda step: 1 - 1 / (step + 2)), False)]
    + [(every(steps), before) for steps in (1, 2, 7, 25) for before in (False, True)]
    + [(every(30), False)],
)
def test_copies_that_follow(update: Update, before_the_step: bool) -> None:
    reports = reports_of(update, before_the_step)
    assert [[each for each in alerts if each[0] != "info"] for alerts in found(reports)] == [[]] * 4


@pytest.mark.parametrize("decay", [0.9999, 0.99999])
def test_the_decay_of_an_average_whose_steps_are_lost_in_rounding(decay: float) -> None:
    """What it gives up in a window is at least half of what it would if the original had been at the window's end all along."""
    update = average(decay)

    def coarse(net: Learner, step: int) -> None:
        update(net, step)
        for mean in net.target.parameters():  # values that a single step leaves as they are
            mean.data.add_(1e-9 * torch.randn(mean.shape, generator=torch.Generator().manual_seed(step)))

    (stats,) = {report.model_setup.copies["target"] for report in reports_of(coarse, windows=1)}
    assert stats.decay is not None
    assert 0.5 * (1 - decay) <= 1 - stats.decay <= 1.1 * (1 - decay)


@pytest.mark.parametrize(
    ("decay", "planned", "warned"), [(0.9999, 1000, True), (0.99999, 10_000, True), (0.9999, 1100, False), (0.99, 20, False)]
)
def test_an_average_that_hardly_follows(decay: float, planned: int, warned: bool) -> None:
    """0.9999 to the power of 1000 is 0.9048, and to that of 1100 0.8958; a few steps are a trial."""
    copies = {"average": CopyStats("net", 0.2, True, 0.9, decay)}
    report = GradientFlowReport(0, 10, {}, {}, 1.0, planned_steps=planned, model_setup=ModelSetup(copies=copies))
    alerts = judged(CopyFollows(), report)
    assert [alert.severity for alert in alerts] == ["warning"] * warned
    if warned:
        assert alerts[0].value == pytest.approx(0.0952, abs=1e-4)
        left = 0.01 ** (1 / planned)
        (cause, *_) = with_causes(alerts[0], Facts(flow=report)).causes
        assert cause.name == "average_too_slow"
        assert 1 - float(str(cause.remedies[0].to)) == pytest.approx(1 - left, rel=0.05), "the distance from 1 counts"


def test_a_copy_that_moves_away() -> None:
    reports = reports_of(wrong_sign)
    assert found(reports) == [[("warning", "target")]] * 4
    stats = reports[0].model_setup.copies["target"]
    (alert,) = [alert for alert in reports[0].alerts if alert.kind == "module_copy"]
    assert stats.toward < -0.9
    assert alert.message == (
        "it moves away from policy, of which it is a copy: the cosine of its change and of the way to policy is "
        f"{stats.toward:.2g} (limit -0.5), and the distance is {stats.distance * 100:.3g}% of the norm."
    )


def test_the_distance_is_a_statistic() -> None:
    """Of weights with few enough values all are taken, so it is exact."""
    torch.manual_seed(0)
    net = Learner()
    net.policy, net.target = nn.Linear(4, 2), nn.Linear(4, 2)
    net.target.load_state_dict(net.policy.state_dict())
    optimizer = torch.optim.SGD(net.policy.parameters(), lr=0.1)
    with watch(net, optimizer, summary=False) as monitor:
        for _ in range(3):
            optimizer.zero_grad()
            loss = net(torch.randn(16, 4))
            loss.backward()
            optimizer.step()
            monitor.step(loss)
        monitor.end_window()
        now, then = (nn.utils.parameters_to_vector(part.parameters()) for part in (net.policy, net.target))
        expected = float((now - then).detach().norm() / now.detach().norm())
        assert monitor.gradients is not None
        assert monitor.gradients.model_setup.copies["target"].distance == pytest.approx(expected, rel=1e-6)
        assert monitor.host.metrics.values["gradient_flow/target/distance"] == pytest.approx(expected, rel=1e-6)
