"""Rules over routers and codebooks, on reports written by hand."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from lightning_hooks.alerts import DeadExperts, RouterCollapse, RouterReport
from lightning_hooks.diagnostics.routers.routing import CodebookStats, RouterStats


def stats(*load: float, tokens: int = 4000, top_k: int = 1) -> RouterStats:
    entropy = -sum(share * math.log(share) for share in load if share)
    dead = sum(not share for share in load) / len(load)
    balance = entropy / math.log(len(load))
    return RouterStats(10, tokens, len(load), top_k, load, dead, max(load) * len(load), balance, 0.0)


def report(batches: int = 60, **tables: Any) -> RouterReport:
    return RouterReport(0, 0, batches=batches, **{"routers": {}, **tables})


EVEN = (0.25,) * 4
ONE_DEAD = (0.2,) * 5 + (0.0,)
TWO_DEAD = (0.25,) * 4 + (0.0, 0.0)
COLLAPSED = (0.97, 0.01, 0.01, 0.01)
HALF_DEAD, FIRST_DEAD = (0.0, 0.0, 0.5, 0.5), (0.0, 0.3, 0.3, 0.4)


@pytest.mark.parametrize(
    ("found", "severity"),
    [
        (stats(*EVEN), None),
        (stats(*ONE_DEAD), "info"),
        (stats(*TWO_DEAD), "warning"),
        (stats(0.5, 0.4985, 0.0015), "warning"),  # 0.45 % of an even share, one expert of three
        (stats(0.5, 0.49, 0.01), None),
        (stats(*TWO_DEAD, tokens=500), None),  # 83 choices for each expert
        (stats(1.0, 0.0, top_k=2), None),  # there is no choice
    ],
)
def test_dead_experts(found: RouterStats, severity: str | None) -> None:
    alerts = [*DeadExperts(share=0.3)(report(routers={"gate": found}))]
    assert [alert.severity for alert in alerts] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("found", "effective"),
    [
        (stats(*EVEN), None),
        (stats(*COLLAPSED), 1.183),
        (stats(0.5, 0.5, 0.0, 0.0), None),
        (stats(0.5, 0.5, 0.0, 0.0, top_k=2), 2.0),
        (stats(*COLLAPSED, tokens=300), None),
        (stats(0.5, 0.5, top_k=2), None),
    ],
)
def test_router_collapse(found: RouterStats, effective: float | None) -> None:
    alerts = [*RouterCollapse()(report(routers={"gate": found}))]
    assert [alert.value for alert in alerts] == ([pytest.approx(effective, rel=1e-3)] if effective else [])


BOOK = CodebookStats(10, 10_000, 512, 0.01, 4.0, 0.6)


@pytest.mark.parametrize(
    ("book", "found"),
    [
        (BOOK, True),
        (replace(BOOK, perplexity=7.0), False),
        (replace(BOOK, codes=50), False),
        (replace(BOOK, size=8, perplexity=1.0), False),
    ],
)
def test_a_codebook_that_collapses(book: CodebookStats, found: bool) -> None:
    alerts = [*RouterCollapse()(report(codebooks={"quantise": book}))]
    assert bool(alerts) is found
    assert all("4 of its 512 codes in effect" in alert.text and "k-means" in alert.text for alert in alerts)


@pytest.mark.parametrize(
    ("now", "history", "found"),
    [
        ((20, HALF_DEAD), [], {"dead_experts", "router_collapse"}),  # a run of one epoch
        ((19, HALF_DEAD), [], set()),
        ((10, HALF_DEAD), [(10, HALF_DEAD)], {"dead_experts", "router_collapse"}),
        ((19, HALF_DEAD), [(60, HALF_DEAD), (60, EVEN)], set()),  # it has just begun
        ((39, FIRST_DEAD), [], set()),  # one of four, as in a healthy training
        ((40, FIRST_DEAD), [], {"dead_experts"}),
        ((10, FIRST_DEAD), [(30, HALF_DEAD)], {"dead_experts"}),  # the other was found again
        ((10, HALF_DEAD), [(30, FIRST_DEAD)], set()),
    ],
)
def test_batches_count_and_not_windows(now: Any, history: list[Any], found: set[str]) -> None:
    last, *earlier = (report(batches, routers={"gate": stats(*load, top_k=2)}) for batches, load in (now, *history[::-1]))
    assert {alert.kind for rule in (RouterCollapse(), DeadExperts()) for alert in rule(last.after(earlier[::-1]))} == found
