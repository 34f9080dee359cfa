"""The comparison of two runs."""

import dataclasses
import math

import pytest

from lightning_hooks.alerts import Alert
from lightning_hooks.run_report import read_run
from lightning_hooks.run_report.cli import compare_lines
from lightning_hooks.run_report.compare import Difference, compare
from lightning_hooks.run_report.lines import FOLDER, REPORTS, append, report_line
from tests.support.made_reports import features, flow, layer_names

NAMES = layer_names(9)


@pytest.mark.parametrize(
    ("stat", "a", "b", "size", "change"),
    [
        ("rms", 1e-3, 1.0, 3.0, "\N{MULTIPLICATION SIGN} 1000"),
        ("rms", 1.0, 0.5, math.log10(2), "\N{DIVISION SIGN} 2"),
        ("rms", 1.0, 1.0, 0.0, "same"),
        ("rms", 0.0, 1.0, math.inf, "zero in A"),
        ("rms", 1.0, 0.0, math.inf, "zero in B"),
        ("rms", 1.0, math.nan, math.inf, "not finite in B"),
        ("rms", math.nan, math.nan, 0.0, "same"),
        ("dead_fraction", 0.25, 0.75, 1.5, "+50 points"),
        ("dead_fraction", 1.0, 0.0, 3.0, "-100 points"),
    ],
)
def test_a_difference_is_measured_in_decades(stat, a, b, size, change):
    difference = Difference("it", stat, "layer", a, b)
    assert difference.size == pytest.approx(size)
    assert difference.change == change


def test_the_same_run_twice_is_the_same(make_run):
    run = read_run(make_run())
    found = compare(run, run)
    assert (found.settings, found.only, [*found.alerts]) == ((), {}, ["in both"])
    assert "All numbers of epoch 4 that both runs have are the same." in compare_lines(found)


def test_what_differs_stands_under_its_cause(make_run):
    """A dead layer, and the gradients that vanish before it by more decades than anything differs at the layer itself."""
    dead, before, separate = NAMES[5], NAMES[1:5], NAMES[7]
    follows = tuple(f"vanishing at {name}" for name in before)
    alert = Alert("dead", dead, 1.0, 0.6, 4, 50, "critical", "all units are dead", consequences=follows)
    a, b = make_run("a", healthy=True), make_run("b", epochs=4, healthy=True)
    seen, report = features(4, NAMES, alerts=()), flow(4, NAMES, alerts=())
    sites = {**seen.sites, dead: dataclasses.replace(seen.sites[dead], dead_fraction=1.0)}
    sites[separate] = dataclasses.replace(sites[separate], std=sites[separate].std * 3)
    modules = {**report.modules, **{name: dataclasses.replace(report.modules[name], rms=1e-30) for name in before}}
    file = b / FOLDER / REPORTS
    append(file, report_line("features", "every leaf", dataclasses.replace(seen, sites=sites, alerts=(alert,)), 0.0))
    append(file, report_line("gradient_flow", "every leaf", dataclasses.replace(report, modules=modules), 0.0))
    found = compare(read_run(a), read_run(b))
    (cause, under), (nothing, others) = found.by_cause()
    assert cause.alert.name == alert.name
    assert under[0].name == dead
    assert sorted(difference.name for difference in under[1:]) == sorted(before)
    assert nothing is None
    assert [(difference.name, difference.stat) for difference in others] == [(separate, "std")]
    lines = compare_lines(found)
    title = lines.index(f"  dead at {dead}, only in B, and its consequences:")
    assert lines[title + 2].split()[0] == dead
    rest = lines.index("  Without an alert that explains it:")
    assert rest == title + 2 + 5
    assert lines[rest + 2].split()[0] == separate
