"""The problems that one monitor found, from window to window, in as much memory as there are problems."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import REARM, gravity, inside_a_sentence, known_kind
from lightning_hooks.declare.plain import from_plain, to_plain
from lightning_hooks.declare.records import record_of
from lightning_hooks.declare.site_names import readable
from lightning_hooks.plots.names import shortened


@dataclass(frozen=True, slots=True)
class Problem:
    """Alerts of one kind, shown as one problem.

    Attributes:
        kind: Of the alerts.
        title: The kind in a few plain words.
        severity: The highest among them.
        sites: Where, the root causes first.
        since: The first epoch.
        until: The last.
        lasts: Whether the run ended with it.
        seen: What was seen at the first site, and its likely cause.
        advice: What to try, as short imperatives; may be empty.
        consequences: Its consequences, as ``kind at site``.
        first: The alert as it was passed on first: its batch, step and value are those of the problem.
        again: The first and the last epoch of each earlier stretch.
        unit: What ``since`` and ``until`` are: ``epoch``, or ``step`` where windows are shorter than epochs.
    """

    kind: str
    title: str
    severity: str
    sites: tuple[str, ...]
    since: int
    until: int
    lasts: bool
    seen: str
    advice: tuple[str, ...]
    consequences: tuple[str, ...] = ()
    first: Alert | None = None
    again: tuple[tuple[int, int], ...] = ()
    unit: str = "epoch"

    @property
    def rules(self) -> str:
        """The command that explains this kind and its limits; empty for a kind of the user's own."""
        return f"lightning-hooks explain {self.kind}" if known_kind(self.kind) else ""

    @property
    def record(self) -> str:
        """How often alerts of this kind were right in the trainings of the evidence, in a sentence; empty for one of the user's."""
        record = record_of(self.kind)
        return "" if record is None else f"Its record: {record.text}."

    @property
    def what(self) -> str:
        """The kind in plain words, as in the middle of a sentence."""
        return inside_a_sentence(self.title)

    @property
    def where(self) -> str:
        """The first site, and how many more."""
        return shortened(readable(self.sites[0]), 60) + (f" and {len(self.sites) - 1} more" if len(self.sites) > 1 else "")

    @property
    def when(self) -> str:
        """Since when, or from when to when."""
        batch = "" if self.first is None or self.first.batch is None else f", batch {self.first.batch}"
        also = f" (also in {_spans(self.again, self.unit)})" if self.again else ""
        if self.lasts:
            return f"since {self.unit} {self.since}{batch}{also}"
        return f"in {_spans([(self.since, self.until)], self.unit)}{also}"


@dataclass(slots=True)
class _Spell:
    """A stretch of windows with one problem: root causes of one kind, at whatever sites."""

    first: Alert
    since: int
    number: int  # of the last report with it
    until: int = 0
    severity: str = "info"
    sites: dict[str, None] = field(default_factory=dict)
    consequences: dict[str, None] = field(default_factory=dict)

    @classmethod
    def of(cls, plain: Mapping[str, Any]) -> _Spell:
        """One in plain types."""
        names = {table: dict.fromkeys(plain[table]) for table in ("sites", "consequences")}
        return cls(**{**plain, **names, "first": from_plain(Alert, plain["first"])})

    def add(self, at: int, roots: Sequence[Alert], following: Iterable[str]) -> None:
        self.until = at
        self.severity = min((self.severity, *(root.severity for root in roots)), key=gravity)
        self.sites.update(dict.fromkeys(site for root in roots for site in (root.site, *root.also)))
        self.consequences.update(dict.fromkeys(name for root in roots for name in root.consequences))
        self.consequences.update(dict.fromkeys(following))  # the run's file does not add those of later windows to the root


MOST_STRETCHES = 50
"""How many stretches of windows with one kind are kept."""


class ProblemHistory:
    """What one monitor found over the windows of a run so far.

    Args:
        unit: What numbers the windows: ``epoch``, or ``step`` where they are shorter.

    Attributes:
        windows: How many there were.
        last: The number of the last one; -1 before the first.
        losses: The mean loss of the first window and of the last one that have a finite one; empty before.
    """

    def __init__(self, unit: str = "epoch") -> None:
        self.unit = unit
        self.windows, self.last = 0, -1
        self.losses: tuple[float, ...] = ()
        self._spells: dict[tuple[str, bool], list[_Spell]] = {}

    def add(self, at: int, alerts: Sequence[Alert], loss: float = math.nan) -> None:
        """Enter a window; the last one again where it was not complete.

        Args:
            at: The epoch or the step that it is numbered by.
            alerts: Its alerts, causes first.
            loss: The mean loss of its batches; NaN where that is not known.
        """
        self.windows += at != self.last
        self.last = at
        if math.isfinite(loss):
            rounded = float(f"{loss:.5g}")  # as in the run's file, so that the report has the same verdict
            self.losses = (*self.losses[: self.windows > 1], rounded)
        kinds = {alert.kind for alert in alerts}
        roots: dict[tuple[str, bool], list[Alert]] = {}
        for alert in alerts:
            if not alert.cause:
                roots.setdefault((alert.kind, alert.severity == "info"), []).append(alert)
        for key, group in roots.items():
            known = self._spells.setdefault(key, [])
            if not known or self.windows - known[-1].number > REARM:
                known.append(_Spell(min(group, key=lambda root: gravity(root.severity)), at, self.windows))
            names = {root.name for root in group}
            known[-1].add(at, group, (alert.name for alert in alerts if alert.cause in names))
            del known[:-MOST_STRETCHES]
        for (kind, _), known in self._spells.items():
            if kind in kinds and self.windows - known[-1].number <= REARM:
                known[-1].number = self.windows

    def all(self, last: int) -> list[Problem]:
        """The problems, each kind once, in the order in which they began.

        Args:
            last: The number of the run's last window: what lasts is in it.
        """
        return [_problem(known, known[-1].until == self.last == last, self.unit) for known in self._spells.values()]

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs, in plain types."""
        return {
            "windows": self.windows,
            "last": self.last,
            "losses": list(self.losses),
            "spells": [[*key, [to_plain(spell) for spell in known]] for key, known in self._spells.items()],
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from an earlier run."""
        self.windows, self.last = int(state["windows"]), int(state["last"])
        self.losses = tuple(map(float, state["losses"]))
        self._spells = {(kind, bool(info)): [_Spell.of(plain) for plain in known] for kind, info, known in state["spells"]}


def _problem(spells: Sequence[_Spell], lasts: bool, unit: str) -> Problem:
    *earlier, spell = spells
    first = spell.first
    return Problem(
        first.kind,
        first.title,
        spell.severity,
        tuple(dict.fromkeys((first.site, *spell.sites))),
        spell.since,
        spell.until,
        lasts,
        capital(first.seen),
        first.advice,
        tuple(spell.consequences),
        first,
        tuple((other.since, other.until) for other in earlier),
        unit,
    )


def _spans(stretches: Iterable[tuple[int, int]], unit: str) -> str:
    """``epoch 3``, ``epochs 3 to 5 and 9``."""
    parts = [f"{since}" if since == until else f"{since} to {until}" for since, until in stretches]
    several = len(parts) > 1 or "to" in parts[0]
    return f"{unit}{'s' * several} {', '.join(parts[:-1])}{' and ' * (len(parts) > 1)}{parts[-1]}"


def capital(text: str) -> str:
    """A text that begins a sentence."""
    return text[:1].upper() + text[1:]
