"""What to try stands in the report, for every built-in rule."""

import inspect
from pathlib import Path

import pytest

from lightning_hooks import alerts
from lightning_hooks.alerts import Rule
from lightning_hooks.run_report import read_run
from lightning_hooks.run_report.data import whole
from lightning_hooks.run_report.lines import FOLDER, REPORTS, append, line, report_line
from lightning_hooks.run_report.page import health_markdown
from tests.support.made_reports import FIT, features

BUILT_IN = sorted(
    {thing for thing in vars(alerts).values() if inspect.isclass(thing) and issubclass(thing, Rule) and thing.kind},
    key=lambda rule: rule.__name__,
)


@pytest.mark.parametrize("rule", BUILT_IN)
def test_the_report_shows_title_diagnosis_and_advice(rule: type[Rule], tmp_path: Path) -> None:
    epoch = features(0, ["a", "b"])
    alert = rule().alert(epoch, "a", 2.0, 1.0, "warning", "it is so. Usually why.")
    file = tmp_path / FOLDER / REPORTS
    append(file, line("fit", FIT) + report_line("features", "", features(0, ["a", "b"], alerts=(alert,)), 0.0))
    (problem,), text = whole(read_run(file), 0.0)["problems"], health_markdown(read_run(file))
    assert (problem["title"], problem["seen"], problem["advice"]) == (alert.title, "It is so. Usually why.", alert.advice)
    assert "**What to try:**" in text
    assert f"## ▲ {alert.title} (warning)" in text
    assert problem["rules"] == f"lightning-hooks explain {rule.kind}"
    assert f"Its rules and their limits: `lightning-hooks explain {rule.kind}`" in text
