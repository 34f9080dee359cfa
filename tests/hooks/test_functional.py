"""Which calls of functions a mode sees, whose they are, and what it leaves alone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.checkpoint import checkpoint

from lightning_hooks.hooks.functional import CallObserver
from lightning_hooks.hooks.functions import FUNCTIONS
from tests.support.models import hook_counts


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(F.scaled_dot_product_attention(x, x, value=x, is_causal=True))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.attn, self.norm, self.act = Attention(), nn.LayerNorm(8), nn.ReLU()

    def forward(self, x: Tensor) -> Tensor:
        x = F.relu(x + self.attn(self.norm(x)))
        return F.dropout(self.act(x).relu(), 0.5, self.training)


class Call(NamedTuple):
    """What the recorder of an observer is called with."""

    name: str
    function: str
    caller: str
    module: nn.Module
    arguments: dict[str, Any]
    output: Any


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(Block() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        for block in self.blocks:
            x = block(x)
        return x


def seen(root: nn.Module, run: Callable[[], Any], wanted: Callable[[str], bool] = lambda _: True) -> list[Call]:
    calls: list[Call] = []
    observer = CallObserver(root, lambda *call: calls.append(Call(*call)), wanted)
    observer.start()
    try:
        with observer.step():
            run()
    finally:
        observer.stop()
    assert torch._C._len_torch_function_stack() == 0
    return calls


def test_calls_are_named_after_the_module_that_makes_them() -> None:
    net, x = Net(), torch.randn(2, 5, 8)
    before = hook_counts(net)
    calls = seen(net, lambda: F.cross_entropy(F.gelu(net(x)).flatten(0, 1), torch.zeros(10, dtype=torch.long)))
    block = ["norm/layer_norm", "attn/sdpa", "relu", "act/relu", "relu_1", "dropout"]
    expected = [f"blocks.{i}{'.' if '/' in name else '/'}{name}" for i in range(2) for name in block]
    assert [call.name for call in calls] == [*expected, "gelu", "cross_entropy"]
    assert [call.function for call in calls[:3]] == ["layer_norm", "sdpa", "relu"]
    assert calls[1].caller == "blocks.0.attn"
    assert calls[1].module is net.blocks[0].attn
    assert set(calls[1].arguments) == {"query", "key", "value", "is_causal"}
    assert calls[-1].arguments["input"].shape == (10, 8)
    assert hook_counts(net) == before


@pytest.mark.parametrize(
    ("call", "function"),
    [
        (lambda x: F.softmax(x, dim=-1), "softmax"),
        (lambda x: torch.softmax(x, -1), "softmax"),
        (lambda x: x.softmax(-1), "softmax"),
        (F.relu, "relu"),
        (torch.relu, "relu"),
        (lambda x: x.relu(), "relu"),
        (lambda x: x.clone().relu_(), "relu"),
        (lambda x: F.relu(x.clone(), inplace=True), "relu"),
        (F.gelu, "gelu"),
        (lambda x: F.gelu(x, approximate="tanh"), "gelu"),
        (F.silu, "silu"),
        (F.sigmoid, "sigmoid"),
        (torch.sigmoid, "sigmoid"),
        (lambda x: x.clone().sigmoid_(), "sigmoid"),
        (F.tanh, "tanh"),
        (lambda x: x.tanh(), "tanh"),
        (lambda x: F.layer_norm(x, (8,)), "layer_norm"),
        (lambda x: F.rms_norm(x, (8,)), "rms_norm"),
        (lambda x: F.dropout(x, 0.1), "dropout"),
        (lambda x: F.cross_entropy(x, x.softmax(-1).detach()), "cross_entropy"),
        (lambda x: F.embedding(torch.zeros(3, dtype=torch.long), x), "embedding"),
        (lambda x: F.scaled_dot_product_attention(x, x, x), "sdpa"),
    ],
)
def test_every_way_to_call_a_function_is_one_call(call: Callable[[Tensor], Tensor], function: str) -> None:
    x = torch.randn(4, 8)
    found = seen(nn.Identity(), lambda: call(x))
    assert [entry.function for entry in found if entry.function == function] == [function]
    assert function in FUNCTIONS
    torch.manual_seed(0)
    expected = call(x)
    torch.manual_seed(0)
    found = seen(nn.Identity(), lambda: call(x))
    assert torch.equal(found[-1].output, expected)


@pytest.mark.parametrize("kind", ["layer", "encoder", "attention"])
def test_a_frozen_teacher_takes_its_fused_path(kind: str) -> None:
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    teacher = {
        "layer": layer,
        "encoder": nn.TransformerEncoder(layer, 2),
        "attention": nn.MultiheadAttention(8, 2, batch_first=True),
    }[kind].eval()
    root, x = nn.ModuleDict({"teacher": teacher}), torch.randn(2, 5, 8)

    def run() -> Tensor:
        with torch.no_grad():
            return teacher(x, x, x, need_weights=False)[0] if kind == "attention" else teacher(x)

    expected, found = run(), []
    calls = seen(root, lambda: found.extend([run(), F.relu(x)]))
    assert torch.equal(found[0], expected)
    assert [call.name for call in calls] == ["relu"]  # seen again after it


class Counting(TorchFunctionMode):
    """A mode of the user's own."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        self.calls += 1
        return func(*args, **(kwargs or {}))


def test_modes_of_others_keep_their_places() -> None:
    teacher = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    calls: list[Call] = []
    observer = CallObserver(nn.ModuleDict({"teacher": teacher}), lambda *call: calls.append(Call(*call)), lambda _: True)
    with Counting() as outer:
        observer.start()
        with observer.step(), Counting() as inner, torch.no_grad():
            teacher(torch.randn(2, 5, 8))
            count = inner.calls
            F.relu(torch.ones(1))
            assert inner.calls > count
        observer.stop()
        count = outer.calls
        torch.ones(1).tanh()
        assert outer.calls == count + 2
    assert torch._C._len_torch_function_stack() == 0
    assert "relu" in [call.name for call in calls]
    observer.start()
    with Counting() as late, observer.step():
        observer.stop()  # in the middle of somebody's block
        torch.ones(1).tanh()
        assert late.calls >= 2
    assert torch._C._len_torch_function_stack() == 0


def test_backward_and_recomputation_are_not_seen() -> None:
    block, x, calls, depths = Block(), torch.randn(2, 5, 8), [], []
    observer = CallObserver(nn.ModuleDict({"block": block}), lambda *call: calls.append(Call(*call)), lambda _: True)
    block.norm.register_forward_hook(lambda *_: depths.append(torch._C._len_torch_function_stack()))
    observer.start()
    with observer.step():
        checkpoint(block, x, use_reentrant=False).sum().backward()
    observer.stop()
    names = [call.name for call in calls]
    assert names == ["block.norm/layer_norm", "block.attn/sdpa", "block/relu", "block.act/relu", "block/relu_1", "block/dropout"]
    assert depths == [1, 0]


@torch.compile(backend="eager")
def smooth(x: Tensor) -> Tensor:
    return torch.relu(x).square()


class CallsCompiled(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return F.relu(smooth(x) + 1)


class HoldsCompiled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.function = torch.compile(torch.tanh, backend="eager")

    def forward(self, x: Tensor) -> Tensor:
        return self.function(x) + next(F.relu(part) for part in (x, x))


def test_modules_that_call_compiled_functions_are_passed_over() -> None:
    class Disabled(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return F.relu(torch._dynamo.disable(torch.tanh)(x))

    root = nn.ModuleDict({"one": CallsCompiled(), "two": HoldsCompiled(), "three": Disabled(), "four": Block()})
    observer = CallObserver(root, lambda *_: None, lambda _: True)
    assert observer.compiled == ["one", "two"]
    x = torch.randn(3)
    assert [call.name for call in seen(root, lambda: [root[name](x) for name in ("one", "two", "three")])] == [
        "three/tanh",
        "three/relu",
    ]


class Raises(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        raise ArithmeticError


def test_a_forward_that_raises_leaves_nothing_behind() -> None:
    class Tries(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bad = Raises()

        def forward(self, x: Tensor) -> Tensor:
            try:
                return self.bad(x)
            except ArithmeticError:
                return x

    net = nn.ModuleDict({"tries": Tries(), "good": Attention()})

    def run() -> None:
        net["good"](net["tries"](torch.randn(1, 5, 8)))

    assert [call.name for call in seen(net, run)] == ["good/sdpa"]
    with pytest.raises(ArithmeticError):
        seen(net, lambda: net["tries"].bad(torch.ones(1)))
    assert not any(hook_counts(net).values())


@pytest.fixture(autouse=True)
def no_mode_is_left() -> Iterator[None]:
    yield
    assert torch._C._len_torch_function_stack() == 0


def test_recorders_run_without_gradients_mode_and_autocast() -> None:
    states: list[tuple[bool, bool, int]] = []

    def record(*call: Any) -> None:
        states.append((torch.is_grad_enabled(), torch.is_autocast_enabled("cpu"), torch._C._len_torch_function_stack()))

    observer = CallObserver(nn.Identity(), record, lambda _: True)
    observer.start()
    with observer.step(), torch.autocast("cpu", dtype=torch.bfloat16):
        F.relu(torch.ones(2, requires_grad=True))
    observer.stop()
    assert states == [(False, False, 0)]
