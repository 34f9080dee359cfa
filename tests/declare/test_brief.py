"""A report in a few lines, and what it holds under a name."""

import pytest

from tests.support.made_reports import alert, clips, features, flow, layer_names


@pytest.mark.parametrize("n", [0, 1, 9, 301])
def test_a_report_is_shown_in_three_lines(n):
    for report in (features(3, layer_names(n)), flow(3, layer_names(n)), clips(3)):
        lines = repr(report).splitlines()
        assert len(lines) == 3
        assert max(map(len, lines)) <= 160
        assert lines[0] == f"{type(report).__name__}: epoch 3, step 40"


def test_the_lines_of_a_report():
    names = ["a", "b", "c", "d"]
    raised = (alert("dead", "c", 0, "critical"), alert("silent", "d", 0, "info"))
    lines = repr(features(0, names, dead=[None, None, 1.0, None], alerts=raised, silent=("e",))).splitlines()
    assert lines[1] == "  4 sites measured, 1 silent; 3 of 23 batches sampled"
    assert lines[2] == "  alerts: 1 critical, 1 info (dead at c, …)"


def test_a_report_is_asked_by_name():
    report = flow(0, ["net.0", "net.1"])
    assert report["net.0"] is report.modules["net.0"]
    assert report["net.0.weight"] is report.parameters["net.0.weight"]
    with pytest.raises(KeyError, match=r"'nett.0' is not in this GradientFlowReport; the closest are 'net.0', "):
        report["nett.0"]
    with pytest.raises(KeyError, match="is not in this FeatureReport, which is empty"):
        features(0, [])["net.0"]
