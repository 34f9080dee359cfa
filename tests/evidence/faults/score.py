"""From one training to a verdict, from many verdicts to the table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any

import numpy as np

from lightning_hooks import Alert
from tests.evidence.faults.peers import PEERS
from tests.evidence.faults.recorder import Recording
from tests.evidence.faults.training import History, TimedAlert
from tests.evidence.faults.zoo import Expected

WITHIN = 50
"""Batches within which a fault is to be found, where an epoch is shorter."""

SERIOUS = ("warning", "critical")


def planted_at(expected: Expected, history: History) -> int:
    """The batch at which the fault acts, counted from 0."""
    if expected.batch is not None:
        return expected.batch
    return next((batch for batch, loss in enumerate(history.losses) if not math.isfinite(loss)), 0)


def deadline(planted: int, history: History) -> int:
    """The number of batches before which a fault must be found: an epoch of them, or 50."""
    return planted + max(WITHIN, history.epochs.count(0))


def judge(alerts: Sequence[TimedAlert], expected: Expected, history: History) -> dict[str, Any]:
    """What the monitors made of a training with a fault planted.

    Returns:
        ``found``: a right kind in time, as a warning or a critical. ``site``: whether the first of them that names a layer
        names one at fault; None where no layer is. ``first``: whether the first serious alert of all was of a right kind (and,
        where a layer is at fault, at one). ``batches``: from the fault to its alert; ``epochs`` likewise, 1 for the end
        of its own epoch. ``early``: serious alerts before the fault was there. ``info``: not found, but an info says it.
    """
    planted = planted_at(expected, history)
    loud = [t for t in alerts if t.alert.severity in SERIOUS]
    early = [t for t in loud if t.batches <= planted]
    rest = [t for t in loud if t.batches > planted]
    right = [t for t in rest if sites_of(t.alert, expected) and t.batches <= deadline(planted, history)]
    named = (
        [s for s in sites_of(t.alert, expected) if s.partition("/")[0] in history.places] for t in right
    )  # a call is of its module
    site = None if expected.sites is None else any(map(expected.right_site, next(filter(None, named), ())))
    first = bool(right) and rest[0] is right[0] and (expected.sites is None or bool(site))
    hints = [t for t in alerts if t.alert.severity == "info" and t.alert.kind in expected.kinds and t.batches > planted]
    return {
        "found": bool(right),
        "site": site,
        "first": first,
        "batches": right[0].batches - planted if right else None,
        "epochs": right[0].epoch - history.epochs[min(planted, len(history.epochs) - 1)] + 1 if right else None,
        "early": serious(early),
        "alerts": serious(loud),
        "info": not right and bool(hints),
    }


def sites_of(alert: Alert, expected: Expected) -> list[str]:
    """The sites at which an alert, or what it stands for, is of a right kind."""
    names = ((alert.kind, alert.site), *((kind, site) for kind, _, site in (one.partition(" at ") for one in alert.consequences)))
    return [site for kind, site in names if kind in expected.kinds]


def serious(alerts: Sequence[TimedAlert]) -> list[list[Any]]:
    """The warnings and criticals: kind, site, severity, and after how many batches."""
    return [[t.alert.kind, t.alert.site, t.alert.severity, t.batches] for t in alerts if t.alert.severity in SERIOUS]


def judge_peers(healthy: bool, expected: Expected, history: History, recording: Recording) -> dict[str, Any]:
    """Of every peer's rules: the largest score of all, the largest in time, and where and when each first fired in time.

    In a healthy training all time counts.
    """
    planted = 0 if healthy else planted_at(expected, history)
    end = len(recording.losses) if healthy else deadline(planted, history)
    result: dict[str, Any] = {}
    for peer, rules in PEERS.items():
        of_peer = result[peer] = {}
        for trace in rules(recording):
            window = trace.scores[planted:end]
            fired = np.argwhere(window > 1)
            site = trace.sites[fired[0][1]] if len(fired) else None
            of_peer[trace.rule] = {
                "kinds": trace.kinds,
                "ever": _plain(trace.scores.max(initial=0.0)),
                "in_time": _plain(window.max(initial=0.0)),
                "batch": int(fired[0][0]) if len(fired) else None,
                "site": site,
                "site_right": bool(site) and expected.right_site(site) if expected.sites is not None else None,
            }
    return result


def _plain(value: Any) -> float:
    """JSON has no infinity."""
    return min(float(value), 1e300) if not math.isnan(value) else 0.0


def peer_summary(faults: Sequence[dict[str, Any]], healthy: Sequence[dict[str, Any]], peer: str) -> dict[str, Any]:
    """What a peer's rules find, with their published thresholds, and tightened until every healthy training is silent.

    Tightening takes each rule's threshold to the largest score that it has in any healthy training; that knows the healthy
    trainings of the report, which no user does, and so flatters the peer.
    """
    alarms = sum(any(rule["ever"] > 1 for rule in run["peers"][peer].values()) for run in healthy)
    limits: dict[str, float] = {}
    for run in healthy:
        for name, rule in run["peers"][peer].items():
            limits[name] = max(limits.get(name, 1.0), rule["ever"])

    published = [peer_found(run, peer) for run in faults]
    tightened = [peer_found(run, peer, limits) for run in faults]
    placed = [rules for rules, run in zip(published, faults, strict=True) if run["site"] is not None]
    sites = [bool(rules) and bool(min(rules, key=_when)["site_right"]) for rules in placed]
    return {
        "recall": _share([bool(rules) for rules in published]),
        "site": _share(sites),
        "false_alarms": alarms,
        "healthy": len(healthy),
        "recall_without_false_alarms": _share([bool(rules) for rules in tightened]),
    }


def peer_found(run: dict[str, Any], peer: str, limits: Mapping[str, float] = MappingProxyType({})) -> list[dict[str, Any]]:
    """The rules of a peer that say in time what is wrong, with their published thresholds or ``limits`` times those."""
    kinds, rules = set(run["kinds"]), run["peers"][peer].items()
    return [rule for name, rule in rules if kinds & set(rule["kinds"]) and rule["in_time"] > limits.get(name, 1.0)]


def _when(rule: dict[str, Any]) -> float:
    return math.inf if rule["batch"] is None else float(rule["batch"])


def summary(faults: Sequence[dict[str, Any]], healthy: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Recall, site accuracy, false alarms of the monitors and of the peers, over some of the runs."""
    placed = [run for run in faults if run["site"] is not None]
    return {
        "faults": len(faults),
        "recall": _share([run["found"] for run in faults]),
        "placed": len(placed),
        "site": _share([bool(run["site"]) for run in placed]),
        "site_of_found": _share([bool(run["site"]) for run in placed if run["found"]]),
        "first": _share([run["first"] for run in faults]),
        "healthy": len(healthy),
        "false_alarms": sum(bool(run["alerts"]) for run in healthy),
        "early": sum(bool(run["early"]) for run in faults),
        "peers": {peer: peer_summary(faults, healthy, peer) for peer in PEERS},
    }


def _share(values: Sequence[bool]) -> float:
    return sum(values) / len(values) if values else math.nan
