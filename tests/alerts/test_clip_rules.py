"""Rules over clip reports, just below and just above their thresholds."""

import math

import pytest

from lightning_hooks.alerts import AlwaysClipped, ClipIneffective, StepsSkipped


@pytest.mark.parametrize(
    ("change", "severity"),
    [
        ({"rate": 0.95}, None),
        ({"rate": 0.96}, "info"),
        ({"rate": 1.0, "steps": 19}, None),
        ({"rate": 1.0, "steps": 20}, "info"),
        ({"rate": 1.0, "coefficient": 0.1}, "info"),
        ({"rate": 1.0, "coefficient": 0.099}, "warning"),
        ({"rate": 1.0, "norm_before": 50.0}, "info"),
        ({"rate": math.nan, "steps": 0, "coefficient": math.nan}, None),
    ],
)
def test_always_clipped(clips, change, severity):
    alerts = list(AlwaysClipped()(clips({}, change)))
    assert [(alert.kind, alert.site, alert.value, alert.threshold, alert.severity) for alert in alerts] == (
        [("always_clipped", "1-SGD", change["rate"], 0.95, severity)] if severity else []
    )


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"norm_after_max": 1.0009}, False),
        ({"norm_after_max": 1.0011}, True),
        ({"norm_after_max": 3.9, "limit": 4.0}, False),
        ({"norm_after_max": 1e9, "limit": None}, False),
        ({"norm_after_max": math.nan}, False),
    ],
)
def test_clip_ineffective(clips, change, found):
    alerts = list(ClipIneffective()(clips({}, change)))
    expected = [("clip_ineffective", "1-SGD", change["norm_after_max"], 1.0, "warning")] if found else []
    assert [(alert.kind, alert.site, alert.value, alert.threshold, alert.severity) for alert in alerts] == expected
    assert all("Call self.clip_gradients(optimizer, gradient_clip_val" in alert.text for alert in alerts)


@pytest.mark.parametrize(
    ("steps", "skipped", "found"),
    [(95, 5, False), (30, 4, False), (36, 5, True), (45, 5, False), (44, 5, True), (0, 5, True), (0, 0, False)],
)
def test_steps_skipped(clips, steps, skipped, found):
    alerts = list(StepsSkipped()(clips({}, {"steps": steps, "skipped_steps": skipped})))
    assert [(alert.kind, alert.site, alert.threshold, alert.severity) for alert in alerts] == (
        [("steps_skipped", "1-SGD", 0.1, "warning")] if found else []
    )
    for alert in alerts:
        assert alert.value == pytest.approx(skipped / (steps + skipped))
        assert alert.text.startswith(f"{skipped} of {steps + skipped} optimizer steps")
        assert "precision='bf16-mixed' or a lower learning rate" in alert.text


@pytest.mark.parametrize("rule", [AlwaysClipped(), ClipIneffective(), StepsSkipped()], ids=repr)
def test_healthy_clipping_gives_no_alert(clips, rule):
    assert list(rule(clips({}, {}))) == []
