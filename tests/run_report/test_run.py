"""A run read from its file."""

import math

import numpy as np
import pytest

from lightning_hooks.alerts import ParameterSetup
from lightning_hooks.run_report import read_run
from lightning_hooks.run_report.lines import FOLDER, REPORTS, Memory, append, line, report_line
from lightning_hooks.run_report.run import MOST_EPOCHS
from tests.support.made_reports import FIT, clips, features, flow, layer_names

NAMES = layer_names(9)


def test_a_run_is_read_from_its_directory_or_its_file(make_run):
    folder = make_run()
    for path in (folder, folder / FOLDER, folder / FOLDER / REPORTS, str(folder), folder.parent):
        run = read_run(path)
        assert (run.name, run.epochs, run.path) == ("logs/run", [0, 1, 2, 3, 4], folder / FOLDER)
        assert [recorded.prefix for recorded in run.monitors] == ["features", "gradient_flow", "gradient_clip"]
    assert run.fit["model"] == "Net"
    assert run.end["how"] == "finished"
    assert run.timing[3]["seconds"] == 2.0


def test_series_hold_the_reports_numbers(make_run):
    run = read_run(make_run())
    (recorded,) = run.of("gradient_flow")
    table = recorded.series("modules", "rms")
    expected = [[flow(epoch, NAMES).modules[name].rms for epoch in range(5)] for name in NAMES]
    np.testing.assert_allclose(table.values, expected, rtol=1e-4)
    assert (table.names, table.epochs, table.noun) == (tuple(NAMES), (0, 1, 2, 3, 4), "module")
    assert list(recorded.last.modules) == NAMES


def test_a_statistic_that_does_not_apply_has_no_row(make_run):
    (recorded,) = read_run(make_run()).of("features")
    dead = recorded.series("sites", "dead_fraction")
    assert dead.names == (NAMES[1], NAMES[5])
    assert recorded.series("sites", "unknown").names == ()


def test_what_is_not_finite_is_kept_apart_from_what_does_not_apply(make_run):
    (recorded,) = read_run(make_run(broken=lambda epoch: epoch == 2)).of("gradient_flow")
    values = recorded.series("modules", "rms").values
    assert np.isnan(values).sum(axis=1).tolist() == [1] * len(NAMES)
    ratios = recorded.series("parameters", "update_ratio")
    assert len(ratios.names) == 2 * len(NAMES)
    assert np.isnan(ratios.values[:, 2]).all()


def test_layers_that_come_and_go_are_all_there(make_run):
    folder = make_run(epochs=0)
    for epoch, names in enumerate((NAMES[:3], NAMES[1:])):
        append(folder / FOLDER / REPORTS, report_line("features", "", features(epoch, names), 0.0))
    (recorded,) = read_run(folder).of("features")
    values = recorded.series("sites", "std").values
    assert np.isnan(values).sum() == 1 + len(NAMES) - 3


def test_a_fit_that_starts_again_replaces_what_was(make_run):
    folder = make_run(epochs=5)
    make_run(epochs=2)
    run = read_run(folder)
    assert run.epochs == [0, 1]
    assert list(run.timing) == [0, 1]


def test_a_fit_that_goes_on_replaces_what_comes_after(make_run):
    folder = make_run(epochs=5, end="exception")
    make_run(epochs=7, fit={**FIT, "epoch": 3}, end=None)
    run = read_run(folder)
    assert run.epochs == [0, 1, 2, 3, 4, 5, 6]
    assert run.end is None
    assert all(list(recorded.columns) == run.epochs for recorded in run.monitors)


def test_of_a_long_run_every_kth_epoch_is_kept_and_all_alerts(make_run):
    folder = make_run(epochs=0, end=None)
    file = folder / FOLDER / REPORTS
    n = 2 * MOST_EPOCHS + 50
    append(file, "".join(report_line("gradient_clip", "", clips(epoch), 0.0) for epoch in range(n)))
    (recorded,) = read_run(folder).of("gradient_clip")
    assert len(recorded.alerts) == n
    assert len(recorded.columns) <= MOST_EPOCHS + 2
    assert list(recorded.columns) == [*range(0, n - 1, 3), n - 1]
    assert recorded.last.epoch == n - 1


def test_two_monitors_of_a_kind_are_distinguished(make_run):
    folder = make_run(epochs=0)
    for modules in ("encoder.*", "head"):
        append(folder / FOLDER / REPORTS, report_line("features", modules, features(0, [modules]), 0.0))
    assert [recorded.modules for recorded in read_run(folder).of("features")] == ["encoder.*", "head"]


def test_a_broken_report_costs_only_itself(make_run):
    folder = make_run()
    append(folder / FOLDER / REPORTS, line("report", {"epoch": 9, "monitor": "features", "modules": "every leaf", "report": 3}))
    append(folder / FOLDER / REPORTS, line("report", {"epoch": 9}))
    append(folder / FOLDER / REPORTS, line("epoch", {"epoch": "nine"}))
    assert read_run(folder).epochs == [0, 1, 2, 3, 4]


def test_what_is_no_run_is_reported(make_run, tmp_path):
    with pytest.raises(FileNotFoundError, match=r"no lightning_hooks/reports\.jsonl in .*nowhere.* logger=False only where"):
        read_run(tmp_path / "nowhere")
    make_run("a")
    make_run("b")
    with pytest.raises(FileNotFoundError, match=r"2 runs are below .*; name one of them: .*/a, .*/b\."):
        read_run(tmp_path)
    (tmp_path / "other.jsonl").write_text('{"a": 1}\nnothing\n')
    with pytest.raises(ValueError, match=r"other\.jsonl holds no run: 2 of its lines could not be read"):
        read_run(tmp_path / "other.jsonl")


def test_seconds_that_are_missing_are_not_known(make_run):
    folder = make_run(epochs=0)
    text = report_line("features", "", features(0, NAMES), math.nan)
    append(folder / FOLDER / REPORTS, text)
    (recorded,) = read_run(folder).of("features")
    assert math.isnan(recorded.seconds[0])


def test_a_table_that_becomes_empty_takes_no_line_with_it(tmp_path):
    file, memory = tmp_path / FOLDER / REPORTS, Memory()
    setups = {name: ParameterSetup(100, 2, True, True, ("0-Adam",), lr=0.1 * place) for place, name in enumerate(NAMES)}
    append(file, line("fit", FIT, memory))
    for epoch, table in enumerate((setups, {}, dict(list(setups.items())[:3]))):
        append(file, report_line("gradient_flow", "", flow(epoch, NAMES, setups=table), 0.5, memory))
        run = read_run(file)
        assert (run.damaged, run.epochs[-1]) == (0, epoch)
        assert {name: setup.lr for name, setup in run.monitors[0].last.setups.items()} == pytest.approx(
            {name: setup.lr for name, setup in table.items()}
        )
