"""Rules over clip reports, just below and just above their thresholds."""

import math
from dataclasses import replace

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


def test_a_loss_that_is_summed_is_named_where_little_is_left_of_the_norm(clips):
    (alert,) = AlwaysClipped()(clips({}, {"rate": 1.0, "coefficient": 1 / 64, "norm_before": 64.0}))
    assert alert.diagnosis.startswith("So the learning rate is in effect 1/64 of what is set. Common cause: a loss that is summed")
    (alert,) = AlwaysClipped()(clips({}, {"rate": 1.0, "coefficient": 0.0}))
    assert alert.diagnosis == ""


def test_always_clipped_names_the_cause_and_the_remedy(clips):
    (alert,) = AlwaysClipped()(clips({"rate": 1.0, "coefficient": 0.25, "norm_before": 3.21}))
    assert alert.text.startswith("100% of its steps were clipped (limit 95%), on average to 25% of their norm, mostly")
    assert "because of head.weight: " in alert.text
    assert "Raise the clipping threshold above the usual norm (3.21), or lower the learning rate" in alert.text
    (unknown,) = AlwaysClipped()(clips({"rate": 1.0, "top_parameters": ()}))
    assert "because of ?: " in unknown.text


@pytest.mark.parametrize("optimizer", ["0-Adam", "0-AdamW", "1-RMSprop", "0-Adafactor", "0-Lion", "0-AdamW8bit"])
def test_a_step_that_does_not_depend_on_the_gradients_size_may_be_clipped(clips, optimizer):
    """Until the norm before clipping has grown tenfold since training's first two epochs."""
    report = clips({"rate": 1.0, "coefficient": 0.01})
    adam = replace(report, optimizers={optimizer: report.optimizers["0-SGD"]})
    (alert,) = AlwaysClipped()(adam)
    assert alert.severity == "info"

    def later(norm):
        return replace(adam, optimizers={optimizer: replace(adam.optimizers[optimizer], norm_before=norm)})

    assert [alert.severity for alert in AlwaysClipped()(later(20.0).after([adam, later(0.1)]))] == ["info"]
    assert [alert.severity for alert in AlwaysClipped()(later(21.0).after([later(0.1)]))] == [
        "info"
    ]  # from branches that start at zero
    (grown,) = AlwaysClipped()(later(21.0).after([later(0.1), adam, later(20.0)]))
    assert grown.severity == "warning"
    assert "In the first two epochs the norm before clipping was at most 2: it grows." in grown.text


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
