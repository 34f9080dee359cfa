"""Ranges, scales and zero points against torch.ao's observers."""

from __future__ import annotations

import math
import warnings
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor
from torch.ao.quantization import MinMaxObserver, MovingAverageMinMaxObserver

from lightning_hooks import quantization as rh
from lightning_hooks.quantization import RangeTable, finite_extremes, quantization_parameters
from lightning_hooks.statistics.reduction import merge_ranks

AO_DTYPES = {"int8": torch.qint8, "uint8": torch.quint8}
AO_SCHEMES = {"affine": torch.per_tensor_affine, "symmetric": torch.per_tensor_symmetric}
SHAPES = [(64,), (8, 16), (4, 3, 7, 5), (1,), (16, 8, 0)]


def stream(seed: int, dtype: torch.dtype = torch.float32, calls: int = 6) -> list[Tensor]:
    """Outputs as layers give them: of several shapes, rectified, shifted, heavy-tailed, constant."""
    generator = torch.Generator().manual_seed(seed)
    found = []
    for call in range(calls):
        shape = SHAPES[(seed + call) % len(SHAPES)] if seed % 4 == 3 else SHAPES[1]
        x = torch.randn(shape, generator=generator) * (1 + call * (seed % 3)) + (seed % 7 - 3) * 0.3
        x = (x.relu(), x, x.clamp(max=9).exp(), x, -x.relu() - 1, x.tanh(), torch.full_like(x, seed / 7))[seed % 7]
        found.append(x.to(dtype))
    return found


def ao(kind: Any, tensors: list[Tensor], dtype: str, scheme: str, **kwargs: Any) -> Any:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        observer = kind(dtype=AO_DTYPES[dtype], qscheme=AO_SCHEMES[scheme], **kwargs)
        for x in tensors:
            observer(x)
        ends = (observer.min_val, observer.max_val)
        scale, zero_point = observer._calculate_qparams(*ends)
    return float(ends[0]), float(ends[1]), float(scale), int(zero_point)


def ours(tensors: list[Tensor], dtype: str = "int8", scheme: str = "affine", **options: Any) -> Any:
    table = RangeTable(["site"], **options)
    for x in tensors:
        table.add(0, x)
    return table.read(table.pack(), dtype, scheme)[0]["site"]


@pytest.mark.parametrize("scheme", ["affine", "symmetric"])
@pytest.mark.parametrize("dtype", ["int8", "uint8"])
@pytest.mark.parametrize("of", [torch.float32, torch.bfloat16, torch.float16, torch.float64], ids=str)
def test_extremes_and_averages_are_those_of_torch_ao(dtype: str, scheme: str, of: torch.dtype) -> None:
    for seed in range(14):
        tensors = stream(seed, of)
        found = ours(tensors, dtype, scheme)
        assert (found.min, found.max, found.scale, found.zero_point) == ao(MinMaxObserver, tensors, dtype, scheme), seed
        assert (found.smallest, found.largest) == (found.min, found.max)
        for constant in (0.01, 0.3):
            found = ours(tensors, dtype, scheme, method="moving_average", averaging_constant=constant)
            expected = ao(MovingAverageMinMaxObserver, tensors, dtype, scheme, averaging_constant=constant)
            assert (found.min, found.max, found.scale, found.zero_point) == expected, (seed, constant)


@settings(max_examples=60, deadline=None)
@given(
    low=st.floats(-1e4, 1e4, width=32),
    width=st.floats(0, 1e4, width=32),
    dtype=st.sampled_from(["int8", "uint8"]),
    scheme=st.sampled_from(["affine", "symmetric"]),
)
def test_any_value_in_the_range_comes_back_within_half_a_step(low: float, width: float, dtype: str, scheme: str) -> None:
    ends = torch.tensor([low, low + width])
    scale, zero_point = quantization_parameters(ends[0], ends[1], dtype, scheme)
    x = torch.linspace(float(ends[0]), float(ends[1]), 101)
    q = torch.fake_quantize_per_tensor_affine(x, float(scale), int(zero_point), *((-128, 127) if dtype == "int8" else (0, 255)))
    # of a symmetric range the far end of the positive side lies half a level beyond the last one
    slack = 1.0 if scheme == "symmetric" else 0.5
    assert float((q - x).abs().max()) <= (slack + 1e-2) * float(scale) + 1e-4 * float(x.abs().max())
    zero = torch.fake_quantize_per_tensor_affine(torch.zeros(1), float(scale), int(zero_point), -128, 255)
    assert zero.item() == 0.0  # zero is exact: padding and rectifiers need it


def test_values_that_are_not_finite_are_counted_and_left_out() -> None:
    x = torch.tensor([[1.0, math.nan, -2.0], [math.inf, 3.0, -math.inf]])
    for method in ("minmax", "moving_average", "percentile"):
        found = ours([x, x], method=method)
        assert (found.smallest, found.largest, found.count, found.calls) == (-2.0, 3.0, 6, 2)
        assert found.nonfinite_fraction == 0.5
        assert found.max <= 3.0 + 1e-6
        assert found.min >= -2.0
    nothing = ours([torch.full((3,), math.nan)], method="percentile")
    assert (nothing.calls, nothing.count, nothing.scale, nothing.zero_point, nothing.nonfinite_fraction) == (1, 0, 1.0, 0, 1.0)
    assert math.isnan(nothing.min)
    later = ours([torch.full((3,), math.nan), torch.tensor([1.0, 2.0]), torch.full((3,), math.inf)], method="moving_average")
    assert (later.min, later.max) == (1.0, 2.0)


@pytest.mark.parametrize("percentile", [50.0, 99.0, 99.9, 100.0])
def test_percentiles_are_numpys_within_a_bin(percentile: float) -> None:
    for seed in range(14):
        tensors = stream(seed)
        values = np.concatenate([x.flatten().numpy() for x in tensors])
        if values.min() == values.max():
            continue
        bins = 4096
        found = ours(tensors, method="percentile", percentile=percentile, bins=bins)
        tail = (100 - percentile) / 2
        # a share of n values lies anywhere between two neighbours
        low = np.percentile(values, [max(tail - 100 / values.size, 0), tail + 100 / values.size])
        high = np.percentile(values, [100 - tail - 100 / values.size, min(100 - tail + 100 / values.size, 100)])
        bin_width = 2 * (values.max() - values.min()) / bins
        assert low[0] - bin_width <= found.min <= low[1] + bin_width, seed
        assert high[0] - bin_width <= found.max <= high[1] + bin_width, seed


def device_form(tensors: list[Tensor], bins: int) -> tuple[Tensor, Tensor]:
    """What an accelerator computes."""
    histogram, ends = torch.zeros(bins), torch.tensor([math.inf, -math.inf])
    for x in tensors:
        found, _ = finite_extremes(x) if x.numel() else (ends, 0)
        new = torch.stack((torch.minimum(ends[0], found[0]), torch.maximum(ends[1], found[1])))
        histogram = rh.moved(histogram, ends, new) + rh._counts(x.reshape(-1), new, bins)
        ends = new
    return histogram, ends


def test_the_device_form_agrees_with_the_host_form() -> None:
    for seed in range(21):
        tensors = stream(seed)
        tensors[0].view(-1)[:1] = math.nan
        histogram, ends = torch.zeros(512), torch.tensor([math.inf, -math.inf])
        for x in tensors:
            if x.numel():
                rh.add_values(histogram, ends, x, finite_extremes(x)[0])
        other, other_ends = device_form(tensors, 512)
        assert torch.equal(ends, other_ends), seed
        assert float(histogram.sum()) == pytest.approx(float(other.sum()), rel=1e-5)
        # a value at the very edge of a bin may round to its neighbour
        assert (histogram.cumsum(0) - other.cumsum(0)).abs().max() <= 0.02 * histogram.sum() + 1, seed


@pytest.mark.parametrize("method", ["minmax", "moving_average", "percentile"])
def test_ranks_merge(method: str) -> None:
    """Extremes and counts to the bit; a moving average is that of the ranks' mean extremes; a histogram keeps all counts."""
    for seed in range(8):
        shards = [stream(seed), stream(seed + 7)]
        tables = []
        for shard in shards:
            table = RangeTable(["site", "one rank only", "never"], method=method, averaging_constant=0.2)
            for x in shard:
                table.add(0, x)
            tables.append(table)
        tables[1].add(1, torch.tensor([1.0, 5.0]))
        merged = merge_ranks(tables[0].spans, [table.pack() for table in tables])
        sites, silent = tables[0].read(merged)
        assert silent == ("never",)
        assert (sites["one rank only"].smallest, sites["one rank only"].largest) == (1.0, 5.0)
        joined = [x for shard in shards for x in shard]
        found, single = sites["site"], ours(joined, method=method, averaging_constant=0.2)
        assert (found.smallest, found.largest, found.count, found.calls) == (
            single.smallest,
            single.largest,
            single.count,
            single.calls,
        )
        if method == "minmax":
            assert (found.min, found.max, found.scale) == (single.min, single.max, single.scale)
        elif method == "moving_average":
            means = [ours(shard, method=method, averaging_constant=0.2) for shard in shards]
            assert found.min == pytest.approx((means[0].min + means[1].min) / 2, rel=1e-6)
            assert found.max == pytest.approx((means[0].max + means[1].max) / 2, rel=1e-6)
        else:
            width = single.largest - single.smallest
            assert found.min == pytest.approx(single.min, abs=0.06 * width)
            assert found.max == pytest.approx(single.max, abs=0.06 * width)
        again = RangeTable(tables[0].names, method=method)
        again.unpack(merged)
        assert repr(again.read(again.pack())) == repr(tables[0].read(merged))
