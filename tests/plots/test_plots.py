"""The figures show the numbers of the reports, whatever these hold."""

from __future__ import annotations

import dataclasses
import io
import sys

import numpy as np
import pytest

from lightning_hooks.plots import clip_history, gradient_flow, heatmap, update_ratios
from tests.support.made_reports import alert, clips, features, flow, layer_names

NAMES = layer_names(12)


def drawn(figure, dpi=40):
    """Draw a figure as a tracker would; every warning is an error here. Returns the PNG."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=dpi)
    return buffer.getvalue()


def texts(figure):
    """All that is written on a figure."""
    from matplotlib.text import Text

    return [text.get_text() for text in figure.findobj(Text) if text.get_text()]


def marks(figure, marker_color):
    """Positions of the alert marks of a colour."""
    from matplotlib.colors import to_rgba

    found = []
    for axes in figure.axes:
        for dots in axes.collections:
            faces = dots.get_facecolor() if hasattr(dots, "get_offsets") else []
            if len(faces) and tuple(faces[0]) == to_rgba(marker_color):
                found += [tuple(point) for point in np.asarray(dots.get_offsets())]
    return found


def test_gradient_flow_draws_the_rms_of_every_module():
    report = flow(3, NAMES)
    figure = gradient_flow(report)
    dots = figure.axes[0].collections[0].get_offsets()
    np.testing.assert_allclose(dots[:, 1], [stats.rms for stats in report.modules.values()])
    assert figure.axes[0].get_yscale() == "log"
    assert figure.axes[0].get_ylabel() == "gradient (loss per unit)"
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()][-1] == "head"
    assert figure.axes[0].get_title(loc="left").startswith("Gradient flow, epoch 3")
    drawn(figure)


def test_gradient_flow_marks_alerts_at_their_layer():
    report = flow(3, NAMES)
    affected = NAMES[: len(NAMES) // 5]
    figure = gradient_flow(report)
    assert [x for x, _ in marks(figure, "#e69f00")] == list(range(len(affected)))
    assert any(text == f"warning: vanishing ({len(affected)})" for text in texts(figure))


def test_update_ratios_are_drawn_where_there_is_one():
    report = flow(3, NAMES)
    first = next(iter(report.parameters))
    parameters = {**report.parameters, first: dataclasses.replace(report.parameters[first], update_ratio=None)}
    figure = update_ratios(dataclasses.replace(report, parameters=parameters))
    dots = [dots for dots in figure.axes[0].collections if dots.get_label() in ("weight", "bias", "parameter")]
    found = sorted(y for each in dots for _, y in each.get_offsets())
    expected = sorted(stats.update_ratio for stats in parameters.values() if stats.update_ratio is not None)
    np.testing.assert_allclose(found, expected)
    assert any("; 1 not measured" in text for text in texts(figure))
    drawn(figure)


def test_heatmap_holds_layers_by_epochs():
    reports = [flow(epoch, NAMES) for epoch in range(4)]
    figure = heatmap(reports[::-1], "rms", relative=False)  # in any order
    mesh = figure.axes[0].collections[0].get_array()
    expected = [[report.modules[name].rms for report in reports] for name in NAMES]
    np.testing.assert_allclose(np.asarray(mesh).reshape(len(NAMES), 4), expected)
    assert figure.axes[0].get_xlabel() == "epoch"
    assert figure.axes[0].get_ylabel() == "module in model"
    assert [x for x, _ in marks(figure, "#e69f00")] == [0, 0]  # where alerts began, not where they lasted
    drawn(figure)


def test_heatmap_of_a_layer_that_came_later_is_empty_before():
    reports = [features(0, NAMES[:5]), features(1, NAMES), features(7, NAMES[2:])]
    figure = heatmap(reports, "std")
    mesh = np.ma.masked_invalid(figure.axes[0].collections[0].get_array()).reshape(len(NAMES), 3)
    assert mesh.mask.sum() == (len(NAMES) - 5) + 2
    assert [text.get_text() for text in figure.axes[0].get_xticklabels()] == ["0", "1", "7"]


@pytest.mark.parametrize(
    ("stat", "of", "norm"),
    [
        ("mean", None, "AsinhNorm"),
        ("zero_fraction", None, "Normalize"),
        ("rms", "parameter", "LogNorm"),
        ("update_ratio", None, "LogNorm"),
    ],
)
def test_the_scale_follows_the_statistic(stat, of, norm):
    figure = heatmap([flow(epoch, NAMES) for epoch in range(3)], stat, of=of)
    assert type(figure.axes[0].collections[0].norm).__name__ == norm
    drawn(figure)


def test_a_statistic_that_is_not_there_raises():
    with pytest.raises(ValueError, match=r"stat must be one of calls, count, dead_fraction, .*; got 'norms'"):
        heatmap(features(0, NAMES), "norms")
    assert any("applies to none" in text for text in texts(heatmap(features(0, NAMES), "saturated_fraction")))


def test_clip_history_draws_norms_and_shares():
    reports = [
        clips(epoch, alerts=(alert("always_clipped", "0-AdamW", epoch, "info"),) if epoch in (2, 3) else ()) for epoch in range(6)
    ]
    figure = clip_history(reports)
    norms, rates = figure.axes
    lines = {line.get_label(): line for line in norms.lines}
    np.testing.assert_allclose(
        lines["before clipping: mean, to the largest"].get_ydata(), [r.optimizers["0-AdamW"].norm_before for r in reports]
    )
    assert lines["configured limit 1"].get_ydata()[0] == 1.0
    heights = [bar.get_height() for bar in rates.patches[:6]]
    np.testing.assert_allclose(heights, [r.optimizers["0-AdamW"].clipped_steps / 22 for r in reports])
    assert marks(figure, "#56b4e9") == [(2.0, reports[2].optimizers["0-AdamW"].norm_before)]
    drawn(figure)


def test_each_optimizer_has_its_column():
    figure = clip_history([clips(epoch, ("0-Adam", "1-SGD")) for epoch in range(3)])
    assert len(figure.axes) == 4
    titles = [axes.get_title(loc="left").strip() for axes in figure.axes[:2]]
    assert titles == ["Gradient clipping, 0-Adam", "Gradient clipping, 1-SGD"]
    drawn(figure)


def test_a_scale_of_less_than_two_decades_has_numbers_between():
    reports = [features(0, NAMES)]
    sites = {name: dataclasses.replace(stats, rms=1.1 + i) for i, (name, stats) in enumerate(reports[0].sites.items())}
    figure = heatmap(dataclasses.replace(reports[0], sites=sites), "rms")
    figure.canvas.draw()
    bar = figure.axes[1]
    low, high = bar.get_ylim()
    assert [text.get_text() for text in bar.get_yticklabels() if low <= text.get_position()[1] <= high] == ["2", "5", "10"]
    assert not any("hatched" in text for text in texts(figure))
    assert any("hatched" in text for text in texts(heatmap([features(0, NAMES[1:]), features(1, NAMES)], "rms")))


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 5, 60, 500])
def test_any_number_of_layers_can_be_drawn(n):
    names = layer_names(n)
    for figure in (gradient_flow(flow(0, names)), heatmap([flow(e, names) for e in range(2)], "rms")):
        assert len(drawn(figure, dpi=100)) < 400_000
        assert max(figure.get_size_inches()) <= 16
        shown = [text for axis in (figure.axes[0].xaxis, figure.axes[0].yaxis) for text in axis.get_ticklabels()]
        assert len(shown) <= 100


@pytest.mark.slow
@pytest.mark.parametrize("epochs", [1, 3])
def test_what_is_not_finite_anywhere_can_be_drawn(epochs):
    reports = [flow(epoch, NAMES, broken=True) for epoch in range(epochs)]
    outputs = [features(epoch, NAMES, broken=True) for epoch in range(epochs)]
    drawn(gradient_flow(reports[-1]))
    assert any("No update was measured" in text for text in texts(update_ratios(reports[-1])))
    for figure in (
        heatmap(reports, "rms"),
        heatmap(outputs, "mean"),
        heatmap(outputs, "nonfinite_fraction"),
        heatmap(outputs, "dead_fraction"),
    ):
        drawn(figure)
    drawn(clip_history([clips(epoch, broken=True) for epoch in range(epochs)]))


def test_a_users_own_style_and_pyplot_are_left_alone():
    """Settings that would break a picture are as before after it, and pyplot knows of no figure."""
    import matplotlib
    from matplotlib import pyplot

    with matplotlib.rc_context({"text.usetex": True, "font.size": 30.0, "text.parse_math": True}):
        before = dict(matplotlib.rcParams)
        for figure in (gradient_flow(flow(0, ["a.$b", "c_d"])), heatmap(flow(0, ["a.$b", "c_d"]), "rms")):
            drawn(figure)
        assert dict(matplotlib.rcParams) == before
    assert not pyplot.get_fignums()


def test_without_matplotlib_the_error_names_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(ImportError, match=r"pip install matplotlib"):
        gradient_flow(flow(0, NAMES))
