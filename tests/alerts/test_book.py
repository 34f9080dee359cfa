"""What counts, what is news, what is over: from window to window."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from typing import Any

import pytest

from lightning_hooks.alerts import Alert, AlertBook
from lightning_hooks.declare.rulebook import Candidate


def alert(site: str = "a", epoch: int = 0, since: int | None = None) -> Alert:
    return Alert("dead", site, 0.9, 0.5, epoch, 10 * epoch, "warning", "…", since)


def counted(book: AlertBook, epochs: list[str], times: int, of: int) -> list[str]:
    found = []
    for epoch, sites in enumerate(epochs):
        candidates = [Candidate(alert(site, epoch), times, of) for site in sites]
        found.append("".join(entry.site for entry in book.confirmed(candidates)))
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
    assert counted(AlertBook(), epochs, times, of) == expected
    for cut in range(len(epochs)):  # and over a resume
        first, second = AlertBook(), AlertBook()
        before = counted(first, epochs[:cut], times, of)
        second.load_state_dict(json.loads(json.dumps(first.state_dict())))
        assert before + counted(second, epochs[cut:], times, of) == expected


def test_what_is_over_is_reported_once_with_its_epochs() -> None:
    book = AlertBook()
    cleared: list[Any] = []
    for epoch, sites in enumerate(["a", "ab", "b", "", "", "", "c"]):
        book.new_alerts([alert(site, epoch) for site in sites])
        cleared.append([(over.passed_on.site, over.passed_on.epoch, over.last_epoch) for over in book.cleared])
    assert cleared == [[], [], [], [], [("a", 0, 2)], [], []]  # by the site at which it began


@pytest.mark.parametrize(
    ("kind", "sites", "new", "ended"),
    [
        ("validation_shift", ["a", "", "", "a", "", "", "a"], [0], [2]),  # a fact whose number is near its limit: it is not over
        ("validation_shift", ["a", "", "", "b", "", ""], [0, 3], [2, 5]),  # elsewhere
        ("dead", ["a", "", "", "a", "", ""], [0, 3], [2, 5]),  # a symptom has come back
        ("loss_nonfinite", ["a", "", "", "a"], [0, 3], [2]),  # and a loss has become NaN again
    ],
)
def test_a_fact_that_comes_and_goes_is_passed_on_once(kind: str, sites: list[str], new: list[int], ended: list[int]) -> None:
    book, found, over = AlertBook(), list[int](), list[int]()
    for epoch, site in enumerate(sites):
        alerts = book.grouped([replace(alert(site, epoch), kind=kind)] if site else [])
        found += [epoch] * len(book.new_alerts(alerts))
        over += [epoch] * len(book.cleared)
        book, before = AlertBook(), book
        book.load_state_dict(json.loads(json.dumps(before.state_dict())))  # and over a resume
    assert (found, over) == (new, ended)
    assert [one.kind for one in book.open] == [kind] * (sites[-1] != "")


def test_a_problem_has_one_beginning_though_its_site_moves() -> None:
    book = AlertBook()
    for epoch, site in enumerate("aabc"):
        (now,) = book.grouped([alert(site, epoch, since=10 * epoch + 3)])
        assert now.since_step == 3
        assert [entry.site for entry in book.new_alerts([now])] == (["a"] if epoch == 0 else [])
    assert book.open == [alert("a", 0, since=3)]  # as it was passed on


def test_one_alert_names_the_sites_that_have_the_same_problem() -> None:
    book = AlertBook()
    one, two, three, follows = book.grouped(
        [alert("a", 1), replace(alert("b", 1), severity="critical"), alert("c", 1), replace(alert("d", 1), cause="dead at a")]
    )
    assert [entry.also for entry in (one, two, three, follows)] == [(), ("a", "c"), (), ()]  # the gravest speaks for all
    assert book.new_alerts([one, two, three, follows]) == [two]
    assert str(two).startswith("[critical] dead at b and 2 more sites (epoch 1, step 10): ")
    assert two.name == "dead at b"


def test_what_grows_graver_is_passed_on_again() -> None:
    book = AlertBook()
    delivered = []
    for epoch, severity in enumerate(["info", "info", "warning", "critical", "warning", "critical"]):
        graded = replace(alert("a", epoch, since=5), severity=severity)
        delivered += [(entry.epoch, entry.severity) for entry in book.new_alerts(book.grouped([graded]))]
    assert delivered == [(0, "info"), (2, "warning"), (3, "critical")]
    assert [(entry.epoch, entry.severity) for entry in book.open] == [(2, "critical")]  # as it was first, and as grave as it grew


def test_what_is_found_within_an_epoch_is_held_at_its_end_and_ends_nothing() -> None:
    book = AlertBook()
    book.new_alerts([alert("a", 0)])
    early = replace(alert("b", 1, since=13), kind="nonfinite", batch=3)
    assert book.at_once([alert("a", 1), early]) == [early]
    assert book.at_once([replace(early, site="c")]) == []
    at_the_end = replace(early, value=0.7, since_step=19, batch=9, step=20)
    (a, now) = book.grouped([alert("a", 1), at_the_end])
    assert now == replace(early, step=20)  # as it was passed on in this epoch
    assert book.new_alerts([a, now]) == []
    assert book.new_alerts([]) == book.new_alerts([]) == []
    assert [(over.passed_on.kind, over.passed_on.epoch, over.last_epoch) for over in book.cleared] == [
        ("dead", 0, 1),
        ("nonfinite", 1, 1),
    ]


def test_a_restored_state_keeps_the_identity_of_what_is_open() -> None:
    before, after = AlertBook(), AlertBook()
    first = replace(alert("a", 0, since=3), batch=2, value=math.nan)
    before.new_alerts([first])
    before.new_alerts(before.grouped([alert("b", 1, since=17)]))
    after.load_state_dict(json.loads(json.dumps(before.state_dict())))
    assert repr(after.open) == repr([first])
    assert after.holds(alert("a"))
    assert after.holds(alert("b"))
    (now,) = after.grouped([alert("c", 2, since=29)])
    assert now.since_step == 3
    assert after.new_alerts([now]) == []
    assert after.new_alerts([]) == after.new_alerts([]) == []
    assert [(over.passed_on.site, over.passed_on.epoch, over.last_epoch) for over in after.cleared] == [("a", 0, 2)]
