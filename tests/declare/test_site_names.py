"""Sites in messages are names that a user can read; what addresses them stays."""

from __future__ import annotations

import pytest

from lightning_hooks.trackers.console import readable


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
