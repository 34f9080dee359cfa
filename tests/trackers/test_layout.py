"""Patterns of charts of many curves."""

from __future__ import annotations

import re

from hypothesis import given
from hypothesis import strategies as st

from lightning_hooks.trackers.tracker import LONGEST_PATTERN, MOST_BANDS, Band, any_of, by_statistic, margins
from tests.support.made_reports import HOSTILE, layer_names

NAMES = st.text(alphabet="ab.|*", max_size=4) | st.sampled_from(HOSTILE)


@given(st.sets(NAMES, min_size=1, max_size=8), NAMES)
def test_a_pattern_matches_its_names_and_no_other(names: set[str], other: str) -> None:
    pattern = re.compile(any_of(names) + r"\Z")
    assert all(pattern.match(name) for name in names)
    assert bool(pattern.match(other)) == (other in names)


def test_a_model_of_216_layers_needs_a_short_pattern() -> None:
    names = layer_names(216)
    assert len(any_of(names)) < len("|".join(names)) / 2


def test_charts_of_chosen_sites() -> None:
    charts = by_statistic("gradient_flow", ["rms", "norm"], ["net.0", "net.1"], "modules")
    assert list(charts) == ["rms of modules", "norm of modules"]
    chart = charts["rms of modules"]
    assert isinstance(chart, str)
    tags = [f"gradient_flow/{site}/{stat}" for site in ("net.0", "net.1", "net.0.weight", "net.10") for stat in ("rms", "rms_max")]
    tags += ["features/net.0/rms", "gradient_flow/alerts/rms"]
    assert [tag for tag in tags if re.match(chart, tag)] == ["gradient_flow/net.0/rms", "gradient_flow/net.1/rms"]


def test_charts_of_all_sites_leave_out_alert_counts() -> None:
    for sites in ((), [f"{'x' * LONGEST_PATTERN}{i}" for i in range(2)]):
        (chart,) = by_statistic("features", ["dead"], sites).values()
        assert isinstance(chart, str)
        assert re.match(chart, "features/a/b/dead")
        assert not re.match(chart, "features/alerts/dead")


def test_margins_are_of_sites_spread_evenly() -> None:
    names = [str(i) for i in range(100)]
    charts = margins("gradient_flow", names)
    assert len(charts) <= MOST_BANDS
    assert list(charts) == names[:: 100 // len(charts)]
    assert charts["0"] == Band("gradient_flow/0/mean", "gradient_flow/0/min", "gradient_flow/0/max")
    assert margins("gradient_flow", []) == {}
