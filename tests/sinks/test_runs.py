"""The runs of a log directory: found, listed, read again when they grow; and a hostile log directory."""

import json
import os
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from lightning_hooks.run_report import data, judge, read_run
from lightning_hooks.run_report.lines import FOLDER, REPORTS, append, line, report_line
from lightning_hooks.run_report.run import RunFile
from lightning_hooks.sinks.tab.answers import PATHS, answer
from lightning_hooks.sinks.tab.runs import Runs
from tests.support import kinds_file
from tests.support.made_reports import FIT, features, flow, layer_names
from tests.support.pages import unpacked

ROOT = Path(__file__).parents[2]


@pytest.fixture
def logs(tmp_path):
    (tmp_path / "logs").mkdir(exist_ok=True)
    return tmp_path / "logs"


def asked(runs, path, **query):
    """A request: its status and what it says."""
    found = answer(runs, path, {key: str(value) for key, value in query.items()})
    return found.status, json.loads(found.content)


def listed(runs):
    """The list when all runs are read."""
    runs.ask(patience=30)
    found = asked(runs, "/runs")[1]
    return {run["id"]: run for run in found["runs"]}


def test_runs_are_listed_with_the_report_verdict(make_run, logs):
    for name, changes in (
        ("a/version_0", {}),
        ("b", {"healthy": True}),
        ("c", {"end": None, "healthy": True}),
        ("d", {"end": "exception"}),
    ):
        make_run(name, **changes)
    found = listed(Runs(logs))
    assert list(found) == ["a/version_0", "b", "c", "d"]
    assert [run["state"] for run in found.values()] == ["finished", "finished", "running", "exception"]
    for name, run in found.items():
        verdict = judge(read_run(logs / name))
        assert (run["status"], run["headline"]) == (verdict.status, verdict.headline)
    assert [alert["id"] for alert in found["a/version_0"]["open"]] == [
        "dead at model.encoder.layers.0.attn.out_proj",
        "vanishing at model.embed",
    ]


def test_an_empty_or_missing_directory_has_no_runs(logs, tmp_path):
    assert listed(Runs(logs)) == {}
    runs = Runs(tmp_path / "nowhere")
    runs.ask(patience=30)
    assert asked(runs, "/runs")[1]["notes"] == ["There is no directory nowhere."]


@pytest.mark.parametrize("tables", [True, False])
def test_a_growing_file_is_read_as_far_as_it_is_whole(make_run, tables):
    file = make_run(epochs=3, end=None) / FOLDER / REPORTS
    reader = RunFile(file, "run", tables)
    assert reader.update()
    assert not reader.update()
    assert reader.run.epochs == [0, 1, 2]
    text = report_line("features", "every leaf", features(3, layer_names(9)), 0.01)
    append(file, text[:100])
    reader.update()
    assert (reader.run.epochs, reader.run.damaged) == ([0, 1, 2], 0)
    with file.open("a") as end:
        end.write(text[100:])
    reader.update()
    assert (reader.run.epochs, reader.run.damaged) == ([0, 1, 2, 3], 0)
    whole = read_run(file)
    assert judge(reader.run) == judge(whole)
    if tables:
        for mine, other in zip(reader.run.monitors, whole.monitors, strict=True):
            assert mine.columns.keys() == other.columns.keys()


def test_numbers_are_those_of_the_reports(make_run):
    names = layer_names(9)
    run = read_run(make_run(names=names, epochs=4))
    expected = [[float(f"{flow(epoch, names).modules[name].rms:.4g}") for epoch in range(4)] for name in names]
    found = data.heat(run, 1, "modules", "rms")
    np.testing.assert_allclose(unpacked(found), expected, rtol=1e-3)
    one = data.heat(run, 1, "modules", "rms", 3)
    np.testing.assert_allclose(unpacked(one), expected[3:4], rtol=1e-3)
    assert (one["names"], one["rows"], one["epochs"]) == (names[3:4], [3], [0, 1, 2, 3])
    assert data.heat(run, 1, "modules", "rms", 0)["marks"] == [[0, 0, 3, "warning", "vanishing at model.embed"]]


# A hostile log directory.


@pytest.mark.parametrize(
    "key", ["../outside", "/etc", "a/../../outside", "..", "a\\..\\outside", "%2e%2e/outside", "a\x00", "", "./a", "link", "linked"]
)
def test_no_path_from_the_browser_is_opened(make_run, logs, tmp_path, key, monkeypatch):
    make_run("a")
    outside = make_run("outside").rename(tmp_path / "outside")
    (logs / "link").symlink_to(outside, target_is_directory=True)
    (logs / "linked" / FOLDER).mkdir(parents=True)
    (logs / "linked" / FOLDER / REPORTS).symlink_to(outside / FOLDER / REPORTS)
    runs = Runs(logs)
    assert list(listed(runs)) == ["a"]
    opened = []
    monkeypatch.setattr(Path, "open", lambda path, *_: opened.append(path))
    for path, query in (("/run", {"run": key}), ("/heat", {"run": key, "monitor": 0, "table": "sites", "stat": "std"})):
        assert asked(runs, path, **query)[0] == 404
    assert [path for path in opened if "logs/a/" not in str(path)] == []


def test_a_run_that_becomes_a_link_is_left(make_run, logs, tmp_path):
    folder = make_run("a")
    outside = make_run("outside").rename(tmp_path / "outside")
    runs = Runs(logs)
    assert list(listed(runs)) == ["a"]
    folder.rename(tmp_path / "moved")
    (logs / "a").symlink_to(outside, target_is_directory=True)
    assert asked(runs, "/run", run="a")[0] == 404
    runs._next_search = float("inf")
    append(outside / FOLDER / REPORTS, line("end", {"how": "interrupted"}))
    assert listed(runs)["a"]["state"] == "unreadable"


def hostile_files():
    """Name to the bytes of a run's file."""
    head = line("fit", FIT).encode()
    table = {"event": "report", "epoch": 0, "step": 1, "monitor": "features", "modules": "m", "kind": "FeatureReport"}
    return {
        "binary": os.urandom(5000),
        "empty": b"",
        "nested": head + b"[" * 200_000 + b"\n",
        "numbers": head + b'{"event":"report","epoch":' + b"9" * 5000 + b"}\n",
        "wrong": head
        + b'{"event":"report","epoch":0,"step":0,"monitor":"features","modules":"m","kind":"K","report":{"sites":[]}}\n',
        "types": head + b'{"event":[]}\n{"event":"epoch","epoch":"x","seconds":{}}\nnull\n[]\n"x"\n',
        "infinite": head + b'{"event":"epoch","epoch":0,"seconds":1e999,"loss":"Infinity","lr":{"a":"NaN"}}\n',
        "surrogates": head + b'{"event":"epoch","epoch":0,"loss":1,"lr":{"\\ud800":1}}\n',
        "names": head + json.dumps({**table, "report": {"sites": {"name": {"a": 1}, "std": 1.0}}}).encode() + b"\n",
        "torn": head[:40],
        "long": head + b'{"event":"end","how":"' + b"x" * 3_000_000 + b'"}\n',
    }


@pytest.mark.parametrize("name", hostile_files())
def test_a_hostile_file_is_one_line_and_harms_no_other(make_run, logs, name):
    make_run("good", healthy=True)
    file = logs / "bad" / FOLDER / REPORTS
    file.parent.mkdir(parents=True)
    file.write_bytes(hostile_files()[name])
    runs = Runs(logs)
    found = listed(runs)
    assert found["good"]["status"] == "healthy"
    assert len(found["bad"]["headline"]) < 400
    assert asked(runs, "/run", run="good")[0] == 200
    status, content = asked(runs, "/run", run="bad")
    assert status == 200 or len(content["error"]) < 400


def test_what_is_no_plain_file_or_too_large_is_a_sentence(make_run, logs, monkeypatch):
    make_run("large")
    monkeypatch.setattr("lightning_hooks.run_report.run.MOST_BYTES", 100)
    pipe = logs / "pipe" / FOLDER / REPORTS
    pipe.parent.mkdir(parents=True)
    os.mkfifo(pipe)
    found = listed(Runs(logs))
    assert found["pipe"]["headline"] == "The run's file cannot be read: reports.jsonl is no plain file."
    assert found["large"]["headline"].endswith("reports.jsonl has 0 MB; up to 0 MB are read.")


def test_static_files_are_the_module_and_the_report_style():
    runs = Runs(None)
    assert answer(runs, "/index.js", {}).kind == "text/javascript"
    assert b"export function render" in answer(runs, "/index.js", {}).content
    assert answer(runs, "/style.css", {}).content.startswith(b":root{")
    assert set(PATHS) == {"/index.js", "/style.css", "/runs", "/run", "/heat", "/compare"}


def test_the_module_sets_no_markup_and_asks_nobody_else():
    text = answer(Runs(None), "/index.js", {}).content.decode()
    for word in (
        "innerHTML",
        "outerHTML",
        "insertAdjacentHTML",
        "document.write",
        "eval(",
        "Function(",
        "DOMParser",
        "createContextualFragment",
        "</script",
        "<!--",
    ):
        assert word not in text
    assert [one for one in text.split() if "://" in one and "w3.org" not in one] == []


def test_reading_needs_no_torch(make_run, logs):
    """What TensorBoard's process imports for the tab, with torch and Lightning out of reach."""
    make_run("a")
    make_run("b", healthy=True)
    here = Runs(logs)
    here.ask(patience=30)
    page = answer(here, "/run", {"run": "a"}).content.decode()
    code = f"""
import sys
for name in ("torch", "lightning", "pytorch_lightning", "lightning_fabric", "torchmetrics"):
    sys.modules[name] = None
import lightning_hooks.sinks.tab.plugin
assert "numpy" not in sys.modules
from pathlib import Path
from lightning_hooks.sinks.tab.answers import answer
from lightning_hooks.sinks.tab.runs import Runs
runs = Runs(Path({str(logs)!r}))
runs.ask(patience=60)
assert answer(runs, "/run", {{"run": "a"}}).content.decode() == {page!r}
for path, query in (
    ("/runs", {{}}), ("/run", {{"run": "a"}}), ("/heat", {{"run": "a", "monitor": "1", "table": "modules", "stat": "rms"}}),
    ("/heat", {{"run": "a", "monitor": "1", "table": "modules", "stat": "rms", "row": "0"}}), ("/compare", {{"a": "a", "b": "b"}}),
):
    found = answer(runs, path, query)
    assert found.status == 200, (path, found.content)
import lightning_hooks.sinks.tab.answers
"""
    subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True)


def test_the_kinds_that_are_known_without_torch_are_those_declared():
    assert kinds_file.FILE.read_text() == kinds_file.text(), "run python -m tests.support.kinds_file"


def test_many_runs_are_listed_before_they_are_read(make_run, logs, monkeypatch):
    make_run("a")
    runs = Runs(logs)
    monkeypatch.setattr(runs, "_read", lambda key, path: time.sleep(60))
    runs.ask(patience=0.3)
    assert asked(runs, "/runs")[1]["runs"] == [{"id": "a", "status": "unknown", "state": "reading", "headline": "Being read."}]
