"""One tensor normalised: exact pooled moments, every layout and dtype, and finding it among arguments."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from lightning_hooks.hooks import Gate
from lightning_hooks.transforms.normalization import (
    Normalization,
    NormalizeInput,
    channel_moments,
    given_numbers,
    mean_and_std,
    merge_moments,
)

LAYOUTS = [((6, 3), 1), ((4, 3, 5, 7), 1), ((2, 5, 3), -1), ((2, 5, 3), None), ((3,), 0), ((2, 3, 4, 2, 2), 1)]


def reference(batches: list[np.ndarray], dim: int | None) -> tuple[np.ndarray, np.ndarray]:
    flat = [b.reshape(1, -1) if dim is None else np.moveaxis(b, dim, 0).reshape(b.shape[dim], -1) for b in batches]
    values = np.concatenate(flat, 1).astype(np.float64)
    return values.mean(1), values.std(1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.uint8, torch.int64])
@pytest.mark.parametrize(("shape", "dim"), LAYOUTS)
def test_learned_numbers_are_those_of_all_the_data(shape: tuple[int, ...], dim: int | None, dtype: torch.dtype) -> None:
    for seed in range(5):
        generator = torch.Generator().manual_seed(seed)
        offset = 0.0 if dtype.is_floating_point and dtype.itemsize == 2 else 1000.0 * (seed % 2) * dtype.is_floating_point
        batches = [((torch.randn(shape, generator=generator) * 3 + 20) + offset).abs().to(dtype) for _ in range(4)]
        site = Normalization("x", dim)
        for batch in batches:
            site.learn(batch)
        mean, std = reference([batch.double().numpy() for batch in batches], dim)
        np.testing.assert_allclose(site.mean, mean, rtol=1e-7)
        np.testing.assert_allclose(site.std, std, rtol=2e-6)
        assert site.moments[0].tolist() == [sum(batch.numel() for batch in batches) / mean.size] * mean.size


@settings(max_examples=50, deadline=None)
@given(sizes=st.lists(st.integers(0, 9), min_size=1, max_size=6), seed=st.integers(0, 1000), cut=st.integers(0, 6))
def test_the_grouping_of_batches_and_ranks_does_not_matter(sizes: list[int], seed: int, cut: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    batches = [torch.randn((size, 2), generator=generator, dtype=torch.float64) for size in sizes]
    moments = torch.stack([channel_moments(batch, 1) for batch in batches])
    whole = channel_moments(torch.cat(batches), 1)
    torch.testing.assert_close(merge_moments(moments), whole)
    parts = [merge_moments(part) for part in (moments[:cut], moments[cut:]) if len(part)]
    torch.testing.assert_close(merge_moments(torch.stack(parts)), whole)


def test_what_is_not_finite_teaches_nothing_and_passes() -> None:
    site = Normalization("x")
    site.learn(torch.tensor([[1.0, math.nan], [3.0, math.inf], [math.nan, 5.0]]))
    assert site.mean.tolist() == [2.0, 5.0]
    assert site.std.tolist() == [1.0, 1.0]  # one value: nothing to divide by
    normal = site.normalize(torch.tensor([[math.nan, math.inf]]))
    assert math.isnan(normal[0, 0])
    assert math.isinf(normal[0, 1])
    mean, std = mean_and_std(torch.zeros(3, 2))
    assert (mean.tolist(), std.tolist()) == ([0.0, 0.0], [1.0, 1.0])


def test_given_numbers_give_the_textbook_formula_to_the_bit() -> None:
    mean, std = [0.485, 0.456, 0.406], [0.229, 0.224, 0.225]
    site = Normalization("x", 1, *given_numbers(mean, std))
    x = torch.rand(4, 3, 5, 5, generator=torch.Generator().manual_seed(0))
    as_float = [torch.tensor(v).view(3, 1, 1) for v in (mean, std)]
    assert torch.equal(site.normalize(x), x.sub(as_float[0]).div(as_float[1]))
    assert torch.equal(site.normalize(x.bfloat16()), x.bfloat16().float().sub(as_float[0]).div(as_float[1]).bfloat16())
    images = (x * 255).to(torch.uint8)
    assert torch.equal(site.normalize(images), images.float().sub(as_float[0]).div(as_float[1]))
    assert site.normalize(x.double()).dtype == torch.float64
    torch.testing.assert_close(site.inverse(site.normalize(x)), x, rtol=1e-6, atol=1e-6)
    one = Normalization("x", 1, *given_numbers(2, 4))
    assert torch.equal(one.normalize(x), (x - 2) / 4)


def test_learning_goes_on_after_a_checkpoint_and_ends_when_frozen() -> None:
    batches = torch.randn(6, 4, 2, generator=torch.Generator().manual_seed(1)).double()
    whole, first, second = Normalization("x"), Normalization("x"), Normalization("x")
    for batch in batches:
        whole.learn(batch)
    for batch in batches[:3]:
        first.learn(batch)
    second.load(first.state())
    for batch in batches[3:]:
        second.learn(batch)
    torch.testing.assert_close(second.mean, whole.mean, rtol=1e-14, atol=0)
    torch.testing.assert_close(second.std, whole.std, rtol=1e-14, atol=0)
    second.freeze()
    kept = second.mean
    second.learn(batches[0] + 100)
    assert second.mean is kept
    third = Normalization("x")
    third.load(second.state())
    assert third.frozen
    assert torch.equal(third.normalize(batches[0]), second.normalize(batches[0]))


BAD_INPUTS = [
    (torch.zeros(3), ValueError, r"dim=1 is not a dimension of the input of 'net', of shape \(3,\)"),
    (torch.zeros(3, 4), ValueError, r"The input of 'net' has shape \(3, 4\), with 4 channels in dimension 1; the mean has 2"),
    (torch.zeros(3, 2, dtype=torch.bool), TypeError, "normalises real tensors; got torch.bool at 'net'"),
    (torch.zeros(3, 2, dtype=torch.complex64), TypeError, "normalises real tensors; got torch.complex64"),
]


@pytest.mark.parametrize(("x", "error", "message"), BAD_INPUTS)
def test_an_input_that_does_not_fit_is_rejected(x: Tensor, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        Normalization("net", 1, *given_numbers([0.0, 0.0], [1.0, 1.0])).normalize(x)
    learned = Normalization("net", 1)
    learned.learn(torch.randn(5, 2))
    with pytest.raises(error, match=message):
        learned.learn(x)


BAD_NUMBERS = [
    (1.0, None, TypeError, "Pass mean and std together.*mean=1.0 and std=None"),
    (None, [1.0], TypeError, r"mean=None and std=\[1.0\]"),
    ([1.0, 2.0], [1.0], ValueError, "the same length; got 2 and 1"),
    (0.0, 0.0, ValueError, "std must be above 0; got 0.0"),
    ("a", 1.0, TypeError, "mean must be a number, or one per channel; got 'a'"),
    ([], 1.0, TypeError, r"mean must be a number, or one per channel; got \[\]"),
    (0.0, [[1.0]], TypeError, r"std must be a number, or one per channel; got \[\[1.0\]\]"),
    (math.nan, 1.0, ValueError, "mean must be finite; got nan"),
]


@pytest.mark.parametrize(("mean", "std", "error", "message"), BAD_NUMBERS)
def test_bad_numbers_are_rejected(mean: Any, std: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        given_numbers(mean, std)


class Takes(nn.Module):
    def forward(self, ids: Tensor, x: Tensor | None = None, *, mask: Tensor | None = None) -> None: ...


class TakesAnything(nn.Module):
    def forward(self, **inputs: Tensor) -> None: ...


def doubled(module: nn.Module, argument: str | None) -> NormalizeInput:
    """A hook that doubles an argument."""
    site = Normalization("net", None, torch.zeros(1), torch.full((1,), 0.5))
    return NormalizeInput(site, module, argument, Gate())


def test_the_argument_is_found_by_place_and_by_name() -> None:
    ids, x, mask = torch.tensor([1]), torch.tensor([2.0]), torch.tensor([3.0])
    first = doubled(Takes(), None)
    assert first(None, (ids, x), {"mask": mask}) == ((ids, 2 * x), {"mask": mask})
    assert first(None, (ids,), {"x": None, "mask": mask})[1]["mask"] == 6
    named = doubled(Takes(), "x")
    assert named(None, (ids, x), {})[0][1] == 4
    assert named(None, (ids,), {"x": x})[1]["x"] == 4
    assert doubled(Takes(), "ids")(None, (ids,), {})[0][0] == 2
    assert doubled(Takes(), "mask")(None, (ids, x), {"mask": mask})[1]["mask"] == 6
    assert doubled(TakesAnything(), "pixels")(None, (), {"pixels": x})[1]["pixels"] == 4


def test_a_missing_argument_raises() -> None:
    with pytest.raises(ValueError, match="argument='y': the forward of 'net' takes 'ids', 'x', 'mask'"):
        doubled(Takes(), "y")
    named, first = doubled(Takes(), "x"), doubled(Takes(), None)
    with pytest.raises(TypeError, match="argument='x' of 'net' must be a tensor; got nothing"):
        named(None, (torch.tensor([1]),), {})
    with pytest.raises(TypeError, match="argument='x' of 'net' must be a tensor; got list"):
        named(None, (torch.tensor([1]), [2]), {})
    with pytest.raises(TypeError, match=r"'net' was called without a floating-point tensor.*got \(Tensor, mask=list\)"):
        first(None, (torch.tensor([1]),), {"mask": []})
