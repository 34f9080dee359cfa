"""HookDebugger in a fit."""

from __future__ import annotations

import copy
import pickle
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback, seed_everything
from lightning.pytorch.loggers import TensorBoardLogger
from lightning.pytorch.plugins import MixedPrecision
from torch import Tensor, nn

from lightning_hooks import HookDebugger
from lightning_hooks.debugging import HookBreakError
from tests.support.host_reads import NETS, CountSyncs
from tests.support.models import Classifier, ResidualCNN, hook_counts, loader, mlp, trainer
from tests.support.reference import same_state


class Keep(Callback):
    def __init__(self, debugger: HookDebugger) -> None:
        self.debugger, self.traces = debugger, []

    def on_train_batch_end(self, trainer: Any, pl_module: Any, *args: Any) -> None:
        if self.debugger.trace not in self.traces:
            self.traces.append(self.debugger.trace)


def test_the_chosen_steps_are_traced_and_printed(capsys: pytest.CaptureFixture[str]) -> None:
    debugger = HookDebugger(steps=(1, 8))
    keep = Keep(debugger)
    trainer([debugger, keep], max_epochs=2).fit(Classifier(ResidualCNN()), loader((1, 6, 6)), loader((1, 6, 6)))
    titles = [trace.title for trace in keep.traces if trace is not None]
    assert titles == ["Step 1 (epoch 0, batch 1)", "Step 8 (epoch 1, batch 1)"]
    names = ["net.stem", "net.bn", "net.act", "net.conv", "net.act2", "net.drop", "net.head"]
    assert debugger.trace.forward_order == ["net", *names]
    assert debugger.trace.backward_order == ["net.head", "net", *names[-2::-1]]
    assert debugger.trace.never_called == debugger.trace.no_gradient == {}
    out = capsys.readouterr().out
    assert out.count("Step 1 (epoch 0, batch 1): 8 calls, 8 gradients (on the CPU if no device is shown).") == 1
    assert "net.stem  Conv2d       float32[8, 1, 6, 6] -> float32[8, 4, 6, 6]" in out


@pytest.mark.parametrize("net", NETS)
def test_on_equals_off_bit_for_bit(net: str) -> None:
    build, shape = NETS[net]
    found = []
    for ours in ([], [HookDebugger(steps=[0, 1, 2], statistics=True, break_when=lambda call: False, break_in="both", show=False)]):
        seed_everything(7, verbose=False)
        model = Classifier(build(), optimizer=torch.optim.Adam, lr=0.01)
        trainer(ours, gradient_clip_val=0.3).fit(model, loader(shape, shuffle=True))
        found.append((model, torch.get_rng_state()))
    assert found[0][0].losses == found[1][0].losses
    assert same_state(found[0][0], found[1][0])
    assert torch.equal(found[0][1], found[1][1])


def test_untraced_steps_wait_for_nothing() -> None:
    counts = []
    for ours in ([], [HookDebugger(steps=())]):
        counter = CountSyncs()
        trainer([counter, *ours]).fit(Classifier(mlp()), loader(n=64))
        counts.append(counter.mode.syncs)
    assert counts[0] == counts[1] > 0


class Odd(Classifier):
    def __init__(self) -> None:
        super().__init__(mlp())
        self.used, self.unused, self.frozen = nn.Linear(3, 3), nn.Linear(2, 2), nn.Linear(8, 8).requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = self.net.forward(self.frozen(batch[0]))
        return nn.functional.cross_entropy(nn.functional.linear(x, self.used.weight), batch[1])


def test_silence_in_a_training_step_is_explained_with_and_without_the_watch() -> None:
    for explain in (True, False):
        debugger = HookDebugger(explain=explain, show=False)
        trainer([debugger]).fit(Odd(), loader())
        why = debugger.trace.never_called
        assert set(why) == {"net", "used", "unused"}
        if explain:
            assert "its forward was called directly at test_hook_debugger.py:" in why["net"]
            assert "its weight was used directly at test_hook_debugger.py:" in why["used"]
        else:
            assert "though its parameters have gradients" in why["net"]
            assert "though its parameters have gradients" in why["used"]
        assert why["unused"].startswith("never called in this step")
        assert debugger.trace.no_gradient["frozen"].startswith("it is frozen")


class Manual(Classifier):
    def __init__(self) -> None:
        super().__init__(mlp())
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        for _ in range(2):
            optimizer.zero_grad()
            self.manual_backward(nn.functional.cross_entropy(self.net(batch[0]), batch[1]))
            optimizer.step()


def test_manual_optimisation_is_one_step() -> None:
    debugger = HookDebugger(modules="net.?", show=False)
    trainer([debugger]).fit(Manual(), loader())
    assert debugger.trace.forward_order == [f"net.{i}" for i in (*range(5), *range(5))]
    assert debugger.trace.backward_order == [f"net.{i}" for i in (*range(4, -1, -1), *range(4, -1, -1))]


class TwiceByHand(Classifier):
    """Runs its second half past the hooks, after a first backward pass."""

    def __init__(self) -> None:
        super().__init__(mlp())
        self.second, self.automatic_optimization = nn.Linear(8, 3), False

    def training_step(self, batch: Any, batch_idx: int) -> None:
        optimizer = self.optimizers()
        for net in (self.net, self.second.forward):
            optimizer.zero_grad()
            self.manual_backward(nn.functional.cross_entropy(net(batch[0]), batch[1]))
            optimizer.step()


def test_what_comes_after_a_manual_backward_is_watched_too() -> None:
    debugger = HookDebugger(show=False)
    trainer([debugger]).fit(TwiceByHand(), loader())
    assert list(debugger.trace.never_called) == ["second"]
    assert "its forward was called directly at test_hook_debugger.py:" in debugger.trace.never_called["second"]


def test_nothing_stays_after_a_manual_step_that_raises() -> None:
    class Breaks(TwiceByHand):
        def training_step(self, batch: Any, batch_idx: int) -> None:
            super().training_step(batch, batch_idx)
            raise ValueError("after two backward passes")

    model, debugger = Breaks(), HookDebugger(show=False)
    with pytest.raises(ValueError, match="after two"):
        trainer([debugger]).fit(model, loader())
    assert debugger.trace.error == "ValueError: after two backward passes"
    assert not any(hook_counts(model).values())


def test_one_frozen_site_alone_is_explained() -> None:
    debugger = HookDebugger(modules="frozen", explain=False, show=False)
    trainer([debugger]).fit(Odd(), loader())
    assert debugger.trace.no_gradient["frozen"].startswith("it is frozen")


def test_steps_beyond_the_training_warn() -> None:
    debugger = HookDebugger(steps=[1, 7, 100], show=False)
    with pytest.warns(UserWarning, match="HookDebugger: training had 7 batches, so step 7, 100 was not traced"):
        trainer([debugger]).fit(Classifier(mlp()), loader())
    assert debugger.trace.title == "Step 1 (epoch 0, batch 1)"


def test_the_loss_scale_is_shown() -> None:
    plugin = MixedPrecision("16-mixed", "cpu", torch.amp.GradScaler("cpu", init_scale=256.0))
    debugger = HookDebugger(show=False)
    trainer([debugger], plugins=[plugin]).fit(Classifier(mlp()), loader())
    assert debugger.trace.title == "Step 0 (epoch 0, batch 0), gradients times the loss scale 256"


def test_the_site_of_an_exception_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    model = Classifier(nn.Sequential(nn.Linear(8, 4), nn.Sequential(nn.Linear(5, 3))))
    debugger = HookDebugger()
    with pytest.raises(RuntimeError, match="mat1 and mat2"):
        trainer([debugger]).fit(model, loader())
    assert debugger.trace.raised_in == "net.1.0"
    assert "Raised in net.1.0: RuntimeError: mat1 and mat2" in capsys.readouterr().out
    assert not any(hook_counts(model).values())


def test_a_break_ends_the_fit_and_names_the_site() -> None:
    class Poisoned(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            if batch_idx == 3:
                with torch.no_grad():
                    self.net[2].weight[0, 0] = torch.nan
            return super().training_step(batch, batch_idx)

    model = Poisoned(mlp())
    debugger = HookDebugger(steps=3, break_when="nonfinite", on_break="raise", show=False)
    with pytest.raises(HookBreakError, match=r"break_when=nonfinite at 'net.2' \(Linear\) in forward: output float32\[8, 16\]"):
        trainer([debugger]).fit(model, loader(), loader())
    assert debugger.trace.raised_in == "net.2"
    assert not any(hook_counts(model).values())


def test_validation_is_not_asked() -> None:
    seen = []
    debugger = HookDebugger(steps=(), modules="net", break_when=lambda call: seen.append(call.site))
    trainer([debugger]).fit(Classifier(mlp()), loader(), loader())
    assert len(seen) == 7


def test_a_predicate_that_raises_warns_and_training_continues() -> None:
    debugger = HookDebugger(modules=["net.0", "net.1"], show=False, break_when=lambda call: call.nothing > 1)
    with pytest.warns(UserWarning, match=r"HookDebugger: the hook at 'net.0' raised AttributeError.*training goes on"):
        trainer([debugger]).fit(Classifier(mlp()), loader())


def test_trackers_get_the_trace(tmp_path: Path) -> None:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    logger = TensorBoardLogger(tmp_path)
    trainer([HookDebugger(show=False)], logger=logger).fit(Classifier(mlp()), loader())
    logger.finalize("success")
    events = EventAccumulator(logger.log_dir)
    events.Reload()
    (tag,) = [tag for tag in events.Tags()["tensors"] if "hook_debugger/trace" in tag]
    assert b"Step 0 (epoch 0, batch 0): 6 calls" in events.Tensors(tag)[0].tensor_proto.string_val[0]


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*lru_cache.*")
def test_compiled_before_the_hooks_is_explained() -> None:
    class Plain(Classifier):
        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    torch.compiler.reset()
    model = Plain(mlp())
    model.net = torch.compile(model.net, backend="eager")
    trainer().fit(model, loader(n=48))
    debugger = HookDebugger(modules="net.?", show=False)
    trainer([debugger]).fit(model, loader(n=48))
    torch.compiler.reset()
    assert debugger.trace.never_called["net.0"].startswith("'net' was compiled before the hooks were registered")


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:.*lru_cache.*", "ignore:The .grad attribute.*"
)
def test_a_compiled_model_is_traced_without_compiling_again_for_each_site() -> None:
    class Deep(Classifier):
        def __init__(self) -> None:
            super().__init__(nn.Sequential(*(nn.Linear(8, 8) for _ in range(12))))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return nn.functional.cross_entropy(self.net(batch[0]), batch[1])

    torch.compiler.reset()
    model, debugger = Deep(), HookDebugger(modules="net.*", steps=2, show=False)
    model.net = torch.compile(model.net, backend="eager")
    with torch._dynamo.config.patch(fail_on_recompile_limit_hit=True):
        trainer([debugger]).fit(model, loader(n=48))
    torch.compiler.reset()
    assert debugger.trace.forward_order == [f"net.{place}" for place in range(12)]
    assert debugger.trace.backward_order == debugger.trace.forward_order[::-1]


def test_copies_and_pickles() -> None:
    debugger = HookDebugger(steps=2, show=False)
    found: list[Any] = []

    class Copy(Callback):
        def on_before_backward(self, trainer: Any, pl_module: Any, loss: Tensor) -> None:
            if not found:
                found.extend([pickle.loads(pickle.dumps(debugger)), copy.deepcopy(pl_module.net)])

    trainer([debugger, Copy()]).fit(Classifier(mlp()), loader())
    again, net = found
    net(torch.zeros(2, 8))
    assert debugger.trace.title == "Step 2 (epoch 0, batch 2)"
    trainer([again]).fit(Classifier(mlp()), loader())
    assert again.trace.title == "Step 2 (epoch 0, batch 2)"


BAD = [
    ({"steps": "all"}, TypeError, "steps must be the number of a training batch, from 0, or several; got 'all'"),
    ({"steps": True}, TypeError, "steps must be the number.*got True"),
    ({"steps": 1.0}, TypeError, "got 1.0"),
    ({"steps": [-1]}, ValueError, r"steps must be numbers of training batches, from 0; got \[-1\]"),
    ({"break_when": "nan"}, ValueError, "break_when must be a function of a Call, or 'nonfinite'; got 'nan'"),
    ({"break_in": "loss"}, ValueError, "break_in must be one of forward, backward, both; got 'loss'"),
    ({"on_break": "stop"}, ValueError, "on_break must be one of debugger, raise; got 'stop'"),
    ({"statistics": 1}, TypeError, "statistics must be True or False; got 1"),
    ({"modules": 3}, TypeError, "modules must be a glob pattern"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD)
def test_bad_arguments_are_rejected(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        HookDebugger(**arguments)
