"""Modes on the stack of torch: the user's are not seen by our code and do not see it, and ours is only there in a forward."""

from __future__ import annotations

import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import lightning.pytorch as pl
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.flop_counter import FlopCounterMode

import lightning_hooks
from lightning_hooks import TrainingMonitor
from tests.support.models import Classifier, loader, mlp, trainer

PACKAGE = str(Path(lightning_hooks.__file__).parent)


def depth() -> int:
    return int(torch._C._len_torch_function_stack())


@pytest.fixture(autouse=True)
def no_mode_is_left() -> Iterator[None]:
    own = F.scaled_dot_product_attention, F.softmax
    yield
    assert depth() == 0
    assert (F.scaled_dot_product_attention, F.softmax) == own


def monitor() -> TrainingMonitor:
    return TrainingMonitor(every_n_steps=1, summary=False, report_dir=None)


class Functions(nn.Module):
    """Calls of functions in a module, an attention, and dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.attention, self.body, self.head = nn.MultiheadAttention(8, 2, batch_first=True), nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x: Tensor) -> Tensor:
        x = self.attention(x[:, None], x[:, None], x[:, None], need_weights=False)[0][:, 0]
        return self.head(F.dropout(F.relu(self.body(x)), 0.1, self.training))


class Callers(TorchFunctionMode):
    """Counts what it sees, by the file of the code that calls."""

    def __init__(self) -> None:
        super().__init__()
        self.files: Counter[str] = Counter()

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        frame: Any = sys._getframe(1)
        while frame is not None and "/torch/" in frame.f_code.co_filename:
            frame = frame.f_back
        if frame is not None:
            self.files[frame.f_code.co_filename] += 1
        return func(*args, **(kwargs or {}))


class Around(pl.Callback):
    """A mode of the user's around each training batch."""

    def __init__(self) -> None:
        self.mode = Callers()

    def on_train_batch_start(self, *args: Any) -> None:
        self.mode.__enter__()

    def on_train_batch_end(self, *args: Any) -> None:
        self.mode.__exit__(None, None, None)


@pytest.mark.parametrize("first", [True, False])
def test_a_users_mode_sees_nothing_of_this_package(first: bool) -> None:
    around = Around()
    callbacks = [around, monitor()] if first else [monitor(), around]
    trainer(callbacks).fit(Classifier(Functions()), loader())
    ours = {file: count for file, count in around.mode.files.items() if file.startswith(PACKAGE)}
    # The mode passes the calls of the model on, from the frame that puts it around them.
    assert {Path(file).name for file in ours} <= {"functional.py"}
    assert around.mode.files


def test_our_own_mode_sees_nothing_of_this_package(monkeypatch: pytest.MonkeyPatch) -> None:
    from lightning_hooks.hooks.functional import _Mode

    seen: Counter[str] = Counter()
    passed = _Mode.__torch_function__

    def counted(self: Any, function: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        seen[sys._getframe(1).f_code.co_filename] += 1
        return passed(self, function, types, args, kwargs)

    monkeypatch.setattr(_Mode, "__torch_function__", counted)
    trainer([monitor()]).fit(Classifier(Functions()), loader())
    assert seen
    assert not [file for file in seen if file.startswith(PACKAGE)]


def test_a_users_dispatch_mode_counts_no_operation_of_ours() -> None:
    class Counts(Classifier):
        def __init__(self) -> None:
            super().__init__(Functions())
            self.flops: list[int] = []

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            with FlopCounterMode(display=False) as counter:
                loss = super().training_step(batch, batch_idx)
                x = batch[0][None, None]
                F.scaled_dot_product_attention(x, x, x)
            self.flops.append(counter.get_total_flops())
            return loss

    flops = []
    for callbacks in ([], [monitor()]):
        model = Counts()
        trainer(callbacks).fit(model, loader())
        flops.append(model.flops)
    assert flops[0] == flops[1]


@pytest.fixture
def built() -> Iterator[list[int]]:
    """The graphs that torch.compile makes."""
    torch._dynamo.reset()
    yield []
    torch._dynamo.reset()


@pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor that is not a leaf")
def test_a_compiled_function_is_compiled_as_often_as_without(built: list[int]) -> None:
    def count(graph: Any, _: Any) -> Any:
        built.append(1)
        return graph.forward

    class Compiled(Classifier):
        def __init__(self) -> None:
            super().__init__(mlp())
            self.smooth = torch.compile(lambda out: torch.relu(out).square().mean(), backend=count)

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return super().training_step(batch, batch_idx) + self.smooth(self.net(batch[0]))

    found = []
    for callbacks in ([], [TrainingMonitor(every_n_steps=2, summary=False, report_dir=None)]):
        torch._dynamo.reset()
        built.clear()
        trainer(callbacks).fit(Compiled(), loader())
        found.append(len(built))
    assert found[0] == found[1] > 0
