"""Sites in messages are names that a user can read; what addresses them stays."""

from __future__ import annotations

import pytest

from lightning_hooks import Alert
from lightning_hooks.declare.site_names import readable


@pytest.mark.parametrize(
    ("site", "name"),
    [
        ("0-AdamW", "optimizer AdamW"),
        ("1-SGD", "optimizer SGD 1"),
        ("0-AdamW.group0.46", "parameter 46 of AdamW (group 0)"),
        ("2-Muon.group1.3:7", "parameter 3 of Muon 2 (group 1)"),
        ("net.0.weight", "net.0.weight"),
        ("net.0-up", "net.0-up"),
        ("", ""),
    ],
)
def test_readable(site: str, name: str) -> None:
    assert readable(site) == name


def test_a_line_has_readable_names_and_the_alert_its_site() -> None:
    alert = Alert("zero", "0-Adam", 1.0, 0.5, 0, 9, "warning", "so.", consequences=("missing at 0-Adam.group0.1",), also=("b",))
    assert str(alert).splitlines() == [
        "[warning] zero at optimizer Adam and 1 more site (epoch 0, step 9): so.",
        "  Consequences: missing at parameter 1 of Adam (group 0).",
    ]
    assert alert.name == "zero at 0-Adam"
