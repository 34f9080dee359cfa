"""Two processes that hold shards of the parameters (FSDP2, tensor parallelism; gloo on the CPU) equal one that holds all."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from tests.support.reference import assert_same
from tests.support.shard_cases import CASES, run_case
from tests.support.two_processes import run_twice

pytestmark = pytest.mark.ranks

# What counts batches counts each rank's: calls and norms of a call differ from one process by nature, and time from run to run.
PER_CALL = frozenset(
    {"calls", "norm", "norm_max", "sampled_batches", "batches", "alerts", "overhead", "order"}
    | {"representations", "outputs", "feature_scales"}
)
LARGE = ("net.wide.weight", "net.back.weight")  # their update ratios are estimated


@pytest.fixture(scope="module")
def two_ranks(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[dict[str, Any]]]:
    """Run the cases of shard_cases.py in two processes: what each rank found, by case."""
    return run_twice("tests.support.shard_cases", tmp_path_factory.mktemp("shards"))


def same_on_both_ranks(ranks: list[dict[str, Any]]) -> None:
    for one, other in zip(*(found["reports"] for found in ranks), strict=True):
        assert_same(one, other, rel=0.0, tiny=0.0, skip={"overhead"})  # to the last bit


OF_A_SAMPLE = ("update_ratio", "update_ratio_max", "weight_norm", "weight_rms")


def same_parameters(found: Any, expected: Any, where: str) -> None:
    assert list(found.parameters) == list(expected.parameters)
    for name, stats in expected.parameters.items():
        assert_same(found.parameters[name], stats, f"{where} {name}", rel=1e-4, tiny=1e-8, skip=OF_A_SAMPLE)
        for stat in OF_A_SAMPLE:  # of a large weight, and ranks take other elements
            rel = 0.05 if name in LARGE else 1e-3
            assert_same(getattr(found.parameters[name], stat), getattr(stats, stat), f"{where} {name} {stat}", rel=rel)
    assert_same(found.total_norm, expected.total_norm, f"{where} total", rel=1e-4)


@pytest.mark.parametrize("case", [case for case in CASES if case not in ("tensor", "budget")])
def test_shards_equal_the_whole(case: str, two_ranks: Any) -> None:
    ranks, single = two_ranks[case], run_case(case, world=1)
    same_on_both_ranks(ranks)
    # Under tensor parallelism some outputs are on both ranks alike.
    skip = PER_CALL if CASES[case][0] == "fsdp" else PER_CALL | {"count", "unit_samples"}
    for found in ranks:
        (features, flow, clip), (one_features, one_flow, one_clip) = found["reports"], single["reports"]
        assert_same(features, one_features, "features", rel=1e-4, tiny=1e-6, skip=skip)
        assert_same(flow.modules, one_flow.modules, "modules", rel=1e-4, tiny=1e-6, skip=skip)
        same_parameters(flow, one_flow, case)
        assert_same(clip, one_clip, "clip", rel=1e-4, tiny=1e-6, skip={"overhead", "samples"})
        for name, weight in single["weights"].items():
            torch.testing.assert_close(found["weights"][name], weight, rtol=1e-4, atol=1e-6)
    if CASES[case][1].get("gradient_clip_val") or CASES[case][2]:
        assert one_clip.optimizers["0-SGD"].clipped_steps > 0, "the case clips"


def test_missing_and_frozen_are_distinguished(two_ranks: Any) -> None:
    flow = two_ranks["observed"][0]["reports"][1]
    assert {alert.site for alert in flow.alerts if alert.kind == "missing"} == {"net.unused.weight", "net.unused.bias"}
    assert "net.frozen.weight" not in flow.parameters


def test_clipping_in_parameter_hooks_is_rejected(two_ranks: Any) -> None:
    for found in two_ranks["tensor"]:
        assert found["error"].startswith(
            "policy='tensor' clips in hooks of the parameters, and those of sharded parameters are not"
        )


def test_ranks_agree_on_how_thinly_to_sample(two_ranks: Any) -> None:
    """Reading sharded gradients is a collective: a rank that sampled more often than the other would wait for ever."""
    first, second = (found["stride"] for found in two_ranks["budget"])
    assert first == second > 1
