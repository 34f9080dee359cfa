"""The comparison of two runs."""

import dataclasses
import math

import pytest

from lightning_hooks.__main__ import main
from lightning_hooks.run_report import read_run
from lightning_hooks.run_report.blocks import markdown
from lightning_hooks.run_report.compare import Difference, compare
from lightning_hooks.run_report.lines import FOLDER, REPORTS, append, report_line
from lightning_hooks.trackers.console import markdown_text
from tests.support.made_reports import features, flow, layer_names

NAMES = layer_names(9)


@pytest.mark.parametrize(
    ("stat", "a", "b", "size", "change"),
    [
        ("rms", 1e-3, 1.0, 3.0, "\N{MULTIPLICATION SIGN} 1000"),
        ("rms", 1.0, 0.5, math.log10(2), "\N{DIVISION SIGN} 2"),
        ("rms", 1.0, 1.0, 0.0, "\N{MULTIPLICATION SIGN} 1"),
        ("rms", 0.0, 1.0, math.inf, "\N{EN DASH}"),
        ("rms", 1.0, 0.0, math.inf, "\N{EN DASH}"),
        ("rms", 1.0, math.nan, math.inf, "\N{EN DASH}"),
        ("rms", math.nan, math.nan, 0.0, "\N{EN DASH}"),
        ("dead_fraction", 0.25, 0.75, 1.5, "+50 points"),
        ("dead_fraction", 1.0, 0.0, 3.0, "-100 points"),
    ],
)
def test_a_difference_is_measured_in_decades(stat, a, b, size, change):
    difference = Difference("it", stat, "layer", a, b)
    assert difference.size == pytest.approx(size)
    assert difference.change == change


def test_the_same_run_twice_is_the_same(make_run, capsys):
    folder = make_run()
    run = read_run(folder)
    text = markdown(compare(run, run))
    assert "The set-up is the same, as far as it is known." in text
    assert "All numbers that both runs have are the same." in text
    assert ("In both (" in text, "Only in" in text) == (True, False)
    assert main(["compare", str(folder), str(folder)]) == 0
    printed = capsys.readouterr().out
    assert "## Set-up and loss" in printed
    assert "## Gradient flow" not in printed
    assert f"Written: {run.path / 'compare.html'}" in printed


def test_what_differs_most_comes_first(make_run):
    """A dead layer, and gradients that vanish by more decades than anything differs there."""
    dead, before, separate = NAMES[5], NAMES[1:5], NAMES[7]
    a, b = make_run("a", healthy=True), make_run("b", epochs=4, healthy=True)
    seen, report = features(4, NAMES, alerts=()), flow(4, NAMES, alerts=())
    sites = {**seen.sites, dead: dataclasses.replace(seen.sites[dead], dead_fraction=1.0)}
    sites[separate] = dataclasses.replace(sites[separate], std=sites[separate].std * 3)
    modules = {**report.modules, **{name: dataclasses.replace(report.modules[name], rms=1e-30) for name in before}}
    file = b / FOLDER / REPORTS
    append(file, report_line("features", "every leaf", dataclasses.replace(seen, sites=sites), 0.0))
    append(file, report_line("gradient_flow", "every leaf", dataclasses.replace(report, modules=modules), 0.0))
    page = compare(read_run(a), read_run(b))
    (section,) = (section for section in page["sections"] if section["id"] == "differences")
    names = [row[0] for row in section["cards"][0][0]["table"]["rows"]]
    assert (sorted(names[:4]), names[4:]) == (sorted(before), [dead, separate])
    lines = markdown(page).splitlines()
    head = lines.index("| layer | of it | A | B | A to B |")
    assert [text.split(" | ")[0].removeprefix("| ") for text in lines[head + 2 : head + 8]] == list(map(markdown_text, names))


def test_runs_without_a_window_in_common_have_no_differences(make_run, tmp_path):
    a, b = read_run(make_run("a")), read_run(make_run("b", epochs=0))
    assert "Numbers are not compared: logs/a and logs/b have no epoch in common." in markdown(compare(a, b))
