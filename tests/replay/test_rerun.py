"""A step that is run again: what it gives, and that everything is as before."""

from __future__ import annotations

import random
from array import array
from collections import Counter, deque
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from lightning_hooks.hooks.generators import GeneratorWatch
from lightning_hooks.replay.rerun import StepRerun
from lightning_hooks.replay.state import NotRestoredError

CPU = torch.device("cpu")


class Meter:
    def __init__(self) -> None:
        self.total, self.values = 0.0, []


class Slots:
    __slots__ = ("total",)

    def __init__(self) -> None:
        self.total = 0.0


class Net(nn.Module):
    """A step that changes everything a step can change."""

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.norm, self.drop = nn.Linear(3, 3), nn.BatchNorm1d(3), nn.Dropout(0.5)
        self.teacher = nn.Linear(3, 3).requires_grad_(False)
        self.register_buffer("queue", torch.zeros(5))
        self.count, self.seen, self.kinds, self.last = 0, [], Counter(), deque(maxlen=2)
        self.members, self.table, self.meter, self.plain = {1}, np.zeros(3), Meter(), torch.zeros(2)
        self.slots, self.numbers, self.growing = Slots(), array("d", [1.0]), torch.zeros(1)
        self.order = set(range(1000))
        self.order -= self.order - {1, 8}  # in a new set 8 is the first
        self.own = random.Random(3)
        self.dice = np.random.default_rng(4)
        self.generator = torch.Generator().manual_seed(5)
        self.hidden = [nn.Linear(1, 1)]
        self.late: Any = None

    def step(self, batch: Tensor) -> Tensor:
        self.count += 1
        self.seen.append(self.count)
        self.kinds["a"] += 1
        self.last.append(batch)
        self.members.add(self.count)
        self.table += 1
        self.meter.total += 1.0
        self.meter.values.append(2)
        self.plain.add_(1)
        self.slots.total += 1.0
        self.numbers.append(2.0)
        self.growing.data = torch.cat([self.growing, self.plain[:1]])
        self.late = batch
        self.queue[0] = self.own.random() + self.dice.random() + random.random() + np.random.rand()  # noqa: NPY002  as users do
        self.teacher.weight.data.mul_(0.9)
        self.hidden[0].weight.data.add_(torch.rand(1, generator=self.generator))
        self.layer.bias.requires_grad_(False)
        self.layer.weight.grad = None
        return {"loss": self.drop(self.norm(self.layer(batch))).square().sum()}  # type: ignore[return-value]


def everything(net: Net) -> Any:
    plain = (net.count, net.seen, net.kinds, list(net.last), net.members, net.table.tolist(), vars(net.meter), net.late)
    plain += net.slots.total, net.numbers, list(net.order)  # type: ignore[assignment]
    tensors = [*net.state_dict().values(), net.plain, net.growing, net.hidden[0].weight, net.layer.weight.grad]
    generators = net.own.getstate(), net.dice.bit_generator.state, net.generator.get_state().tolist()
    rest = random.getstate(), repr(np.random.get_state()), torch.get_rng_state().tolist(), net.layer.bias.requires_grad  # noqa: NPY002  as users do
    return repr((plain, [tensor.tolist() for tensor in tensors], generators, rest))


def test_everything_is_as_before() -> None:
    torch.manual_seed(0)
    net, batch = Net(), torch.randn(4, 3)
    net.layer.weight.grad = torch.ones(3, 3)
    gradient, before = net.layer.weight.grad, everything(net)
    with StepRerun(net, net.step, CPU) as again:
        first = again.run(batch, backward=True)
        second = again.run(batch, backward=True)
        assert everything(net) == before
    assert everything(net) == before
    assert net.layer.weight.grad is gradient
    assert first.error is None
    assert torch.equal(first.loss, second.loss)
    states = GeneratorWatch(CPU).read()
    expected = net.step(batch)["loss"]
    assert torch.equal(first.loss, expected.detach())
    torch.manual_seed(1)
    with StepRerun(net, net.step, CPU) as again:
        assert again.run(batch, states).error is None


def test_the_gradients_are_those_of_backward() -> None:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 4), nn.Tanh(), nn.Dropout(0.5), nn.Linear(4, 1))
    batch, states = torch.randn(5, 3), GeneratorWatch(CPU).read()
    with StepRerun(net, lambda x: net(x).mean(), CPU) as again:
        outcome = again.run(batch, states, backward=True, scale=0.5)
    (net(batch).mean() * 0.5).backward()
    assert outcome.gradients is not None
    for name, parameter in net.named_parameters():
        assert torch.equal(outcome.gradients[name], parameter.grad)


def test_an_error_of_the_step_is_returned() -> None:
    net = nn.Linear(2, 2)

    def step(batch: Tensor) -> Tensor:
        raise IndexError("no such row")

    with StepRerun(net, step, CPU) as again:
        assert isinstance(again.run(torch.zeros(1)).error, IndexError)
        assert not again.run(torch.zeros(1)).finite


def test_what_cannot_be_put_back_is_named_before_anything_runs() -> None:
    net = Net()
    net.source = iter([1, 2])  # type: ignore[assignment]
    with pytest.raises(NotRestoredError, match=r"model\.source is a list_iterator"), StepRerun(net, net.step, CPU):
        pytest.fail("entered")


def test_a_change_that_is_not_put_back_is_found() -> None:
    net = nn.Linear(2, 2)
    net.register_buffer("seen", torch.eye(2).to_sparse())

    def step(batch: Tensor) -> Tensor:
        net.seen.mul_(2)
        return net(batch).sum()

    with pytest.raises(NotRestoredError, match=r"changed model\._buffers\['seen'\]"), StepRerun(net, step, CPU) as again:
        again.run(torch.zeros(1, 2))
