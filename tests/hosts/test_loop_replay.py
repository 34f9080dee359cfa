"""A bad step is run again in every loop: module, operation, line and samples, and a training that is the same to the bit."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.fabric import Fabric
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

from lightning_hooks import watch
from tests.hosts.test_watch import is_clean

BAD, SIZE, BATCH = 45, 64, 8


class Samples(Dataset[Any]):
    """Samples as mappings, of which one is bad where a test says so."""

    def __init__(self, fault: str) -> None:
        generator = torch.Generator().manual_seed(3)
        self.inputs, self.labels = torch.rand(SIZE, 4, generator=generator) + 0.1, torch.rand(SIZE, 1, generator=generator) + 0.5
        if fault == "pixel":
            self.inputs[BAD, 2] = torch.nan
        elif fault == "log":
            self.labels[BAD] = 0.0

    def __len__(self) -> int:
        return SIZE

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"inputs": self.inputs[index], "labels": self.labels[index]}


class Net(nn.Module):
    """With running statistics and with random numbers in it."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        random.seed(0)
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.2))
        self.head, self.calls = nn.Linear(8, 1), 0

    def forward(self, inputs: Tensor, labels: Tensor | None = None) -> Any:
        self.calls += 1
        found = self.head(self.body(inputs * (1 + 0.01 * random.random())))
        return found if labels is None else {"loss": distance(found, labels), "scores": found}


def distance(found: Tensor, labels: Tensor) -> Tensor:
    return (found - torch.log(labels)).square().mean()


def loader(fault: str, workers: int = 0) -> DataLoader[Any]:
    persistent = {"num_workers": workers, "persistent_workers": True} if workers else {}
    return DataLoader(Samples(fault), BATCH, shuffle=True, generator=torch.Generator().manual_seed(3), **persistent)


def loss_of(model: nn.Module) -> Callable[[Any], Tensor]:
    def loss_function(batch: Any) -> Tensor:
        return distance(model(batch["inputs"]), batch["labels"])

    return loss_function


def adam(net: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(net.parameters(), lr=1e-3)


Left = tuple[Any, ...]


def left_by(net: Any, losses: list[float], optimizer: Any) -> Left:
    """All that a training leaves behind."""
    state = [{name: repr(value) for name, value in entry.items()} for entry in optimizer.state.values()]
    weights = repr([value.tolist() for value in net.state_dict().values()])
    return weights, repr(losses), state, torch.get_rng_state().tolist(), random.getstate(), net.calls


def in_plain_pytorch(fault: str, folder: Path | None, on: bool = True, workers: int = 0, **arguments: Any) -> tuple[Any, Left]:
    net = Net()
    optimizer, losses, data = adam(net), [], loader(fault, workers)
    with watch(net, optimizer, loss_function=loss_of(net), log_dir=folder, summary=False, **arguments) as monitor:
        for batch in monitor.batches(data):
            loss = monitor.loss(batch)
            loss.backward()
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            monitor.step(loss)
            losses.append(loss.item())
    assert is_clean(net, optimizer)
    assert "_get_iterator" not in vars(data)
    return monitor, left_by(net, losses, optimizer)


def in_plain_pytorch_alone(fault: str) -> Left:
    net = Net()
    optimizer, losses = adam(net), []
    for batch in loader(fault):
        loss = loss_of(net)(batch)
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return left_by(net, losses, optimizer)


def in_fabric(fault: str, folder: Path | None, **arguments: Any) -> tuple[Any, Left]:
    fabric = Fabric(accelerator="cpu", devices=1)
    net = Net()
    model, optimizer = fabric.setup(net, adam(net))
    data, losses = fabric.setup_dataloaders(loader(fault)), []
    with watch(model, optimizer, loss_function=loss_of(model), log_dir=folder, summary=False, **arguments) as monitor:
        for batch in monitor.batches(data):
            loss = monitor.loss(batch)
            fabric.backward(loss)
            nn.utils.clip_grad_norm_(net.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            monitor.step(loss)
            losses.append(loss.item())
    assert is_clean(net, optimizer.optimizer)
    return monitor, left_by(net, losses, optimizer.optimizer)


def in_accelerate(fault: str, folder: Path | None, **arguments: Any) -> tuple[Any, Left]:
    accelerate = pytest.importorskip("accelerate")
    from lightning_hooks.hosts.accelerate import watch as watch_accelerated

    accelerator = accelerate.Accelerator(cpu=True)
    net = Net()
    plain, losses = adam(net), []
    model, optimizer, data = accelerator.prepare(net, plain, loader(fault))
    function = loss_of(model)
    with watch_accelerated(accelerator, model, optimizer, loss_function=function, log_dir=folder, summary=False) as monitor:
        for batch in monitor.batches(data):
            loss = monitor.loss(batch)
            accelerator.backward(loss)
            accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
            monitor.step(loss)
            losses.append(loss.item())
    assert is_clean(net, plain)
    return monitor, left_by(net, losses, plain)


LOOPS: dict[str, Callable[..., tuple[Any, Left]]] = {"plain": in_plain_pytorch, "fabric": in_fabric, "accelerate": in_accelerate}


def first(monitor: Any) -> Any:
    return next(alert for alert in monitor.alerts if "nonfinite" in alert.kind and not alert.cause)


@pytest.mark.parametrize("name", list(LOOPS))
@pytest.mark.parametrize(
    ("fault", "said"),
    [
        ("pixel", "batch['inputs'] has NaN in it. The first operation with it is mul in "),
        ("log", "log of 0 gives -inf in "),
    ],
)
def test_a_bad_step_is_named_and_the_training_is_the_same(name: str, fault: str, said: str, tmp_path: Path) -> None:
    expected = in_plain_pytorch_alone(fault)
    monitor, left = LOOPS[name](fault, tmp_path)
    assert left[1:] == expected[1:], "losses, optimizer, generators, attributes"
    assert left == expected
    alert = first(monitor)
    assert alert.seen.startswith(said)
    assert "test_loop_replay.py:" in alert.seen
    assert alert.samples == (BAD,)
    assert not any("to the bit" in text for text in alert.causes[0].evidence_for)
    [capsule] = (tmp_path / "lightning_hooks" / "capsules").iterdir()
    assert json.loads((capsule / "capsule.json").read_text())["bad_samples"] == [BAD]


def in_hugging_faces_trainer(fault: str, folder: Path, on: bool = True, **options: Any) -> tuple[Any, Left]:
    pytest.importorskip("accelerate")
    transformers = pytest.importorskip("transformers")
    from lightning_hooks.hosts.transformers import MonitorCallback

    class Unsorted(transformers.Trainer):
        def get_train_dataloader(self) -> DataLoader[Any]:
            return self.accelerator.prepare(loader(fault))

    net, monitor = Net(), MonitorCallback(summary=False)
    settings = {"num_train_epochs": 2, "report_to": [], "save_strategy": "no", "logging_strategy": "no", "disable_tqdm": True}
    arguments = transformers.TrainingArguments(str(folder), use_cpu=True, **settings, **options)
    training = Unsorted(net, arguments, train_dataset=Samples(fault), callbacks=[monitor] if on else [])
    training.train()
    assert "compute_loss" not in vars(training)
    return monitor, left_by(net, [], training.optimizer.optimizer)


@pytest.mark.parametrize("accumulate", [1, 4])
def test_hugging_faces_trainer_runs_its_own_loss_again(accumulate: int, tmp_path: Path) -> None:
    options = {"gradient_accumulation_steps": accumulate}
    _, expected = in_hugging_faces_trainer("log", tmp_path / "off", on=False, **options)
    monitor, left = in_hugging_faces_trainer("log", tmp_path / "on", **options)
    assert left == expected
    alert = first(monitor)
    assert alert.seen.startswith("log of 0 gives -inf in ")
    assert alert.samples == (BAD,)
    assert not any("to the bit" in text for text in alert.causes[0].evidence_for)


def test_what_is_missing_for_a_replay_is_an_error() -> None:
    net = Net()
    optimizer = adam(net)
    with pytest.raises(ValueError, match=r"Pass it, watch\(…, loss_function=…\).*got \{'capsule': 'auto', 'keep_batches': 2\}"):
        watch(net, optimizer, capsule="auto", keep_batches=2)
    with pytest.raises(TypeError, match="loss_function must be a function of a batch that returns its loss; got 3"):
        watch(net, optimizer, loss_function=3)  # type: ignore[arg-type]
    with watch(net, optimizer, summary=False) as monitor:
        for call in (monitor.loss, monitor.batches):
            with pytest.raises(RuntimeError, match="needs the function that gives a batch's loss"):
                call([])
    with pytest.raises(RuntimeError, match="belong into the block"):
        watch(net, optimizer, loss_function=loss_of(net)).loss({})
