"""The comparison of two runs."""

import dataclasses
import math
import re

import pytest

from lightning_hooks.alerts import Alert
from lightning_hooks.diagnostics.optimizer.table import GroupSettings, OptimizerStats
from lightning_hooks.run_report import read_run
from lightning_hooks.run_report.cli import compare_lines
from lightning_hooks.run_report.compare import Difference, compare
from lightning_hooks.run_report.data import compared
from lightning_hooks.run_report.lines import FOLDER, REPORTS, append, line, report_line
from tests.support.made_reports import FIT, features, flow, layer_names
from tests.support.pages import of_kind, section_of

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


def test_what_differs_most_comes_first(make_run):
    a = make_run("a")
    b = make_run("b", epochs=4)
    report, quiet = flow(4, NAMES), NAMES[7]
    modules = {**report.modules, quiet: dataclasses.replace(report.modules[quiet], rms=1e-30)}
    append(b / FOLDER / REPORTS, report_line("gradient_flow", "every leaf", dataclasses.replace(report, modules=modules), 0.0))
    found = compare(read_run(a), read_run(b))
    assert found.epoch == 4
    first = found.differences[0]
    assert (first.name, first.what) == (quiet, "gradient RMS")
    assert first.a == pytest.approx(report.modules[quiet].rms, rel=1e-5)
    assert first.b == pytest.approx(1e-30)
    assert {difference.size for difference in found.differences[1:]} == {0.0}


def test_the_same_run_twice_is_the_same(make_run):
    run = read_run(make_run())
    found = compare(run, run)
    assert found.settings == found.only_a == found.only_b == found.alerts_a == found.alerts_b == ()
    assert found.alerts_both
    assert "All numbers of epoch 4 that both runs have are the same." in compare_lines(found)


def test_what_only_one_has_is_shown(make_run):
    a = read_run(make_run("a", names=[*NAMES, "extra"], healthy=True))
    b = read_run(make_run("b", fit={**FIT, "precision": "16-mixed"}, broken=lambda epoch: epoch > 2, epochs=6))
    found = compare(a, b)
    assert found.only_a == ("extra",)
    assert found.only_b == ()
    assert {(course.alert.kind, course.alert.site) for course in found.alerts_b} >= {("nonfinite", name) for name in NAMES}
    assert found.settings == (("precision", None, "16-mixed"), ("epochs", 5, 6))
    text = "\n".join(compare_lines(found))
    assert "A  logs/a: 5 epochs, no rule broken.\nB  logs/b: NaN or infinite values at model.embed and 8 more, since epoch" in text
    assert "gradient RMS" in text
    assert "not finite in B" in text
    assert re.search("^  precision +\N{EN DASH} +16-mixed$", text, re.MULTILINE)
    assert "Only in A: extra" in text


def test_an_epoch_can_be_chosen(make_run):
    a, b = read_run(make_run("a")), read_run(make_run("b", epochs=3))
    assert compare(a, b).epoch == 2
    assert compare(a, b, epoch=1).epoch == 1
    with pytest.raises(ValueError, match="cannot compare at epoch 4: logs/a and logs/b have epochs 0 to 2 in common"):
        compare(a, b, epoch=4)
    with pytest.raises(ValueError, match="cannot compare: logs/a and logs/c have no epoch in common"):
        compare(a, read_run(make_run("c", epochs=0)))


def test_layers_are_in_the_models_order(make_run):
    found = compare(read_run(make_run("a")), read_run(make_run("b", names=NAMES[::-1])))
    assert [difference.name for difference in found.of("rms")] == NAMES


def test_a_layer_without_a_number_is_in_both(make_run):
    """An update ratio is null where no update was measured."""
    a, b = make_run("a"), make_run("b", epochs=4)
    report = flow(4, NAMES)
    first = next(iter(report.parameters))
    assert report.parameters[first].update_ratio is not None
    parameters = {**report.parameters, first: dataclasses.replace(report.parameters[first], update_ratio=None)}
    append(
        b / FOLDER / REPORTS, report_line("gradient_flow", "every leaf", dataclasses.replace(report, parameters=parameters), 0.0)
    )
    found = compare(read_run(a), read_run(b))
    assert (found.epoch, found.only_a, found.only_b) == (4, (), ())


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


def with_loss(folder, losses, rate, groups=1, **settings):
    """Give a run losses and a learning rate, and its optimizer settings in the last report."""
    file = folder / FOLDER / REPORTS
    names = [f"0-AdamW/pg{place + 1}" for place in range(groups)] if groups > 1 else ["0-AdamW"]
    for epoch, loss in enumerate(losses):
        append(file, line("epoch", {"epoch": epoch, "seconds": 1.0, "loss": loss, "lr": dict.fromkeys(names, rate)}))
    stats = OptimizerStats(groups=(GroupSettings(lr=rate, **settings),) * groups)
    report = dataclasses.replace(flow(len(losses) - 1, NAMES), optimizers={"0-AdamW": stats})
    append(file, report_line("gradient_flow", "every leaf", report, 0.0))
    return read_run(folder)


def test_it_begins_with_the_set_up_and_the_losses(make_run):
    """Two runs that differ in the learning rate alone."""
    a = with_loss(make_run("a"), (2.3, 1.5, 0.9, 0.6, 0.4), 1e-3, weight_decay=0.01, betas=(0.9, 0.999))
    b = with_loss(make_run("b"), (2.3, 2.31, 2.3, 2.3, 2.3), 0.1, weight_decay=0.01, betas=(0.9, 0.95))
    found = compare(a, b)
    assert found.settings == (("learning rate of 0-AdamW", "0.001", "0.1"), ("betas of 0-AdamW", (0.9, 0.999), (0.9, 0.95)))
    assert found.losses == (("loss, epoch 0", 2.3, 2.3), ("loss, epoch 4", 0.4, 2.3))
    lines = compare_lines(found)
    assert lines[3] == "What differs in the set-up:"
    assert lines[5].split() == ["learning", "rate", "of", "0-AdamW", "0.001", "0.1"]
    assert lines[8] == "Loss and metrics:"
    assert [row.split() for row in lines[10:12]] == [["loss,", "epoch", "0", "2.3", "2.3"], ["loss,", "epoch", "4", "0.4", "2.3"]]
    assert lines.index("Loss and metrics:") < lines.index("All numbers of epoch 4 that both runs have are the same.")
    page = compared(found)
    assert [section["id"] for section in page["sections"]][:3] == ["set-up", "loss and learning rate", "clipping"]
    (set_up,) = of_kind(section_of(page, "set-up"), "table")
    assert [row[0] for row in set_up["rows"]] == ["learning rate of 0-AdamW", "betas of 0-AdamW", "loss, epoch 0", "loss, epoch 4"]


def test_settings_of_several_groups_and_a_schedule(make_run):
    a = with_loss(make_run("a"), (2.0, 1.0), 0.1, groups=2, momentum=0.9)
    b = with_loss(make_run("b"), (2.0, 1.0, 0.5), 0.1, groups=2, momentum=0.9, maximize=True)
    for epoch, rate in ((1, 0.05), (2, 0.01)):
        append(b.path / REPORTS, line("epoch", {"epoch": epoch, "seconds": 1.0, "lr": {"0-AdamW/pg1": rate, "0-AdamW/pg2": 0.1}}))
    found = compare(a, read_run(b.path))
    assert found.settings[0] == ("learning rate of 0-AdamW/pg1", "0.1", "0.01 to 0.1, last 0.01")
    assert ("maximize of 0-AdamW/pg2", False, True) in found.settings


def test_layers_of_another_kind_are_named(make_run):
    columns = {"name": [f"net.{i}" for i in range(12)], "type": ["Linear"] * 12, "detail": ["2, 2"] * 12, "parameters": [6] * 12}
    other = {**columns, "type": ["Linear", "ReLU", *["Linear"] * 10]}
    a, b = (read_run(make_run(name, fit={**FIT, "layers": layers})) for name, layers in (("a", columns), ("b", other)))
    assert compare(a, b).settings == (("layer net.1", "Linear(2, 2)", "ReLU(2, 2)"),)
    c = read_run(make_run("c", fit={**FIT, "layers": {**columns, "detail": ["3, 3"] * 12}}))
    assert len(compare(a, c).settings) == 9
    assert compare(a, c).settings[-1] == ("more layers that differ", 4, None)


def test_where_no_loss_is_known_there_is_no_table(make_run):
    found = compare(read_run(make_run("a")), read_run(make_run("b")))
    assert found.losses == ()
    assert compare_lines(found)[3] == "The set-up is the same, as far as it is known."
    assert "The set-up is the same, as far as it is known." in of_kind(section_of(compared(found), "set-up"), "text")


def test_runs_of_other_lengths_show_where_each_ended(make_run):
    a = with_loss(make_run("a"), (2.0, 1.0, 0.9, 0.8, 0.7), 0.1)
    b = with_loss(make_run("b", epochs=2), (2.0, 1.0), 0.1)
    found = compare(a, b)
    assert found.losses == (("loss, epoch 0", 2.0, 2.0), ("loss, epoch 1", 1.0, 1.0), ("loss, last epoch", 0.7, 1.0))
