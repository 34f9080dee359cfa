"""Charts of many curves."""

from __future__ import annotations

import re

from lightning_hooks.trackers.tracker import charts_of

TAGS = [
    *(f"features/{site}/{stat}" for site in ("net.0", "net.1", "a/b") for stat in ("rms", "std")),
    *("features/model/rms_median", "features/model/rms_worst", "features/alerts/dead", "gradient_clip/rate"),
]


def test_a_statistic_has_a_chart_with_a_line_for_each_site() -> None:
    layout = charts_of((), TAGS)
    assert {category: [*charts] for category, charts in layout.items()} == {
        "Alerts": ["alerts of each kind"],
        "Features": ["rms", "std", "rms of the model"],
        "Gradient clip": ["rate"],
    }
    more = [*TAGS, "features/net.0/rms_max", "features/model/rms", "features/alerts/rms", "gradient_flow/net.0/rms"]
    chart = layout["Features"]["rms"]
    assert [tag for tag in more if re.match(chart, tag)] == ["features/net.0/rms", "features/net.1/rms", "features/a/b/rms"]
    assert [tag for tag in TAGS if re.match(layout["Features"]["rms of the model"], tag)] == TAGS[6:8]
    assert [tag for tag in TAGS if re.match(layout["Gradient clip"]["rate"], tag)] == ["gradient_clip/rate"]
    assert [tag for tag in TAGS if re.match(layout["Alerts"]["alerts of each kind"], tag)] == ["features/alerts/dead"]


def test_losses_and_learning_rates_come_first() -> None:
    layout = charts_of(("train_loss", "lr-Adam", "accuracy"), TAGS)
    assert [*layout["Training"]] == ["loss", "learning rate"]
    assert next(iter(layout)) == "Training"
