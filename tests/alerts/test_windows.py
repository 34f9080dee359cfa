"""What counts, what is news, what is over: windows over epochs."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from lightning_hooks.alerts import Alert, AlertWindow
from lightning_hooks.alerts.rulebook import Finding


def alert(site: str = "a", epoch: int = 0, since: int | None = None) -> Alert:
    return Alert("dead", site, 0.9, 0.5, epoch, 10 * epoch, "warning", "…", since)


def counted(window: AlertWindow, epochs: list[str], times: int, of: int) -> list[str]:
    found = []
    for epoch, sites in enumerate(epochs):
        findings = [Finding(alert(site, epoch), times, of) for site in sites]
        found.append("".join(entry.site for entry in window.confirmed(findings)))
    return found


@pytest.mark.parametrize(
    ("times", "of", "epochs", "expected"),
    [
        (1, 1, ["a", "", "a"], ["a", "", "a"]),
        (2, 2, ["a", "a", "", "a", "a"], ["", "a", "", "", "a"]),
        (2, 3, ["a", "", "a", "a", "", "", "a"], ["", "", "a", "a", "", "", ""]),
        (3, 5, ["a", "a", "", "", "a", "", "a"], ["", "", "", "", "a", "", ""]),
        (2, 3, ["ab", "a", "b"], ["", "a", "b"]),
    ],
)
def test_m_of_n(times: int, of: int, epochs: list[str], expected: list[str]) -> None:
    assert counted(AlertWindow(), epochs, times, of) == expected
    for cut in range(len(epochs)):  # and over a resume
        first, second = AlertWindow(), AlertWindow()
        before = counted(first, epochs[:cut], times, of)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert before + counted(second, epochs[cut:], times, of) == expected


def test_since_is_the_first_step_of_the_spell() -> None:
    window = AlertWindow(rearm=2)
    since = []
    for epoch, there in enumerate([1, 1, 0, 1, 0, 0, 1]):
        since += [a.since_step for a in window.confirmed([Finding(alert(epoch=epoch))] * there)]
    assert since == [0, 0, 0, 60]  # one epoch without it is no end, two are
    assert AlertWindow().confirmed([Finding(alert(epoch=3, since=27))])[0].since_step == 27


def test_what_is_over_is_told_once_with_its_epochs() -> None:
    window = AlertWindow(rearm=2)
    cleared: list[Any] = []
    for epoch, sites in enumerate(["a", "ab", "b", "b", "", ""]):
        window.news([alert(site, epoch) for site in sites])
        cleared.append([(over.site, over.first_epoch, over.last_epoch) for over in window.cleared])
    assert cleared == [[], [], [], [("a", 0, 1)], [], [("b", 1, 3)]]
    assert [over.site for over in window.ended] == ["a", "b"]


def test_the_state_of_version_0_1_is_read() -> None:
    window = AlertWindow()
    window.load_state_dict({"absent": [["dead", "a", 0]]})
    assert window.news([alert("a")]) == []


def test_what_was_told_and_now_follows_from_another_is_not_over() -> None:
    window = AlertWindow(rearm=2)
    assert [entry.site for entry in window.news([alert("b", 0)])] == ["b"]
    for epoch in range(1, 4):
        told = window.news(
            [alert("a", epoch), replace(alert("b", epoch), cause="dead at a"), replace(alert("c"), cause="dead at a")]
        )
        assert [entry.site for entry in told] == (["a"] if epoch == 1 else [])
        assert window.cleared == []
    assert window.news([alert("b", 4)]) == []  # a root again, and told long ago
    assert [entry.site for entry in window.news([alert("c", 5)])] == ["c"]  # never was told


def test_what_is_told_within_an_epoch_is_held_at_its_end_and_ends_nothing() -> None:
    window = AlertWindow(rearm=1)
    window.news([alert("a", 0)])
    assert [entry.site for entry in window.at_once([alert("a", 1), alert("b", 1)])] == ["b"]
    assert window.at_once([alert("b", 1)]) == []
    assert window.news([alert("a", 1), alert("b", 1)]) == []
    assert window.news([]) == []
    assert [(over.site, over.first_epoch, over.last_epoch) for over in window.cleared] == [("a", 0, 1), ("b", 1, 1)]
