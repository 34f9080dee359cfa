"""Gains of initial weights against a loop over elements, and modules that stand in several places."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses import FakeTensorMode

from lightning_hooks.diagnostics.setup.initial import (
    initial_gains,
    initial_rms,
    initial_sizes,
    roles,
    shared_modules,
    starting_at_zero,
)


def slow_gain(weight: Tensor, fan_in: int) -> float:
    values = weight.double().flatten().tolist()
    return math.sqrt(sum(value * value for value in values) / len(values)) * math.sqrt(fan_in)


def test_gain_of_every_kind_of_layer() -> None:
    torch.manual_seed(0)
    linear, conv, turned = nn.Linear(12, 5), nn.Conv2d(6, 4, (3, 2), groups=2), nn.ConvTranspose2d(6, 4, 3)
    rnn, bilinear = nn.LSTM(7, 3), nn.MultiheadAttention(8, 2)
    layers = {"linear": linear, "conv": conv, "turned": turned, "rnn": rnn, "attention": bilinear}
    gains = initial_gains(initial_sizes(list(layers.items())))
    assert gains == pytest.approx(
        {
            "linear": slow_gain(linear.weight, 12),
            "conv": slow_gain(conv.weight, 3 * 3 * 2),
            "turned": slow_gain(turned.weight, 6 * 9),
            "rnn": max(slow_gain(rnn.weight_ih_l0, 7), slow_gain(rnn.weight_hh_l0, 3)),
            "attention": slow_gain(bilinear.in_proj_weight, 8),
        },
        rel=1e-5,
    )


@pytest.mark.parametrize(
    ("init", "gain"), [(nn.init.kaiming_normal_, math.sqrt(2)), (None, 1 / math.sqrt(3)), (nn.init.zeros_, 0.0)]
)
def test_gain_of_known_initialisations(init: object, gain: float) -> None:
    torch.manual_seed(0)
    wide, narrow = nn.Linear(2000, 300), nn.Conv2d(64, 64, 3)
    for layer in (wide, narrow):
        if callable(init):
            init(layer.weight)
    sizes = initial_sizes([("wide", wide), ("narrow", narrow)])
    assert list(initial_gains(sizes).values()) == pytest.approx([gain, gain], rel=0.02)


def test_what_has_no_gain() -> None:
    frozen = nn.Linear(3, 3).requires_grad_(False)
    with FakeTensorMode():
        fake = nn.Linear(3, 3)
    sites: list[tuple[str, nn.Module]] = [
        ("frozen", frozen),
        ("embedding", nn.Embedding(5, 3)),
        ("bag", nn.EmbeddingBag(5, 3)),
        ("norm", nn.LayerNorm(3)),
        ("act", nn.ReLU()),
        ("lazy", nn.LazyLinear(3)),
        ("meta", nn.Linear(3, 3, device="meta")),
        ("fake", fake),
    ]
    assert initial_gains(initial_sizes(sites)) == initial_rms(initial_sizes(sites)) == {}
    assert initial_gains(initial_sizes([])) == initial_rms(initial_sizes([])) == {}


def test_root_mean_squares() -> None:
    recurrent, linear = nn.GRU(3, 4), nn.Linear(5, 2)
    largest = max(slow_gain(weight.detach(), 1) for weight in (recurrent.weight_ih_l0, recurrent.weight_hh_l0))
    expected = {"recurrent": largest, "linear": slow_gain(linear.weight.detach(), 1)}
    assert initial_rms(initial_sizes([("recurrent", recurrent), ("linear", linear)])) == pytest.approx(expected)


def test_modules_that_stand_in_several_places() -> None:
    layer = nn.Linear(3, 3)
    repeated = nn.Sequential(*[nn.Linear(3, 3)] * 3, nn.ReLU(), nn.Linear(3, 3))
    act = nn.ReLU()
    root = nn.ModuleDict(
        {
            "repeated": repeated,
            "acts": nn.Sequential(act, act),  # nothing is learned there
            "tied_in": nn.ModuleDict({"one": layer}),
            "tied_out": nn.ModuleDict({"other": layer}),  # other parents: a decision
        }
    )
    assert shared_modules(root) == {"repeated.0": ("repeated.1", "repeated.2")}
    assert shared_modules(repeated) == {"0": ("1", "2")}


def test_roles() -> None:
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.q_proj, self.qkv, self.out2 = nn.Linear(8, 8), nn.Linear(8, 24), nn.Linear(24, 8)

    def of(net: nn.Module) -> dict[str, str]:
        return roles([(name, module) for name, module in net.named_modules() if not list(module.children())])

    blocks = nn.ModuleDict({"embed": nn.Embedding(50, 8), "layers": nn.ModuleList([Block(), Block()]), "lm_head": nn.Linear(8, 50)})
    in_a_block = {"q_proj": "Linear q_proj", "qkv": "Linear qkv", "out2": "Linear out"}
    assert of(blocks) == {f"layers.{i}.{name}": role for i in range(2) for name, role in in_a_block.items()}
    policy = nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 2))
    assert of(policy) == {"0": "Linear", "2": "Linear"}  # what the last one puts out nothing takes in
    picture = nn.Sequential(nn.Conv2d(1, 4, 3), nn.ConvTranspose2d(4, 6, 3), nn.BatchNorm2d(6), nn.Conv2d(6, 1, 1))
    assert of(picture) == {"0": "Conv2d", "1": "ConvTranspose2d", "3": "Conv2d"}  # an autoencoder ends as wide as it began


def test_the_last_of_a_numbered_sequence_is_a_head() -> None:
    def net(outputs: int) -> nn.Sequential:
        return nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, outputs))

    model = nn.ModuleDict({"actor": net(1), "critic": net(1), "encoder": net(4)})
    found = roles([(name, module) for name, module in model.named_modules() if isinstance(module, nn.Linear)])
    inner = {f"{part}.{place}" for part in ("actor", "critic", "encoder") for place in (0, 2)}
    assert set(found) == inner | {"encoder.4"}  # whose outputs others take in


def test_a_gain_by_the_fan_out_counts_where_that_by_the_fan_in_is_unusual() -> None:
    torch.manual_seed(0)
    stem, wide = nn.Conv2d(1, 64, 7, bias=False), nn.Conv2d(64, 64, 3)
    nn.init.kaiming_normal_(stem.weight, mode="fan_out")
    nn.init.constant_(wide.weight, 1.0)
    gains = initial_gains(initial_sizes([("stem", stem), ("wide", wide)]))
    assert gains["stem"] == pytest.approx(math.sqrt(2), rel=0.05)  # by the fan-in it is 0.18
    assert gains["wide"] == pytest.approx(math.sqrt(64 * 9))


def test_weights_that_start_at_zero() -> None:
    token = nn.Parameter(torch.full((1, 1, 8), 1e-6))
    weights = {
        "token": token,
        "zero": nn.Parameter(torch.zeros(3, 4)),
        "small": nn.Parameter(torch.full((3, 4), 3e-3)),
        "bias": nn.Parameter(torch.zeros(4)),
        "frozen": nn.Parameter(torch.zeros(3, 4), requires_grad=False),
        "empty": nn.Parameter(torch.zeros(0, 4)),
    }
    assert starting_at_zero(weights.items()) == {"token", "zero"}
    assert starting_at_zero([]) == frozenset()
