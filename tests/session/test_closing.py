"""The three lines at the end of a fit."""

from lightning_hooks.session.closing import closing_lines, headline_of
from tests.support.made_reports import alert

MANY = [alert("dead", f"model.encoder.layers.{i}.act", 0, "critical" if i == 0 else "warning") for i in range(30)]


def test_the_line_of_alerts_fits_the_terminal() -> None:
    for width in (80, 120, 400):
        verdict, alerts, place = closing_lines("Dead units.", MANY, "/x/report.html", width)
        assert (verdict, place) == ("Monitors: Dead units.", "Health report: /x/report.html")
        assert len(alerts) <= width
        shown = alerts.count(" at ")
        assert alerts.endswith(f" and {30 - shown} more")
        assert alerts.startswith("Open alerts: [critical] dead at model.encoder.layers.0.act")
    assert closing_lines("Well.", [], "")[1:] == ["Open alerts: none"]


def test_one_alert_is_named_however_narrow_the_terminal() -> None:
    assert closing_lines("Bad.", MANY[:1], width=10)[1] == "Open alerts: [critical] dead at model.encoder.layers.0.act"
    assert closing_lines("Bad.", MANY, width=10)[1] == "Open alerts: [critical] dead at model.encoder.layers.0.act and 29 more"


def test_a_verdict_without_a_record() -> None:
    assert headline_of([]) == "Nothing was found wrong."
    assert headline_of(MANY[:1]) == "Dead units at model.encoder.layers.0.act."
    assert headline_of(MANY[:2]) == "Dead units at model.encoder.layers.0.act; 1 more alert."
    assert headline_of(MANY) == "Dead units at model.encoder.layers.0.act; 29 more alerts."
