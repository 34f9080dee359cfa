"""The picture of the residual stream holds the numbers of the report."""

from __future__ import annotations

import io
import math
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from lightning_hooks.alerts import ActivationOutliers, FeatureReport
from lightning_hooks.diagnostics.residual_stream.table import ResidualStats
from lightning_hooks.plots import residual_stream
from lightning_hooks.plots.canvas import MARKS

BLOCK = ResidualStats(
    calls=4, rms=1.0, largest=5.0, nonfinite_fraction=0.0, channel_rms=2.0, median_channel_rms=0.9, channel=7,
    write_ratio=0.4, carried=1.05, limit=3.4e38, stream="blocks",
)  # fmt: skip


def report(*changes: dict[str, Any]) -> FeatureReport:
    return FeatureReport(
        2, 40, {}, residual={f"blocks.{number}": replace(BLOCK, **change) for number, change in enumerate(changes)}
    )


def lines(figure: Any) -> dict[str, list[float]]:
    (axes,) = figure.axes
    return {line.get_label(): list(line.get_ydata()) for line in axes.lines if not line.get_label().startswith("_")}


def draw(figure: Any) -> None:
    figure.savefig(io.BytesIO(), format="png", dpi=40)


def test_rms_by_depth() -> None:
    figure = residual_stream(report({}, {"rms": 20.0, "channel_rms": 500.0}, {"rms": 3e4, "median_channel_rms": 8.0}))
    assert lines(figure) == {
        "all values": [1.0, 20.0, 3e4],
        "largest channel": [2.0, 500.0, 2.0],
        "median channel": [0.9, 0.9, 8.0],
    }
    (axes,) = figure.axes
    assert axes.get_yscale() == "log"
    assert axes.get_title(loc="left").startswith("Residual stream, epoch 2")
    assert axes.get_xlabel() == "block in blocks, in the model's order"
    draw(figure)


def test_a_block_with_an_alert_is_marked() -> None:
    made = report({}, {"channel_rms": 500.0, "rms": 20.0}, {})
    figure = residual_stream(replace(made, alerts=tuple(ActivationOutliers()(made))))
    (dots,) = figure.axes[0].collections
    np.testing.assert_allclose(dots.get_offsets(), [(1.0, 20.0)])
    from matplotlib.colors import to_rgba

    assert tuple(dots.get_facecolor()[0]) == to_rgba(MARKS["info"]["color"])
    draw(figure)


@pytest.mark.parametrize("rms", [0.0, math.nan, math.inf, 1e-150, 1e150])
def test_whatever_the_numbers_are(rms: float) -> None:
    draw(residual_stream(report({}, {"rms": rms, "channel_rms": rms}, {"median_channel_rms": rms})))
    draw(residual_stream(report({"rms": rms, "channel_rms": rms, "median_channel_rms": rms})))
