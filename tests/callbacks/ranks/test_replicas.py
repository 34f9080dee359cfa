"""Parameters that DDP is to keep the same on every rank, in two processes over gloo: where they are, and where they are not."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.replica_cases import FAULTS, HEALTHY
from tests.support.two_processes import run_twice

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[Any]]:
    """What each rank found, by case."""
    return run_twice("tests.support.replica_cases", tmp_path_factory.mktemp("replicas"))


def same_weights(ranks: list[Any]) -> bool:
    one, other = (found["weights"] for found in ranks)
    return all(torch.equal(one[name], other[name]) for name in one)


@pytest.mark.parametrize("case", HEALTHY)
def test_nothing_is_found_where_ranks_do_as_they_are_meant_to(case: str, two_ranks: Any) -> None:
    ranks = two_ranks[case]
    assert same_weights(ranks) is (case not in ("ignored", "local", "wrapped"))  # the case is what its name says
    for found in ranks:
        assert (found["alerts"], found["found"]) == ([], None)


EXPECTED = {
    "past_ddp": ("gradients", "net.0.weight", 4),
    "unfreezes": ("gradients", "net.0.weight", 2),
    "lost_transfer": ("weights", "net.2.bias", 1),
    "clips_alone": ("weights", "net.0.weight", 4),
}


@pytest.mark.parametrize("case", FAULTS)
def test_ranks_that_differ_are_found_and_the_first_parameter_is_named(case: str, two_ranks: Any) -> None:
    ranks = two_ranks[case]
    assert not same_weights(ranks)
    assert ranks[0]["alerts"] == ranks[1]["alerts"]
    (alert,) = ranks[0]["alerts"]
    found, (what, parameter, number) = ranks[0]["found"], EXPECTED[case]
    assert (found.what, found.parameter, getattr(found, what), found.compared) == (what, parameter, number, 4)
    assert (alert.site, alert.severity, alert.value, alert.threshold) == (parameter, "critical", found.difference, 1e-5)
    assert f"(limit 0.001%), at {number} of 4 parameters" in alert.seen
    start = "its gradient still differs between ranks" if what == "gradients" else "its weights differ between ranks"
    assert alert.seen.startswith(start)
    assert alert.advice[0] == "Call self.manual_backward(loss), not loss.backward(), and the model as this LightningModule holds it"


def test_the_size_of_a_difference(two_ranks: Any) -> None:
    found = two_ranks["lost_transfer"][0]
    one, other = (ranks["weights"]["net.2.bias"].double() for ranks in two_ranks["lost_transfer"])
    relative = float((one - other).norm() / one.norm())
    assert relative / 10 < found["found"].difference < relative * 10


def test_ranks_that_observe_other_modules_are_an_error_at_train_start(two_ranks: Any) -> None:
    expected = (
        "FeatureStatsMonitor: ranks have different sites or parameters, 1 on rank 0 and 2 on rank 1. Number 2 is missing on rank 0 "
        "and net.2 on rank 1. Numbers of all ranks are merged by their place: build the model and choose modules= alike on every "
        "rank."
    )
    assert two_ranks["other_modules"] == [expected, expected]


@pytest.mark.parametrize(
    ("case", "argument", "values"),
    [
        *((name, name, ("2", "3")) for name in ("report_every_n_steps", "every_n_steps", "check_every_n_steps")),
        ("default_window", "report_every_n_steps", ("None", "3")),
    ],
)
def test_ranks_that_merge_at_other_batches_are_an_error_at_train_start(
    case: str, argument: str, values: tuple[str, str], two_ranks: Any
) -> None:
    expected = (
        f"FeatureStatsMonitor: ranks have different values of {argument}: {values[0]} on rank 0, {values[1]} on rank 1. They merge "
        f"their numbers and decide together, and would wait for each other forever: give {argument}= alike on every rank."
    )
    assert two_ranks[case] == [expected, expected]
