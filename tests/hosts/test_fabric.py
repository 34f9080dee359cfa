"""TrainingMonitor among the callbacks of a Fabric."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from lightning.fabric.loggers import CSVLogger
from torch import nn

from lightning_hooks import TrainingMonitor
from lightning_hooks.callbacks.training_monitor import MonitorsFromEnvironment
from lightning_hooks.environment import callbacks_from_environment
from lightning_hooks.hosts.fabric import FabricLoop
from tests.support.models import hook_counts


def mlp(dead: bool = False) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3))
    if dead:
        nn.init.constant_(net[0].bias, -50.0)
    return net


def new_fabric(*callbacks: Any, **options: Any) -> Fabric:
    return Fabric(accelerator="cpu", devices=1, callbacks=list(callbacks), **options)


def monitor(**arguments: Any) -> TrainingMonitor:
    return TrainingMonitor(**{"every_n_steps": 1, "summary": False, **arguments})


def train(fabric: Fabric, net: nn.Module, steps: int = 6, accumulate: int = 1) -> Any:
    model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1))
    generator = torch.Generator().manual_seed(1)
    for step in range(steps):
        for _ in range(accumulate):
            x, y = torch.randn(8, 4, generator=generator), torch.randint(0, 3, (8,), generator=generator)
            fabric.backward(nn.functional.cross_entropy(model(x), y))
        if step % 2:
            fabric.clip_gradients(model, optimizer, max_norm=0.01)
        optimizer.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            model(x)
        model.train()
    return optimizer


def is_clean(net: nn.Module) -> bool:
    return not any(hook_counts(net).values()) and torch._C._len_torch_function_stack() == 0


def test_optimizer_steps_end_batches_and_windows_count_them() -> None:
    ours, net = monitor(report_every_n_steps=3), mlp()
    fabric = new_fabric(ours)
    train(fabric, net, accumulate=2)
    assert not is_clean(net)
    fabric.call("on_train_end")
    assert is_clean(net)
    first, second = ours.history["clipping"]
    assert [(each.optimizers["0-SGD"].steps, each.optimizers["0-SGD"].clipped_steps) for each in (first, second)] == [
        (3, 1),
        (3, 2),
    ]
    assert [each.sites["0"].calls for each in ours.history["features"]] == [6, 6]
    assert fabric._callbacks[0] is ours, "another training may start"


def test_a_callback_of_the_loop_closes_epochs_and_nothing_else_is_asked_for(tmp_path: Path) -> None:
    ours, net = monitor(), mlp(dead=True)
    fabric = new_fabric(ours, loggers=CSVLogger(tmp_path))
    train(fabric, net)
    fabric.call("on_train_start")  # of the loop's own callbacks
    fabric.call("on_train_epoch_end")
    assert ours.features is not None
    fabric.call("on_train_end")
    assert "dead" in {alert.kind for alert in ours.alerts}
    assert "Dead units" in ours.verdict
    assert len(list(tmp_path.rglob("report.html"))) == 1
    assert "features/0/rms" in next(tmp_path.rglob("metrics.csv")).read_text()


def test_the_environment_adds_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LIGHTNING_HOOKS", "1")
    (added,) = callbacks_from_environment()
    assert isinstance(added, MonitorsFromEnvironment)
    net = mlp()
    fabric = new_fabric(added)
    train(fabric, net)
    fabric.call("on_train_end")
    assert added.features.sites["0"].calls > 0
    (again,) = callbacks_from_environment()
    own, net = monitor(), mlp()
    fabric = new_fabric(own, again)
    train(fabric, net)
    kinds = [type(callback) for callback in fabric._callbacks]
    assert kinds[0] is FabricLoop
    assert MonitorsFromEnvironment not in kinds, "none is doubled"
    fabric._callbacks[0].on_train_end()
    assert own.features is not None
    assert again.features is None


def test_a_resumed_training_reports_as_one_that_went_on(tmp_path: Path) -> None:
    def trained(monitor: TrainingMonitor, net: nn.Module, fabric: Fabric, first: int, last: int, state: Any = None) -> Any:
        model, optimizer = fabric.setup(net, torch.optim.SGD(net.parameters(), lr=0.1, momentum=0.9))
        whole = {"model": model, "optimizer": optimizer, "monitor": monitor}
        if state is not None:
            fabric.load(state, whole)
        generator = torch.Generator().manual_seed(1)
        for x in [torch.randn(8, 4, generator=generator) for _ in range(last)][first:]:
            fabric.backward(model(x).square().mean())
            optimizer.step()
            optimizer.zero_grad()
        return whole

    whole = monitor(report_every_n_steps=4)
    trained(whole, mlp(), new_fabric(whole), 0, 8)
    before = monitor(report_every_n_steps=4)
    fabric = new_fabric(before)
    fabric.save(tmp_path / "state.ckpt", trained(before, mlp(), fabric, 0, 6))
    after = monitor(report_every_n_steps=4)
    trained(after, mlp(), new_fabric(after), 6, 8, tmp_path / "state.ckpt")
    assert after.features.sites == whole.features.sites
    assert (after.features.epoch, after.features.step) == (whole.features.epoch, whole.features.step)
    assert after.gradients.loss.mean == whole.gradients.loss.mean
    assert after.gradients.loss.count == 4
