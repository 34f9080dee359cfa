"""Hashes of batches: alike for the same numbers, unlike for any other, and their table over windows and ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hooks.diagnostics.batches.hashes import BITS, SAMPLE, SLOTS, BatchHashes, batch_hashes
from lightning_hooks.diagnostics.batches.inputs import InputTable, tensors_in
from lightning_hooks.diagnostics.loss_inputs.targets import LabelTable, label_tensors
from lightning_hooks.statistics.reduction import merge_ranks, merge_windows
from lightning_hooks.statistics.rows import Clock

TYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.uint8, torch.bool, torch.complex64]


def batch_hash(batch: Any) -> Tensor | None:
    found = batch_hashes(tensors_in(batch))
    return None if found is None else found[0]


def number(batch: Any) -> int:
    found = batch_hash(batch)
    assert found is not None
    return int(found)


@pytest.mark.parametrize("dtype", TYPES)
def test_the_same_numbers_have_the_same_hash_and_others_another(dtype: torch.dtype) -> None:
    values = (torch.arange(4096).view(64, 64) % 3).to(dtype)
    other = values.clone()
    other[17, 5] = 1 - other[17, 5] if dtype != torch.bool else ~other[17, 5]
    assert 0 < number(values) == number(values.clone()) < 2**BITS
    assert number((values.flatten()[:SAMPLE],)) != number((other.flatten()[63 * 17 : 63 * 17 + SAMPLE],))


def test_the_order_of_numbers_and_of_tensors_counts() -> None:
    generator = torch.Generator().manual_seed(0)
    x, y = torch.randn((32, 8), generator=generator), torch.randint(0, 9, (32, 8), generator=generator)
    batches = [(x, y), (y, x), (x.flip(0), y), {"x": x}, (x[torch.randperm(32, generator=generator)], y), (x, y + 1)]
    assert len({number(batch) for batch in batches}) == len(batches)
    assert number({"x": [x], "y": (y,)}) == number((x, y))


def test_different_batches_hardly_ever_have_one_hash() -> None:
    generator = torch.Generator().manual_seed(1)
    found = {number(torch.randint(0, 2, (4, 16), generator=generator)) for _ in range(3000)}
    assert len(found) >= 2998  # as many pairs as 24 bits let meet by chance: 0.3 are expected


@pytest.mark.parametrize(
    ("batch", "expected"),
    [(torch.zeros(64, 3), 0), ((torch.ones(32), torch.full((8, 8), 2)), 0), (torch.arange(8), None), ([], None)],
)
def test_what_cannot_be_compared(batch: Any, expected: int | None) -> None:
    found = batch_hash(batch)
    assert (found if found is None else int(found)) == expected


def test_channels_last_is_read_without_a_copy() -> None:
    x = torch.randn(8, 3, 16, 16).to(memory_format=torch.channels_last)
    assert number(x) == number(x.clone())


def filled(*batches: Tensor | str, every: int = 1) -> BatchHashes:
    table = BatchHashes()
    for place, batch in enumerate(batches):
        table.add(tensors_in(batch), place % every == 0)
    return table


def pairs(table: BatchHashes) -> list[int]:
    return list(table.read(table.pack())[0])


def test_pairs_are_counted() -> None:
    a, b, c = torch.randn(3, 8, 8).unbind()
    assert pairs(filled(a, a, b, b, b, c)) == [5, 3]
    assert pairs(filled(a, a, b, b, b, c, every=2)) == [3, 2]  # a, a; b, b; b, c
    assert pairs(filled(a, a, b, b, b, c, every=3)) == [2, 2]  # a, a; b, b
    assert pairs(filled(a, "a text", a, torch.zeros(8, 8), torch.zeros(8, 8))) == [0, 0]
    table = filled(a, a)
    table.reset()
    table.add(tensors_in(a), True)
    assert pairs(table) == [0, 0]  # the last batch of an epoch is not compared with the next one's first


def test_a_tensor_that_repeats_beside_others_that_do_not() -> None:
    """Loader workers with equal seeds draw the same noise for other images."""
    images, noise = torch.randn(6, 8, 8).unbind(), torch.randn(3, 8, 8).unbind()

    def sums(*drawn: Tensor, every: int = 1) -> list[float]:
        table = BatchHashes()
        for place, (image, noise) in enumerate(zip(images, drawn, strict=True)):
            table.add(tensors_in((image, noise)), place % every == 0)
        return pairs(table)

    assert sums(*[noise[place // 2] for place in range(6)]) == [5, 2]  # the first pair could be of a tensor that is always the same
    assert sums(*[noise[place // 2] for place in range(6)], every=2) == [3, 2]
    assert sums(*[noise[0]] * 6) == [5, 0]  # a grid, or positions
    assert sums(*[noise[place % 3] for place in range(6)]) == [5, 0]
    assert sums(*[noise[place // 2].long() for place in range(6)]) == [5, 0]  # lengths, masks, numbers of tokens
    few = [torch.tensor([0.0, 1.0])[(noise[place // 2] > 0).long()] for place in range(6)]
    assert sums(*few) == [5, 0]  # classes and masks as numbers


def ranks(*tables: BatchHashes) -> tuple[int, ...]:
    return tables[0].read(merge_ranks(tables[0].spans, [table.pack() for table in tables]))[1]


def test_ranks_are_compared_batch_by_batch() -> None:
    batches = torch.randn(6, 8, 8).unbind()
    same, other, shorter = filled(*batches[:4]), filled(*batches[:2], *batches[4:]), filled(*batches[:3])
    assert ranks(same, filled(*batches[:4])) == (4, 4, 4)
    assert ranks(same, same, other) == (4, 2, 2)
    assert ranks(same, shorter) == (4, 3, 3)
    assert ranks(filled(*batches[:1] * 4), filled(*batches[:1] * 4)) == (4, 4, 1)
    assert ranks(BatchHashes()) == (0, 0, 0)


def last(table: BatchHashes, packed: Tensor) -> list[list[float]]:
    return table["last"].lines(table.split(packed)["last"])  # type: ignore[attr-defined, no-any-return]


def test_windows_keep_the_last_hashes() -> None:
    batches = torch.randn(SLOTS + 8, 8, 8).unbind()
    hashes = [number(batch) for batch in batches]
    table = BatchHashes()
    merged = merge_windows(table.spans, filled(*batches[:10]).pack(), filled(*batches[10:]).pack())
    assert last(table, merged) == [[one, -one] for one in hashes[-SLOTS:]]
    few = merge_windows(table.spans, filled(*batches[:2]).pack(), filled(batches[2]).pack())
    assert [one for one, _ in last(table, few)] == [*hashes[:3], *[0.0] * (SLOTS - 3)]
    table.unpack(few)
    table.add(tensors_in(batches[3]), True)
    assert [one for one, _ in last(table, table.pack())][:5] == [*hashes[:4], 0.0]
    assert pairs(table) == [1, 0]
    overflowing = filled(*batches[: SLOTS + 2])
    assert sorted(one for one, _ in last(table, overflowing.pack())) == sorted(hashes[2 : SLOTS + 2])


def test_labels_of_a_batch() -> None:
    x, y = torch.zeros(4, 3), torch.zeros(4, dtype=torch.int64)
    assert [id(one) for one in label_tensors(tensors_in((x, y)))] == [id(y)]
    assert [id(one) for one in label_tensors(tensors_in({"labels": y, "input_ids": y.clone(), "Target": y}))] == [id(y), id(y)]
    for batch in ((x, x), {"labels": x, "mask_labels": y.bool()}, "text"):
        assert label_tensors(tensors_in(batch)) == []


def test_ignored_labels_are_counted() -> None:
    table = LabelTable()
    table.add([torch.tensor([1, -100, 2]), torch.tensor([[-100]])], -100)
    table.add([torch.tensor([-100, -100])], -100)
    table.add([torch.rand(3)], -100)  # probabilities of classes
    table.add([torch.zeros(0, dtype=torch.int64)], -100)
    assert table.pack().tolist() == [2, 1, 6, 4]
    other = LabelTable()
    other.unpack(table.pack())
    other.add([torch.tensor([0, 255], dtype=torch.uint8)], 255)
    assert other.pack().tolist() == [3, 1, 8, 5]
    other.reset()
    assert other.pack().tolist() == [0, 0, 0, 0]


def test_a_view_is_hashed_as_its_copy_is_without_one() -> None:
    """Tensors of a petabyte: a copy would end the process."""
    mask = torch.arange(2**10) % 7 == 0
    views = (mask.expand(3, 2**10), torch.arange(4000.0).view(40, 100)[:, 10:60], torch.arange(240).view(2, 30, 4)[..., ::2])
    for view in views:
        assert batch_hash(view) == batch_hash(view.clone(memory_format=torch.contiguous_format))
    assert batch_hash(mask.expand(2**40, 2**10)) is not None
    inputs = InputTable(Clock())
    inputs.train(tensors_in([torch.ones(8, 3), mask[:, None].expand(2**10, 2**40), mask.expand(2**40, 2**10)]), compare=True)


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor:UserWarning")
@pytest.mark.parametrize("dtype", [torch.qint8, torch.quint8, torch.qint32])
def test_quantised_tensors_are_left_out(dtype: torch.dtype) -> None:
    quantised = torch.quantize_per_tensor(torch.randn(8, 8), 0.1, 0, dtype)
    assert batch_hash([quantised]) is None
    assert batch_hash([quantised, torch.arange(64)]) == batch_hash(torch.arange(64))
