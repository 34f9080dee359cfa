"""Which samples are kept, how they are put together, and the files they are in."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from lightning_hooks.extraction.extracted import ExtractedFeatures, choose, join
from lightning_hooks.extraction.store import FeatureStore, Reservoir


def stream(reservoir: Reservoir, sizes: list[int]) -> list[int]:
    """Arrival numbers in the slots, kept as a dumb list would be."""
    slots: dict[int, int] = {}
    start = 0
    for size in sizes:
        slots |= {slot: start + row for slot, row in reservoir.admit(size).items()}
        start += size
    return [slots[slot] for _, _, slot in reservoir.kept()]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(0, 9), max_size=8), st.integers(1, 12), st.integers(0, 3))
def test_the_first_are_the_first_and_a_reservoir_is_the_bottom_of_the_keys(sizes: list[int], capacity: int, seed: int) -> None:
    total = sum(sizes)
    first = Reservoir(capacity)
    assert stream(first, sizes) == list(range(min(total, capacity)))
    assert first.seen == total
    found = stream(Reservoir(capacity, "reservoir", seed), sizes)
    keys = Reservoir(total or 1, "reservoir", seed)
    keys.admit(total)
    smallest = sorted(sorted(keys.kept())[:capacity], key=lambda entry: entry[1])
    assert found == [arrival for _, arrival, _ in smallest]


def test_every_sample_of_the_stream_is_as_likely_to_be_kept() -> None:
    counts = Counter(index for seed in range(600) for index in stream(Reservoir(5, "reservoir", seed), [3, 4, 8, 5]))
    expected = 600 * 5 / 20
    assert set(counts) == set(range(20))
    # Each count is binomial(600, 1/4): standard deviation 10.6. Chi-squared with 19 degrees of freedom: 43.8 is the 0.999 quantile.
    assert sum((count - expected) ** 2 / (600 * 0.25 * 0.75) for count in counts.values()) < 43.8


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 4), st.integers(0, 20), st.integers(1, 30))
def test_first_over_ranks_is_first_over_one_process(world: int, each: int, capacity: int) -> None:
    """Samples dealt in turn, as a distributed sampler does."""
    ranks = [Reservoir(capacity, rank=rank, world=world) for rank in range(world)]
    for reservoir in ranks:
        reservoir.admit(each)
    chosen = choose([reservoir.kept() for reservoir in ranks], capacity)
    assert [slot * world + rank for rank, slot in chosen] == list(range(min(capacity, each * world)))


def test_a_reservoir_over_ranks_keeps_the_smallest_keys_of_all() -> None:
    ranks = [Reservoir(4, "reservoir", rank=rank, world=2) for rank in range(2)]
    for reservoir in ranks:
        reservoir.admit(9)
    whole = sorted((key, arrival) for reservoir in ranks for key, arrival, _ in reservoir.kept())[:4]
    chosen = choose([reservoir.kept() for reservoir in ranks], 4)
    arrivals = [{other: arrival for _, arrival, other in ranks[rank].kept()}[slot] for rank, slot in chosen]
    assert arrivals == sorted(arrival for _, arrival in whole)


def run(sampling: Any, faults: list[Any], capacity: int = 5, skip: int = -1) -> tuple[FeatureStore, list[tuple[Any, ...]]]:
    """Batches of 4, 3, 4 of samples 0, 1, …: each site gives its numbers; ``skip`` is the batch in which "b" is silent."""
    store = FeatureStore(Reservoir(capacity, sampling), {"label": 1, "name": lambda batch: batch[2]}, lambda *f: faults.append(f))
    start, batches = 0, []
    for index, size in enumerate([4, 3, 4]):
        numbers = torch.arange(start, start + size)
        batch = (numbers.float(), numbers * 10, [f"s{number}" for number in numbers])
        start += size
        batches.append(batch)
        if store.start(batch, torch.device("cpu")):
            store.outputs.append(("a", store.take("a", numbers.float()[:, None] + 0.5)))
            if index != skip:
                store.outputs.append(("b", store.take("b", numbers.double())))
                store.outputs.append(("b", store.take("b", -numbers.double())))
        store.commit()
    return store, batches


@pytest.mark.parametrize("sampling", ["first", "reservoir"])
def test_rows_of_all_sites_and_fields_belong_together(sampling: str) -> None:
    store, _ = run(sampling, [])
    kept = store.reservoir.kept()
    arrivals = [arrival for _, arrival, _ in kept]
    assert len(arrivals) == 5
    sites, fields = store.collect([slot for _, _, slot in kept])
    expected = torch.tensor(arrivals)
    assert list(sites) == ["a", "b", "b#2"]
    assert torch.equal(sites["a"], expected.float()[:, None] + 0.5)
    assert torch.equal(sites["b"], expected.double())
    assert torch.equal(sites["b#2"], -expected.double())
    assert torch.equal(fields["label"], expected * 10)
    assert fields["name"] == [f"s{arrival}" for arrival in arrivals]


@pytest.mark.parametrize("skip", [0, 1, 2])
@pytest.mark.parametrize("sampling", ["first", "reservoir"])
def test_a_module_that_was_not_called_leaves_nan(sampling: str, skip: int) -> None:
    """Also where the slot held another sample before, which a reservoir replaced."""
    store, _ = run(sampling, [], skip=skip)
    kept = store.reservoir.kept()
    sites, _ = store.collect([slot for _, _, slot in kept])
    silent = [range(4), range(4, 7), range(7, 11)][skip]
    for value, (_, arrival, _) in zip(sites["b"].tolist(), kept, strict=True):
        assert (value != value) if arrival in silent else (value == arrival)


def test_a_site_that_changes_shape_is_reported_and_left_out() -> None:
    faults: list[Any] = []
    store = FeatureStore(Reservoir(10), {}, lambda *fault: faults.append(fault))
    for width in (3, 4, 3):
        store.start(torch.zeros(2, 3), torch.device("cpu"))
        store.outputs += [("a", store.take("a", torch.zeros(2, width))), ("b", store.take("b", torch.ones(2)))]
        store.commit()
    sites, _ = store.collect([slot for _, _, slot in store.reservoir.kept()])
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
        FeatureStore(Reservoir(2), {"f": field}, print).start(batch, torch.device("cpu"))


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
