"""A real collection of metrics in two processes: every state, value and weight is the same to the bit, monitored or not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from lightning_hooks.run_report import read_run
from tests.support.two_processes import run_twice

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("metrics")


@pytest.fixture(scope="module")
def two_ranks(folder: Path) -> dict[str, list[Any]]:
    return run_twice("tests.support.rank_logged_metrics", folder)


def same(one: Any, other: Any) -> bool:
    """Whether two values are the same to the bit."""
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(same(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(same, one, other))
    return torch.equal(one, other) if isinstance(one, torch.Tensor) else repr(one) == repr(other)


@pytest.mark.parametrize("what", ["logged", "weights", "states", "losses", "rng"])
def test_a_collection_of_twelve_metrics_is_as_without_monitors(what: str, two_ranks: Any) -> None:
    for with_it, without in zip(two_ranks["with"], two_ranks["without"], strict=True):
        assert same(with_it[what], without[what])


def test_there_was_something_to_compare(two_ranks: Any) -> None:
    for found in two_ranks["with"]:
        assert sum(name.startswith("val/") for name in found["logged"]) == 12
        assert sum(count for count, _ in found["states"][0].values()) > 2
    first, second = two_ranks["with"]
    assert not same(first["states"][0], second["states"][0])  # each rank has its own batches


def test_what_is_found_is_the_same_on_both_ranks(two_ranks: Any) -> None:
    one, other = two_ranks["report"]
    assert one.metrics == other.metrics
    assert len(one.metrics) == 25
    assert "metric_misused" in {alert.kind for alert in one.alerts}
    assert [alert.message for alert in one.alerts] == [alert.message for alert in other.alerts]
    averaged = {name: use.averaged for name, use in one.metrics.items() if use.averaged}
    assert averaged["train_metrics.MulticlassAUROC"] == "batch_train/MulticlassAUROC"
    assert not any(name.startswith("val_metrics") for name in averaged)


def test_they_are_in_the_run_s_file(two_ranks: Any, folder: Path) -> None:
    run = read_run(folder)
    logged = two_ranks["with"][0]["logged"]
    assert "batch_train/MulticlassAccuracy" in run.metrics
    assert run.metric("val/MulticlassAUROC", 1) == pytest.approx(logged["val/MulticlassAUROC"], rel=1e-4)
