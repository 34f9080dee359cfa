"""The Triton kernels, against numpy in float64: on a CUDA device, or through Triton's interpreter where only that is there."""

import math
import os

import pytest
import torch

from lightning_hooks.statistics.rows import Clock, Column, empty_table

CUDA = torch.cuda.is_available()
INTERPRETED = os.environ.get("TRITON_INTERPRET") == "1"
if not CUDA and not INTERPRETED:
    pytest.skip("no CUDA device; with Triton installed, TRITON_INTERPRET=1 runs these on the CPU", allow_module_level=True)

from lightning_hooks.statistics.kernels import (  # noqa: E402
    Bounds,
    Units,
    fused,
)
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


DTYPES = (torch.float32, torch.float64, torch.bfloat16, torch.float16)
EIGHT_BITS = (torch.float8_e4m3fn, torch.float8_e5m2, torch.float8_e4m3fnuz, torch.float8_e5m2fnuz)
SHARE = 8 * BLOCK  # what a program reads at least
SIZES = (1, 2, BLOCK - 1, BLOCK, BLOCK + 1, SHARE - 1, SHARE, SHARE + 1, 2 * SHARE + 1)


def everything(fast, values, unit_dim=-1):
    """The row with moments, values at bounds and units, and the units that fired."""
    unit_dim %= values.dim()
    known = torch.zeros(values.shape[unit_dim], dtype=torch.bool, device=DEVICE)
    row = row_of(
        fast,
        values,
        moments=True,
        bounds=lambda tensor: Bounds(tensor, -0.5, 0.25, tensor.numel()),
        units=lambda _: Units(known.numel(), unit_dim, known),
    )
    return row, known.cpu()


def assert_everything(found, values, assert_row, assert_moments, unit_dim=-1):
    (row, fired), wide = found, values.double()
    assert_row(row, values)
    assert_moments(row, values)
    at_bound = int(((wide <= -0.5) | (wide >= 0.25)).sum())
    assert row[[Column.SATURATED, Column.SATURABLE, Column.UNITS]].tolist() == [at_bound, values.numel(), fired.numel()]
    assert torch.equal(fired, (wide.movedim(unit_dim, 0).reshape(fired.numel(), -1) != 0).any(1))


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_tails_of_each_type(dtype, size, fast, assert_row, assert_moments):
    """What lies behind the values in memory, and in the lanes past the end, does not count."""
    torch.manual_seed(size)
    memory = torch.full((size + 2 * BLOCK,), math.nan, dtype=dtype)
    values = memory[:size].copy_(torch.randn(size).relu())
    values[size // 2] = -0.5
    assert_everything(everything(fast, values), values, assert_row, assert_moments)


VIEWS = {
    "from an odd address": lambda x: x.reshape(-1)[3:],
    "transposed": lambda x: x.movedim(1, 3),
    "channels last": lambda x: x.contiguous(memory_format=torch.channels_last),
    "every second": lambda x: x[:, :, ::2],
    "expanded": lambda x: x[:, :1].expand(-1, 5, -1, -1),
    "overlapping": lambda x: x.as_strided((4, 40), (20, 1)),
    "reversed": lambda x: x.flip(0),
}


@pytest.mark.parametrize("view", VIEWS.values(), ids=VIEWS)
@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_any_strides(dtype, view, fast, assert_row, assert_moments):
    torch.manual_seed(0)
    values = view(torch.randn(6, 5, 8, 12).to(dtype))
    for unit_dim in {0, min(1, values.dim() - 1), values.dim() - 1}:
        assert_everything(everything(fast, values, unit_dim), values, assert_row, assert_moments, unit_dim)


@pytest.mark.parametrize("dtype", EIGHT_BITS, ids=str)
def test_floats_of_8_bits_are_read_by_torch(dtype, fast, monkeypatch, assert_row, assert_moments):
    torch.manual_seed(0)
    values = torch.randn(40, 30).relu().to(dtype)
    values.view(torch.uint8)[:, 4] = torch.zeros(1).to(dtype).view(torch.uint8)
    monkeypatch.setattr(FusedKernels, "_launch", None)
    assert_everything(everything(fast, values), values, assert_row, assert_moments)
    nan = torch.tensor([1.0, math.nan]).to(dtype)
    assert row_of(fast, nan)[Column.NONFINITE] == 1


@pytest.mark.parametrize("programs", [1, 3, 5])
def test_more_values_than_programs_read_in_one_go(programs, fast, monkeypatch, assert_row, assert_moments):
    monkeypatch.setattr(fused, "PROGRAMS", programs)
    values = torch.randn(6 * SHARE + 5)
    assert_everything(everything(fast, values), values, assert_row, assert_moments)
