"""Which samples are kept, how they are put together, and the files they are in."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_hooks.extraction.extracted import ExtractedFeatures, FeatureStore, join


def run(faults: list[Any], capacity: int = 5, skip: int = -1) -> FeatureStore:
    """Batches of 4, 3, 4 of samples 0, 1, …: each site gives its numbers; ``skip`` is the batch in which "b" is silent."""
    store = FeatureStore(capacity, {"label": 1, "name": lambda batch: batch[2]}, lambda *f: faults.append(f))
    start = 0
    for index, size in enumerate([4, 3, 4]):
        numbers = torch.arange(start, start + size)
        start += size
        if store.start((numbers.float(), numbers * 10, [f"s{number}" for number in numbers])):
            store.outputs.append(("a", store.take("a", numbers.float()[:, None] + 0.5)))
            if index != skip:
                store.outputs.append(("b", store.take("b", numbers.double())))
                store.outputs.append(("b", store.take("b", -numbers.double())))
        store.commit()
    return store


@pytest.mark.parametrize("capacity", [3, 4, 5, 7, 11, 20])
@pytest.mark.parametrize("count", [2, 5, 11])
def test_the_first_rows_of_all_sites_and_fields_belong_together(capacity: int, count: int) -> None:
    store = run([], capacity)
    count = min(count, capacity)
    assert (store.kept, store.seen) == (min(capacity, 11), 11)
    sites, fields = store.collect(count)
    expected = torch.arange(count)
    assert list(sites) == ["a", "b", "b#2"]
    assert torch.equal(sites["a"], expected.float()[:, None] + 0.5)
    assert torch.equal(sites["b"], expected.double())
    assert torch.equal(sites["b#2"], -expected.double())
    assert torch.equal(fields["label"], expected * 10)
    assert fields["name"] == [f"s{number}" for number in range(count)]


@pytest.mark.parametrize("skip", [0, 1, 2])
def test_a_module_that_was_not_called_leaves_nan(skip: int) -> None:
    sites, _ = run([], 9, skip).collect(9)
    silent = [range(4), range(4, 7), range(7, 9)][skip]
    for number, value in enumerate(sites["b"].tolist()):
        assert (value != value) if number in silent else (value == number)


def test_a_pooling_may_give_integers() -> None:
    store = FeatureStore(3, {}, print)
    assert store.start(torch.zeros(2, 3))
    store.outputs.append(("a", store.take("a", torch.tensor([3, 4]))))
    store.commit()
    assert store.start(torch.zeros(2, 3))
    store.commit()
    assert store.collect(3)[0]["a"].tolist() == [3, 4, 0]


@pytest.mark.parametrize("pooled", [torch.tensor(1.0), torch.zeros(3)])
def test_a_pooling_without_a_row_for_each_sample_is_reported_and_left_out(pooled: torch.Tensor) -> None:
    faults: list[Any] = []
    store = FeatureStore(5, {}, lambda *fault: faults.append(fault))
    store.start(torch.zeros(2, 3))
    store.outputs.append(("a", pooled))
    store.commit()
    assert store.collect(2) == ({}, {})
    ((site, error),) = faults
    assert site == "a"
    assert str(error) == f"'a' is pooled to shape {tuple(pooled.shape)}, which has no row for each sample"


def test_a_site_that_changes_shape_is_reported_and_left_out() -> None:
    faults: list[Any] = []
    store = FeatureStore(10, {}, lambda *fault: faults.append(fault))
    for width in (3, 4, 3):
        store.start(torch.zeros(2, 3))
        store.outputs += [("a", store.take("a", torch.zeros(2, width))), ("b", store.take("b", torch.ones(2)))]
        store.commit()
    sites, _ = store.collect(6)
    assert list(sites) == ["b"]
    assert len(sites["b"]) == 6
    ((site, error),) = faults
    assert site == "a"
    assert str(error) == (
        "'a' has shape (4,) per sample here and had (3,) before; pool it (pool='mean'), or pad batches to one length"
    )


@pytest.mark.parametrize(
    ("field", "batch", "message"),
    [
        (2, (torch.zeros(3), 1), "the field 'f' is 2, which the batch does not have; it has 2 entries"),
        ("y", {"x": torch.zeros(3)}, "the field 'f' is 'y', which the batch does not have; it has the keys 'x'"),
        (1, (torch.zeros(3), 1), "the field 'f' must hold one entry for each of the batch's 3 samples; got int"),
        (1, (torch.zeros(3), torch.zeros(2)), r"the batch's 3 samples; got Tensor of shape \(2,\)"),
        (1, (torch.zeros(3), ["a"]), "the batch's 3 samples; got list of length 1"),
        (0, ("a", "b"), "counts samples by the first tensor in a batch; got tuple without one"),
    ],
)
def test_messages_about_fields(field: Any, batch: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        FeatureStore(2, {"f": field}, print).start(batch)


def test_ranks_are_joined_in_order_with_nan_where_one_has_no_site() -> None:
    faults: list[Any] = []
    parts = [
        ({"a": torch.tensor([0.0, 2.0]), "c": torch.zeros(2, 3)}, {"y": torch.tensor([0, 2]), "n": ["s0", "s2"]}),
        ({"a": torch.tensor([1.0]), "b": torch.tensor([7.0]), "c": torch.zeros(1, 4)}, {"y": torch.tensor([1]), "n": ["s1"]}),
    ]
    sites, fields = join(parts, [0, 1, 0], lambda *fault: faults.append(fault))
    assert sites["a"].tolist() == [0.0, 1.0, 2.0]
    assert str(sites["b"].tolist()) == "[nan, 7.0, nan]"
    assert fields["y"].tolist() == [0, 1, 2]
    assert fields["n"] == ["s0", "s1", "s2"]
    assert list(sites) == ["a", "b"]
    assert [(site, str(error)) for site, error in faults] == [
        ("c", "ranks have features of different shapes per sample, (3,), (4,); pool them (pool='mean')")
    ]


@pytest.mark.parametrize("suffix", ["npz", "safetensors"])
def test_files_give_back_what_went_in(suffix: str, tmp_path: Path) -> None:
    whole = ExtractedFeatures(
        3,
        17,
        {"net.0": torch.randn(4, 3), "net.0#2": torch.randn(4).half(), "deep/name": torch.randn(4, 2, 2).double().transpose(1, 2)},
        {"label": torch.arange(4), "name": ["ä", "b", "", "d"], "flag": [True, None, 1.5, 2]},
        ("head",),
        123,
    )
    path = whole.save(tmp_path / "deep" / f"features.{suffix}")
    back = ExtractedFeatures.load(path)
    assert [path] == list(path.parent.iterdir())
    assert (back.epoch, back.step, back.silent, back.seen, len(back)) == (3, 17, ("head",), 123, 4)
    assert back.sites.keys() == whole.sites.keys()
    for name, values in whole.sites.items():
        assert torch.equal(back.sites[name], values)
        assert back.sites[name].dtype == values.dtype
    assert torch.equal(back.fields["label"], whole.fields["label"])
    assert {key: back.fields[key] for key in ("name", "flag")} == {key: whole.fields[key] for key in ("name", "flag")}
