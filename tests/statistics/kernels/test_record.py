"""What kernels record of a tensor, against numpy in float64: torch's for any device, torch's for CPU memory, and those in C."""

import math
import sys
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from lightning_hooks.statistics.kernels import Bounds, Kernels, Units, kernels_for, summarize
from lightning_hooks.statistics.kernels.host import CHUNK, summarize_at_once
from lightning_hooks.statistics.rows import MOMENTS, Clock, Column, empty_table, merge


def on_host(values):
    """The row that the CPU kernels give."""
    table = empty_table(1)
    kernels_for("cpu").record(table, 0, values, moments=True)
    return table[0]


def summarized(values):
    """The row that the kernels for any device give."""
    return summarize(values, moments=True)


@pytest.fixture(params=["any device", "cpu"])
def kernels(request):
    """Those for accelerators run on the CPU too."""
    return Kernels() if request.param == "any device" else kernels_for("cpu")


@pytest.fixture(params=[summarized, on_host], ids=["summarize", "on_host"])
def summary(request):
    return request.param


@pytest.fixture(autouse=True)
def seed():
    torch.manual_seed(0)


ORDINARY = {
    "normal": lambda: torch.randn(1000),
    "relu": lambda: torch.randn(64, 32).relu(),
    "uniform": lambda: torch.rand(3, 5, 7),
    "lognormal": lambda: torch.randn(5000).exp(),
    "offset": lambda: torch.randn(4000) + 3,
    "just_where_care_begins": lambda: torch.randn(4000) + 3.9,
    "negative": lambda: -torch.rand(999) - 0.5,
    "integers": lambda: torch.randint(-3, 4, (777,)).float(),
    "chunk": lambda: torch.randn(CHUNK),
    "chunks": lambda: torch.randn(2 * CHUNK + 3),
    "zeros_in_chunks": lambda: torch.cat((torch.zeros(CHUNK + 7), torch.randn(CHUNK).relu())),
    "constant": lambda: torch.full((500,), 0.1),
    "zeros": lambda: torch.zeros(10),
    "one": lambda: torch.tensor([-2.5]),
    "0-d": lambda: torch.tensor(4.0),
    "empty": lambda: torch.empty(0, 3),
    "non_contiguous": lambda: torch.randn(20, 30)[::2, 1::3],
    "transposed": lambda: torch.randn(4, 5, 6).permute(2, 0, 1),
    "channels_last": lambda: torch.randn(2, 3, 4, 5).to(memory_format=torch.channels_last),
    "expanded": lambda: torch.randn(1, 7).expand(5, 7),
    "expanded_scalar": lambda: torch.tensor(2.0).expand(3, 3),
    "float64": lambda: torch.randn(500, dtype=torch.float64),
    "bfloat16": lambda: torch.randn(500).bfloat16(),
    "bfloat16 from 0.75": lambda: (torch.randn(100_003).relu() + 0.75).bfloat16(),  # few numbers, whose sums round the same way
    "float16": lambda: torch.randn(500).half(),
    "float8_e4m3fn": lambda: torch.randn(500).relu().to(torch.float8_e4m3fn),
    "float8_e5m2": lambda: torch.cat((torch.randn(500), torch.tensor([math.nan, math.inf]))).to(torch.float8_e5m2),
    "float16_large": lambda: torch.full((300,), 6e4, dtype=torch.float16),
    "tiny": lambda: torch.randn(1000) * 1e-25,
    "huge": lambda: torch.randn(1000) * 1e25,
    "mixed_magnitudes": lambda: torch.randn(1000) * torch.logspace(-20, 20, 1000),
    "subnormal": lambda: torch.full((10,), 1e-42),
    "some_nan": lambda: torch.randn(100).index_fill(0, torch.tensor([3, 50]), math.nan),
    "some_inf": lambda: torch.randn(100).index_fill(0, torch.tensor([3]), math.inf).index_fill(0, torch.tensor([4]), -math.inf),
    "nan_in_a_later_chunk": lambda: torch.randn(CHUNK + 9).index_fill(0, torch.tensor([CHUNK + 1]), math.nan),
    "nan_and_zeros": lambda: torch.tensor([0.0, -0.0, math.nan, 1.0]),
    "all_nan": lambda: torch.full((9,), math.nan),
    "all_inf": lambda: torch.full((9,), -math.inf),
    "nan_before_large_values": lambda: (1e8 + torch.randn(100_000, dtype=torch.float64)).index_fill_(
        0, torch.tensor([0]), math.nan
    ),
    "inf_before_large_values": lambda: (1e8 + torch.randn(100_000, dtype=torch.float64)).index_fill_(
        0, torch.tensor([0]), math.inf
    ),
    "nothing_finite_before_large_values": lambda: torch.cat(
        (torch.full((20_000,), math.nan, dtype=torch.float64), 1e8 + torch.randn(50_000, dtype=torch.float64))
    ),
    "half_nan_bfloat16": lambda: torch.tensor([1.0, math.nan, 2.0, math.inf]).bfloat16(),
}


@pytest.mark.parametrize("make", ORDINARY.values(), ids=ORDINARY)
def test_a_row_equals_the_reference(summary, make, assert_row, assert_moments):
    values = make()
    before = values.clone()
    row = summary(values)
    assert_row(row, values)
    assert_moments(row, values)
    assert torch.equal(values.double().nan_to_num(nan=7.0), before.double().nan_to_num(nan=7.0)), "the values were altered"


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("size", [1000, CHUNK + 11])
def test_a_mean_of_1000_standard_deviations(summary, dtype, size, assert_row, assert_moments):
    values = torch.randn(size, dtype=dtype) + 1000
    before = values.clone()
    row = summary(values)
    assert_row(row, values, rel=1e-4)
    assert_moments(row, values, rel=1e-4)
    assert torch.equal(values, before)


@pytest.mark.parametrize("batches", [[1000], [1, 999], [64, 64, 7], [2] * 20, [0, 5, 0], [3 * CHUNK, 10]], ids=str)
def test_recorded_batches_equal_the_whole(batches, kernels, assert_row, assert_moments):
    parts = [torch.randn(size) * (1 + i) + 5 * i for i, size in enumerate(batches)]
    table = empty_table(3)
    for part in parts:
        kernels.record(table, 1, part, moments=True)
    assert_row(table[1], *parts)
    assert_moments(table[1], *parts)
    assert torch.equal(table[[0, 2]], empty_table(2))


@pytest.mark.parametrize("make", [pytest.param(make, id=name) for name, make in ORDINARY.items() if name != "empty"])
def test_all_kernels_agree(make):
    found = []
    for kernels in (Kernels(), kernels_for("cpu")):
        torch.manual_seed(1)
        table, fired = empty_table(1), []
        for values in (torch.randn(30), make()):
            dim = max(values.dim() - 1, 0)
            fired.append(torch.zeros(values.shape[dim] if values.dim() else 1, dtype=torch.bool))
            units = Units(len(fired[-1]), dim, fired[-1])
            kernels.record(table, 0, values, None, True, Bounds(values, -0.5, 0.7, values.numel()), units, True)
        found.append((table, torch.cat(fired)))
    (table, fired), (other, also_fired) = found
    std = math.sqrt(table[0, Column.M2] / table[0, Column.COUNT])
    powers = [Column.MOMENT_M3, Column.MOMENT_M4]
    m2, _, m4 = table[0, [Column.MOMENT_M2, *powers]].tolist()
    torch.testing.assert_close(table[:, powers], other[:, powers], rtol=1e-5, atol=1e-5 * math.sqrt(m2 * m4))
    table[:, powers] = other[:, powers] = 0
    torch.testing.assert_close(table, other, rtol=2e-6, atol=1e-6 * std)
    assert torch.equal(fired, also_fired)
    assert table[0, Column.SATURABLE] == 30 + values.numel()


def test_moments_of_some_calls_only(kernels, assert_moments):
    """They have their own count and mean; the other columns are those of all calls."""
    table, with_moments, without = empty_table(1), torch.randn(500).exp(), torch.randn(300) + 2
    for values, moments in ((with_moments, True), (without, False), (3 * with_moments, True)):
        kernels.record(table, 0, values, moments=moments)
    seen = empty_table(1)
    for values in (with_moments, 3 * with_moments):
        kernels.record(seen, 0, values, moments=True)
    torch.testing.assert_close(table[0, MOMENTS], seen[0, MOMENTS])
    assert_moments(seen[0], with_moments, 3 * with_moments)
    assert table[0, Column.COUNT] == 1300


class Syncs(TorchDispatchMode):
    """Counts what would make an accelerator wait."""

    def __init__(self):
        super().__init__()
        self.seen = []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.nonzero.default):
            self.seen.append(str(func))
        return func(*args, **(kwargs or {}))


@pytest.mark.parametrize("name", ["normal", "some_nan", "chunks", "bfloat16", "empty"])
def test_summarize_has_no_host_sync(name):
    values = ORDINARY[name]()
    with Syncs() as syncs:
        summarize(values, moments=True)
    assert syncs.seen == []


def test_recording_has_no_item(kernels):
    table, values = empty_table(1), torch.randn(10, 10)
    units = Units(10, 1, torch.zeros(10, dtype=torch.bool))
    with Syncs() as syncs:
        kernels.record(table, 0, values, None, True, Bounds(values, -1.0, None, 100), units)
    assert syncs.seen == []


@pytest.mark.parametrize("name", ["empty", "some_nan", "some_inf", "tiny", "huge"])
def test_what_sums_of_squares_do_not_give(name):
    assert summarize_at_once(ORDINARY[name]()) is None
    assert summarize_at_once(ORDINARY["normal"]()) is not None


def test_calls_of_one_site_from_several_threads_all_count():
    """Large enough that the compiled path lets other threads run while it reads."""
    table, values, calls = empty_table(1), torch.ones(1 << 16, dtype=torch.bfloat16), 1500
    record = kernels_for("cpu").record
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        with ThreadPoolExecutor(3) as pool:
            list(pool.map(lambda _: [record(table, 0, values) for _ in range(calls)], range(3)))
    finally:
        sys.setswitchinterval(before)
    assert (table[0, Column.CALLS], table[0, Column.COUNT]) == (3 * calls, 3 * calls * values.numel())


def test_the_first_batch_with_a_nan_or_an_infinity_is_noted(kernels):
    table, clock = empty_table(2), Clock()
    bad = {3: math.inf, 5: math.nan}
    for batch in range(7):
        clock.set(batch)
        kernels.record(table, 0, torch.tensor([1.0, bad.get(batch, 2.0)]), clock)
        kernels.record(table, 1, torch.ones(2), clock)
    assert table[:, Column.FIRST_NONFINITE].tolist() == [3.0, math.inf]
    other = table.clone()
    other[0, Column.FIRST_NONFINITE] = 1.0
    assert merge(torch.stack((table, other, empty_table(2))))[:, Column.FIRST_NONFINITE].tolist() == [1.0, math.inf]
