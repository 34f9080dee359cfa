"""Models of which parts are compiled: the numbers, weights and graphs they have without compiler and without monitors."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_hooks import monitors
from tests.support.models import loader, trainer
from tests.support.reference import assert_same, same_state
from tests.support.trainings import Plain

pytestmark = [
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, from within its compiler
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*lru_cache.*"),
    pytest.mark.filterwarnings("ignore:Graph break"),
    pytest.mark.filterwarnings("ignore:The .grad attribute of a Tensor"),
    pytest.mark.filterwarnings("ignore:.*torch.utils.checkpoint.*"),
]

UNSEEN = ("loss_sign", "feature_scales", "linear_layers", "layer_inputs", "first_layer")
"""What graphs do not show."""


class Block(nn.Module):
    """One activation with dead units, one that is judged by its input, one by its output."""

    def __init__(self, breaks: bool) -> None:
        super().__init__()
        self.breaks = breaks
        self.first, self.relu, self.gelu = nn.Linear(8, 12), nn.ReLU(), nn.GELU()
        self.second, self.tanh = nn.Linear(12, 8), nn.Tanh()

    def forward(self, x: Tensor) -> Tensor:
        x = self.gelu(self.relu(self.first(x)))
        if self.breaks:
            torch._dynamo.graph_break()
        return self.tanh(self.second(x))


class Body(nn.Module):
    """Blocks, each called so many times; a checkpoint around each call, or around none."""

    def __init__(self, calls: int, breaks: bool, checkpointed: bool, blocks: int) -> None:
        super().__init__()
        self.calls, self.checkpointed = calls, checkpointed
        self.blocks = nn.ModuleList(Block(breaks) for _ in range(blocks))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            for _ in range(self.calls):
                x = checkpoint(block, x, use_reentrant=False) if self.checkpointed else block(x)
        return x


class Net(nn.Module):
    """An embedding, the blocks, a head; the checkpoint may be around all blocks together."""

    def __init__(self, what: str, calls: int = 1, breaks: bool = False, checkpointed: bool = False, blocks: int = 2) -> None:
        super().__init__()
        self.around = checkpointed and what == "child"
        self.embed, self.head = nn.Linear(8, 8), nn.Linear(8, 3)
        self.body = Body(calls, breaks, checkpointed and not self.around, blocks)

    def forward(self, x: Tensor) -> Tensor:
        x = self.embed(x)
        return self.head(checkpoint(self.body, x, use_reentrant=False) if self.around else self.body(x))


@pytest.fixture(autouse=True)
def _fresh_compiler() -> Any:
    torch.compiler.reset()
    yield
    torch.compiler.reset()


def fit(ours: Any, what: str, backend: str, **options: Any) -> tuple[Any, int]:
    """Train; return the model and how many graphs were compiled."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    model: Any = Plain(Net(what, **options), lr=0.1)
    if what == "child":
        model.net.body.compile(backend=backend)
    elif what == "blocks":
        for block in model.net.body.blocks:
            block.compile(backend=backend)
    compiled = torch.compile(model, backend=backend) if what == "whole" else model
    trainer(ours).fit(compiled, loader(n=32))  # four batches
    return model, torch._dynamo.utils.counters["stats"]["unique_graphs"]


@cache
def uncompiled(calls: int, blocks: int = 2) -> tuple[Any, ...]:
    """What is found without torch.compile, but for calls of functions, which a compiled model does not show."""
    ours = monitors(every_n_steps=2, summary=False, functional=False)
    fit(ours, "none", "", calls=calls, blocks=blocks)
    return tuple(each.report for each in ours[:3])


# A quarter of all that there are, so that each value of each is there.
EVERY = [
    ("aot_eager", what, calls, breaks, checkpointed)
    for index, what in enumerate(["whole", "child", "blocks"])
    for calls, breaks, checkpointed in product([1, 2], [False, True], [False, True])
    if (index + calls + breaks + checkpointed) % 4 == 0
]
SOME = [
    *(("eager", "whole", 2, False, True), ("eager", "child", 1, True, True), ("eager", "blocks", 2, True, False)),
    *(("inductor", "whole", 1, False, True), ("inductor", "blocks", 2, True, True)),
]


@pytest.mark.parametrize(("backend", "what", "calls", "breaks", "checkpointed"), [*EVERY, *SOME])
def test_compiled_regions_train_and_are_recorded_as_if_uncompiled(
    backend: str, what: str, calls: int, breaks: bool, checkpointed: bool
) -> None:
    options = {"calls": calls, "breaks": breaks, "checkpointed": checkpointed}
    ours = monitors(every_n_steps=2, summary=False, functional=False)
    plain, plain_graphs = fit([], what, backend, **options)
    model, graphs = fit(ours, what, backend, **options)
    assert not any(callback.faults.errors for callback in ours[:3])
    assert_same(
        tuple(callback.report for callback in ours[:3]),
        uncompiled(calls),
        rel=1e-4,
        skip=UNSEEN,
        tiny=1e-6,
    )
    assert same_state(model, plain)
    assert graphs <= plain_graphs + 1  # the hook of a block itself, where that is compiled or interrupted


def test_equal_blocks_share_one_graph() -> None:
    """More of them than torch compiles for one function."""
    blocks = torch._dynamo.config.recompile_limit + 1
    ours = monitors(every_n_steps=2, summary=False, functional=False)
    _, plain_graphs = fit([], "blocks", "eager", blocks=blocks)
    _, graphs = fit(ours, "blocks", "eager", blocks=blocks)
    assert_same(
        tuple(callback.report for callback in ours[:3]),
        uncompiled(1, blocks),
        rel=1e-4,
        skip=UNSEEN,
        tiny=1e-6,
    )
    assert plain_graphs == 1
    assert graphs == 2  # one for the hook of a block itself


def test_a_fault_within_a_compiled_graph_is_reported_and_training_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    ours = monitors(every_n_steps=1, summary=False)
    monkeypatch.setattr("lightning_hooks.diagnostics.features.collector.FeatureTable.add", lambda *_: 1 / 0)
    with pytest.warns(UserWarning, match="ZeroDivisionError.*switched off and training goes on"):
        model, _ = fit(ours, "blocks", "aot_eager")
    plain, _ = fit([], "blocks", "aot_eager")
    assert same_state(model, plain)
    assert set(ours[0].faults.errors) == {"net.embed", "net.head", *(f"net.body.blocks.{i}.{n}" for i in (0, 1) for n in LAYERS)}


LAYERS = ("first", "relu", "gelu", "second", "tanh")
