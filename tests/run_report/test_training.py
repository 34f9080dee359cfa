"""What the report says of training itself: loss, learning rates, set-up, layers."""

from __future__ import annotations

from lightning_hooks.run_report import read_run
from lightning_hooks.run_report.data import whole
from lightning_hooks.run_report.lines import FOLDER, REPORTS, append, line
from lightning_hooks.run_report.page import health_markdown
from lightning_hooks.run_report.training import loss_by_epoch, rates_by_group
from tests.support.made_reports import FIT
from tests.support.pages import of_kind, section_of


def written(tmp_path, fit=FIT):
    file = tmp_path / FOLDER / REPORTS
    append(file, line("fit", fit))
    for epoch, (loss, rates) in enumerate(
        [(2.0, {"0-SGD": 0.1}), (float("nan"), {"0-SGD": 0.01, "1-Adam/pg2": 1e-3}), (None, None)]
    ):
        known = {} if loss is None else {"loss": loss, "lr": rates}
        append(file, line("epoch", {"epoch": epoch, "seconds": 1.0, **known}))
    return read_run(tmp_path)


def test_loss_and_learning_rates_by_epoch(tmp_path):
    run = written(tmp_path)
    epochs, losses = loss_by_epoch(run)
    assert (epochs, str(losses)) == ([0, 1, 2], "[2.0, nan, nan]")
    assert str(rates_by_group(run)) == "{'0-SGD': [0.1, 0.01, nan], '1-Adam/pg2': [nan, 0.001, nan]}"
    charts = of_kind(section_of(whole(run, 0.0), "training"), "chart")
    assert [(chart["title"], chart["epochs"], chart["lines"]) for chart in charts] == [
        ("Loss", [0, 1, 2], [{"label": "mean loss of the training batches", "values": [2.0, None, None]}]),
        (
            "Learning rate",
            [0, 1, 2],
            [{"label": "0-SGD", "values": [0.1, 0.01, None]}, {"label": "1-Adam/pg2", "values": [None, 0.001, None]}],
        ),
    ]
    text = health_markdown(run)
    assert "| epoch | 0-SGD | 1-Adam/pg2 |" in text
    assert "| 1 | 0.01 | 0.001 |" in text
    assert "| 1 | \N{EN DASH} |" in text
