"""A slice of the exam, so that a change of the rules shows. ``python -m tests.evidence.exam.run`` runs all of it."""

from __future__ import annotations

from typing import Any

import pytest

from lightning_hooks.declare.kinds import KINDS
from tests.evidence.exam.catalogue import CASES
from tests.evidence.exam.run import run_one

pytestmark = pytest.mark.filterwarnings("ignore")  # of libraries about themselves

FAULTS = [name for name, case in CASES.items() if not case.healthy]


def judged(name: str) -> dict[str, Any]:
    for library in CASES[name].libraries:
        pytest.importorskip(library)
    return run_one((name, True))


@pytest.mark.parametrize("name", ["gpt2_nano", "albert", "mistral"])
def test_healthy_training_is_silent(name: str) -> None:
    assert judged(name)["alerts"] == []


@pytest.mark.parametrize("name", ["llama_adam_eps", "bert_blocks_in_a_list", "gpt2_softmax_along_queries"])
def test_fault_is_found(name: str) -> None:
    result = judged(name)
    assert result["found"], result["alerts"]
    assert result["site"] in (True, None), result["alerts"]
    assert not result["early"]


@pytest.mark.parametrize("healthy", [True, False])
@pytest.mark.parametrize("learned_from", [True, False])
def test_each_half_has_many_families(healthy: bool, learned_from: bool) -> None:
    half = [case for case in CASES.values() if (case.healthy, case.learned_from) == (healthy, learned_from)]
    assert len(half) >= 30


def test_files_are_named_by_what_is_in_them() -> None:
    for case in CASES.values():
        assert case.build.__module__.endswith("_healthy" if case.healthy else "_faults")


@pytest.mark.parametrize("name", FAULTS)
def test_what_is_expected_exists(name: str) -> None:
    try:
        expected = CASES[name].build().expected
    except ModuleNotFoundError as missing:
        pytest.skip(f"{missing.name} is not installed")
    assert expected.kinds
    assert set(expected.kinds) <= set(KINDS)
