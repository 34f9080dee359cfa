"""The three lines at the end of a fit."""

from lightning_hooks.run_report.verdict import Verdict
from lightning_hooks.session.terminal import closing_lines
from tests.support.made_reports import alert

MANY = [alert("dead", f"model.encoder.layers.{i}.act", 0, "critical" if i == 0 else "warning") for i in range(30)]
FIRST = "Open alerts: [critical] dead at model.encoder.layers.0.act (epoch 0, step 10)"
BAD = Verdict("critical", "Dead units.", (), ())


def test_the_line_of_alerts_names_the_first_ones() -> None:
    verdict, alerts, place = closing_lines(BAD, MANY, "/x/report.html")
    assert (verdict, place) == ("Monitors: Dead units.", "Health report: /x/report.html")
    assert alerts == f"{FIRST}, [warning] dead at model.encoder.layers.1.act (epoch 0, step 10) and 28 more"
    assert closing_lines(BAD, [], "")[1:] == ["Open alerts: none"]
