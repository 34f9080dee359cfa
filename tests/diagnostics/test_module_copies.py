"""Copies of modules that stand still while the first trains."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import Alert, watch


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
        return [alert for alert in monitor.gradients.alerts if (alert.kind, alert.site) == ("not_optimized", "target")]


@pytest.mark.parametrize("frozen", [False, True])
def test_a_copy_that_nothing_updates(frozen: bool) -> None:
    torch.manual_seed(0)
    net = Learner()
    net.target.requires_grad_(not frozen)
    (alert,) = alerts_of(net, [*net.policy.parameters()], nothing)
    assert alert.severity == "info"
    assert alert.message.startswith("it has the weights that policy had when training started, and policy has changed since")


def test_numbers_that_are_complex() -> None:
    torch.manual_seed(0)
    net = Learner()
    for part in (net.policy, net.target):
        part.register_parameter("phase", nn.Parameter(torch.ones(3, dtype=torch.complex64)))
    assert len(alerts_of(net, [*net.policy.parameters()], nothing)) == 1


def test_a_copy_that_follows() -> None:
    torch.manual_seed(0)
    net = Learner()
    assert not alerts_of(net, [*net.policy.parameters()], follow)


def test_a_copy_that_an_optimizer_holds() -> None:
    torch.manual_seed(0)
    net = Learner()
    assert not alerts_of(net, [*net.parameters()], nothing)


def test_another_net_of_that_form() -> None:
    torch.manual_seed(0)
    net = Learner()
    with torch.no_grad():
        next(net.target.parameters()).mul_(1.5)
    assert not alerts_of(net, [*net.policy.parameters()], nothing)


def back(net: Learner, step: int) -> None:
    """What is learned is lost again."""
    net.policy.load_state_dict(net.target.state_dict())


def test_a_copy_of_what_does_not_change() -> None:
    torch.manual_seed(0)
    net = Learner()
    assert not alerts_of(net, [*net.policy.parameters()], back)
