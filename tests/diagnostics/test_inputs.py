"""What a model is fed, against the concatenated batches."""

from __future__ import annotations

from collections import OrderedDict, UserDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import BatchEncoding

from lightning_hooks.diagnostics.batches.inputs import COMPARED, LEAST, InputTable, tensors_in
from lightning_hooks.statistics.reduction import merge_ranks
from lightning_hooks.statistics.rows import Clock
from tests.support.reference import assert_stats, reference_stats

pytestmark = pytest.mark.usefixtures("each_path")


def table() -> InputTable:
    return InputTable(Clock())


def test_moments_of_both_parts() -> None:
    torch.manual_seed(0)
    train, val = [torch.randn(6, 5) * 3 + 1 for _ in range(4)], [torch.randn(6, 5) * 30 for _ in range(3)]
    inputs = table()
    for batch in train:
        inputs.train(tensors_in({"y": torch.rand(6, 1), "x": [batch]}), compare=True)
    for batch in val:
        inputs.validate({"y": torch.rand(6, 1), "x": [batch]})
    assert inputs.place == "['x'][0]"
    read = inputs.read(inputs.pack())
    found, same = read["inputs"], read["same_samples"]
    for part, batches in (("training", train), ("validation", val)):
        assert_stats(found[part], reference_stats([batch.double().numpy() for batch in batches]))
    assert same is False


def same_of(*batches: Any) -> bool | None:
    inputs = table()
    for batch in batches:
        inputs.train(tensors_in(batch), compare=True)
    return inputs.read(inputs.pack())["same_samples"]


def nearly(n: int, at: int) -> Tensor:
    x = torch.ones(n, 3)
    x[at, 1] = 1 + 1e-6
    return x


@pytest.mark.parametrize(
    ("batch", "same"),
    [
        ([torch.ones(LEAST, 3), torch.arange(LEAST)], True),
        ([torch.ones(LEAST - 1, 3)], None),  # too few to report
        ([torch.ones(8, 1)], None),  # one number a sample may be alike
        ([torch.ones(8)], None),
        ([torch.ones(8, 3, dtype=torch.long)], True),  # tokens
        ([nearly(COMPARED, COMPARED - 1)], False),
        ([nearly(COMPARED + 1, COMPARED)], True),  # not compared any more
        ([torch.full((8, 3), torch.nan)], False),
        ("a text", None),
        ([torch.ones(8, 3).to_sparse()], None),
    ],
)
def test_whether_samples_are_the_same(batch: Any, same: bool | None) -> None:
    assert same_of(batch) is same


def test_the_largest_tensor_is_the_input_and_stays_it() -> None:
    inputs = table()
    inputs.train(tensors_in([torch.zeros(4, 2), torch.ones(4, 5)]), compare=False)
    inputs.train(tensors_in([torch.zeros(4, 9), torch.ones(4, 5)]), compare=False)
    inputs.validate([torch.zeros(4, 2)])  # has none there
    inputs.validate([torch.zeros(4, 2), torch.arange(4)])
    read = inputs.read(inputs.pack())
    found, same = read["inputs"], read["same_samples"]
    assert (inputs.place, found["training"].mean, found["training"].calls, same) == ("[1]", 1.0, 2, None)
    assert list(found) == ["training"]


def test_ranks_merge_to_one_process_and_an_epoch_can_be_taken_up() -> None:
    torch.manual_seed(0)
    x = torch.randn(16, 3)
    one, left, right = table(), table(), table()
    one.train(tensors_in(x), compare=True)
    left.train(tensors_in(x[:8]), compare=True)
    right.train(tensors_in(torch.ones(8, 3)), compare=True)
    merged = merge_ranks(left.spans, (left.pack(), right.pack()))
    both = left.read(merged)
    assert both["same_samples"] is False  # on one rank they differ
    assert both["inputs"]["training"].count == 48
    alone = merge_ranks(right.spans, (right.pack(), table().pack()))
    assert right.read(alone)["same_samples"] is True
    halves = [table(), table()]
    for half, part in zip(halves, (x[:8], x[8:]), strict=True):
        half.train(tensors_in(part), compare=True)
    assert left.read(merge_ranks(left.spans, [half.pack() for half in halves]))["inputs"]["training"].rms == pytest.approx(
        one.read(one.pack())["inputs"]["training"].rms
    )
    again = table()
    again.unpack(one.pack())
    assert again.read(again.pack()) == one.read(one.pack()) | {"input_place": ""}
    again.reset()
    assert again.read(again.pack()) == {
        "inputs": {},
        "input_place": "",
        "input_nonfinite": (),
        "same_samples": None,
        "images": False,
    }


def same_samples(*batches: object) -> bool | None:
    """Whether the samples of all batches are the same."""
    inputs = table()
    for batch in batches:
        inputs.train(tensors_in(batch), compare=True)
    return inputs.read(inputs.pack())["same_samples"]


def test_samples_are_the_same_only_if_those_of_all_tensors_are() -> None:
    """A mask or a weight of ones in floating point, next to token ids that differ."""
    ids, ones = torch.arange(80).view(16, 5), torch.ones(16, 5)
    for dtype in (torch.float32, torch.bfloat16):
        mask = ones.to(dtype)
        assert same_samples({"input_ids": ids, "attention_mask": mask}) is False
        assert same_samples([mask, ids]) is False
        assert same_samples({"input_ids": ids[:1].expand(16, 5), "attention_mask": mask}) is True
        assert same_samples([mask, torch.rand(16, 5, 2)]) is False
        assert same_samples([mask, ids[:8]]) is True  # not of its samples
        assert same_samples([mask, torch.rand(16, 1)]) is True  # a target, as labels of one dimension are


class Hostile:
    """What no monitor may ask an object of the user's for."""

    def _refuse(self, *args: Any) -> Any:
        raise AssertionError("a monitor ran code of the user's")

    __getitem__ = __iter__ = __len__ = __contains__ = __getattr__ = keys = values = items = get = _refuse  # type: ignore[assignment]


class LazyDict(Hostile, dict[str, Any]):
    pass


class LazyUserDict(Hostile, UserDict[str, Any]):
    def __init__(self, data: dict[str, Any]) -> None:
        self.data = data


class LazyList(Hostile, list[Any]):
    pass


class LazyMapping(Hostile, Mapping[str, Any]):
    pass


class Instanceless(Hostile):
    __class__ = property(Hostile._refuse)  # type: ignore[assignment]


@dataclass
class Fields:
    x: Tensor
    later: Tensor = field(init=False)
    inner: Any = None


class Drawing(Fields):
    drawn = property(Hostile._refuse)


def test_what_is_stored_is_read_and_nothing_is_asked_for() -> None:
    x, y = torch.zeros(1), torch.ones(1)
    stored: list[tuple[Any, list[str]]] = [
        (LazyDict(a=x), ["['a']"]),
        (LazyUserDict({"a": x, "b": [y]}), ["['a']", "['b'][0]"]),
        (BatchEncoding({"input_ids": x}), ["['input_ids']"]),
        (LazyList([x, y]), ["[0]", "[1]"]),
        (Drawing(x, inner=(y,)), [".x", ".inner[0]"]),
        ([LazyMapping(), Instanceless(), x], ["[2]"]),  # type: ignore[abstract]
        (OrderedDict(b=x, a=y), ["['b']", "['a']"]),
        ({Hostile: x, "a": y}, ["['a']"]),
    ]
    assert [[place for place, _ in tensors_in(batch)] for batch, _ in stored] == [places for _, places in stored]
