"""What is kept of a training: a row of plain values, and the table of them, compressed; of drawn trainings and of all sets alike.

A row holds ``set``, ``name``, ``seed``, the truth (``operators``, ``groups``, ``causes``, ``sites``; none where it is healthy), the
``score``, ``alerts`` as they were passed on, and ``windows``: the findings, the evidence and the facts at the ends of the first
window, of the one a third of the way, and of the last. A drawn training also has its ``recipe``, ``healthy`` (whether it learns; of
a mutant, whether its twin does), and a mutant ``harmful`` (None where that is not known).
"""

from __future__ import annotations

import functools
import gzip
import json
import platform
import subprocess
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from importlib.metadata import version
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Callback

from lightning_hooks import Alert, monitors
from lightning_hooks.alerts import AlertBook
from lightning_hooks.declare.window import Window
from lightning_hooks.diagnostics.causes.facts import Facts
from lightning_hooks.diagnostics.causes.run_facts import measured
from lightning_hooks.judge.evidence import POSSIBLE
from lightning_hooks.session.member import Member
from tests.evidence.population.findings import findings, judged, known, plain

PLACES = ("first", "third", "last")
MOST_ALERTS = 60
"""Alerts of one training that are kept: more are named by their number."""


@dataclass(frozen=True)
class _Judgement:
    """What the rules of one member were given at the end of a window: the window's report, and that for rules that judge epochs."""

    member: Member
    report: Any
    whole: Any


@dataclass(frozen=True)
class _Snapshot:
    """What is known at the end of a window; it is only read once training is over."""

    batches: int
    judgements: tuple[_Judgement, ...]
    facts: Facts

    def row(self, places: Sequence[str]) -> dict[str, Any]:
        """As it is kept."""
        found = []
        for judgement in self.judgements:
            rules = judgement.member.alerting.rules.rules
            found += findings(judgement.report, [rule for rule in rules if getattr(rule, "judges", "window") == "window"])
            if judgement.whole is not None:
                found += findings(judgement.whole, [rule for rule in rules if getattr(rule, "judges", "window") == "epoch"])
        return {
            "places": [*places], "epoch": self.facts.flow.epoch, "batches": self.batches, "findings": plain(found),
            "causes": plain(judged(found, self.facts)), "known": plain(known(self.facts)),
        }  # fmt: skip


class Recorder(Callback):
    """Keeps what the monitors find, also below their limits. Comes last in the list of callbacks: :func:`recording` does it.

    It reads reports and parameters between windows, on the host, and changes neither.
    """

    def __init__(self) -> None:
        self.batches, self.epoch, self.first_epoch, self.alerts = 0, 0, 0, list[dict[str, Any]]()
        self._snapshots: list[_Snapshot] = []
        self._waiting: dict[int, _Judgement] = {}
        self._monitors: Sequence[Any] = ()

    def observe(self, observers: Sequence[Any]) -> None:
        """The monitors whose session it follows."""
        self._monitors = observers

    def note(self, alert: Alert) -> None:
        """For ``on_alert``."""
        entry = {
            "kind": alert.kind, "site": alert.site, "severity": alert.severity, "batches": self.batches, "epoch": self.epoch,
            "value": plain(alert.value), "limit": plain(alert.threshold),
            "causes": [[cause.name, cause.probability] for cause in alert.causes], "consequences": len(alert.consequences),
            "remedies": [remedy.text[:80] for remedy in alert.remedies[:1]], "probability": alert.probability,
            "evidence": list(alert.evidence),
        }  # fmt: skip
        self.alerts.append(entry)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.batches, self.epoch = self.batches + 1, trainer.current_epoch
        self.first_epoch += not self.epoch

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        members = [member for observer in self._monitors for member in observer.members if member.session is not None]
        if members:
            self.follow(members[0].session)

    def follow(self, session: Any) -> None:
        """Keep what the members of a session judge from now on."""
        for member in session.members:
            self._follow_member(member)
        judge = session.alerts.window_end

        def window_end(members: Sequence[Member]) -> None:
            try:
                judge(members)
            finally:
                self._keep(session, members)

        session.alerts.window_end = window_end

    def _follow_member(self, member: Member) -> None:
        alerting, judge = member.alerting, member.alerting.judge

        def kept(report: Any, whole: Any, early: Iterable[Alert] = ()) -> Any:
            given = None if whole is None else whole.after(alerting.history if whole is report else alerting.long_history)
            self._waiting[id(member)] = _Judgement(member, report.after(alerting.history), given)
            return judge(report, whole, early)

        alerting.judge = kept  # type: ignore[method-assign]

    def _keep(self, session: Any, members: Sequence[Member]) -> None:
        noted = {entry["kind"] for entry in self.alerts}
        for alert in (alert for member in members for alert in member.report.alerts if not alert.cause):
            if alert.kind not in noted and alert.probability is not None and alert.probability < POSSIBLE:  # not passed on
                noted.add(alert.kind)
                self.note(alert)
        window = Window(member.report for member in members)
        books: list[AlertBook] = [member.alerting.book for member in members]
        earlier = [alert for book in books for alert in book.open]
        facts = session.alerts._diagnosis._facts.at(window, (), session.evidence.results.bad_step, earlier)
        facts = replace(facts, now=measured(session.host.model.named_parameters()))
        judgements = tuple(self._waiting.pop(id(member)) for member in members)
        self._snapshots.append(_Snapshot(self.batches, judgements, facts))

    def windows(self) -> list[dict[str, Any]]:
        """The three windows that are kept; of a training with fewer, one is in several places."""
        if not self._snapshots:
            return []
        third = next((one for one in self._snapshots if one.batches >= self.batches / 3), self._snapshots[-1])
        chosen: dict[int, tuple[_Snapshot, list[str]]] = {}
        for place, one in zip(PLACES, (self._snapshots[0], third, self._snapshots[-1]), strict=True):
            chosen.setdefault(id(one), (one, []))[1].append(place)
        return [one.row(places) for one, places in chosen.values()]

    def row(self) -> dict[str, Any]:
        """What it has kept, once training is over."""
        rows = {"batches": self.batches, "alerts": self.alerts[:MOST_ALERTS], "windows": self.windows()}
        self._snapshots.clear()
        return {**rows, "epochs": self.epoch + 1, "first_epoch": self.first_epoch, "all_alerts": len(self.alerts)}


def recording(**watched: Any) -> tuple[Recorder, list[Callback]]:
    """A recorder, and the monitors (of these arguments) with it, as callbacks of one training."""
    recorder = Recorder()
    observers = monitors(**{"summary": False, **watched, "on_alert": recorder.note})
    recorder.observe(observers)
    return recorder, [*observers, recorder]


@functools.cache
def versions() -> dict[str, str]:
    """Of what decides numbers."""
    words = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(words, cwd=Path(__file__).parent, capture_output=True, text=True, check=False).stdout.strip()
    return {
        "commit": commit, "python": platform.python_version(), "torch": torch.__version__, "lightning": version("lightning"),
        "lightning_hooks": version("lightning_hooks"),
    }  # fmt: skip


def row_of(
    of_set: str, name: str, seed: int | None, kept: Mapping[str, Any], *,
    operators: Sequence[str] = (), groups: Sequence[str] = (), causes: Sequence[str] = (), sites: Sequence[str] | None = None,
    kinds: Sequence[str] = (), score: float | None = None, **more: Any,
) -> dict[str, Any]:  # fmt: skip
    """A row of the table: the training ``name``, ``seed`` of a set, what is planted in it, and what the recorder has kept.

    ``causes``, ``sites`` and ``kinds`` of alert are those that are right; ``more`` are other entries, such as ``recipe``.
    """
    truth = {"operators": list(operators), "groups": list(groups), "causes": list(causes), "kinds": list(kinds)}
    truth["sites"] = sites if sites is None else list(sites)  # type: ignore[assignment]
    row = {"set": of_set, "name": name, "seed": seed, **truth, "score": plain(score), **plain(more), **kept}
    return {**row, "versions": versions()}


def append(path: Path, row: Mapping[str, Any]) -> int:
    """Add a row to a table, and return how many bytes it takes: a member of a gzip file, which holds one line."""
    data = packed(row)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("ab") as file:
        file.write(data)
    return len(data)


def packed(row: Mapping[str, Any]) -> bytes:
    """A row as the table holds it, the same bytes for the same row."""
    return gzip.compress(json.dumps(row, separators=(",", ":"), allow_nan=False).encode() + b"\n", mtime=0)


def read(*paths: Path) -> Iterator[dict[str, Any]]:
    """The rows of tables, in order; what was broken off in the middle of a row is left out."""
    for path in paths:
        try:
            with gzip.open(path, "rt", encoding="utf-8") as lines:
                for line in lines:
                    yield json.loads(line)
        except EOFError:
            continue
