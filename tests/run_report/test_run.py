"""A run read from its file."""

import numpy as np
import pytest

from lightning_hooks.run_report import read_run
from lightning_hooks.run_report.lines import FOLDER, REPORTS, append, line
from tests.support.made_reports import FIT, layer_names

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


def test_what_is_not_finite_is_kept_apart_from_what_does_not_apply(make_run):
    (recorded,) = read_run(make_run(broken=lambda epoch: epoch == 2)).of("gradient_flow")
    values = recorded.series("modules", "rms").values
    assert np.isnan(values).sum(axis=1).tolist() == [1] * len(NAMES)
    ratios = recorded.series("parameters", "update_ratio")
    assert len(ratios.names) == 2 * len(NAMES)
    assert np.isnan(ratios.values[:, 2]).all()


def test_a_fit_that_goes_on_replaces_what_comes_after(make_run):
    folder = make_run(epochs=5, end="exception")
    make_run(epochs=7, fit={**FIT, "epoch": 3}, end=None)
    run = read_run(folder)
    assert run.epochs == [0, 1, 2, 3, 4, 5, 6]
    assert run.end is None
    assert all(list(recorded.columns) == run.epochs for recorded in run.monitors)


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
