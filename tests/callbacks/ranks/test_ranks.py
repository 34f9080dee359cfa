"""Two ranks equal one process on the concatenated data (gloo on the CPU)."""

from __future__ import annotations

import os
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.support.rank_cases import run_case
from tests.support.reference import assert_same, everything
from tests.support.two_processes import run_twice

pytestmark = pytest.mark.ranks


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Run the cases of rank_cases.py in two processes that Lightning's ddp strategy joins: what each rank found, by case."""
    return run_twice("tests.support.rank_cases", tmp_path_factory.mktemp("ranks"))


# What counts batches counts each rank's: calls, norms of a call, batch counts and how much the samples of a batch differ are other
# numbers in one process by nature.
PER_CALL = frozenset({"calls", "norm", "norm_max", "sampled_batches", "batches", "alerts", "representations", "feature_scales"})


@pytest.mark.parametrize("case", ["even", "uneven"])
def test_two_ranks_equal_one_process(case: str, two_ranks: Any) -> None:
    ranks = two_ranks[case]
    single = run_case(case, world=1)
    for features, flow, clip in (found["reports"] for found in ranks):
        one_features, one_flow, one_clip = single["reports"]
        assert_same(features, one_features, "features", skip=PER_CALL)
        assert_same(flow.modules, one_flow.modules, "modules", skip=PER_CALL)
        assert_same(flow.parameters, one_flow.parameters, "parameters", rel=1e-4)
        assert_same(flow.optimizers, one_flow.optimizers, "optimizers", rel=1e-4)
        assert_same(flow.largest_losses, one_flow.largest_losses, "largest losses", skip=frozenset({"samples"}), rel=1e-4)
        assert_same(clip, one_clip, "clip", skip=frozenset({"samples"}), rel=1e-4)
    assert everything(ranks[0]["reports"]) == everything(ranks[1]["reports"])  # to the last bit
    assert ranks[0]["collectives"] == [3]  # a maximum and two sums of all monitors together


def test_windows_of_two_ranks_equal_those_of_one_process(two_ranks: Any) -> None:
    ranks, single = two_ranks["windows"], run_case("windows", world=1)
    assert everything(ranks[0]["windows"]) == everything(ranks[1]["windows"])
    for found, expected in zip(ranks[0]["windows"], single["windows"], strict=True):
        assert [(report.window, report.step) for report in found] == [(0, 2), (1, 3)]
        for report, one in zip(found, expected, strict=True):
            table = next(name for name in ("sites", "modules", "optimizers") if hasattr(one, name))
            assert_same(getattr(report, table), getattr(one, table), table, skip=PER_CALL, rel=1e-4, tiny=1e-6)
    for report, one in zip(ranks[0]["reports"], single["reports"], strict=True):  # of the epoch
        assert report.window is None
        table = next(name for name in ("sites", "modules", "optimizers") if hasattr(one, name))
        assert_same(getattr(report, table), getattr(one, table), table, skip=PER_CALL, rel=1e-4, tiny=1e-6)


def by_bin(edges: list[float], counts: list[int]) -> dict[float, int]:
    """Counts by the bin's lower edge; 0 for the bin around zero, whose width is divided by the ranks."""
    return {0.0 if low < 0 < high else low: count for low, high, count in zip(edges, edges[1:], counts, strict=False) if count}


@pytest.mark.parametrize("case", ["even", "uneven", "one_rank_only"])
def test_histograms_of_two_ranks_equal_those_of_one_process(case: str, two_ranks: Any) -> None:
    single = run_case(case, world=1)["histograms"]
    ranks = two_ranks[case]
    assert ranks[0]["histograms"] == ranks[1]["histograms"]
    for found, expected in zip(ranks[0]["histograms"][: 1 if case == "one_rank_only" else 2], single, strict=False):
        assert set(found) == set(expected) >= {"net.first", "net.act", "net.second"}
        for site in expected:
            one, other = by_bin(*found[site]), by_bin(*expected[site])
            assert sum(one.values()) == sum(other.values())
            moved = sum(abs(one.get(place, 0) - other.get(place, 0)) for place in {*one, *other})
            assert moved <= 4, site  # a sum in another order may take a value over an edge


def test_the_clip_report_covers_all_ranks(two_ranks: Any) -> None:
    ranks = two_ranks["clip_by_rank"]
    assert everything(ranks[0]["report"]) == everything(ranks[1]["report"])
    report, before, after = ranks[0]["report"], *(ranks[0][key] + ranks[1][key] for key in ("before", "after"))
    stats = report.optimizers["0-SGD"]
    assert (stats.steps, stats.clipped_steps, stats.skipped_steps, stats.nonfinite_steps) == (3, 3, 0, 0)
    assert (stats.norm_before_max, stats.norm_after_max) == pytest.approx((max(before), max(after)), rel=1e-5)
    assert (stats.norm_before, stats.norm_after) == pytest.approx((sum(before) / 6, sum(after) / 6), rel=1e-5)
    assert stats.coefficient == pytest.approx(sum(b / a for a, b in zip(before, after, strict=True)) / 6, rel=1e-5)
    assert sum(share for _, share in stats.top_parameters) == pytest.approx(1.0, rel=1e-6)
    jumps = [(norms[i] / max(norms[:i]), norms[i]) for norms in (found["before"] for found in ranks) for i in (1, 2)]
    assert (report.events["0-SGD"].jump, report.events["0-SGD"].jump_norm) == pytest.approx(max(jumps), rel=1e-5)
    assert [alert.kind for alert in report.alerts if alert.kind == "clip_ineffective"] == ["clip_ineffective"]
    assert max(ranks[0]["after"]) <= 0.2 * 1.001 < max(ranks[1]["after"])


@pytest.mark.parametrize("case", ["stop", "raise"])
def test_decisions_agree_though_only_one_rank_saw_the_trouble(case: str, two_ranks: Any) -> None:
    ranks = two_ranks[case]
    assert [found["epochs"] for found in ranks] == [1, 1]
    assert [found["error"] for found in ranks] == ["AlertError" if case == "raise" else None] * 2
    assert ranks[0]["alerts"] == ranks[1]["alerts"]
    assert ("nonfinite", "net.odd") in ranks[0]["alerts"]


@pytest.mark.parametrize("case", ["early_stop", "early_raise", "early_gradient"])
def test_checks_within_the_epoch_agree_though_only_one_rank_saw_the_trouble(case: str, two_ranks: Any) -> None:
    one, other = two_ranks[case]
    assert one["reported"] == other["reported"]
    (alert,) = (entry for entry in one["reported"] if entry.severity != "info")
    in_loss = case == "early_gradient"  # elsewhere no step is bad, so that none is run again
    assert (alert.kind, alert.batch) == ("loss_nonfinite" if in_loss else "nonfinite", 1)
    assert one["steps"] == other["steps"] == 2  # of the three batches of the epoch
    assert one["error"] == other["error"] == ("AlertError" if case == "early_raise" else None)
    assert alert.site == ("loss" if in_loss else "net.odd")  # the first in the order of execution
    assert ("nonfinite at net.first.weight" in alert.consequences) is in_loss
    for found in (one, other):
        torch.testing.assert_close(found["weights"], one["weights"], rtol=0, atol=0, equal_nan=True)
    assert [report and everything(report.alerts) for report in one["reports"]] == [
        report and everything(report.alerts) for report in other["reports"]
    ]


def test_ranks_decide_alike_though_each_called_its_modules_in_another_order(two_ranks: Any) -> None:
    one, other = two_ranks["branches"]
    assert one["reported"] == other["reported"] != []
    assert one["epochs"] == other["epochs"]
    assert everything(one["reports"]) == everything(other["reports"])
    features, flow, _ = one["reports"]
    assert features.order == ("left", "right", "net")  # as rank 0 called them first
    assert [*features.sites] == ["left", "right", "net"]
    assert [*flow.modules] == ["left", "right", "net"]


def test_gradients_that_differ_by_rank_do_not_hang_the_checks(two_ranks: Any) -> None:
    one, other = two_ranks["nodes"]
    assert not any((*one["faults"], *other["faults"]))
    assert one["reported"] == other["reported"] != []
    assert everything(one["reports"][:2]) == everything(other["reports"][:2])
    assert (one["reported"][0].kind, one["reported"][0].batch) == ("nonfinite", 2)  # though rank 0 saw none
    assert one["epochs"] == other["epochs"] == 3


def test_what_one_rank_alone_has_is_judged_alike(two_ranks: Any) -> None:
    """A part that only rank 1 trains, steps by hand that only rank 1 has gradients for, a module that only rank 1 calls."""
    one, other = two_ranks["apart"]
    assert not any((*one["faults"], *other["faults"]))
    assert one["reported"] == other["reported"] != []
    for mine, others in zip(one["reports"][:2], other["reports"][:2], strict=True):
        assert repr(mine.alerts) == repr(others.alerts)
    features, flow, _ = one["reports"]
    assert features.unmeasured == other["reports"][0].unmeasured == ("tokens.table",)
    assert flow.setups["part.weight"].has_gradient
    (missing,) = (alert for alert in flow.alerts if alert.kind == "missing")
    assert (missing.site, missing.severity) == ("part.bias", "info")
    assert missing.severity == "info"  # the weight of its module has a gradient; it is no part of a copy that is left alone
    nonfinite = next(alert for alert in one["reported"] if alert.kind == "nonfinite")
    assert (nonfinite.epoch, nonfinite.batch) == (1, 2)


def test_ranks_mask_the_same_units_as_one_process(two_ranks: Any) -> None:
    ranks, single = two_ranks["prune"], run_case("prune", world=1)
    assert ranks[0]["masks"] == ranks[1]["masks"] == single["masks"]
    assert single["masks"]["net.first"].count(False) == 8
    assert "net.sometimes" in single["masks"]
    assert everything(ranks[0]["report"]) == everything(ranks[1]["report"])  # to the last bit
    assert_same(ranks[0]["report"], single["report"], "report", skip={"step"}, rel=1e-5)
    assert ranks[0]["collectives"] == [1, 1]


def test_ddp_spawn_pickles_the_callbacks(tmp_path: Path) -> None:
    code = "import sys; from tests.support.rank_cases import spawn\nif __name__ == '__main__': spawn(sys.argv[1])\n"
    script = tmp_path / "spawned.py"
    script.write_text(code)
    env = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[3]), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, str(script), str(tmp_path)], env=env, capture_output=True, text=True, timeout=180)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-4000:]
    found = [pickle.loads((tmp_path / f"spawn-{rank}.pickle").read_bytes()) for rank in range(2)]
    assert everything(found[0]) == everything(found[1])
    assert_same(found[0][0], run_case("even", world=1)["reports"][0], "features", skip=PER_CALL)
