"""Descriptions, explanations and breakpoints, in plain torch."""

from __future__ import annotations

import copy
import pickle
import sys
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence
from torch.utils.checkpoint import checkpoint

from lightning_hooks import HookDebugger
from lightning_hooks.debugging.trace import Breakpoint, Call, HookBreakError, describe
from lightning_hooks.debugging.tracer import why_no_call
from tests.support.models import ResidualCNN, TinyLSTM, TinyTransformer, hook_counts

Pair = namedtuple("Pair", "first second")


@dataclass
class Output:
    logits: Tensor
    label: str


class ModelOutput(dict):
    to_tuple = None


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (torch.zeros(2, 3), ["float32[2, 3]"]),
        (torch.zeros((), dtype=torch.int64), ["int64[]"]),
        (torch.zeros(2, device="meta"), ["float32[2] meta"]),
        (torch.eye(2).to_sparse(), ["sparse_coo float32[2, 2]"]),
        (
            (torch.zeros(1), None, 3, "a" * 30, True),
            ["[0] float32[1]", "[1] None", "[2] 3", "[3] 'aaaaaaaaaaaaaaaaa...'", "[4] True"],
        ),
        (Pair(torch.zeros(1), [torch.zeros(2)]), [".first float32[1]", ".second[0] float32[2]"]),
        ({"a": {"b": torch.zeros(1)}}, ["['a']['b'] float32[1]"]),
        (ModelOutput(logits=torch.zeros(1)), [".logits float32[1]"]),
        (Output(torch.zeros(1), "x"), [".logits float32[1]", ".label 'x'"]),
        (pack_sequence([torch.zeros(2, 1)]), [".data float32[2, 1]"]),
        (object(), ["object"]),
    ],
)
def test_values_in_a_few_words(value: Any, expected: list[str]) -> None:
    assert describe(value) == expected


class Puzzle(nn.Module):
    """Every way in which a hook does not run."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(6, 6).requires_grad_(False)
        self.linear, self.inplace = nn.Linear(6, 8), nn.ReLU(inplace=True)
        self.direct, self.relu, self.used = nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.Tanh())
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.left_over, self.functional = nn.Linear(2, 2), nn.ReLU()
        self.without, self.aside, self.detaches, self.indices = nn.Linear(8, 8), nn.Linear(8, 2), Detaches(), Indices()
        self.head, self.parameter = nn.Linear(8, 3), Parameter()

    def forward(self, x: Tensor) -> Any:
        x = self.inplace(self.linear(self.frozen(x)))
        x = self.relu.forward(self.direct.forward(x))
        x = nn.functional.linear(x, self.used.weight, self.used.bias)
        x = self.attention(x, x, need_weights=False, value=x)[0]
        x = self.layers[0](x)
        with torch.no_grad():
            self.without(x)
        self.aside(x)
        self.detaches(x)
        self.indices(x)
        return self.head(nn.functional.relu(x).mean(1)) * self.parameter()


class Detaches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(1))

    def forward(self, x: Tensor) -> Tensor:
        return (x * self.scale).detach()


class Indices(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return x.argmax(-1)


class Parameter(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.value = nn.Parameter(torch.ones(1))

    def forward(self) -> Tensor:
        return self.value


NEVER_CALLED = {
    "direct": "not called, though its parameters have gradients",
    "relu": "or module.forward(x), instead of it",
    "used": "not called, though its parameters have gradients",
    "attention.out_proj": "a part of nn.MultiheadAttention 'attention', which uses its weight in one fused function",
    "block": "never called in this step: a branch not taken, an unused layer",
    "block.0": "not called, and neither was 'block' around it.",
    "block.1": "not called, and neither was 'block' around it.",
    "layers.1": "never called in this step",
    "left_over": "never called in this step",
    "functional": "a function such as F.relu",
}
NO_GRADIENT = {"frozen", "without", "aside", "detaches", "indices", "parameter"}


@pytest.mark.parametrize("precision", ["float32", "autocast"])
def test_every_silence_is_explained(precision: str) -> None:
    torch.manual_seed(0)
    net = Puzzle()
    with (
        HookDebugger(show=False).watch(net) as debugger,
        torch.autocast("cpu", torch.bfloat16, enabled=precision == "autocast"),
    ):
        net(torch.randn(2, 5, 6)).sum().backward()
    trace = debugger.trace
    assert set(trace.never_called) == set(NEVER_CALLED)
    for site, reason in NEVER_CALLED.items():
        assert reason in trace.never_called[site], site
    assert set(trace.no_gradient) - {"linear"} == NO_GRADIENT  # the output of "linear" is a view, except under autocast
    text = str(trace)
    assert "  block.0, block.1: not called, and neither was 'block' around it." in text
    assert not any(hook_counts(net).values())


def test_the_trace_has_order_nesting_and_shapes() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(8, 2)), nn.LSTM(2, 3))
    with HookDebugger(show=False).watch(net) as debugger:
        net(torch.zeros(5, 4))[0].sum().backward()
    trace = debugger.trace
    assert trace.forward_order == ["0", "1", "1.0", "1.1", "2"]
    assert trace.backward_order == ["2", "1.1", "1", "1.0", "0"]
    assert [call.depth for call in trace.calls[:5]] == [0, 0, 1, 1, 0]
    assert [call.order for call in trace.calls] == list(range(10))
    (call,) = trace.of("1.1")
    assert (call.inputs, call.outputs) == (("float32[5, 8]",), ("float32[5, 2]",))
    assert [text.split()[0] for text in trace.of("2")[0].outputs] == ["[0]", "[1][0]", "[1][1]"]
    lines = str(trace).splitlines()
    assert lines[0] == "Sequential: 5 calls, 5 gradients (on the CPU if no device is shown)."
    assert lines[2] == "  0  0      Linear      float32[5, 4] -> float32[5, 8]"
    assert lines[4] == "  2    1.0  ReLU        float32[5, 8] -> float32[5, 8]"
    assert lines[8].split() == ["5", "2", "LSTM", "gradient", "float32[5,", "3]"]
    assert trace.never_called == {}
    assert trace.no_gradient == []
    assert pickle.loads(pickle.dumps(trace)) == trace


def test_keywords_and_statistics() -> None:
    class Takes(nn.Module):
        def forward(self, x: Tensor, *, scale: float) -> dict[str, Tensor]:
            return {"y": x * scale}

    net = nn.Sequential(Takes())
    with HookDebugger(show=False, statistics=True).watch(net) as debugger:
        net[0](torch.tensor([1.0, 3.0]), scale=2.0)
    assert (
        "0  0  Takes  float32[2] (min 1, max 3, mean 2, std 1), scale=2.0 -> ['y'] float32[2] (min 2, max 6, mean 4, std 2)"
        in str(debugger.trace)
    )
    assert debugger.trace.no_gradient == []  # there was no backward pass


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("made", [torch.jit.script, lambda module: torch.jit.trace(module, torch.zeros(1, 2))])
def test_what_torch_jit_made_is_left_out(made: Any) -> None:
    net = nn.Sequential(made(nn.Sequential(nn.Linear(2, 2))), nn.Linear(2, 1))
    with HookDebugger(show=False).watch(net) as debugger:
        net(torch.zeros(1, 2)).sum().backward()
    assert debugger.trace.forward_order == ["1"]
    assert debugger.trace.never_called == {}
    with pytest.raises(ValueError, match=r"modules='0' matches '0', a torch.jit module, which takes no hooks"):
        HookDebugger(modules="0").watch(net).__enter__()


def test_where_it_raised() -> None:
    net = nn.Sequential(nn.Linear(4, 8), nn.Sequential(nn.ReLU(), nn.Linear(9, 2)))
    debugger = HookDebugger(show=False)
    with pytest.raises(RuntimeError, match="mat1 and mat2"), debugger.watch(net):
        net(torch.zeros(5, 4))
    trace = debugger.trace
    assert trace.raised_in == "1.1"
    assert trace.error.startswith("RuntimeError: mat1 and mat2")
    assert [call.error[:12] for call in trace.calls] == ["", "RuntimeError", "", "RuntimeError"]
    assert "Raised in 1.1: RuntimeError" in str(trace)
    assert "float32[5, 8] -> raised RuntimeError" in str(trace)
    assert trace.never_called == {}
    assert not any(hook_counts(net).values())
    with pytest.raises(ZeroDivisionError), debugger.watch(net):
        1 / 0  # noqa: B018
    assert "Raised in no traced module: ZeroDivisionError" in str(debugger.trace)


@pytest.mark.parametrize("reentrant", [True, False])
def test_recomputed_calls_are_marked(reentrant: bool) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.body = nn.Linear(4, 4)

        def forward(self, x: Tensor) -> Tensor:
            return checkpoint(self.body, x, use_reentrant=reentrant)

    net = nn.Sequential(Net())
    with HookDebugger(show=False).watch(net) as debugger:
        net(torch.zeros(2, 4, requires_grad=True)).sum().backward()
    assert debugger.trace.forward_order == ["0", "0.body"]
    assert len(debugger.trace.of("0.body", "recompute")) == 1
    said = "(recomputed)" if reentrant else "-> nothing yet (recomputed as far as needed)"
    assert said in str(debugger.trace)


@pytest.mark.parametrize(("build", "shape"), [(ResidualCNN, (4, 1, 6, 6)), (TinyTransformer, (4, 5, 6)), (TinyLSTM, (4, 5, 6))])
def test_nothing_is_altered(build: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    net, x = build(), torch.randn(shape)
    other = copy.deepcopy(net)
    torch.manual_seed(1)
    plain = net(x)
    plain.sum().backward()
    after = torch.get_rng_state()
    torch.manual_seed(1)
    with HookDebugger(show=False, statistics=True, break_when=lambda call: False).watch(other) as debugger:
        watched = other(x)
        watched.sum().backward()
    assert torch.equal(torch.get_rng_state(), after)
    assert torch.equal(plain, watched)
    for one, two in zip(net.parameters(), other.parameters(), strict=True):
        assert torch.equal(one.grad, two.grad)
    called = set(debugger.trace.forward_order)
    assert called == {name for name, module in other.named_modules() if name} - set(debugger.trace.never_called) - {
        "encoder.layers"
    }


def nan_at(place: int) -> nn.Sequential:
    class Log(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.log()

    layers: list[nn.Module] = [nn.Linear(4, 4), nn.Tanh(), nn.Linear(4, 4)]
    layers.insert(place, Log())
    return nn.Sequential(*layers)


def test_break_raises_and_names_the_site() -> None:
    net = nan_at(2)
    torch.manual_seed(0)
    with (
        pytest.raises(HookBreakError, match=r"break_when=nonfinite at '2' \(Log\): output float32\[8, 4\].*non-finite") as raised,
        HookDebugger(show=False, break_when="nonfinite", on_break="raise").watch(net) as debugger,
    ):
        net(torch.randn(8, 4))
    assert raised.value.site == "2"
    assert debugger.trace.raised_in == "2"
    assert pickle.loads(pickle.dumps(raised.value)).site == "2"
    assert not any(hook_counts(net).values())


def test_break_opens_the_debugger_with_the_call_at_hand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    seen: list[Call] = []

    def hook() -> None:
        seen.append(sys._getframe(1).f_locals["call"])

    monkeypatch.setattr(sys, "breakpointhook", hook)
    net = nn.Sequential(nn.Linear(2, 2), nn.ReLU())
    big = torch.full((1, 2), 1000.0)
    nn.init.ones_(net[0].weight)

    def too_large(call: Call) -> bool:
        return call.output.max() > 100

    with HookDebugger(show=False, break_when=too_large).watch(net):
        net(torch.zeros(1, 2))
        net(big)
    assert [(call.site, type(call.module)) for call in seen] == [("0", nn.Linear), ("1", nn.ReLU)]
    assert seen[0].args[0] is big
    assert seen[0].output.max() > 1000
    assert "break_when=too_large at '0' (Linear): output float32[1, 2] (min" in capsys.readouterr().out


def test_a_predicate_that_raises_warns_once() -> None:
    faults: list[tuple[str, str]] = []
    stop = Breakpoint(lambda call: call.nothing, "raise", lambda site, error: faults.append((site, type(error).__name__)))
    for site in "ab":
        stop.check(site, nn.ReLU(), (), {}, torch.ones(1))
    assert faults == [("a", "AttributeError")]


def test_what_cannot_be_provoked_here_is_explained_too() -> None:
    modules = {"net": nn.Sequential(nn.ReLU()), "net.0": nn.ReLU()}
    assert why_no_call("net.0", modules, [], modules, ["net"]).startswith("'net' was compiled before the hooks were")
    assert why_no_call("net.0", modules, [], modules, [""]).startswith("the model was compiled before")
    assert why_no_call("net.0", modules, [], modules, [], "TypeError").startswith("the debugger's own hook there failed: TypeError")


def test_hooks_on_the_parts_of_a_layer_keep_it_from_the_fast_path() -> None:
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    net = nn.Sequential(layer).eval()
    debugger = HookDebugger(show=False, modules=["0", "0.linear1"])
    with torch.no_grad(), debugger.watch(net):
        net(torch.zeros(2, 3, 8))
    assert debugger.trace.never_called == {}
