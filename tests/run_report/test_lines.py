"""A run's file: strict JSON lines that lose nothing that matters, and outlive a crash."""

import dataclasses
import json
import math

import pytest

from lightning_hooks.declare.plain import PlainReport
from lightning_hooks.run_report.events import by_names, read_lines, report_of
from lightning_hooks.run_report.lines import Memory, append, by_columns, line, report_line
from tests.support.made_reports import HOSTILE, alert, clips, features, flow, layer_names


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


def test_a_table_is_written_by_columns():
    table = flow(0, ["a", "b"]).modules
    columns = by_columns(table)
    assert columns["name"] == ["a", "b"]
    assert columns["rms"] == [table["a"].rms, table["b"].rms]
    assert by_names(columns) == {name: dataclasses.asdict(stats) for name, stats in table.items()}
    assert by_names(by_columns({})) == {}


def test_columns_are_half_the_size(tmp_path):
    report = flow(0, layer_names(100))
    assert len(report_line("gradient_flow", "", report, 0.0)) < 0.55 * len(json.dumps(report.to_dict()))


def test_a_torn_line_costs_only_itself(tmp_path):
    path = tmp_path / "folder" / "reports.jsonl"
    append(path, line("fit", {"epoch": 0}))
    with path.open("a") as file:
        file.write('{"event":"report","epo')  # the power went
    append(path, line("end", {"how": "finished"}))
    with path.open("a") as file:
        file.write('[1, 2]\n"text"\n{"no": "event"}\n')
    bad = []
    assert [event["event"] for event in read_lines(path, bad.append)] == ["fit", "end"]
    assert bad == [2, 4, 5, 6]


def test_names_of_any_characters_are_kept(tmp_path):
    path = tmp_path / "reports.jsonl"
    names = [*HOSTILE, "\ud800 alone"]
    append(path, report_line("features", "", features(0, names), 0.0))
    (event,) = read_lines(path)
    assert list(report_of(event).sites) == names


@dataclasses.dataclass(frozen=True)
class OwnReport(PlainReport):
    epoch: int
    step: int
    words: dict[str, str]


def test_a_report_of_the_users_own_is_written_and_passed_over():
    event = json.loads(report_line("own", "", OwnReport(1, 2, {"a": "b"}), 0.0))
    assert event["report"] == {"epoch": 1, "step": 2, "words": {"a": "b"}}
    assert report_of(event) is None


def test_a_long_text_is_written_again_after_a_short_one(tmp_path):
    memory = Memory()
    long, short = tuple(layer_names(20)), ("a",)
    for epoch, silent in enumerate((long, short, long, long)):
        append(tmp_path / "reports.jsonl", report_line("features", "", features(epoch, ["a"], silent=silent), 0.0, memory))
    read = [event["report"].get("silent") for event in read_lines(tmp_path / "reports.jsonl", pytest.fail)]
    assert read == [list(long), list(short), list(long), None]
