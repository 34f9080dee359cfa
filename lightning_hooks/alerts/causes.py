"""From symptoms to causes: which alerts came first, and which are their consequences.

One fault makes many symptoms. A rectifier that died passes no gradient, so every parameter before it is ``zero``; a NaN in one
layer is a NaN in all that come after. What is known of the order of events (the batch at which a value first was not finite, the
order in which modules are called, the direction of the passes) determines which alert is the cause. What a problem has damaged may
last longer than the problem: a cause may be an alert of an earlier window.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import cache
from itertools import islice
from typing import NamedTuple

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.book import AlertBook, Occurrence
from lightning_hooks.declare.kinds import KINDS, STEP, Link, Node, always, gravity, in_a_row, kind_of
from lightning_hooks.declare.site_names import place_of
from lightning_hooks.declare.window import Report, Window, batch_of

MOST_CONSEQUENCES = 200
"""Consequences of one problem of earlier windows, of which further consequences are looked for."""


class CauseOrder(NamedTuple):
    """Alerts in order of cause."""

    of_report: list[tuple[Alert, ...]]  # for each report its alerts: roots first, then consequences of something, as infos
    roots: list[tuple[int, Alert]]  # (place of the report, alert) of the roots of all reports, first causes first


def in_order_of_cause(
    window: Window, books: Sequence[AlertBook] = (), lead: Alert | None = None, heads: Heads | None = None
) -> CauseOrder:
    """Put the alerts of a window in order of cause.

    Args:
        window: The reports of all monitors.
        books: The alert book of each, without this window. What was raised in an earlier window and lasts stays the cause of what
            spread from it: once weights are NaN, the first module is the first to give one, and not why. A problem of an earlier
            window that no rule finds any more, but that has consequences in this one, is among the alerts as it was passed on.
        lead: The alert of the window about the first bad step: what else is not finite came of it.
        heads: What one cause explains together, as :func:`one_cause` finds it.
    """
    reports, places = window.reports, window.places
    found = [(place, alert) for place, report in enumerate(reports) for alert in report.alerts]
    alerts = [alert for _, alert in found]
    nodes = [_node(number, place, reports[place], alert, places) for number, (place, alert) in enumerate(found)]
    by_kind: dict[str, list[Node]] = {}
    first = next((node for node in nodes if lead is not None and alerts[node.number] is lead), None)
    for node in nodes:
        node.held = bool(books) and books[node.report].holds(alerts[node.number])
        if first not in (None, node) and node.serious and kind_of(node.kind).about == "nonfinite":
            node.cause = first
        else:
            by_kind.setdefault(node.kind, []).append(node)
    unaffected = _unaffected_parameters(window)
    leaders = {kind: _heads(kind, alike, unaffected) for kind, alike in by_kind.items()}
    for kind, effects in leaders.items():
        for cause_kind, follows in links().get(kind, {}).items():
            for effect in [effect for effect in effects if effect.cause is None]:
                able = (cause for cause in leaders.get(cause_kind, ()) if cause.serious >= effect.serious)
                effect.cause = min((cause for cause in able if follows(effect, cause)), key=_rank, default=None)
    _add_heads(nodes, alerts, heads or {}, places)
    _add_earlier_causes(nodes, alerts, books, places)
    for node in nodes:
        if node.cause is not None:
            _root(node).consequences.append(node)
    ordered: list[list[Alert]] = [[] for _ in reports]
    roots = []
    for node in sorted((node for node in nodes if node.cause is None), key=lambda node: (not node.serious, _rank(node))):
        alert, earlier = alerts[node.number], _earlier_step(node, reports)
        names = (alerts[effect.number].name for effect in node.consequences)  # a module's output and its gradient have one name
        consequences = tuple(name for name in dict.fromkeys(names) if name != alert.name)
        diagnosis = f"{alert.diagnosis}{earlier}".strip() if earlier else alert.diagnosis
        alert = dataclasses.replace(alert, cause="", consequences=consequences, diagnosis=diagnosis)
        ordered[node.report].append(alert)
        roots.append((node.report, alert))
    for node in nodes:
        if node.cause is not None:
            alert, cause = alerts[node.number], alerts[_root(node).number].name
            ordered[node.report].append(dataclasses.replace(alert, severity="info", cause=cause, consequences=()))
    return CauseOrder([tuple(alerts) for alerts in ordered], roots)


def _root(node: Node) -> Node:
    while node.cause is not None:
        node = node.cause
    return node


# One cause of several alerts.


Problem = tuple[int, Alert]
"""The place of its report, and the alert."""
Heads = Mapping[tuple[int, str], Problem]
"""The place of a report and a kind of its alerts, to the problem that they belong to."""


def one_cause(roots: Iterable[Problem], earlier: Iterable[Problem]) -> Heads:
    """Of the alerts that one cause explains, the one that stands for them: an earlier one, or that for which most speaks for it.

    Args:
        roots: Root causes that are new, with their causes, first causes first.
        earlier: Those that are open since earlier windows. What is graver than these is a problem of its own, and what these may
            be consequences of.

    Returns:
        The kinds that have no alert of their own. One without a decisive cause belongs to an alert whose decisive cause is among
        those that its kind may have.
    """
    found: dict[tuple[int, str], Problem] = {}
    heads = [(problem, _decisive(problem[1])) for problem in earlier]
    first = len(heads)
    new = [(problem, _decisive(problem[1])) for problem in roots if problem[1].severity != "info"]
    for (place, alert), causes in sorted(new, key=lambda new: (not new[1], gravity(new[0][1].severity), -_score(new[0][1]))):
        able = causes or {one.name for one in kind_of(alert.kind).hypotheses}
        for number, (head, known) in enumerate(heads):
            other = (head[0], head[1].kind) != (place, alert.kind)
            fits = number >= first or alert.kind not in links().get(head[1].kind, ())
            if known & able and other and fits and gravity(head[1].severity) <= gravity(alert.severity):
                found[place, alert.kind] = head
                break
        else:
            heads.append(((place, alert), causes))
    return found


def _score(alert: Alert) -> float:
    return alert.causes[0].score if alert.causes else 0.0


def _decisive(alert: Alert) -> set[str]:
    """The names of an alert's causes that much speaks for; none for an info."""
    return set() if alert.severity == "info" else {cause.name for cause in alert.causes if cause.decisive}


def _add_heads(nodes: list[Node], alerts: list[Alert], heads: Heads, places: Mapping[str, float]) -> None:
    """Give alerts that one cause explains the alert that stands for them, which is added where this window does not have it."""
    roots = [node for node in nodes if node.cause is None and node.serious]
    for node in [node for node in roots if (node.report, node.kind) in heads]:
        report, head = heads[node.report, node.kind]
        same = (other for other in nodes if (other.report, other.kind) == (report, head.kind) and other.serious)
        able = next((other for other in same if other.cause is None), None)
        if able is None:
            place = place_of(head.site, places)
            able = Node(head.kind, head.site, head.value, head.severity, report, len(alerts), place, STEP, -1.0, -1.0)
            nodes.append(able)
            alerts.append(head)
        node.cause = able


# Causes of earlier windows.


def _add_earlier_causes(nodes: list[Node], alerts: list[Alert], books: Sequence[AlertBook], places: Mapping[str, float]) -> None:
    """Give root causes that are new the cause that they have in an earlier window, and add that to the nodes and the alerts."""
    roots = [node for node in nodes if node.cause is None and node.serious] if books else []
    new = [node for node in roots if not books[node.report].is_open(alerts[node.number])]
    names = {alert.name for alert in alerts}
    lasting = [(place, occurrence) for place, book in enumerate(books) for _, occurrence in book.lasting] if new else []
    for place, occurrence in sorted(lasting, key=lambda entry: _began(entry[1].passed_on)):
        if occurrence.passed_on.name in names:
            continue
        root, *_ = earlier = list(_nodes_of(occurrence, place, len(alerts), places))
        able = [node for node in new if node.cause is None and gravity(occurrence.severity) <= gravity(node.severity)]
        began = _began(occurrence.passed_on)
        for node in able:
            if began <= _began(books[node.report].first(alerts[node.number])) and _follows_one(node, earlier):
                node.cause = root
        if any(node.cause is root for node in able):
            nodes.append(root)
            alerts.append(occurrence.passed_on)


def _nodes_of(occurrence: Occurrence, report: int, number: int, places: Mapping[str, float]) -> Iterator[Node]:
    """A problem of an earlier window and its consequences, before all that is in this one."""
    for name in (occurrence.passed_on.name, *islice(occurrence.consequences, MOST_CONSEQUENCES)):
        kind, _, site = name.partition(" at ")
        value = occurrence.passed_on.value if name == occurrence.passed_on.name else math.nan
        yield Node(kind, site, value, occurrence.passed_on.severity, report, number, place_of(site, places), STEP, -1.0, -1.0)


def _follows_one(effect: Node, causes: Sequence[Node]) -> bool:
    known = links().get(effect.kind, {})
    return any(cause.kind in known and known[cause.kind](effect, cause) for cause in causes)


def _began(alert: Alert) -> int:
    return alert.step if alert.since_step is None else alert.since_step


def _earlier_step(node: Node, reports: Sequence[Report]) -> str:
    """Of what is not finite, the step at which that began, if it is before the site was sampled."""
    steps = (events for report in reports for events in getattr(report, "events", {}).values())
    first = min(map(batch_of, steps), default=math.inf)
    if node.kind != "nonfinite" or not first < node.batch < math.inf:
        return ""
    return (
        f" A step with such a gradient was taken at training batch {first:.0f}, before this site was sampled: the fault may have "
        "begun elsewhere. Set every_n_steps=1 to find out."
    )


# When each alert happens.


def _unaffected_parameters(window: Window) -> list[float]:
    """The places of the parameters without an alert, in order."""
    kinds = {name for name, kind in KINDS.items() if kind.spreads is in_a_row}
    affected = {alert.site for alert in window.alerts if alert.kind in kinds}
    known = (name for report in window.reports for name in getattr(report, "parameters", ()))
    return sorted(place_of(name, window.places) for name in known if name not in affected)


def _node(number: int, place: int, report: Report, alert: Alert, places: Mapping[str, float]) -> Node:
    own = math.inf if alert.batch is None else float(alert.batch)
    passing, batch, every = report.moment_of(alert)
    batch = own if batch is None else batch
    began = batch if alert.batch is None else own
    if passing != STEP:
        batch = min(batch, began)  # known from the judgement of each step, before the site was sampled
    site = place_of(alert.site, places)
    return Node(alert.kind, alert.site, alert.value, alert.severity, place, number, site, passing, batch, began, every)


# Causes and consequences.


def _rank(node: Node) -> tuple[float, tuple[float, int, float]]:
    return kind_of(node.kind).rank, node.moment


@cache
def links() -> Mapping[str, Mapping[str, Link]]:
    """Of each kind, the kinds that it can be a consequence of, each with the condition.

    No circle comes out of it: forward kinds follow from what is before them, backward kinds from what is after them or from a
    forward kind, and no forward kind from a backward one; where a kind can be the cause of another and a consequence of it, the two
    conditions exclude each other.
    """
    found: dict[str, dict[str, Link]] = {name: dict(kind.follows) for name, kind in KINDS.items()}
    for name, kind in KINDS.items():
        if kind.follows_any is not None:
            found[name] = {other: always for other, cause in KINDS.items() if kind.follows_any(cause)} | found[name]
    for name, kind in KINDS.items():
        for effect, link in kind.causes.items():
            found.setdefault(effect, {})[name] = link
    return found


def _heads(kind: str, alike: list[Node], unaffected: Sequence[float]) -> list[Node]:
    """Of the alerts of one kind, those that the others follow from; infos separately: no warning follows from one."""
    spread = kind_of(kind).spreads
    for group in ([node for node in alike if node.serious is serious] for serious in (True, False)):
        if spread is not None and group:
            spread(group, unaffected)
    return sorted((node for node in alike if node.cause is None), key=lambda node: not node.serious)
