"""HookedCallback: what a user's own subclass gets, and what bad input says."""

from __future__ import annotations

import copy
import io
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

from lightning_hooks import (
    FeatureStatsMonitor,
    GradientClipMonitor,
    GradientClipper,
    GradientFlowMonitor,
    HookedCallback,
    monitors,
)
from tests.support.models import Classifier, ResidualCNN, loader, mlp, trainer
from tests.support.reference import same_state


class Shapes(HookedCallback):
    def attach(self, trainer: Any, pl_module: Any) -> None:
        self.shapes: list[tuple[str, tuple[int, ...]]] = []
        for name, module in self.select(pl_module):
            self.listen(name, module, lambda m, args, out, name=name: self.shapes.append((name, tuple(out.shape))))


def test_one_method_makes_a_monitor() -> None:
    callback = Shapes(modules="net.?", every_n_steps=3)
    trainer([callback], num_sanity_val_steps=2).fit(Classifier(mlp()), loader(), loader())
    assert callback.shapes[:2] == [("net.0", (8, 16)), ("net.1", (8, 16))]
    assert len(callback.shapes) == 5 * 3  # batches 0, 3 and 6 of seven; no validation, no sanity check
    assert not callback.hooks.alive


class Spawned(Callback):
    """Makes a Trainer look like one of a process that sends its metrics to the one that spawned it."""

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        trainer.strategy._launcher = SimpleNamespace(get_extra_results=None)


class Logs(HookedCallback):
    def attach(self, trainer: Any, pl_module: Any) -> None:
        pass

    def on_train_epoch_end(self, trainer: Any, pl_module: Any) -> None:
        self.log_scalars(trainer, {f"own/{place}": 1.0 for place in range(500)})


@pytest.mark.parametrize("spawned", [True, False])
def test_numbers_are_not_sent_through_the_pipe_of_a_spawned_process(spawned: bool) -> None:
    fitted = trainer([Logs(), *[Spawned()] * spawned])
    fitted.fit(Classifier(mlp()), loader())
    assert any(tag.startswith("own/") for tag in fitted.callback_metrics) is not spawned


class Faulty(HookedCallback):
    def attach(self, trainer: Any, pl_module: Any) -> None:
        self.calls = 0
        for name, module in self.select(pl_module):
            self.listen(name, module, self.hook if name == "net.1" else (lambda *args: None))

    def hook(self, module: nn.Module, args: Any, output: Tensor) -> None:
        self.calls += 1
        raise ValueError("no such thing")


def test_a_hook_that_raises_is_reported_once_and_switched_off() -> None:
    torch.manual_seed(0)
    plain = Classifier(mlp())
    trainer().fit(plain, loader())
    torch.manual_seed(0)
    model, callback = Classifier(mlp()), Faulty()
    with pytest.warns(
        UserWarning, match=r"Faulty: the hook at 'net.1' raised ValueError: no such thing; it is switched off"
    ) as reported:
        trainer([callback]).fit(model, loader())
    assert len([w for w in reported if "switched off" in str(w.message)]) == 1
    assert callback.calls == 1
    assert same_state(plain, model)


BAD_ARGUMENTS = [
    (lambda: FeatureStatsMonitor(modules=3), TypeError, "modules must be a glob pattern.*got 3"),
    (lambda: FeatureStatsMonitor(modules=["a", 3]), TypeError, r"got 3 in \['a', 3\]"),
    (lambda: FeatureStatsMonitor(modules=[]), ValueError, "which names nothing"),
    (lambda: FeatureStatsMonitor(every_n_steps=0), ValueError, "every_n_steps must be at least 1.*got 0"),
    (lambda: FeatureStatsMonitor(every_n_steps=-5), ValueError, "every_n_steps must be at least 1.*got -5"),
    (lambda: FeatureStatsMonitor(every_n_steps=1.5), TypeError, "every_n_steps must be an integer.*got 1.5"),
    (lambda: GradientFlowMonitor(every_n_steps=True), TypeError, "every_n_steps must be an integer.*got True"),
    (lambda: GradientFlowMonitor(on_alert="shout"), ValueError, "on_alert must be one of log, warn, stop, raise.*got 'shout'"),
    (lambda: GradientClipMonitor(summary=1), TypeError, r"summary must be True \(.*\), 'full' \(with tables\) or False; got 1"),
    (lambda: GradientClipper(policy="nrom"), ValueError, "policy must be one of norm, value, tensor, agc.*got 'nrom'"),
    (lambda: GradientClipper(policy=3), TypeError, "policy must be one of.*got 3"),
    (lambda: GradientClipper(threshold=-1.0), ValueError, "max_norm must be above 0; got -1.0"),
    (lambda: GradientClipper(threshold="1"), TypeError, "max_norm must be a number above 0; got '1'"),
    (lambda: GradientClipper(exclude=[3]), TypeError, "exclude must be glob patterns.*got 3"),
    (lambda: FeatureStatsMonitor("net.*"), TypeError, "positional"),
]


@pytest.mark.parametrize(("build", "error", "message"), BAD_ARGUMENTS)
def test_bad_arguments_say_what_was_expected_and_what_came(build: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        build()


class NoLeaves(Classifier):
    def __init__(self) -> None:
        super().__init__(nn.Identity())
        self.weight = nn.Parameter(torch.zeros(3))

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.weight.sum()


BAD_AT_START = [
    (lambda: FeatureStatsMonitor(modules="net.cnv"), lambda: Classifier(ResidualCNN()), "'net.cnv'.*Closest names: 'net.conv'"),
    (lambda: GradientFlowMonitor(modules=["net.*", "x"]), lambda: Classifier(mlp()), "modules='x' matches no module of Classifier"),
    (lambda: FeatureStatsMonitor(modules=nn.Conv2d), lambda: Classifier(mlp()), "modules=Conv2d matches no module.*of type"),
    (lambda: FeatureStatsMonitor(modules=lambda n, m: False), lambda: Classifier(mlp()), "selects none of the 6 modules"),
    (lambda: FeatureStatsMonitor(), NoLeaves, "NoLeaves has no leaf module that computes something"),
    (lambda: GradientClipper(exclude="had.*"), lambda: Classifier(mlp()), "exclude='had.*' matches no parameter of Classifier"),
]


@pytest.mark.parametrize(("build", "model", "message"), BAD_AT_START)
def test_bad_selection_is_rejected_at_train_start(build: Any, model: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        trainer([build()]).fit(model(), loader())


def test_copies_of_a_hooked_model_are_silent() -> None:
    monitor = FeatureStatsMonitor(every_n_steps=1, summary=False)

    class Save(Callback):
        def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
            if batch_idx == 3:
                stream = io.BytesIO()
                torch.save(pl_module.net, stream)
                stream.seek(0)
                for net in (copy.deepcopy(pl_module.net), torch.load(stream, weights_only=False)):
                    net(batch[0])

    trainer([monitor, Save()]).fit(Classifier(mlp()), loader())
    assert monitor.report.sites["net.0"].calls == 7


def test_a_module_itself_is_no_selector_and_a_bracketed_name_is_its_own_pattern() -> None:
    with pytest.raises(TypeError, match="got the module Linear itself: give its name"):
        monitors(modules=nn.Linear(2, 2))
    net = nn.Module()
    net.add_module("l[0]", nn.Linear(8, 3))
    net.forward = lambda x: net.get_submodule("l[0]")(x)
    monitor = FeatureStatsMonitor(modules="net.l[0]", summary=False)
    trainer([monitor]).fit(Classifier(net), loader())
    assert list(monitor.report.sites) == ["net.l[0]"]
