"""Reports become plain JSON and come back the same."""

import dataclasses
import json
import math

import pytest

from lightning_hooks.alerts import ClipReport, FeatureReport
from lightning_hooks.declare.plain import to_plain
from tests.support.made_reports import HOSTILE, alert, clips, features, flow, layer_names

NAMES = layer_names(7)


def same(one, other):
    """Equal, where NaN equals NaN."""
    if dataclasses.is_dataclass(one):
        return type(one) is type(other) and all(
            same(getattr(one, field.name), getattr(other, field.name)) for field in dataclasses.fields(one)
        )
    if isinstance(one, dict):
        return list(one) == list(other) and all(same(one[key], other[key]) for key in one)
    if isinstance(one, tuple):
        return isinstance(other, tuple) and len(one) == len(other) and all(map(same, one, other))
    if isinstance(one, float) and math.isnan(one):
        return math.isnan(other)
    return type(one) is type(other) and one == other


@pytest.mark.parametrize(
    "report",
    [
        features(3, NAMES, silent=("a", "b")),
        features(3, HOSTILE, broken=True),
        flow(2, NAMES),
        flow(0, HOSTILE, broken=True),
        flow(0, []),
        clips(1, ("0-Adam", "1-SGD"), alerts=(alert("always_clipped", "0-Adam", 1, "info"),)),
        clips(1, broken=True),
    ],
    ids=lambda report: type(report).__name__,
)
def test_a_report_survives_strict_json(report):
    text = json.dumps(report.to_dict(), allow_nan=False)
    assert same(report, type(report).from_dict(json.loads(text)))


def test_the_dict_mirrors_the_report():
    plain = features(3, NAMES, dead=[None, 0.25, *[None] * 5]).to_dict()
    assert (plain["epoch"], plain["step"], plain["batches"]) == (3, 40, 23)
    assert list(plain["sites"]) == NAMES
    assert plain["sites"][NAMES[1]]["dead_fraction"] == 0.25
    assert plain["sites"][NAMES[0]]["dead_fraction"] is None
    assert clips(0).to_dict()["optimizers"]["0-AdamW"]["top_parameters"] == [["head.weight", 0.8]]


def test_what_is_not_finite_becomes_text():
    assert to_plain([math.nan, math.inf, -math.inf, 1.5]) == ["NaN", "Infinity", "-Infinity", 1.5]
    assert [float(word) for word in to_plain([math.inf, -math.inf])] == [math.inf, -math.inf]


@pytest.mark.parametrize(
    ("kind", "plain", "message"),
    [
        (FeatureReport, 3, r"expected <class .*FeatureReport'>; got 3\. Was this written by to_dict\(\)\?"),
        (ClipReport, {"epoch": "3"}, r"expected <class 'int'>; got '3'"),
        (ClipReport, {"optimizers": {"0-Adam": {"rate": True}}}, r"expected <class 'float'>; got True"),
        (FeatureReport, {"sites": []}, r"expected dict\[.*\]; got \[\]"),
    ],
)
def test_what_is_no_report_raises(kind, plain, message):
    with pytest.raises(TypeError, match=message):
        kind.from_dict(plain)
