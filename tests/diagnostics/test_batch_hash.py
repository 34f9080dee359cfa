"""Hashes of batches: alike for the same numbers, unlike for any other, and their table over windows and ranks."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from lightning_hooks.diagnostics.batches.hashes import BITS, SAMPLE, BatchHashes, batch_hashes
from lightning_hooks.diagnostics.batches.inputs import InputTable, tensors_in
from lightning_hooks.diagnostics.loss_inputs.targets import LabelTable
from lightning_hooks.statistics.reduction import merge_ranks
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


@pytest.mark.parametrize(
    ("batch", "expected"),
    [(torch.zeros(64, 3), 0), ((torch.ones(32), torch.full((8, 8), 2)), 0), (torch.arange(8), None), ([], None)],
)
def test_what_cannot_be_compared(batch: Any, expected: int | None) -> None:
    found = batch_hash(batch)
    assert (found if found is None else int(found)) == expected


def filled(*batches: Tensor | str, every: int = 1) -> BatchHashes:
    table = BatchHashes()
    for place, batch in enumerate(batches):
        table.add(tensors_in(batch), place % every == 0)
    return table


def pairs(table: BatchHashes) -> list[int]:
    counts = table.read(table.pack(), 1)
    return [counts.compared, counts.repeated]


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


def ranks(*tables: BatchHashes) -> tuple[int, ...]:
    counts = tables[0].read(merge_ranks(tables[0].spans, [table.pack() for table in tables]), 2)
    return counts.rank_batches, counts.same_on_ranks, counts.different


def test_ranks_are_compared_batch_by_batch() -> None:
    batches = torch.randn(6, 8, 8).unbind()
    same, other, shorter = filled(*batches[:4]), filled(*batches[:2], *batches[4:]), filled(*batches[:3])
    assert ranks(same, filled(*batches[:4])) == (4, 4, 4)
    assert ranks(same, same, other) == (4, 2, 2)
    assert ranks(same, shorter) == (4, 3, 3)
    assert ranks(filled(*batches[:1] * 4), filled(*batches[:1] * 4)) == (4, 4, 1)
    assert ranks(BatchHashes()) == (0, 0, 0)


def test_ignored_labels_are_counted() -> None:
    table = LabelTable(1)
    table.add([("['labels']", torch.tensor([1, -100, 2])), ("['target']", torch.tensor([[-100]])), ("['x']", torch.tensor([-100]))])
    table.add([("[1]", torch.tensor([-100, -100]))])
    table.add([("[1]", torch.rand(3))])  # probabilities of classes
    table.add([("[1]", torch.zeros(0, dtype=torch.int64))])
    assert table.pack().tolist() == [2, 1, 6, 4]
    other = LabelTable(1)
    other.unpack(table.pack())
    other.add([("[1]", torch.tensor([0, -100], dtype=torch.int8))])
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


def slow_samples(batches: list[list[Tensor]], few: int = 32) -> tuple[int, int, int, int]:
    """Samples of later batches, those that came before, copies in their batch, and how many differ, by plain Python."""
    known, samples, seen, copies = set[tuple[Any, ...]](), 0, 0, 0
    for number, batch in enumerate(batches):
        size = len(max(batch, key=Tensor.numel))
        lists = [
            tensor.flatten(1).tolist() if tensor.dim() > 1 else tensor[:, None].tolist() for tensor in batch if len(tensor) == size
        ]
        rows = [tuple(value for row in of_sample for value in row) for of_sample in zip(*lists, strict=True)][:few]
        samples, seen = samples + len(rows) * (number > 0), seen + sum(row in known for row in rows)
        copies += (len(rows) - len(set(rows))) * (number > 0)
        known.update(rows)
    return samples, seen, copies, len(known)


@pytest.mark.parametrize("kind", ["table", "few columns", "images", "tokens", "half", "channels last", "targets alone differ"])
@pytest.mark.parametrize("different", [3, 24, 200])
def test_samples_that_came_before(kind: str, different: int) -> None:
    torch.manual_seed(0)
    x, y = torch.randn(different, 9), torch.randint(5, (different,))
    if kind == "few columns":
        x, y = torch.randn(different, 2), torch.randn(different)
    elif kind in ("images", "channels last"):
        x = torch.randn(different, 3, 6, 5).to(memory_format=torch.channels_last if kind != "images" else torch.preserve_format)
    elif kind in ("tokens", "half"):
        x = torch.randint(50, (different, 12)) if kind == "tokens" else torch.randn(different, 4, 5).half()
    elif kind == "targets alone differ":
        x, y = torch.arange(20.0).expand(different, 20), torch.arange(different)
    batches = [[x[order], y[order], torch.ones(2)] for order in torch.randint(different, (4, 40))]
    table = BatchHashes()
    for batch in batches:
        table.add(tensors_in(batch), True)
    counts = table.read(table.pack(), 1)
    expected = slow_samples(batches)
    assert (counts.samples, counts.seen, counts.copies, counts.distinct) == expected
    both = table.read(merge_ranks(table.spans, [table.pack(), table.pack()]), 2)
    assert (both.samples, both.seen, both.copies, both.distinct) == tuple(2 * number for number in expected)
    table.reset()
    table.add(tensors_in(batches[0]), True)
    assert (table.read(table.pack(), 1).samples, table.read(table.pack(), 1).seen) == (0, 0)


@pytest.mark.parametrize(
    "batch",
    [
        torch.randn(16, 2),
        [torch.randn(16, 6), torch.arange(16)],
        (torch.arange(64.0) % 4).view(16, 4),
        torch.eye(8)[torch.arange(16) % 8],
        torch.arange(64) % 4,
        [torch.ones(8)],
        [],
    ],
)
def test_samples_that_may_be_alike_by_chance_are_not_compared(batch: Any) -> None:
    table = BatchHashes()
    for _ in range(3):
        table.add(tensors_in(batch), True)
    assert table.read(table.pack(), 1).samples == table.read(table.pack(), 1).seen == 0
