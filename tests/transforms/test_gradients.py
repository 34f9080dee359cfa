"""Gradient transforms as pure functions, schedules, and hooks on outputs of every kind."""

from __future__ import annotations

import math
from collections import namedtuple
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pack_sequence

from lightning_hooks.hooks.parameters import select_parameters
from lightning_hooks.transforms.gradients import (
    CHANGES,
    ChangeGradient,
    GradientState,
    HookOutput,
    Schedule,
    apply_function,
    clamp_gradient,
    noisy_gradient,
)
from tests.support.models import ResidualCNN, mlp

X = torch.tensor([[3.0, -0.2], [math.nan, math.inf]])


def sparse(values: Tensor) -> Tensor:
    return torch.sparse_coo_tensor(torch.tensor([[1, 1, 0]]), values, (4, 2), check_invariants=True)


def test_each_returns_a_new_gradient_and_leaves_the_old() -> None:
    given = X.clone()
    results = [
        CHANGES["scale"](given, 2.0, "", None),
        CHANGES["zero"](given, 0.0, "", None),
        clamp_gradient(given, 0.5),
        clamp_gradient(given, 0.5, torch.tensor(4.0)),
        noisy_gradient(given, 0.1, "key"),
    ]
    assert torch.equal(given.nan_to_num(1e9, 1e9), X.nan_to_num(1e9, 1e9))
    assert all(result.data_ptr() != given.data_ptr() for result in results)
    scaled, zeroed, clamped, kept, noisy = results
    assert scaled[0].tolist() == [6.0, pytest.approx(-0.4)]
    assert zeroed.tolist() == [[0.0, 0.0], [0.0, 0.0]]
    assert clamped[0].tolist() == [0.5, pytest.approx(-0.2)]
    assert math.isnan(clamped[1, 0])
    assert clamped[1, 1] == 0.5
    assert kept[0].tolist() == [2.0, pytest.approx(-0.2)]  # the bound is that of the unscaled gradient
    assert math.isinf(kept[1, 1])  # the scaler has to see it
    assert math.isinf(noisy[1, 1])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.complex64], ids=str)
def test_dtypes_stay(dtype: torch.dtype) -> None:
    gradient = torch.ones(3, 2, dtype=dtype)
    for changed in (CHANGES["scale"](gradient, 0.5, "", None), CHANGES["zero"](gradient, 0.0, "", None)):
        assert changed.dtype == dtype
    if not dtype.is_complex:
        for changed in (clamp_gradient(gradient, 0.5), noisy_gradient(gradient, 0.1, "k"), noisy_gradient(gradient, 0.0, "k")):
            assert changed.dtype == dtype
        assert torch.equal(changed, gradient)


def test_sparse_gradients_stay_sparse() -> None:
    values = torch.tensor([[1.0, 2.0], [3.0, 4.0], [-5.0, 6.0]])
    dense = sparse(values).to_dense()
    for changed, expected in (
        (CHANGES["scale"](sparse(values), 0.5, "", None), dense * 0.5),
        (CHANGES["zero"](sparse(values), 0.0, "", None), dense * 0),
    ):
        assert changed.layout == torch.sparse_coo
        assert torch.equal(changed.to_dense(), expected)


def test_noise_is_a_function_of_its_key_alone() -> None:
    before = torch.get_rng_state()
    zeros = torch.zeros(200, 200)
    one, again, other = (noisy_gradient(zeros, 0.3, key) for key in ("a/0", "a/0", "a/1"))
    assert torch.equal(torch.get_rng_state(), before)
    assert torch.equal(one, again)
    assert not torch.equal(one, other)
    assert abs(float((one * other).mean())) < 0.002
    assert float(one.mean()) == pytest.approx(0.0, abs=0.01)
    assert float(one.std()) == pytest.approx(0.3, rel=0.02)
    torch.testing.assert_close(noisy_gradient(zeros, 0.3, "a/0", torch.tensor(1024.0)), one * 1024)


def test_a_function_sees_the_unscaled_gradient() -> None:
    seen = []

    def keep(gradient: Tensor, *factor: float) -> Tensor:
        seen.append((gradient.clone(), *factor))
        return gradient * 2

    gradient = torch.tensor([8.0])
    assert apply_function(keep, gradient, None, None, "site").item() == 16.0
    assert apply_function(keep, gradient, 0.5, torch.tensor(4.0), "site").item() == 16.0
    assert seen == [(torch.tensor([8.0]),), (torch.tensor([2.0]), 0.5)]
    tiny = torch.tensor([6e-8], dtype=torch.float16)  # what the scale lifts, half precision could not hold without it
    found = apply_function(lambda g: g * 1.0, tiny, None, torch.tensor(65536.0), "site")
    assert (found.dtype, found.item()) == (torch.float16, tiny.item())
    assert apply_function(lambda g: None, gradient, None, None, "site") is None


BAD_FUNCTIONS = [
    (lambda g: g.mul_(0.5), RuntimeError, "transform at 'site' changed the gradient in place.*Return a new tensor"),
    (lambda g: (g.zero_(), None)[1], RuntimeError, "changed the gradient in place"),
    (lambda g: 3.0, TypeError, "must return a tensor, or None for no change; got float"),
    (lambda g: g[:1], ValueError, r"gradient of shape \(2, 3\), torch.float32, on cpu; got \(1, 3\)"),
    (lambda g: g.double(), ValueError, r"got \(2, 3\), torch.float64"),
]


@pytest.mark.parametrize("scale", [None, torch.tensor(4.0)])
@pytest.mark.parametrize(("function", "error", "message"), BAD_FUNCTIONS)
def test_a_wrong_function_raises_with_its_site(function: Any, error: type[Exception], message: str, scale: Tensor | None) -> None:
    with pytest.raises(error, match=message):
        apply_function(function, torch.ones(2, 3), None, scale, "site")


def test_schedules() -> None:
    assert [Schedule("factor", 0.5).at(epoch) for epoch in (0, 9)] == [0.5, 0.5]
    steps = Schedule("factor", {5: 1.0, 2: 0.1})
    assert [steps.at(epoch) for epoch in (0, 1, 2, 4, 5, 99)] == [None, None, 0.1, 0.1, 1.0, 1.0]
    annealed = Schedule("factor", lambda epoch: None if epoch < 1 else 1 / epoch)
    assert [annealed.at(epoch) for epoch in (0, 1, 4)] == [None, 1.0, 0.25]


BAD_FACTORS = [
    ("half", {}, TypeError, "factor must be a number, a mapping of epochs to numbers.*got 'half'"),
    (math.nan, {}, ValueError, "factor must be finite; got nan"),
    ({}, {}, ValueError, "factor must have a number for some epoch"),
    ({"1": 0.5}, {}, TypeError, "factor must map epochs .integers. to numbers; got '1'"),
    ({-1: 0.5}, {}, ValueError, "factor must map epochs from 0 on; got -1"),
    ({0: "a"}, {}, TypeError, "got 'a'"),
    (0.0, {"low": 0.0, "above": True}, ValueError, "factor must be above 0 and finite; got 0.0"),
    (-1.0, {"low": 0.0}, ValueError, "factor must be at least 0 and finite; got -1.0"),
]


@pytest.mark.parametrize(("factor", "limits", "error", "message"), BAD_FACTORS)
def test_bad_factors_are_rejected(factor: Any, limits: dict[str, Any], error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Schedule("factor", factor, **limits)


Pair = namedtuple("Pair", "first second")


@dataclass
class Output:
    value: Tensor
    label: str = "same"


OUTPUTS = {
    "tensor": (lambda x: x * 1, lambda out: out),
    "tuple": (lambda x: (x * 1, torch.arange(3)), lambda out: out[0]),
    "list": (lambda x: [x * 1], lambda out: out[0]),
    "named tuple": (lambda x: Pair(None, x * 1), lambda out: out.second),
    "dict": (lambda x: {"a": {"b": x * 1}, "n": 3}, lambda out: out["a"]["b"]),
    "dataclass": (lambda x: Output(x * 1), lambda out: out.value),
    "packed": (lambda x: pack_sequence([x[0], x[1]]), lambda out: out.data),
    "itself": (lambda x: x, lambda out: out),
    "itself in a tuple": (lambda x: (x, 1), lambda out: out[0]),
    "itself in a dict": (lambda x: {"x": x}, lambda out: out["x"]),
    "itself in a dataclass": (lambda x: Output(x), lambda out: out.value),
    "view": (lambda x: x.view(-1), lambda out: out),
    "view in a named tuple": (lambda x: Pair(x.t(), 0), lambda out: out.first),
}


class Returns(nn.Module):
    def __init__(self, make: Any) -> None:
        super().__init__()
        self.make = make

    def forward(self, x: Tensor) -> Any:
        return self.make(x)


# what goes into a packed sequence may not be changed in place, with or without us
@pytest.mark.parametrize(
    ("kind", "in_place"),
    [(kind, in_place) for kind in OUTPUTS for in_place in (False, True) if not (in_place and kind == "packed")],
)
def test_only_what_comes_back_through_the_output_is_changed(kind: str, in_place: bool) -> None:
    make, take = OUTPUTS[kind]
    state = GradientState("scale")
    state.factor, state.active = 10.0, True
    module = Returns(make)
    plain = module(torch.ones(2, 3))
    change = ChangeGradient(state, "site")
    module.register_forward_hook(HookOutput(change), with_kwargs=True)
    leaf = torch.ones(2, 3, requires_grad=True)
    x = leaf * 2
    out = module(x)
    assert type(out) is type(plain)
    found = take(out)
    (found.relu_() if in_place else found.relu()).sum().backward()
    assert torch.equal(leaf.grad, torch.full((2, 3), 20.0))
    assert change.reached
    if not in_place:  # the input has other uses, which are not the module's output
        leaf.grad = None
        x = leaf * 2
        (take(module(x)).sum() + x.sum()).backward()
        assert torch.equal(leaf.grad, torch.full((2, 3), 22.0))


def test_parameters_are_selected_by_name() -> None:
    net = ResidualCNN()
    assert [name for name, _ in select_parameters(net, ["conv.*", "*.bias"])] == [
        "stem.bias",
        "bn.bias",
        "conv.weight",
        "conv.bias",
        "head.bias",
    ]
    assert [name for name, _ in select_parameters(net, lambda name, p: p.dim() == 2)] == ["head.weight"]
    tied = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 2, bias=False))
    tied[1].weight = tied[0].weight
    assert [name for name, _ in select_parameters(tied, "*")] == ["0.weight"]
    assert [name for name, _ in select_parameters(torch.compile(mlp()), "0.*")] == ["0.weight", "0.bias"]


@pytest.mark.parametrize(
    ("selector", "error", "message"),
    [
        (
            "conv",
            ValueError,
            r"parameters='conv' matches no parameter of ResidualCNN. Closest names: 'conv.weight', 'conv.bias'.*'conv.\*'",
        ),
        ("haed.weight", ValueError, "Closest names: 'head.weight'"),
        (lambda name, p: False, ValueError, "selects none of the 8 parameters of ResidualCNN"),
        (3, TypeError, "parameters must be a glob pattern.*got 3"),
        (nn.Linear, TypeError, "parameters must be a glob pattern"),
        ([nn.Linear], TypeError, "got <class 'torch.nn.modules.linear.Linear'> in"),
        ([], ValueError, r"got \[\], which names nothing"),
    ],
)
def test_a_selector_that_chooses_nothing_is_rejected(selector: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        select_parameters(ResidualCNN(), selector)
