"""Rules over the residual stream, on made reports."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from lightning_hooks.alerts import ActivationOutliers, FeatureReport, ResidualDoubling, ResidualGrowth
from lightning_hooks.diagnostics.residual_stream.table import ResidualStats

BLOCK = ResidualStats(
    calls=4, rms=1.0, largest=5.0, nonfinite_fraction=0.0, channel_rms=2.0, median_channel_rms=0.9, channel=7,
    write_ratio=0.4, carried=1.05, limit=3.4e38, stream="blocks",
)  # fmt: skip
HALF = 65504.0


def report(*changes: dict[str, Any], **more: dict[str, Any]) -> FeatureReport:
    blocks = {f"blocks.{number}": replace(BLOCK, **change) for number, change in enumerate(changes)}
    others = {name: replace(BLOCK, **change) for name, change in more.items()}
    return FeatureReport(epoch=1, step=40, sites={}, residual={**blocks, **others})


def found(rule: Any, made: FeatureReport) -> list[tuple[str, str, float]]:
    return [(alert.site, alert.severity, alert.value) for alert in rule(made)]


@pytest.mark.parametrize("rule", [ActivationOutliers(), ResidualGrowth(), ResidualDoubling()])
def test_healthy_streams(rule: Any) -> None:
    growing = [{"rms": float(1 + number)} for number in range(48)]
    assert found(rule, report(*growing)) == []
    assert found(rule, report()) == []
    assert found(rule, report({}, {"rms": 99.0}, {"rms": 100.0, "channel_rms": 89.0})) == []
    assert found(rule, report(*[{"rms": math.nan, "channel_rms": math.nan, "nonfinite_fraction": 1.0}] * 3)) == []


def test_a_large_channel_is_an_info_at_the_first_block_that_has_it() -> None:
    made = report({}, {"channel_rms": 180.0}, {"channel_rms": 900.0, "channel": 3})
    assert found(ActivationOutliers(), made) == [("blocks.1", "info", 200.0)]
    (alert,) = ActivationOutliers()(made)
    assert "channel 7 of its output has an RMS of 180, the median channel 0.9 (ratio 200, limit 100)" in alert.seen
    assert "behind 2 of 3 blocks" in alert.seen
    assert found(ActivationOutliers(threshold=300.0), made) == [("blocks.2", "info", 1000.0)]


def test_a_channel_that_is_about_to_overflow_is_a_warning_at_its_block() -> None:
    near = {"channel_rms": 9000.0, "largest": 0.26 * HALF, "limit": HALF}
    assert found(ActivationOutliers(), report({}, {"channel_rms": 180.0}, near)) == [("blocks.2", "warning", 10_000.0)]
    far = near | {"largest": 0.24 * HALF}
    assert found(ActivationOutliers(), report(far, far)) == [("blocks.0", "info", 10_000.0)]
    overflown = {"channel_rms": 9000.0, "nonfinite_fraction": 1e-4}
    (alert,) = ActivationOutliers()(report(overflown))
    assert alert.severity == "warning"
    assert "NaN or infinite" in alert.seen


def test_growth_is_an_info_at_the_first_block_and_a_warning_near_the_end_of_its_type() -> None:
    made = report({"rms": 0.1}, {"rms": 3.0}, {"rms": 20.0}, {"rms": 500.0})
    assert found(ResidualGrowth(), made) == [("blocks.2", "info", pytest.approx(200.0))]
    half = {"limit": HALF}
    made = report({"rms": 0.1, **half}, {"rms": 40.0, **half}, {"rms": 9000.0, "largest": 30_000.0, **half})
    assert found(ResidualGrowth(), made) == [("blocks.2", "warning", pytest.approx(90_000.0))]
    (alert,) = ResidualGrowth()(made)
    assert "its type ends at 6.55e+04." in alert.seen


@pytest.mark.parametrize("rule", [ActivationOutliers(), ResidualGrowth()])
def test_blocks_that_hand_on_something_unrelated_are_no_stream(rule: Any) -> None:
    change = {"carried": 0.01, "channel_rms": 900.0}
    blocks = [change | {"rms": rms} for rms in (1.0, 50.0, 2500.0)]
    assert found(rule, report(*blocks)) == []
    assert len(found(rule, report(*[block | {"carried": None} for block in blocks]))) == 1  # an input by keyword


@pytest.mark.parametrize(
    ("blocks", "factor", "alerts"),
    [
        (8, 2.0, [("blocks.1", "warning", 2.0)]),
        (8, 1.8, []),
        (16, math.sqrt(2), []),  # what a stream without norms grows by
        (7, 2.0, []),  # 64 times in all
        (5, 4.0, []),  # few blocks
    ],
)
def test_what_each_block_multiplies(blocks: int, factor: float, alerts: list[Any]) -> None:
    sizes = [{"entered_rms": factor**number} for number in range(blocks)]
    assert found(ResidualDoubling(), report(*sizes)) == alerts
    apart = [{**size, "stream": str(number)} for number, size in enumerate(sizes)]
    assert found(ResidualDoubling(), report(*apart)) == []
