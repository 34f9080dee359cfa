"""The Triton kernels, against numpy in float64: on a CUDA device, or through Triton's interpreter where only that is there."""

import math
import os

import pytest
import torch

from lightning_hooks.statistics import Column, empty_table
from lightning_hooks.statistics.rows import Clock

CUDA = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not CUDA and not INTERPRETED:
    pytest.skip("no CUDA device; with Triton installed, TRITON_INTERPRET=1 runs these on the CPU", allow_module_level=True)

from lightning_hooks.statistics.kernels import Bounds, Units  # noqa: E402
from lightning_hooks.statistics.kernels.fused import BLOCK, FusedKernels  # noqa: E402

DEVICE = "cuda" if CUDA else "cpu"
pytestmark = [pytest.mark.filterwarnings("ignore:.*invalid value.*:RuntimeWarning")]  # the interpreter's numpy
if CUDA:
    pytestmark.append(pytest.mark.cuda)


@pytest.fixture(autouse=True)
def path():
    """One path only: this one."""


@pytest.fixture(scope="module")
def fast():
    return FusedKernels()


def row_of(fast, *tensors, clock=None, moments=False, **options):
    table = empty_table(3, DEVICE)
    for tensor in tensors:
        tensor = tensor.to(DEVICE)
        made = {name: make(tensor) for name, make in options.items()}
        fast.record(table, 1, tensor, clock or Clock(DEVICE), moments=moments, **made)
    assert torch.equal(table[[0, 2]].cpu(), empty_table(2))
    return table[1].cpu()


CASES = {
    "one": lambda: torch.tensor([3.0]),
    "normal": lambda: torch.randn(5000),
    "odd": lambda: torch.randn(8 * BLOCK * 3 + 17) * 3 + 1,
    "offset": lambda: torch.randn(40_000) + 1e4,
    "relu": lambda: torch.randn(30, 70).relu(),
    "constant": lambda: torch.full((9000,), 0.1),
    "huge": lambda: torch.randn(3000) * 1e37,
    "tiny": lambda: torch.randn(3000) * 1e-36,
    "some nan": lambda: torch.cat((torch.tensor([math.nan, math.inf]), torch.randn(9000), torch.tensor([-math.inf]))),
    "all nan": lambda: torch.full((50,), math.nan),
    "float64": lambda: torch.randn(700, dtype=torch.float64) * 1e100,
    "bfloat16": lambda: torch.randn(20_000).bfloat16(),
    "float16": lambda: torch.randn(20_000).half(),
    "channels last": lambda: torch.randn(4, 5, 6, 7).to(memory_format=torch.channels_last),
}


@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_a_row_equals_the_reference(make, fast, assert_row):
    torch.manual_seed(0)
    first, second = make(), torch.randn(300) * 2 - 1
    assert_row(row_of(fast, first, second), first, second)


@pytest.mark.filterwarnings("ignore:.*overflow.*:RuntimeWarning")  # the interpreter's numpy: fourth powers of 1e100
@pytest.mark.parametrize("make", CASES.values(), ids=CASES)
def test_higher_moments_equal_the_reference(make, fast, assert_row, assert_moments):
    torch.manual_seed(0)
    first, second = make(), torch.randn(300) * 2 - 1
    row = row_of(fast, first, second, moments=True)
    assert_row(row, first, second)
    if first.abs().nan_to_num(posinf=0).max() < 1e70:  # else fourth powers leave float64
        assert_moments(row, first, second)


def test_one_large_value_among_many(fast, assert_moments):
    values = torch.randn(100_000)
    values[70_000] = 3000
    assert_moments(row_of(fast, values, moments=True), values)


def test_the_first_batch_with_a_nan_is_noted(fast):
    table, clock = empty_table(1, DEVICE), Clock(DEVICE)
    for batch, value in enumerate([1.0, math.inf, math.nan]):
        clock.set(batch + 4)
        fast.record(table, 0, torch.tensor([value, 1.0], device=DEVICE), clock)
    assert table[0, Column.FIRST_NONFINITE].item() == 5


@pytest.mark.parametrize(("low", "high"), [(-0.5, None), (None, 0.25), (-0.5, 0.25)])
def test_values_at_a_bound(low, high, fast):
    values = torch.randn(10_000)
    values[:3] = torch.tensor([math.nan, math.inf, -math.inf])
    expected = sum(([] if low is None else [(values <= low).sum()]) + ([] if high is None else [(values >= high).sum()]))
    row = row_of(fast, values, bounds=lambda tensor: Bounds(tensor, low, high, tensor.numel()))
    assert row[[Column.SATURATED, Column.SATURABLE]].tolist() == [expected, 10_000]


@pytest.mark.parametrize(("shape", "unit_dim"), [((40, 30), 1), ((6, 30, 11, 7), 1), ((5, 9, 30), 2), ((30,), 0)])
def test_units_that_fired(shape, unit_dim, fast):
    values = torch.randn(shape)
    never_fired = torch.zeros(30, dtype=torch.bool)
    never_fired[[3, 17, 29]] = True
    view = [1] * len(shape)
    view[unit_dim] = 30
    values = torch.where(never_fired.view(view), 0.0, values)
    known = torch.zeros(30, dtype=torch.bool, device=DEVICE)
    row = row_of(fast, values, units=lambda _: Units(30, unit_dim, known))
    assert torch.equal(~known.cpu(), never_fired)
    assert row[Column.UNITS] == 30
