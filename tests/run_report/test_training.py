"""What the report says of training itself: loss, learning rates, set-up, layers."""

from __future__ import annotations

from lightning_hooks.run_report import health_page, read_run
from lightning_hooks.run_report.data import whole
from lightning_hooks.run_report.lines import FOLDER, REPORTS, append, line
from lightning_hooks.run_report.page import health_markdown
from lightning_hooks.run_report.training import layers, loss_by_epoch, rates_by_group
from tests.support.made_reports import FIT
from tests.support.pages import of_kind, section_of

LAYERS = {"name": ["net.0", "<b>"], "type": ["Linear", "ReLU"], "detail": ["in_features=4", ""], "parameters": [20, 0]}


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


def test_set_up_and_layers(tmp_path):
    run = written(tmp_path, {**FIT, "precision": "bf16-mixed", "optimizers": "AdamW", "layers": LAYERS})
    assert layers(run) == [("net.0", "Linear", "in_features=4", 20), ("<b>", "ReLU", "", 0)]
    facts, table, *_ = section_of(whole(run, 0.0), "model")
    assert ["precision", "bf16-mixed"] in facts["facts"]
    assert ["optimizers", "AdamW"] in facts["facts"]
    assert table["table"]["rows"] == [["net.0", "Linear", "in_features=4", 20], ["<b>", "ReLU", "", 0]]
    assert "- precision: bf16-mixed" in health_markdown(run)


def test_a_run_of_an_earlier_version_has_neither(tmp_path):
    file = tmp_path / FOLDER / REPORTS
    append(file, line("fit", {**FIT, "layers": "oops"}) + line("epoch", {"epoch": 0, "lr": "oops", "loss": "oops"}))
    run = read_run(tmp_path)
    assert not layers(run)
    assert "Learning rate" not in health_page(run)
