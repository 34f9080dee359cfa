"""``health.json``: what is known of a run's health, for programs. ``docs/guides/health.schema.json`` describes every field.

Texts are of bounded length. The text of an exception, paths and values of samples are left out.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any

from lightning_hooks.declare.alert import Alert, fingerprint_of
from lightning_hooks.declare.kinds import KINDS
from lightning_hooks.declare.plain import to_plain
from lightning_hooks.run_report.recorded import Run, Source
from lightning_hooks.run_report.verdict import Problem, Verdict, judge
from lightning_hooks.trackers.console import shortened, visible

HEALTH = "health.json"
SCHEMA_VERSION = 2  # Of the document. Fields may be added within a version; none is removed or gets another meaning.
MOST_ALERTS = 100
MOST_SITES = 20  # other sites, and consequences, of one alert
SENTENCES = ("verdict", "message", "text", "for", "against", "precondition", "effect", "code")
ENDINGS = ("finished", "exception", "interrupted", "stopped")


@dataclass(frozen=True, slots=True)
class MonitorScope:
    """What one monitor watches."""

    monitor: str  # its prefix, such as features
    modules: str  # the modules that it observes, in words
    report: Any = None  # its last report; None before the first
    kinds: tuple[str, ...] | None = None  # that its rules look for; None where that is not known, as in files of earlier versions


@dataclass(frozen=True, slots=True)
class Health:
    """A run's health, from which the document is made."""

    run: str  # what the run is called
    fit: Mapping[str, Any]  # the fit event: the version of lightning_hooks, and when training started
    verdict: Verdict
    watched: Sequence[MonitorScope]
    end: Mapping[str, Any] | None = None  # the end event; None while training goes on
    sources: Mapping[str, Source] = field(default_factory=dict)  # site to where its module comes from

    def document(self) -> dict[str, Any]:
        """The document in plain JSON types."""
        import lightning_hooks.alerts  # noqa: F401  it declares the kinds, and needs torch, which reading a run's file does not

        verdict, end = self.verdict, self.end or {}
        reports = [watched.report for watched in self.watched if watched.report is not None]
        # Root causes first: those that last, those that ended, infos; then the consequences in the last window.
        problems = (self._alert(problem.first, problem) for problem in verdict.problems)
        alerts = [*problems, *(self._alert(alert, None) for alert in self._consequences())]
        losses = to_plain(verdict.losses)
        return dict(
            bounded(
                {
                    "schema_version": SCHEMA_VERSION,
                    "package": str(self.fit.get("package", "unknown")),
                    "run": self.run,
                    "started": self.fit.get("started"),
                    "status": verdict.status,
                    "verdict": verdict.plain,
                    "training": ending_of(self.end),
                    "error": end.get("error_type") if end.get("how") == "exception" else None,
                    "stopped_by": _named(str(end["stopped_by"])) if end.get("stopped_by") else None,
                    "epoch": max((report.epoch for report in reports), default=None),
                    "step": max((report.step for report in reports), default=None),
                    "unit": "epoch" if all(report.unit == "epoch" for report in reports) else "step",
                    "windows": verdict.windows,
                    "loss": {"first": losses[0], "last": losses[-1]} if losses else None,
                    "watched": [_watched(watched) for watched in self.watched],
                    "alerts": alerts[:MOST_ALERTS],
                    "alerts_left_out": len(alerts[MOST_ALERTS:]),
                }
            )
        )

    def text(self) -> str:
        """The document as JSON in ASCII, with its newline."""
        return json.dumps(self.document(), allow_nan=False, indent=1) + "\n"

    def sites(self) -> list[str]:
        """The sites of the alerts in the document."""
        found = [problem.sites[0] for problem in self.verdict.problems]
        return list(dict.fromkeys([*found, *(alert.site for alert in self._consequences())]))[:MOST_ALERTS]

    def _consequences(self) -> list[Alert]:
        reported = (watched.report.alerts for watched in self.watched if watched.report is not None)
        return [alert for alerts in reported for alert in alerts if alert.cause]

    def _alert(self, alert: Alert, problem: Problem | None) -> dict[str, Any]:
        kind = KINDS.get(alert.kind)
        quotes = kind is not None and kind.quotes_sample
        measured = not quotes and (kind is None or kind.measures != "nothing")
        source = self.sources.get(alert.site)
        others, follow = ((), ()) if problem is None else (problem.sites[1:], problem.consequences)
        in_words = [{"text": step} for step in alert.advice if step not in {remedy.text for remedy in alert.remedies}]
        return {
            **{name: getattr(alert, name) for name in ("kind", "title", "site", "fingerprint", "probability")},
            "severity": alert.severity if problem is None else problem.severity,
            "evidence": list(alert.evidence),
            "open": problem is None or problem.lasts,
            "class": None if source is None else source.type,
            "defined_at": None if source is None else source.defined_at,
            "created_at": None if source is None else source.created_at,
            "first": {"epoch": alert.epoch, "step": alert.began, "batch": alert.batch},
            "since": None if problem is None else problem.since,
            "until": None if problem is None else problem.until,
            "samples": list(alert.samples),
            "value": to_plain(alert.value) if measured else None,
            "limit": to_plain(alert.threshold) if measured else None,
            "message": None if quotes else alert.message,
            "causes": _causes(alert),
            "remedies": [{**to_plain(remedy), "text": remedy.text} for remedy in alert.remedies] + in_words,
            "also": list(others[:MOST_SITES]),
            "also_left_out": len(others[MOST_SITES:]),
            "consequences": [_named(name) for name in follow[:MOST_SITES]],
            "consequences_left_out": len(follow[MOST_SITES:]),
        }


def ending_of(end: Mapping[str, Any] | None) -> str:
    """How training ended, from the ``end`` event of its file; ``running`` without one."""
    how = (end or {}).get("how")
    return how if how in ENDINGS else "running"


def health_of(run: Run) -> Health:
    """The health of a run that was read from its file."""
    kinds = {(entry["monitor"], entry["modules"]): tuple(entry["kinds"]) for entry in run.fit.get("watched", ())}
    watched = [
        MonitorScope(record.prefix, record.modules, record.last, kinds.get((record.prefix, record.modules)))
        for record in run.monitors
    ]
    return Health(run.name, run.fit, judge(run), watched, run.end, run.sources)


def _watched(watched: MonitorScope) -> dict[str, Any]:
    report = watched.report
    names = () if report is None else [entry.name for entry in fields(report)]
    tables = {name: value for name in names if isinstance(value := getattr(report, name), dict)}
    return {
        "monitor": watched.monitor,
        "modules": watched.modules,
        "kinds": None if watched.kinds is None else list(watched.kinds),
        "observed": {name: len(table) for name, table in tables.items() if any(map(is_dataclass, table.values()))},
        "silent": len(getattr(report, "silent", ())),
        "batches": getattr(report, "batches", None),
        "sampled_batches": getattr(report, "sampled_batches", None),
    }


def _causes(alert: Alert) -> list[dict[str, Any]]:
    """The alert that this one follows from, then its causes with their evidence, else the likely ones in a sentence."""
    root = [{**_named(alert.cause), "text": None}] if alert.cause else []
    none: dict[str, Any] = {"kind": None, "site": None, "fingerprint": None}
    judged = [
        {
            **none,
            "text": cause.statement,
            "name": cause.name,
            "probability": cause.probability,
            "for": cause.evidence_for,
            "against": cause.evidence_against,
        }
        for cause in alert.causes
    ]
    stated = not alert.diagnosis or (bool(alert.causes) and alert.diagnosis.startswith(alert.causes[0].statement))
    return [*root, *judged, *[{**none, "text": alert.diagnosis}] * (not stated)]


def _named(name: str) -> dict[str, str]:
    kind, _, site = name.partition(" at ")
    return {"kind": kind, "site": site, "fingerprint": fingerprint_of(kind, site)}


LONGEST_NAME, LONGEST_SENTENCE = 200, 600


def bounded(value: Any, sentence: bool = False) -> Any:
    """Plain data with numbers in five significant digits, lists and texts of bounded length, and a ``sentence`` in one line."""
    if isinstance(value, str):
        return shortened(visible(" ".join(value.split())), LONGEST_SENTENCE) if sentence else shortened(value, LONGEST_NAME)
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        return {bounded(key): bounded(inner, key in SENTENCES) for key, inner in list(value.items())[:MOST_ALERTS]}
    return [bounded(inner, sentence) for inner in value[:MOST_ALERTS]] if isinstance(value, list | tuple) else value
