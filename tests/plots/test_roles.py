"""What a layer is in its block, and lines of layers that are alike."""

import numpy as np
import pytest

from lightning_hooks.plots import dead_units, gradient_flow, heatmap
from lightning_hooks.plots.layers import by_role, role
from lightning_hooks.plots.series import relative_to_first
from tests.support.made_reports import alert, features, flow, layer_names


def test_the_role_is_what_follows_the_number_of_the_block():
    names = ["h.3.attn.q.weight", "layer1.0.conv1", "layer2.1.downsample.0", "head.bias", "net.4", "embed"]
    assert [role(name) for name in names] == ["attn.q.weight", "conv1", "downsample.0", "bias", "", "embed"]


def test_layers_of_a_role_are_together_and_single_ones_apart():
    names = layer_names(42)
    roles = by_role(names)
    assert roles["attn.q"] == [place for place, name in enumerate(names) if name.endswith("attn.q")]
    assert roles["other"] == [0, 41]
    assert sorted(place for places in roles.values() for place in places) == list(range(42))


def test_without_roles_weights_and_biases_are_apart():
    assert by_role(["conv.weight", "conv.bias", "fc.weight", "fc.bias"]) == {"": [0, 2], "bias": [1, 3]}
    assert by_role(["conv1", "relu", "fc"]) == {"": [0, 1, 2]}


def test_relative_to_the_first_that_is_finite_and_not_zero():
    values = np.array([[np.nan, 2.0, -4.0], [0.0, 0.5, 0.0], [np.nan, np.nan, np.nan], [3.0, np.inf, 3.0]])
    expected = [[np.nan, 1, 2], [0, 1, 0], [np.nan] * 3, [1, np.nan, 1]]
    np.testing.assert_allclose(relative_to_first(values), expected)


def test_a_line_joins_layers_of_one_role_only():
    report = flow(0, layer_names(42))
    names = list(report.modules)
    (axes,) = gradient_flow(report).axes
    lines = {line.get_label(): line for line in axes.get_lines() if len(line.get_xdata())}
    drawn = lines["attn.q"]
    assert [names[int(x)] for x in drawn.get_xdata()] == [name for name in names if name.endswith("attn.q")]
    np.testing.assert_allclose(drawn.get_ydata(), [report.modules[names[int(x)]].rms for x in drawn.get_xdata()])
    assert lines["single layers"].get_linestyle() == "None"


def test_a_heat_map_of_sizes_is_relative_to_each_rows_first_epoch():
    reports = [flow(epoch, ["a", "b"]) for epoch in range(3)]
    sizes = np.array([[report.modules[name].rms for report in reports] for name in ("a", "b")])
    for relative, expected in ((None, sizes / sizes[:, :1]), (False, sizes)):
        mesh = heatmap(reports, "rms", relative=relative).axes[0].collections[0]
        np.testing.assert_allclose(np.asarray(mesh.get_array()).reshape(2, 3), expected)
    share = heatmap([features(epoch, ["a", "b"]) for epoch in range(2)], "zero_fraction").axes[0].collections[0]
    assert (share.norm.vmin, share.norm.vmax) == (0, 1)


@pytest.mark.parametrize(("alerts", "limit"), [((), 0.7), ((alert("dead", "b", 0),), 0.5)])
def test_the_line_of_dead_units_stands_at_the_rules_limit(alerts, limit):
    report = features(0, ["a", "b"], dead=[0.55, 0.9], alerts=alerts)  # the alert made here has a threshold of 0.5
    (line,) = dead_units(report).axes[0].get_lines()
    assert set(line.get_xdata()) == {limit}
