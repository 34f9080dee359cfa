"""A session in plain torch: driven by a loop of one's own, without Lightning."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks.declare.collector import Collector
from lightning_hooks.diagnostics.clipping_events.collector import ClipCollector
from lightning_hooks.diagnostics.features.collector import FeatureCollector
from lightning_hooks.diagnostics.gradients.collector import GradientCollector
from lightning_hooks.hosts.plain import PlainHost, setup_of
from lightning_hooks.session.member import Member
from lightning_hooks.session.session import Session
from lightning_hooks.session.settings import Settings
from tests.support.reference import assert_stats, reference_stats


class Loop(PlainHost):
    """A training loop of some lines."""

    def __init__(self, model: nn.Module) -> None:
        self.net = model
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        super().__init__(model, [self.optimizer], setup=setup_of(model, batches_per_epoch=100.0))

    def train(self, session: Session, batches: Sequence[Tensor], clip: float = 1e9) -> None:
        """One epoch."""
        for index, batch in enumerate(batches):
            session.batch_start(batch, index)
            loss = self.net(batch).square().mean()
            session.before_backward(loss)
            loss.backward()
            session.after_backward()
            session.before_optimizer_step(self.optimizer)
            nn.utils.clip_grad_norm_(self.net.parameters(), clip)
            self.optimizer.step()
            session.probe.before_zero_grad(self.optimizer)
            self.optimizer.zero_grad()
            self.global_step += 1
            session.batch_end()
        session.epoch_end()
        self.epoch += 1


def net() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2))


def members(**settings: Any) -> list[Member]:
    kinds: list[type[Collector[Any]]] = [FeatureCollector, GradientCollector, ClipCollector]
    return [Member(kind.__name__, kind, Settings(every_n_steps=1, summary=False, **settings)) for kind in kinds]


def test_a_loop_of_ones_own_has_the_numbers_of_a_slow_reference() -> None:
    torch.manual_seed(1)
    batches = [torch.randn(16, 4) for _ in range(5)]
    loop = Loop(net())
    session, ours = Session(loop), members()
    for member in ours:
        session.join(member)
    loop.train(session, batches, clip=0.05)
    session.close()

    model, outputs, norms = net(), [], []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for batch in batches:
        optimizer.zero_grad()
        hidden = model[0](batch)
        outputs.append(hidden.detach().double().numpy())
        model[2](model[1](hidden)).square().mean().backward()
        norms.append(float(nn.utils.clip_grad_norm_(model.parameters(), 0.05)))
        optimizer.step()
    features, _, clips = (member.report for member in ours)
    assert_stats(features.sites["0"], reference_stats(outputs), rel=1e-5)
    assert clips.optimizers["0-SGD"].norm_before == pytest.approx(sum(norms) / len(norms), rel=1e-5)
    assert clips.optimizers["0-SGD"].norm_after == pytest.approx(0.05, rel=1e-3)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), loop.net.parameters(), strict=True))
    assert loop.metrics.values["features/0/mean"] == features.sites["0"].mean
    assert "gradient_flow/total_norm" in loop.metrics.values


def test_each_event_reaches_a_collector_once() -> None:
    calls: list[str] = []
    events = (
        "batch_start",
        "before_backward",
        "after_backward",
        "batch_end",
        "on_gradients",
        "on_update",
        "on_taken",
        "window_end",
    )

    class Counting(GradientCollector):
        pass

    for event in events:

        def count(self: Any, *args: Any, event: str = event) -> None:
            calls.append(event)
            getattr(GradientCollector, event)(self, *args)

        setattr(Counting, event, count)
    loop = Loop(net())
    session = Session(loop)
    for member in [Member("Counting", Counting, Settings(every_n_steps=1, check_every_n_steps=1)), *members()]:
        session.join(member)
    loop.train(session, [torch.randn(4, 4)] * 2)
    assert sorted(calls) == sorted([*events[:-1], *events[:-1], "window_end"])


def test_a_member_that_cannot_join_leaves_nothing_and_the_others_stay() -> None:
    loop = Loop(net())
    session = Session(loop)
    first = members()[0]
    session.join(first)
    with pytest.raises(ValueError, match="encoder"):
        session.join(Member("Second", GradientCollector, Settings(modules="encoder.*")))
    assert session.members == [first]
    session.batch_start(None, 0)
    assert [len(module._forward_hooks) for module in loop.net] == [1, 1, 1]
    assert not loop.optimizer._optimizer_step_pre_hooks
    session.close("stopped")


def test_hooks_are_in_place_in_training_batches_only() -> None:
    loop = Loop(net())
    session = Session(loop)
    session.join(members()[0])
    count = lambda: sum(len(module._forward_hooks) for module in loop.net)  # noqa: E731
    assert count() == 0
    session.batch_start(None, 0)
    assert count() == 3
    session.batch_end()
    assert count() == 3
    session.validation_start()
    assert count() == 0
    session.batch_start(None, 1)
    assert count() == 3
    session.close("stopped")


def test_stop_ends_the_loop() -> None:
    loop = Loop(net())
    nn.init.constant_(loop.net[0].bias, -20.0)
    session = Session(loop)
    session.join(Member("Features", FeatureCollector, Settings(every_n_steps=1, on_alert="stop")))
    loop.train(session, [torch.randn(16, 4)] * 3)
    assert loop.should_stop


@pytest.mark.slow
def test_session_and_collectors_import_no_lightning() -> None:
    code = (
        "import sys, lightning_hooks.session.session, lightning_hooks.diagnostics.ranges;"
        "import lightning_hooks.diagnostics.clipping_events.collector;"
        "assert not {'lightning', 'pytorch_lightning', 'lightning_fabric'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
