"""The one table counts what it says it counts."""

from __future__ import annotations

from typing import Any

import pytest

from tests.evidence.faults.peers import PEERS
from tests.evidence.proof.table import Section, interval, missed, table


def run(name: str, **what: Any) -> dict[str, Any]:
    """A result; nothing is found and no peer says anything."""
    silent = {peer: {"rule": {"kinds": ["dead"], "ever": 0.0, "in_time": 0.0, "batch": None, "site_right": None}} for peer in PEERS}
    base = {"name": name, "healthy": False, "planted": True, "alerts": [], "found": False, "site": None, "kinds": ["dead"]}
    return {**base, "peers": silent, **what}


def loud(**rule: Any) -> dict[str, Any]:
    """The peers' part of a result in which SageMaker's rule fires."""
    peers = run("x")["peers"]
    peers["SageMaker"] = {"rule": {**peers["SageMaker"]["rule"], **rule}}
    return peers


ALERT = ["dead", "net.1", "warning", 20]
SECTION = Section(
    "zoo",
    [
        run("one", found=True, site=True, alerts=[ALERT]),
        run("two", found=True, site=False, alerts=[ALERT]),
        run("three", missed="the reason", peers=loud(ever=2.0, in_time=2.0)),
        run("three", planted=False),
        run("well", healthy=True, peers=loud(ever=2.0)),
        run("false", healthy=True, alerts=[ALERT]),
    ],
)


def test_intervals_are_wilsons() -> None:
    assert interval(0, 0) == "-"
    assert interval(30, 30) == "30/30 = 100% (89 to 100)"
    p, n, z = 24 / 30, 30, 1.959964
    middle, half = p + z**2 / (2 * n), z * (p * (1 - p) / n + z**2 / (4 * n**2)) ** 0.5
    low, high = ((middle + sign * half) / (1 + z**2 / n) for sign in (-1, 1))
    assert interval(24, 30) == f"24/30 = 80% ({100 * low:.0f} to {100 * high:.0f})"


@pytest.mark.parametrize(
    ("who", "cells"),
    [("**lightning_hooks**", ["2/3", "1/2", "1/2", "0/1"]), ("SageMaker", ["1/3", "-", "1/2", "0/1"])],
)
def test_counts(who: str, cells: list[str]) -> None:
    line = next(line for line in table([SECTION]).splitlines() if f"| zoo | {who} |" in line)
    assert [cell.split()[0] for cell in line.split("|")[3:-1]] == cells


def test_what_is_missed_stands_there_with_the_reason() -> None:
    assert missed([SECTION]).splitlines() == [
        "- zoo: `two`: another site: dead at net.1",
        "- zoo: `three`: not found: the reason",
        "- zoo: `false`: false alarm: dead at net.1",
    ]
