"""What happens where ranks are not alike (real processes over gloo), and how many collectives a window takes on 2, 4 and 8."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from lightning_hooks.run_report.run import read_run
from tests.support.rank_differences import ARGUMENTS, CASES, TIMEOUT

pytestmark = pytest.mark.ranks

AT_START = 1 + 4
"""Of the number of batches, and of the sites and arguments of each monitor."""
MANY = ("4", "8")


def run(folder: Path, *names: str) -> dict[str, list[Any]]:
    """What each rank found, by case; None for one that died."""
    command = [sys.executable, "-m", "tests.support.rank_differences", str(folder), *names]
    done = subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, capture_output=True, text=True, timeout=400)
    assert done.returncode == 0, done.stderr[-4000:]
    found: dict[str, list[Any]] = {}
    for name in names:
        files = [folder / name / f"{rank}.pickle" for rank in range(CASES[name][0])]
        found[name] = [pickle.loads(file.read_bytes()) if file.exists() else None for file in files]
    return found


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("differences")


@pytest.fixture(scope="module")
def found(folder: Path) -> dict[str, list[Any]]:
    return run(folder, *[name for name in CASES if name not in MANY])


def test_collectives_of_a_window(found: Any) -> None:
    first, second = found["2"]
    assert first["windows"] == [(epoch, 10 * epoch + step) for epoch in range(2) for step in (3, 6, 9, 10)]
    assert first["collectives"] == second["collectives"]
    names = first["collectives"]
    assert names[AT_START] == "all_gather_object"  # the sites of calls of functions, once
    assert [*names[:AT_START], *names[AT_START + 1 :]] == ["all_reduce"] * (AT_START + 3 * 8)


def test_their_number_depends_neither_on_modules_nor_on_monitors(found: Any) -> None:
    two = found["2"][0]["collectives"]
    assert all(rank["collectives"] == two for rank in found["deep"])
    for rank in found["features alone"]:
        assert len(rank["collectives"]) == 1 + 2 + 1 + 3 * 8  # two start: it brings AttentionMonitor


@pytest.mark.parametrize("case", ["dies", "raises"])
def test_a_rank_that_is_gone_leaves_the_error_of_the_process_group_and_whole_files(case: str, found: Any, folder: Path) -> None:
    first, second = found[case]
    assert first["error"].startswith("RuntimeError: ")
    assert "gloo" in first["error"]  # of the training's own collective
    assert first["hooked"] == 0
    assert first["windows"] == [(0, 3)]
    assert first["seconds"] < TIMEOUT
    run = read_run(folder / case / "run" / "lightning_hooks" / "reports.jsonl")
    assert run.end is not None
    assert run.end["how"] == "exception"
    if case == "raises":
        assert (second["error"], second["hooked"]) == ("ValueError: no such file", 0)
    else:
        assert second is None


MISSING = "Ranks merge their numbers, and would wait for each other forever: give every rank the same callbacks in the same order."


@pytest.mark.parametrize(
    ("case", "waits", "who"),
    [
        ("missing on 1", 0, "lightning_hooks: rank 1"),
        ("missing on 0", 1, "lightning_hooks: rank 0"),
        ("one fewer", 0, "GradientClipMonitor: rank 1"),
    ],
)
def test_a_rank_without_a_monitor_is_named(case: str, waits: int, who: str, found: Any) -> None:
    text = f"{who} is missing at the start. {MISSING}"
    waiting, other = found[case][waits], found[case][1 - waits]
    assert waiting["error"] == f"RuntimeError: {text}"
    assert waiting["warnings"] == [f"{text} This rank waits for 0:00:06."]
    assert waiting["seconds"] < TIMEOUT
    assert "gloo" in other["error"]
    assert waiting["hooked"] == other["hooked"] == 0


def differs(monitor: str, what: str, values: tuple[Any, Any], alike: str) -> str:
    return (
        f"RuntimeError: {monitor}: ranks have different values of {what}: {values[0]!r} on rank 0, {values[1]!r} on rank 1. They "
        f"merge their numbers and decide together, and would wait for each other forever: {alike}."
    )


@pytest.mark.parametrize("argument", ARGUMENTS)
def test_other_arguments_are_named(argument: str, found: Any) -> None:
    monitor = "GradientFlowMonitor" if argument == "learning" else "FeatureStatsMonitor"
    values = (None, "stop") if argument == "on_alert" else ARGUMENTS[argument]
    expected = differs(monitor, argument, values, f"give {argument}= alike on every rank")
    assert [(rank["error"], rank["hooked"], rank["steps"]) for rank in found[argument]] == [(expected, 0, 0)] * 2


def test_another_order_or_version_is_named(found: Any) -> None:
    names = ("FeatureStatsMonitor", "GradientClipMonitor")
    alike = "list the same callbacks in the same order on every rank"
    assert [rank["error"] for rank in found["order"]] == [differs(name, "callbacks", names, alike) for name in names]
    expected = differs(
        "FeatureStatsMonitor", "lightning_hooks.__version__", ("0.1.0", "0.0.1"), "install one version on every rank"
    )
    assert [rank["error"] for rank in found["version"]] == [expected] * 2


@pytest.mark.parametrize("case", ["join", "join, windows"])
def test_no_window_ends_within_join(case: str, found: Any) -> None:
    for rank in found[case]:
        assert rank == {"counts": {"0": 17 * 32, "1": 17 * 32, "2": 17 * 12}}


def test_stages_of_a_pipeline_are_an_error_and_local_experts_of_one_name_are_one_site(found: Any) -> None:
    assert [rank["error"] for rank in found["stages"]] == [
        "FeatureStatsMonitor: ranks have different sites or parameters, 2 on rank 0 and 2 on rank 1. Number 1 is layer0 on rank 0 "
        "and layer2 on rank 1. Numbers of all ranks are merged by their place: build the model and choose modules= alike on every "
        "rank."
    ] * 2
    assert found["experts"] == [{"counts": {"expert0": 2 * 320, "expert1": 2 * 320}}] * 2
