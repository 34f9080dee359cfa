"""The page: its data whole, its text harmless, small, and true to the numbers."""

from __future__ import annotations

import base64
import dataclasses
import html
import math
import re
from hashlib import sha256
from pathlib import Path

import numpy as np
import pytest

from lightning_hooks import diagnostics
from lightning_hooks.run_report import health_page, judge, read_run
from lightning_hooks.run_report.blocks import SHOWN_ROWS, row, rows
from lightning_hooks.run_report.compare import compare
from lightning_hooks.run_report.data import heat, packed, whole
from lightning_hooks.run_report.lines import FOLDER, REPORTS, append, line, report_line
from lightning_hooks.run_report.page import compare_page, health_markdown
from lightning_hooks.run_report.recorded import Limits
from lightning_hooks.run_report.sections import SECTIONS
from lightning_hooks.run_report.text import DASH, number, percent, seconds
from lightning_hooks.trackers.console import visible
from tests.support.made_reports import FIT, HOSTILE, alert, flow, layer_names
from tests.support.pages import data_of, of_kind, section_of, texts, unpacked

SPOOF = "\u202egnp.exe"  # would be shown as exe.png
SCRIPTS = re.compile(r"<script\b[^>]*>(.*?)</script>", re.DOTALL)


@pytest.fixture
def page(make_run):
    def make(**kwargs):
        return whole(read_run(make_run(**kwargs)), 0.0)

    return make


def test_the_verdict_and_the_sections(page):
    found = page(silent=("lost",))
    (verdict,) = found["verdicts"]
    assert verdict["headline"].startswith("Dead units at model.encoder.layers.0.attn.out_proj, since epoch 3")
    assert found["problems"][0]["advice"] == ("Try this",)
    assert [section["title"] for section in found["sections"]] == [
        *("Alerts, in order of cause", "Gradient flow", "Outputs", "Over the epochs", "Clipping", "Silent"),
        *("Model and set-up", "Coverage", "Cost"),
    ]
    (lost,) = of_kind(section_of(found, "silent"), "names")
    assert lost == ["lost"]


def test_parameters_without_a_gradient_are_in_page_and_markdown(make_run):
    folder, report = make_run(names=["a", "b"], epochs=1, healthy=True), flow(1, ["a", "b"], alerts=())
    lost = {name: dataclasses.replace(stats, steps=0, missing_steps=4) for name, stats in report.parameters.items()}
    last = dataclasses.replace(report, parameters=lost)
    append(folder / FOLDER / REPORTS, report_line("gradient_flow", "every leaf", last, 0.0))
    run = read_run(folder)
    assert section_of(whole(run, 0.0), "silent")[0]["title"] == f"Parameters without a gradient ({len(lost)})"
    assert f"- Parameters without a gradient ({len(lost)}): {', '.join(lost)}\n" in health_markdown(run)


def test_a_probability_is_shown_where_there_is_one(make_run, monkeypatch):
    run = read_run(make_run())
    verdict = judge(run)
    first = verdict.problems[0].first
    sure = dataclasses.replace(first, probability=0.87)
    problems = (dataclasses.replace(verdict.problems[0], first=sure), *verdict.problems[1:])
    monkeypatch.setattr("lightning_hooks.run_report.data.judge", lambda run: dataclasses.replace(verdict, problems=problems))
    assert [problem["probability"] for problem in whole(run, 0.0)["problems"]] == [0.87, None]
    assert f"## ▲ {first.title} (warning, 87% probable)" in health_markdown(run)


@pytest.mark.parametrize("healthy", [True, False])
def test_no_text_of_a_run_is_markup(make_run, healthy):
    names = [*HOSTILE, SPOOF, '" onload="alert(1)', "</style><script>", "</script><script>alert(3)</script>", "]]>", "<!--"]
    run = read_run(make_run(names=names, name="<img src=x onerror=alert(2)>", healthy=healthy, end="exception"))
    check_harmless(text := health_page(run))
    assert set(names) <= set(texts(data_of(text)))
    assert "\\u202egnp.exe" in text.partition("</noscript>")[0]


def check_harmless(text):
    """What is markup is ours: the data holds no ``<``, and the text in words is escaped."""
    ours = re.sub(r"<noscript><pre>.*?</pre></noscript>|<style>.*?</style>", "", text, flags=re.DOTALL)
    scripts = SCRIPTS.findall(ours)
    assert len(scripts) == 2
    assert "<" not in scripts[0]
    assert re.findall(r"<(/?\w+)", SCRIPTS.sub("", ours)) == [
        *("html", "head", "meta", "meta", "meta", "meta", "title", "/title", "/head", "body", "/body", "/html")
    ]
    assert "<" not in re.search(r"<noscript><pre>(.*?)</pre></noscript>", text, re.DOTALL)[1]
    assert "<" not in re.search(r"<title>(.*?)</title>", text, re.DOTALL)[1]


def test_nothing_but_the_module_can_run_and_nothing_can_be_loaded(make_run):
    text = health_page(read_run(make_run()))
    module = SCRIPTS.findall(text)[1]
    policy = re.search(r'http-equiv="Content-Security-Policy" content="([^"]*)"', text)[1]
    digest = base64.b64encode(sha256(module.encode()).digest()).decode()
    assert policy == f"default-src 'none'; script-src 'sha256-{digest}'; style-src 'unsafe-inline'; img-src data:; base-uri 'none'"
    assert not re.search(r"https?://(?!www\.w3\.org)|@import|url\(", text.replace("/^https?:/", ""))


def test_without_a_script_it_is_the_markdown(make_run):
    run = read_run(make_run())
    written = re.search(r"<noscript><pre>(.*?)</pre></noscript>", health_page(run), re.DOTALL)[1]
    assert html.unescape(written) == health_markdown(run)


def test_gradients_are_those_of_the_report(make_run):
    run = read_run(make_run(names=["a", "b"], epochs=1))
    report = run.of("gradient_flow")[0].last
    modules, updates = of_kind(section_of(whole(run, 0.0), "gradients"), "rows")
    for found, (name, stats) in zip(modules["lines"], report.modules.items(), strict=True):
        assert found["name"] == name
        assert found["value"] == pytest.approx(stats.rms, rel=1e-3)
        assert (found["low"], found["high"]) == pytest.approx((abs(stats.mean), stats.max), rel=1e-3)
    assert {found["name"]: found["value"] for found in updates["lines"]} == pytest.approx(
        {name: stats.update_ratio for name, stats in report.parameters.items()}, rel=1e-3
    )


def test_heat_maps_have_the_numbers_of_the_reports_in_four_digits(make_run):
    names = layer_names(9)
    run = read_run(make_run(names=names, epochs=4))
    answers = data_of(health_page(run))["answers"]
    found = answers["heat?monitor=1&table=modules&stat=rms"]
    expected = [[flow(epoch, names).modules[name].rms for epoch in range(4)] for name in names]
    np.testing.assert_allclose(unpacked(found), expected, rtol=1e-4)
    odd = np.array([[math.nan, math.inf, 0.0], [-1e-30, 0.1, 12345678.0]])
    read = unpacked({"values": packed(odd), "names": "ab", "epochs": "abc"})
    np.testing.assert_allclose(read, [[math.nan, math.nan, 0.0], [-1e-30, 0.1, 12345678.0]], rtol=1e-5)


def test_a_row_that_cannot_be_placed_says_why():
    assert row("a", math.nan, note="not measured") == {"name": "a", "value": None, "note": "not measured"}
    lines = [row(f"net.{i}", 0.5, severity="critical" if i == 90 else "warning" if i == 70 else "") for i in range(100)]
    names = [line["name"] for line in rows(lines, "dead")["rows"]["lines"]]
    assert names[:3] == ["net.90", "net.70", "net.0"]  # of many, those with an alert first
    assert [line["name"] for line in rows(lines[-SHOWN_ROWS:], "dead")["rows"]["lines"]] == [f"net.{i}" for i in range(60, 100)]


@pytest.mark.slow
def test_a_hundred_layers_over_two_hundred_windows_are_less_than_1_mb(make_run):
    run = read_run(make_run(names=layer_names(100), epochs=200, broken=lambda epoch: epoch == 7))
    assert len(health_page(run).encode()) < 1_000_000


@pytest.mark.slow
@pytest.mark.parametrize(("n", "epochs"), [(500, 20), (4000, 3)])
def test_a_large_run_stays_below_2_mb(make_run, n, epochs):
    assert len(health_page(read_run(make_run(names=layer_names(n), epochs=epochs))).encode()) < 2_000_000


def test_a_page_that_would_be_too_large_draws_less(make_run):
    run = read_run(make_run(names=layer_names(200), epochs=3))
    size = len(health_page(run).encode())
    smaller = health_page(run, size * 3 // 4)
    assert len(smaller.encode()) <= size * 3 // 4
    assert re.search(r"\d+ of 200 modules are shown", smaller)


@pytest.mark.parametrize("kwargs", [{"broken": lambda epoch: True}, {"names": []}, {"names": ["a"], "epochs": 1}, {"epochs": 0}])
def test_odd_runs_have_a_page(make_run, kwargs):
    check_harmless(health_page(read_run(make_run(**kwargs))))


def test_a_run_of_one_monitor_has_a_page(tmp_path):
    file = tmp_path / FOLDER / REPORTS
    append(file, line("fit", FIT))
    assert data_of(health_page(read_run(file)))["page"]["verdicts"][0]["headline"].startswith("No report")


def test_two_runs_with_hostile_names_side_by_side(make_run):
    names = [*HOSTILE, SPOOF]
    a, b = read_run(make_run("<b>A", names=names)), read_run(make_run("B&lt;", names=names[:-1], broken=lambda epoch: epoch > 2))
    check_harmless(text := compare_page(compare(a, b)))
    found = data_of(text)["page"]
    assert [verdict["name"] for verdict in found["verdicts"]] == ["logs/<b>A", "logs/B&lt;"]
    assert of_kind(section_of(found, "only"), "names") == [[SPOOF]]


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, DASH),
        (1234567, "1234567"),
        (0.000123456, "0.000123"),
        (-2.0, "-2"),
        (float("nan"), "NaN"),
        (1e-9, "1e-09"),
    ],
)
def test_numbers_are_short(value, text):
    assert number(value) == text


def test_shares_and_durations_are_short():
    assert [percent(value) for value in (0.0, 0.0123, 0.5, 1.0, None)] == [
        "0 %",
        "1.23 %",
        "50 %",
        "100 %",
        DASH,
    ]
    assert [seconds(value) for value in (0.0123, 5.0, 300.0, 9000.0, float("nan"))] == ["12.3 ms", "5 s", "5 min", "2.5 h", DASH]


def test_what_is_invisible_is_written_out():
    assert visible("a\x00\u202e\ud800\u00e9\u65e5") == "a\\x00\\u202e\\ud800\u00e9\u65e5"


def test_alerts_are_in_order_of_cause(page):
    dead, quiet = alert("dead", "a.relu", 0, "critical"), alert("silent", "b.unused", 0, "info")
    follows = dataclasses.replace(alert("zero", "a.fc", 0, "info"), cause="dead at a.relu")
    (block,) = section_of(page(names=["a.relu", "b.unused"], alerts=(quiet, follows, dead)), "alerts")
    own = [found for found in block["alerts"] if found["site"] != "model.embed" and found["kind"] in ("dead", "zero", "silent")]
    assert [(found["kind"], found["cause"]) for found in own] == [("dead", ""), ("zero", "dead at a.relu"), ("silent", "")]
    assert own[0]["active"] == [[0, 5]]


def test_a_run_that_raised_is_marked_as_failed(page):
    (verdict,) = page(healthy=True, end="exception")["verdicts"]
    assert verdict["status"] == "failed"
    assert "Training ended with ValueError: <b>bad</b>" in verdict["headline"]


def test_a_section_is_found_by_the_name_of_its_file():
    files = sorted(path.parent.name for path in Path(diagnostics.__file__).parent.glob("*/section.py"))
    assert files == ["clipping_events", "metrics"]
    assert [section.title for section in SECTIONS] == ["Clipping", "Metrics"]


def test_a_large_heat_map_keeps_layers_with_an_alert(make_run):
    names = layer_names(1000)
    found = heat(read_run(make_run(names=names, epochs=2)), 1, "modules", "rms")
    assert found["of"] == [1000, 2]
    assert len(found["names"]) <= 1.3 * Limits().rows
    assert unpacked(found).shape == (len(found["rows"]), 2)
    assert {found["names"][at] for at, *_ in found["marks"]} == set(names[:200])
