"""``health.json``: what is known of a run's health, for programs. ``docs/guides/health.schema.json`` describes every field.

What a user named (sites, selections) stands in fields of its own, of bounded length, and in no sentence: sentences have ``{0}``,
``{1}`` where a name was, and the names are in ``names``. The text of an exception, paths and values of samples are left out.
"""

from __future__ import annotations

import dataclasses
import json
import re
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from lightning_hooks.declare.alert import Alert, fingerprint_of
from lightning_hooks.declare.kinds import KINDS
from lightning_hooks.declare.plain import to_plain
from lightning_hooks.run_report.recorded import Source
from lightning_hooks.run_report.run import Run
from lightning_hooks.run_report.training import unusual_batches
from lightning_hooks.run_report.verdict import Problem, Verdict, judge
from lightning_hooks.trackers.console import shortened, visible

HEALTH = "health.json"
SCHEMA_VERSION = 2  # Of the document. Fields may be added within a version; none is removed or gets another meaning.
MOST_ALERTS = 100
MOST_SITES = 20  # other sites, and consequences, of one alert
SENTENCES = ("verdict", "message", "text")
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
        sentences = Sentences(names_in(reports) | {site for problem in verdict.problems for site in problem.sites})
        alerts = list(self._alerts(sentences))
        losses = to_plain(verdict.losses)
        document: dict[str, Any] = bounded(
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
                "unusual_batches": [
                    {"measure": "loss", "optimizer": None, **to_plain(one)} for one in unusual_batches(map(_fields, reports))
                ],
                "watched": [_watched(watched) for watched in self.watched],
                "not_found": self._not_found(),
                "alerts": alerts[:MOST_ALERTS],
                "alerts_left_out": len(alerts[MOST_ALERTS:]),
            }
        )
        return document

    def text(self) -> str:
        """The document as JSON in ASCII, with its newline."""
        return json.dumps(self.document(), allow_nan=False, indent=1) + "\n"

    def sites(self) -> list[str]:
        """The sites of the alerts in the document."""
        found = [problem.sites[0] for problem in self.verdict.problems]
        return list(dict.fromkeys([*found, *(alert.site for alert in self._consequences())]))[:MOST_ALERTS]

    def _not_found(self) -> list[str]:
        problems = self.verdict.problems
        found = {problem.kind for problem in problems}
        found |= {name.partition(" at ")[0] for problem in problems for name in problem.consequences}
        found |= {alert.kind for alert in self._consequences()}
        return list(dict.fromkeys(kind for watched in self.watched for kind in watched.kinds or () if kind not in found))

    def _consequences(self) -> list[Alert]:
        reports = (watched.report for watched in self.watched if watched.report is not None)
        return [alert for report in reports for alert in report.alerts if alert.cause]

    def _alerts(self, sentences: Sentences) -> Iterable[dict[str, Any]]:
        """Root causes first: those that last, those that ended, infos; then the consequences in the last window."""
        for problem in self.verdict.problems:
            yield self._alert(problem.first, sentences, problem)
        for alert in self._consequences():
            yield self._alert(alert, sentences, None)

    def _alert(self, alert: Alert, sentences: Sentences, problem: Problem | None) -> dict[str, Any]:
        kind = KINDS.get(alert.kind)
        quotes = kind is not None and kind.quotes_sample
        measured = not quotes and (kind is None or kind.measures != "nothing")
        source = self.sources.get(alert.site)
        others = problem.sites[1:] if problem is not None else ()
        follow = problem.consequences if problem is not None else ()
        record = self._record(alert)
        step = alert.step if alert.since_step is None else alert.since_step
        names: list[str] = []
        return {
            **{name: getattr(alert, name) for name in ("kind", "title", "site", "fingerprint", "probability")},
            "severity": alert.severity if problem is None else problem.severity,
            "evidence": list(alert.evidence),
            "open": problem is None or problem.lasts,
            "class": None if source is None else source.type,
            "defined_at": None if source is None else source.defined_at,
            "created_at": None if source is None else source.created_at,
            "first": {"epoch": alert.epoch, "step": step, "batch": alert.batch},
            "since": None if problem is None else problem.since,
            "until": None if problem is None else problem.until,
            "rows": _rows(record.get(alert.kind)),
            "samples": list(alert.samples),
            "value": to_plain(alert.value) if measured else None,
            "limit": to_plain(alert.threshold) if measured else None,
            "record": record,
            "message": None if quotes else sentences.without_names(alert.message, names),
            "causes": _causes(alert, sentences, names),
            "remedies": _remedies(alert, sentences, names),
            "names": names,
            "also": list(others[:MOST_SITES]),
            "also_left_out": len(others[MOST_SITES:]),
            "consequences": [_named(name) for name in follow[:MOST_SITES]],
            "consequences_left_out": len(follow[MOST_SITES:]),
        }

    def _record(self, alert: Alert) -> dict[str, Any]:
        """What the last reports hold of a site by the name of their field, and of the kind or the site under its own name."""
        found: dict[str, Any] = {}
        for watched in self.watched:
            for name, value in _fields(watched.report).items():
                named = value if name in (alert.kind, alert.site) else None
                of_site = value.get(alert.site, named) if isinstance(value, dict) else named
                if dataclasses.is_dataclass(of_site):
                    plain = to_plain(of_site)
                    found.setdefault(name, {key: plain[key] for key in plain if key not in ("id", "recent")})
        return found


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
    tables = {name: value for name, value in _fields(report).items() if isinstance(value, dict)}
    rows = {name: len(table) for name, table in tables.items() if any(map(dataclasses.is_dataclass, table.values()))}
    return {
        "monitor": watched.monitor,
        "modules": watched.modules,
        "kinds": None if watched.kinds is None else list(watched.kinds),
        "observed": rows,
        "silent": len(getattr(report, "silent", ())),
        "batches": getattr(report, "batches", None),
        "sampled_batches": getattr(report, "sampled_batches", None),
    }


def _fields(report: Any) -> dict[str, Any]:
    return {} if report is None else {entry.name: getattr(report, entry.name) for entry in dataclasses.fields(report)}


def _causes(alert: Alert, sentences: Sentences, names: list[str]) -> list[dict[str, Any]]:
    """The alert that this one follows from, then its causes with their evidence, else the likely ones in a sentence."""
    root = [{**_named(alert.cause), "text": None}] if alert.cause else []
    none: dict[str, Any] = {"kind": None, "site": None, "fingerprint": None}
    judged = [
        {
            **none,
            "text": sentences.without_names(cause.statement, names),
            "name": cause.name,
            "probability": cause.probability,
            "for": [sentences.without_names(text, names) for text in cause.evidence_for],
            "against": [sentences.without_names(text, names) for text in cause.evidence_against],
        }
        for cause in alert.causes
    ]
    if not alert.diagnosis or (alert.causes and alert.diagnosis.startswith(alert.causes[0].statement)):
        return [*root, *judged]
    return [*root, *judged, {**none, "text": sentences.without_names(alert.diagnosis, names)}]


def _remedies(alert: Alert, sentences: Sentences, names: list[str]) -> list[dict[str, Any]]:
    """What to do as operations, then advice in words only."""
    operations = [
        {
            **to_plain(remedy),
            "text": sentences.without_names(remedy.text, names),
            "target": remedy.target if sentences.are_name(remedy.target) else sentences.without_names(remedy.target, names),
            **{key: sentences.without_names(getattr(remedy, key), names) for key in ("precondition", "effect", "code")},
        }
        for remedy in alert.remedies
    ]
    known = {remedy.text for remedy in alert.remedies}
    return operations + [{"text": sentences.without_names(step, names)} for step in alert.advice if step not in known]


def _named(name: str) -> dict[str, str]:
    """``kind at site`` in its parts."""
    kind, _, site = name.partition(" at ")
    return {"kind": kind, "site": site, "fingerprint": fingerprint_of(kind, site)}


def _rows(record: Any) -> list[int]:
    """The rows of the batch that a kind's record names: the first index of where something was found in it."""
    index = record.get("index") if isinstance(record, dict) and record.get("place") else None
    return list(index[:1]) if isinstance(index, list) else []


def bounded(value: Any) -> Any:
    """Plain data with numbers in five significant digits, and with names, lists and mappings of bounded length."""
    if isinstance(value, str):
        return shortened(value, LONGEST_NAME)
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, dict):
        entries = list(value.items())[:MOST_ALERTS]
        return {bounded(key): in_a_line(inner) if key in SENTENCES and inner else bounded(inner) for key, inner in entries}
    if isinstance(value, (list, tuple)):
        return [bounded(inner) for inner in value[:MOST_ALERTS]]
    return value


LONGEST_NAME = 200
LONGEST_SENTENCE = 600
_WORD = re.compile(r"[\w./:-]*\w")
_OURS = {"loss", "validation loss", "training", "validation"}  # sites that no user named


def names_in(reports: Iterable[Any]) -> set[str]:
    """What reports name: sites, modules, parameters, optimizers, parts of a batch."""
    found: set[str] = set()
    for report in reports:
        for entry in dataclasses.fields(report):
            value = getattr(report, entry.name)
            parts = [value] if isinstance(value, str) else value if isinstance(value, dict | tuple) else ()
            found.update(part for part in parts if isinstance(part, str) and part)
        found.update(site for alert in report.alerts for site in (alert.site, *alert.also))
    return found


def in_a_line(text: str) -> str:
    """A text in one line of bounded length, of characters that are seen."""
    text = visible(" ".join(text.split()))
    return text if len(text) <= LONGEST_SENTENCE else f"{text[:LONGEST_SENTENCE]} …"


class Sentences:
    """Takes names out of sentences."""

    def __init__(self, names: Set[str]) -> None:
        self._names = {name for name in names if not name.isdecimal() and name} - _OURS
        self._odd = sorted((name for name in self._names if not _WORD.fullmatch(name)), key=len, reverse=True)

    def are_name(self, text: str) -> bool:
        """Whether a text is one name and nothing else."""
        return text in self._names or " " not in text

    def without_names(self, text: str, names: list[str]) -> str:
        """The text with ``{0}``, ``{1}``, … where a name was, in printable characters and of bounded length.

        ``names`` gets the names, behind those of earlier texts.
        """
        text = text.replace("{", "(").replace("}", ")")

        def numbered(name: str) -> str:
            if name not in names:
                names.append(name)
            return f"{{{names.index(name)}}}"

        for name in self._odd:
            if (written := name.replace("{", "(").replace("}", ")")) in text:
                text = text.replace(written, numbered(name))

        def without(found: re.Match[str]) -> str:
            word = found[0]
            if word in self._names:
                return numbered(word)
            own = word.removeprefix("self.")  # as code of the model has it
            return f"self.{numbered(own)}" if own != word and own in self._names else word

        return in_a_line(_WORD.sub(without, text))
