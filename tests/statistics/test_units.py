"""Which units fired, and where activations saturate."""

import pytest
import torch
import transformers.activations
from torch import nn

from lightning_hooks.diagnostics.features.activations import (
    _RECTIFIER_NAMES,
    _SATURATION_NAMES,
    Saturation,
    is_rectifier,
    saturation_of,
)
from lightning_hooks.statistics.kernels import Kernels, Units, kernels_for
from lightning_hooks.statistics.rows import Column, empty_table
from lightning_hooks.statistics.units import features_last, unit_dimension


def hugging_face(names):
    return [getattr(transformers.activations, name)() for name in sorted(names) if hasattr(transformers.activations, name)]


BOUNDED = [  # activation, its range, whether only values at the bound count
    (nn.Sigmoid(), 0, 1, False),
    (nn.Tanh(), -1, 1, False),
    (nn.Softsign(), -1, 1, False),
    (nn.Hardsigmoid(), 0, 1, True),
    (nn.Hardtanh(), -1, 1, True),
    (nn.Hardtanh(-3.0, 5.0), -3, 5, True),
    (nn.ReLU6(), None, 6, True),
]
TAILED = [
    *((activation, "left") for activation in [
        nn.Softplus(), nn.Softplus(beta=3.0), nn.GELU(), nn.GELU(approximate="tanh"), nn.SiLU(), nn.Mish(), nn.Hardswish(),
        nn.ELU(), nn.ELU(alpha=2.0), nn.ELU(alpha=0.3), nn.CELU(), nn.CELU(alpha=2.0), nn.CELU(alpha=0.3), nn.SELU(),
    ]),
    *((activation, "left") for activation in hugging_face(_SATURATION_NAMES)),
]  # fmt: skip


def count(spec, values):
    """How many of the values are at a bound, and how many could be."""
    bounds = spec.bounds(values)
    found = int(kernels_for("cpu").beyond(bounds))
    assert Kernels().beyond(bounds) == found
    return found, bounds.total


def fired_units(values, units_last):
    dim = unit_dimension(values.dim(), units_last)
    found = [torch.zeros(values.shape[dim] if values.dim() else 1, dtype=torch.bool) for _ in range(2)]
    for kernels, fired in zip((Kernels(), kernels_for("cpu")), found, strict=True):
        table = empty_table(1)
        complete = kernels.record(table, 0, values, units=Units(len(fired), dim, fired))
        assert complete == (bool(fired.all()) and type(kernels) is not Kernels)
        assert table[0, Column.UNITS] == len(fired)
    assert torch.equal(*found)
    return found[0]


def saturated_fraction(activation, inputs):
    spec = saturation_of(activation)
    outputs = activation(inputs)
    saturated, total = count(spec, outputs if spec.reads == "output" else inputs)
    assert total == inputs.numel()
    return int(saturated) / total


@pytest.mark.parametrize(("activation", "low", "high", "hard"), BOUNDED, ids=str)
def test_bounded_activations_saturate_within_a_hundredth_of_their_range(activation, low, high, hard):
    x = torch.linspace(-200, 200, 80001, dtype=torch.float64)
    y = activation(x)
    margin = 0.0 if hard else 0.01 * (high - low)
    expected = (y >= high - margin).double().mean() + (0 if low is None else (y <= low + margin).double().mean())
    assert 0.1 < expected < 1
    assert saturated_fraction(activation, x) == pytest.approx(expected.item(), abs=1e-4)


@pytest.mark.parametrize(("activation", "side"), TAILED, ids=str)
def test_tails_saturate_where_the_slope_is_below_a_hundredth(activation, side):
    x = torch.linspace(-15, 15, 30001, dtype=torch.float64, requires_grad=True)
    (slope,) = torch.autograd.grad(activation(x).sum(), x)
    flat = slope.abs() < 0.01
    tail = (flat if side == "left" else flat.flip(0)).long().cumprod(0)  # from the end up to where the slope first matters
    expected = tail.double().mean().item()
    assert 0.1 < expected < 0.5
    assert saturated_fraction(activation, x.detach()) == pytest.approx(expected, abs=1e-3)


@pytest.mark.parametrize(
    "layout",
    [
        lambda x: x.to(memory_format=torch.channels_last),
        lambda x: x.transpose(1, 3),
        lambda x: x[:, :, ::2, 1:],
        lambda x: x[:1].expand(3, -1, -1, -1),
    ],
)
def test_counts_do_not_depend_on_the_layout(layout):
    torch.manual_seed(0)
    values = layout(torch.rand(2, 3, 8, 8))
    saturated, total = count(Saturation(0.2, 0.9), values)
    assert int(saturated) == ((values <= 0.2) | (values >= 0.9)).sum().item()
    assert total == values.numel()


@pytest.mark.parametrize(
    ("activation", "shape", "dim"),
    [
        (nn.Softmax(dim=-1), (6, 5), -1),
        (nn.Softmax(dim=1), (4, 5, 3), 1),
        (nn.Softmax2d(), (2, 5, 3, 3), 1),
        (nn.Softmax2d(), (5, 3, 3), 0),
    ],
    ids=str,
)
def test_softmax_counts_distributions(activation, shape, dim):
    torch.manual_seed(0)
    logits = torch.randn(shape) * 8
    probabilities = logits.double().softmax(dim)
    saturated, total = count(saturation_of(activation), activation(logits))
    assert total == logits.numel() // shape[dim]
    assert 0 < int(saturated) == (probabilities.amax(dim) >= 0.99).sum().item() < total


@pytest.mark.parametrize("activation", [nn.SiLU(inplace=True), nn.Mish(inplace=True), nn.Hardswish(inplace=True)])
def test_what_overwrites_the_input_that_would_report_says_nothing(activation):
    assert saturation_of(activation) is None


@pytest.mark.parametrize("module", [nn.ReLU(), nn.ReLU6(), nn.ReLU(inplace=True), *hugging_face(_RECTIFIER_NAMES)])
def test_rectifiers(module):
    assert is_rectifier(module)
    assert module(torch.tensor([-1.0])).item() == 0.0


@pytest.mark.parametrize("module", [nn.GELU(), nn.LeakyReLU(), nn.Softplus(), nn.ELU(), nn.Threshold(0.0, 1.0), nn.Linear(1, 1)])
def test_no_rectifiers(module):
    assert not is_rectifier(module)


@pytest.mark.parametrize(
    ("module", "last"),
    [
        (nn.Linear(1, 1), True),
        (nn.LSTM(1, 1), True),
        (nn.Embedding(1, 1), True),
        (nn.Conv1d(1, 1, 1), False),
        (nn.ConvTranspose2d(1, 1, 1), False),
        (nn.BatchNorm1d(1), False),
        (nn.GroupNorm(1, 1), False),
        (nn.ReLU(), None),
    ],
    ids=str,
)
def test_where_units_are(module, last):
    assert features_last(module) is last


@pytest.mark.parametrize(
    ("shape", "units_last", "unit_dim"),
    [
        ((4,), None, 0),
        ((4,), False, 0),
        ((5, 4), None, 1),
        ((5, 4), False, 1),
        ((3, 5, 4), None, 2),
        ((3, 5, 4), False, 1),
        ((2, 4, 3, 3), None, 1),
        ((2, 4, 3, 3), True, 3),
        ((2, 3, 3, 3, 4), True, 4),
        ((2, 4, 3, 3, 3), None, 1),
    ],
)
def test_fired_units_layouts(shape, units_last, unit_dim):
    torch.manual_seed(0)
    values = (torch.rand(shape) - 0.7).relu()
    values.select(unit_dim, 1).zero_()
    by_unit = values.movedim(unit_dim, 0).reshape(shape[unit_dim], -1)
    expected = [any(value > 0 for value in unit) for unit in by_unit.tolist()]
    assert expected[1] is False
    assert fired_units(values, units_last).tolist() == expected
