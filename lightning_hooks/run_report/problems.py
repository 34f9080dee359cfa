"""The problems of a run: alerts of one kind, as they are shown."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.book import AlertBook, Occurrence
from lightning_hooks.declare.kinds import inside_a_sentence, known_kind
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


def problems_of(book: AlertBook, last: int) -> list[Problem]:
    """The problems in a book, each kind once, in the order in which they began.

    Args:
        book: The book.
        last: The place of the run's last window: what lasts is in it.
    """
    found = ([stretch for stretch in known if stretch.since >= 0] for known in book.problems.values())
    return [_problem(known, known[-1].until == book.last == last, book.unit) for known in found if known]


def _problem(stretches: Sequence[Occurrence], lasts: bool, unit: str) -> Problem:
    *earlier, stretch = stretches
    first = stretch.first
    return Problem(
        first.kind,
        first.title,
        stretch.severity,
        tuple(dict.fromkeys((first.site, *stretch.sites))),
        stretch.since,
        stretch.until,
        lasts,
        capital(first.seen),
        first.advice,
        tuple(stretch.consequences),
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
