"""Which tags fit a budget."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from lightning_hooks.trackers.budget import choose, size_of

SITES = [f"layer{i}" for i in range(10)]


def tags(*statistics: str, sites: list[str] = SITES) -> list[str]:
    return [f"p/{site}/{stat}" for site in sites for stat in statistics] + ["p/total", "p/alerts/dead"]


def test_all_of_a_small_model_is_written() -> None:
    found = choose(tags("rms", "mean"), ["rms", "mean"])
    assert found.tags == set(tags("rms", "mean"))
    assert (found.statistics, found.left_out, found.every) == (("rms", "mean"), (), 1)


def test_statistics_are_written_of_all_sites_or_of_none_best_first() -> None:
    found = choose(tags("max", "mean", "rms"), ["rms", "mean", "max"], max_tags=25)
    assert found.tags == set(tags("rms", "mean"))
    assert (found.statistics, found.left_out) == (("rms", "mean"), ("max",))


def test_a_statistic_of_few_sites_may_fit_where_one_of_all_does_not() -> None:
    few = ["p/layer0/dead", "p/layer1/dead"]
    found = choose([*tags("rms", "mean"), *few], ["rms", "mean", "dead"], max_tags=15)
    assert found.tags == {*tags("rms"), *few}
    assert found.left_out == ("mean",)


def test_bytes_count_as_they_stand_in_an_event_file() -> None:
    assert size_of(["abc", "é"]) == 3 + 2 + 2 * 11
    limit = size_of(tags("rms"))
    assert choose(tags("rms", "mean"), ["rms", "mean"], max_bytes=limit).statistics == ("rms",)
    assert choose(tags("rms", "mean"), ["rms", "mean"], max_bytes=limit - 1).every == 2


def test_of_too_many_sites_the_first_statistic_is_written_for_some() -> None:
    found = choose(tags("rms", "mean"), ["rms", "mean"], max_tags=6)
    assert found.every == 3
    assert found.tags == {"p/total", "p/alerts/dead", *(f"p/layer{i}/rms" for i in (0, 3, 6, 9))}
    assert (found.statistics, found.left_out) == (("rms",), ("mean",))


def test_what_is_asked_for_is_written_whatever_it_takes() -> None:
    found = choose(tags("rms", "mean", "max"), ["rms", "mean", "max"], wanted=["max"], max_tags=1)
    assert found.tags == {*tags("max")}
    assert choose(tags("rms"), ["rms"], wanted=[]).tags == {"p/total", "p/alerts/dead"}


def test_what_is_watched_is_written_if_it_is_there() -> None:
    found = choose(tags("rms", "mean"), ["rms", "mean"], max_tags=13, always=["p/layer3/mean", "val_loss"])
    assert found.tags == {*tags("rms"), "p/layer3/mean"}


@given(st.integers(1, 60), st.integers(0, 4), st.integers(3, 80), st.integers(40, 2000))
def test_the_budget_holds(n_sites: int, n_statistics: int, max_tags: int, max_bytes: int) -> None:
    statistics = [f"s{i}" for i in range(n_statistics)]
    every = tags(*statistics, sites=[f"m{i}" for i in range(n_sites)])
    found = choose(every, statistics, max_tags=max_tags, max_bytes=max_bytes)
    assert found.tags <= set(every)
    least = 3 if n_statistics else 2  # what is not of a site is always there, and one site
    assert len(found.tags) <= max(max_tags, least)
    assert size_of(found.tags) <= max(max_bytes, size_of(tags()) + (11 + len("p/m00/s0")))
    assert {*found.statistics, *found.left_out} == set(statistics)
