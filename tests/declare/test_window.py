"""A window: reports of all monitors, each of which knows those of earlier windows while rules read it."""

import copy
import pickle
from dataclasses import replace

import pytest

from lightning_hooks.alerts import AttentionReport, FeatureReport, GradientFlowReport
from lightning_hooks.declare.window import Window
from tests.support.made_reports import alert, features, flow, layer_names

NAMES = layer_names(3)


def test_a_report_knows_those_of_earlier_windows() -> None:
    now = FeatureReport(9, 90, {})
    assert (now.first, now.previous(), now.earlier, now.windows) == (now, None, (), (now,))
    then = [FeatureReport(epoch, epoch * 10, {}) for epoch in (0, 6, 7, 8)]
    with_past = now.after(then)
    assert with_past == now
    assert with_past.first is then[0]
    assert [with_past.previous(), with_past.previous(2), with_past.previous(3)] == then[:0:-1]
    assert with_past.previous(4) is with_past.previous(0) is None  # the first window may be long ago
    assert now.after(then[:1]).previous() is then[0]
    assert with_past.windows == (*then, with_past)


@pytest.mark.parametrize(
    "kept", [copy.deepcopy, lambda report: pickle.loads(pickle.dumps(report)), replace], ids=["copied", "pickled", "replaced"]
)
def test_what_is_kept_of_a_report_does_not_hold_its_past(kept) -> None:
    """Else each report would keep all before it alive."""
    with_past = features(3, NAMES).after([features(2, NAMES)])
    assert kept(with_past).earlier == ()
    assert "earlier" not in repr(with_past)
    assert with_past.to_dict() == features(3, NAMES).to_dict()


def test_a_window_holds_one_report_of_each_monitor() -> None:
    outputs, gradients = features(1, NAMES, alerts=(alert("dead", NAMES[0], 1, "warning"),)), flow(1, NAMES)
    window = Window([outputs, gradients])
    assert window.report(FeatureReport) is outputs
    assert window.report(GradientFlowReport) is gradients
    assert window.report(AttentionReport) is None
    assert [found.name for found in window.alerts] == [f"dead at {NAMES[0]}"]
    other = window.with_alerts([(), (alert("zero", NAMES[1], 1, "info"),)])
    assert [found.kind for found in other.alerts] == ["zero"]
    assert [found.kind for found in window.alerts] == ["dead"]
    with pytest.raises(ValueError, match="shorter"):
        window.with_alerts([()])
