"""HookDebugger in a fit."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

from lightning_hooks import HookDebugger
from lightning_hooks.debugging import HookBreakError
from tests.support.models import Classifier, ResidualCNN, hook_counts, loader, mlp, trainer


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
    assert debugger.trace.never_called == {}
    assert debugger.trace.no_gradient == []
    out = capsys.readouterr().out
    assert out.count("Step 1 (epoch 0, batch 1): 8 calls, 8 gradients (on the CPU if no device is shown).") == 1
    assert "net.stem  Conv2d       float32[8, 1, 6, 6] -> float32[8, 4, 6, 6]" in out


class Odd(Classifier):
    def __init__(self) -> None:
        super().__init__(mlp())
        self.used, self.unused, self.frozen = nn.Linear(3, 3), nn.Linear(2, 2), nn.Linear(8, 8).requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x = self.net.forward(self.frozen(batch[0]))
        return nn.functional.cross_entropy(nn.functional.linear(x, self.used.weight), batch[1])


def test_silence_in_a_training_step_is_explained() -> None:
    debugger = HookDebugger(show=False)
    trainer([debugger]).fit(Odd(), loader())
    why = debugger.trace.never_called
    assert set(why) == {"net", "used", "unused"}
    assert "it was called as module.forward(x)" in why["net"]
    assert "its weight was used directly" in why["used"]
    assert why["unused"].startswith("never called in this step")
    assert debugger.trace.no_gradient == ["frozen"]


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
    with pytest.raises(HookBreakError, match=r"break_when=nonfinite at 'net.2' \(Linear\): output float32\[8, 16\]"):
        trainer([debugger]).fit(model, loader(), loader())
    assert debugger.trace.raised_in == "net.2"
    assert not any(hook_counts(model).values())


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


BAD = [
    ({"steps": "all"}, TypeError, "steps must be an integer of at least 0; got 'a'"),
    ({"steps": True}, TypeError, "steps must be an integer of at least 0; got True"),
    ({"steps": 1.0}, TypeError, "got 1.0"),
    ({"steps": [-1]}, ValueError, "steps must be at least 0; got -1"),
    ({"break_when": "nan"}, ValueError, "break_when must be a function of a Call, or 'nonfinite'; got 'nan'"),
    ({"on_break": "stop"}, ValueError, "on_break must be one of debugger, raise; got 'stop'"),
    ({"statistics": 1}, TypeError, "statistics must be True or False; got 1"),
    ({"modules": 3}, TypeError, "modules must be a glob pattern"),
]


@pytest.mark.parametrize(("arguments", "error", "message"), BAD)
def test_bad_arguments_are_rejected(arguments: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        HookDebugger(**arguments)
