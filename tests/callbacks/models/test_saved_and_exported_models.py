"""A model that is saved, copied, scripted, exported or quantised in a fit neither records nor needs this package."""

from __future__ import annotations

import copy
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import nn

from lightning_hooks import ActivationRangeObserver, FeatureExtractor, LayerProfiler, monitors
from lightning_hooks.hooks import guarded
from tests.support.models import Classifier, hook_counts, loader, mlp, trainer

EVENTS = {
    "epoch's start": "on_train_epoch_start",
    "validation's end": "on_validation_end",
    "epoch's end": "on_train_epoch_end",
    "training's end": "on_train_end",
}


def ours() -> list[Any]:
    return [
        *monitors(every_n_steps=1, summary=False),
        ActivationRangeObserver(summary=False),
        LayerProfiler(every_n_steps=1, warmup_steps=0, summary=False),
        FeatureExtractor(fields={"label": 1}),
    ]


class At(Callback):
    """Does something with the net when an event comes."""

    def __init__(self, event: str, what: Callable[[nn.Module], Any]) -> None:
        self.results: list[Any] = []

        def act(trainer: Any, pl_module: Any, *_: Any) -> None:
            if not trainer.sanity_checking:
                self.results.append(what(pl_module.net))

        setattr(self, event, act)


def script(net: nn.Module) -> Any:
    return torch.jit.script(net)(torch.zeros(2, 8)).shape


def export(net: nn.Module) -> Any:
    return torch.export.export(copy.deepcopy(net), (torch.zeros(2, 8),)).module()(torch.zeros(2, 8)).shape


def hooks_of(net: nn.Module) -> int:
    return sum(count for key, count in hook_counts(net).items() if "forward" in key)


def calls(kind: type[Classifier] = Classifier, others: Any = (), **kwargs: Any) -> tuple[list[Any], int]:
    callbacks = ours()
    trainer([*callbacks, *others], max_epochs=2, **kwargs).fit(kind(mlp()), loader(), loader())
    assert not any(callback.faults.errors for callback in callbacks)
    return callbacks, callbacks[0].report.sites["net.0"].calls


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
@pytest.mark.parametrize("event", EVENTS.values(), ids=EVENTS)
@pytest.mark.parametrize("first", [True, False])
def test_outside_of_training_batches_a_model_is_scripted(event: str, first: bool) -> None:
    other, callbacks = At(event, lambda net: (hooks_of(net), script(net))), ours()
    everyone = [other, *callbacks] if first else [*callbacks, other]
    trainer(everyone, max_epochs=2, val_check_interval=3).fit(Classifier(mlp()), loader(), loader())
    assert set(other.results) == {(0, (2, 3))}
    assert len(other.results) >= (1 if event == "on_train_end" else 2)
    assert callbacks[0].report.sites["net.0"].calls == 7
    assert not any(callback.faults.errors for callback in callbacks)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning")
def test_within_training_batches_a_model_is_copied_and_exported_and_cannot_be_scripted() -> None:
    def look(net: nn.Module) -> Any:
        assert hooks_of(net)
        with pytest.raises(AttributeError, match="__name__"):
            torch.jit.script(net)
        copied = copy.deepcopy(net)
        hooks = [hook for module in copied.modules() for hook in module._forward_hooks.values()]
        assert {type(hook.__self__).__module__ for hook in hooks} == {"contextlib"}
        return export(net), copied(torch.zeros(2, 8)).shape

    other = At("on_train_batch_start", look)
    _, n_calls = calls(others=[other], limit_train_batches=3)
    assert set(other.results) == {((2, 3), (2, 3))}
    assert n_calls == 3  # nothing that was done to copies counts


LOAD = """
import sys
class Absent:
    def find_spec(self, name, *_):
        if name.split(".")[0] == "lightning_hooks":
            raise ImportError(name)
sys.meta_path.insert(0, Absent())
import torch
for file in sys.argv[1:]:
    print(tuple(torch.load(file, weights_only=False)(torch.zeros(2, 8)).shape))
"""


def test_a_model_saved_in_a_fit_loads_where_this_package_is_not_installed(tmp_path: Path) -> None:
    events = ("on_train_batch_start", "on_train_batch_end", *EVENTS.values())
    others = [At(event, lambda net, event=event: torch.save(net, tmp_path / event)) for event in events]
    calls(others=others, limit_train_batches=2)
    files = sorted(str(file) for file in tmp_path.iterdir())
    assert len(files) == len(events)
    env = {key: value for key, value in os.environ.items() if key != "PYTHONPATH"}
    done = subprocess.run([sys.executable, "-c", LOAD, *files], env=env, capture_output=True, text=True, cwd=tmp_path, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split("\n")[:-1] == ["(2, 3)"] * len(files)


class Quantised(Classifier):
    """Quantisation-aware training from the second epoch on, or from a batch of it."""

    at = "epoch"

    def prepare(self) -> None:
        self.net.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
        torch.ao.quantization.prepare_qat(self.net.train(), inplace=True)

    def on_train_epoch_start(self) -> None:
        if self.at == "epoch" and self.current_epoch == 1:
            self.prepare()

    def on_train_batch_start(self, batch: Any, batch_idx: int) -> None:
        if self.at == "batch" and self.current_epoch == 1 and batch_idx == 2:
            self.prepare()


class QuantisedWithin(Quantised):
    at = "batch"


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore::UserWarning")
@pytest.mark.parametrize("kind", [Quantised, QuantisedWithin])
def test_hooks_are_gone_from_layers_that_were_exchanged(kind: type[Classifier]) -> None:
    model = kind(mlp())
    trainer(ours(), max_epochs=2).fit(model, loader())
    assert type(model.net[0]) is not nn.Linear
    assert not [hook for module in model.modules() for hook in module._forward_hooks.values() if isinstance(hook, guarded)]
