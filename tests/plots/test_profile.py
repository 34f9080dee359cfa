"""The bars are the report's numbers, and together they are the step."""

from __future__ import annotations

import dataclasses
import io
import sys

import pytest

from lightning_hooks.plots import layer_times
from lightning_hooks.profiling import LayerTimes, ProfileReport, Spread


def spread(mean: float) -> Spread:
    return Spread(mean, 0.1, mean, mean + 1)


def layer(forward: float, backward: float, recompute: float = 0.0) -> LayerTimes:
    total = spread(forward + backward + recompute)
    parts = [spread(value) for value in (forward, forward, backward, backward, recompute, recompute)]
    return LayerTimes(
        1.0, float(recompute > 0), total, total, *parts, share=0.1, total_share=0.1, output_bytes=8.0, memory_bytes=None
    )


def report(sites: dict[str, LayerTimes], steps: int = 5) -> ProfileReport:
    times = [spread(value) for value in (100.0, 40.0, 50.0, 10.0, 3.0, 4.0)]
    return ProfileReport(2, 70, "cpu", sites, (), *times, overhead=0.2, measured_steps=steps, batches=7)


SITES = {"encoder.a": layer(1, 2), "encoder.$b": layer(5, 7, 4), "c\nd": layer(3, 1)}


def widths(figure) -> dict[str, list[float]]:
    return {bars.get_label(): [bar.get_width() for bar in bars] for bars in figure.axes[0].containers}


def drawn(figure) -> list[str]:
    figure.savefig(io.BytesIO(), format="png", dpi=40)
    return [label.get_text() for label in figure.axes[0].get_yticklabels()]


def test_bars_are_self_times_longest_first():
    figure = layer_times(report(SITES))
    assert drawn(figure) == ["encoder.$b", "c\\nd", "encoder.a", "outside all layers", "other"]
    assert widths(figure) == {
        "forward": [5, 3, 1, 3],
        "recompute": [4, 0, 0, 0],
        "backward": [7, 1, 2, 4],
        "optimizer, callbacks, logging": [10],
    }
    starts = [bar.get_x() for bar in figure.axes[0].containers[2]]
    assert starts == [9, 3, 1, 3]


def test_bad_input(monkeypatch):
    with pytest.raises(TypeError, match="expected a ProfileReport, such as LayerProfiler's report; got dict"):
        layer_times(dataclasses.asdict(report(SITES)))
    with pytest.raises(ValueError, match="top must be at least 1; got 0"):
        layer_times(report(SITES), top=0)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install matplotlib"):
        layer_times(report(SITES))
