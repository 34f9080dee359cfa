"""Curves and rows: where points stand, what a pointer reads, what is folded."""

import math
import re

from lightning_hooks.run_report import charts
from lightning_hooks.run_report.charts import SHOWN_ROWS, Line, Row
from lightning_hooks.run_report.page import environment


def chart(*args, **kwargs):
    """The markup of a chart."""
    return environment(html=True).get_template("macros/charts.html.j2").module.chart(charts.chart(*args, **kwargs))


def rows(*args, **kwargs):
    """The markup of lines on a scale."""
    return environment(html=True).get_template("macros/charts.html.j2").module.rows(charts.rows(*args, **kwargs))


def polylines(text):
    return [
        [tuple(map(float, point.split(","))) for point in found.split()]
        for found in re.findall(r'<polyline class="[a-z]+" points="([^"]+)"', text)
    ]


def test_points_stand_from_edge_to_edge_as_their_labels_do():
    drawn = chart([Line("loss", [1.0, 0.5, 0.25], "red")], [0, 1, 2], kind="linear")
    curve = polylines(drawn)[0]
    assert [x for x, _ in curve] == [0.0, 50.0, 100.0]
    assert curve[0][1] < curve[1][1] < curve[2][1]
    assert re.findall(r'<span style="left:([\d.]+)%">([^<]+)', drawn) == [("0.0", "epoch 0"), ("50.0", "1"), ("100.0", "2")]
    assert len(re.findall(r'<span style="top:', drawn)) >= 3


def test_one_point_is_a_mark_and_no_dash():
    drawn = chart([Line("norm", [math.nan, 2.0, math.nan], "red")], [4, 5, 6])
    (mark,) = polylines(drawn)
    assert mark[0] == mark[1]
    assert mark[0][0] == 50.0
    assert 'class="dot"' in drawn


def test_every_epoch_says_its_numbers():
    drawn = chart([Line("before", [1.0, 2.0], "red"), Line("<after>", [0.5, math.nan], "blue")], [7, 8])
    assert re.findall(r"<title>([^<]+)</title>", drawn) == [
        "epoch 7; before: 1; &lt;after&gt;: 0.5",
        "epoch 8; before: 2; &lt;after&gt;: NaN",
    ]


def test_a_threshold_is_a_line_from_edge_to_edge():
    drawn = chart([Line("rate", [0.5], "red"), Line("limit", [0.95], "grey", dashed=True)], [0], kind="share")
    assert '<g style="color:grey" class="dashed">\n<line class="level" x1="0" x2="100" y1="5.0" y2="5.0"/>' in drawn


def test_of_a_long_list_what_has_an_alert_comes_first_and_the_rest_is_folded():
    lines = [Row(f"net.{i}", 0.5, severity="critical" if i == 90 else "warning" if i == 70 else "") for i in range(100)]
    drawn = rows(lines, "dead", linear=True, limits=[0.6])
    open_part, folded = drawn.split("<details>")
    names = [re.search(r"net\.\d+", name)[0] for name in re.findall(r'class="name">.*?</span>\n<div', open_part) if "net." in name]
    assert names[:3] == ["net.90", "net.70", "net.0"]
    assert len(names) == SHOWN_ROWS
    assert f"{100 - SHOWN_ROWS} more" in folded
    assert drawn.count('<em style="left:60.0%" title="limit of the rule: 60 %">') == 100


def test_a_short_list_stays_in_the_models_order():
    drawn = rows([Row("a", 0.5), Row("b", 0.5, severity="critical")], "dead", linear=True)
    assert drawn.index(">a<") < drawn.index(" b<")
    assert "<details>" not in drawn
