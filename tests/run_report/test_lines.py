"""A run's file: strict JSON lines that lose nothing that matters, and outlive a crash."""

import json
import math

import pytest

from lightning_hooks.run_report.lines import append, line, report_line
from lightning_hooks.run_report.recorded import report_of
from tests.support.made_reports import HOSTILE, alert, clips, features, flow, layer_names
from tests.support.runs import read_lines


def close(one, other):
    """Equal to five digits."""
    if isinstance(one, dict):
        return list(one) == list(other) and all(close(one[key], other[key]) for key in one)
    if isinstance(one, list):
        return len(one) == len(other) and all(map(close, one, other))
    if isinstance(one, float):
        return math.isclose(one, other, rel_tol=1e-4)
    return one == other


@pytest.mark.parametrize(
    "report",
    [
        features(3, layer_names(5), silent=("a",)),
        features(3, HOSTILE, broken=True),
        flow(2, layer_names(6)),
        flow(0, []),
        clips(1, ("0-Adam", "1-SGD"), alerts=(alert("always_clipped", "0-Adam", 1, "info"),)),
    ],
    ids=lambda report: type(report).__name__,
)
def test_a_line_is_the_reports_dict_to_five_digits(report):
    text = report_line("features", "every leaf", report, 0.25)
    assert text.endswith("\n")
    assert "\n" not in text[:-1]
    event = json.loads(text, parse_constant=pytest.fail)
    assert (event["event"], event["monitor"], event["epoch"], event["seconds"]) == ("report", "features", report.epoch, 0.25)
    assert close(report_of(event).to_dict(), report.to_dict())


def test_a_torn_line_costs_only_itself(tmp_path):
    path = tmp_path / "folder" / "reports.jsonl"
    append(path, line("fit", {"epoch": 0}))
    with path.open("a") as file:
        file.write('{"event":"report","epo')  # the power went
    append(path, line("end", {"how": "finished"}))
    with path.open("a") as file:
        file.write('[1, 2]\n"text"\n{"no": "event"}\n')
    assert [event["event"] for event in read_lines(path)] == ["fit", "end"]
