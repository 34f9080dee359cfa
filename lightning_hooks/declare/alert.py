"""The alert: which site has which problem, since when, its consequences, and what to try; and who is called with each."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2s
from typing import Any

from lightning_hooks.declare.cause import Cause, Remedy
from lightning_hooks.declare.kinds import Severity, capital, inside_a_sentence, kind_of, known_kind
from lightning_hooks.declare.plain import lines_html, to_plain
from lightning_hooks.trackers.console import readable, some

MOST_SAMPLES = 8  # how many samples the text of an alert names
WIDTH = 160  # characters of a line in the terminal


@dataclass(frozen=True, slots=True)
class Alert:
    """One problem that a rule found.

    Attributes:
        kind: What is wrong, one of ``ALERT_KINDS`` or a kind of the user's own rule.
        site: Where: the name of a module, a parameter or an optimizer.
        value: What was measured.
        threshold: The limit of the rule.
        epoch: The epoch whose report showed it.
        step: The global step at the end of that epoch.
        severity: ``info`` (worth knowing), ``warning`` (training is probably harmed) or ``critical`` (numbers are lost, or nothing
            learns any more).
        message: What was measured, in one sentence with its numbers.
        since_step: The global step at which it was first seen, and has been since: exact where every step is seen, else the
            end of the epoch that showed it first. None in what a rule returns; set when the alert is accepted.
        cause: The root cause of this one, as ``kind at site``; empty for a root cause.
        consequences: Of a root cause: its consequences, as ``kind at site``.
        batch: The training batch of the epoch (``batch_idx``) at which it was first seen; None where that is not known.
        title: The kind in a few plain words; empty for that of :data:`~lightning_hooks.declare.kinds.KINDS`.
        diagnosis: The cause, in one or two sentences; empty where none is known.
        advice: What to try, as short imperatives, the most likely remedy first.
        also: Of a root cause: the other sites with the same problem that do not follow from it.
        samples: Of an alert about a single step: the samples that cause it, or those of its batch: indices of the data set; words
            for several loaders (``b: 17``) and for streams (``worker 1, position 640``). Empty where they are not known.
        causes: What may have caused it, by what is known of the training, the most likely first, at most three.
        remedies: What to do, as operations, those of the most likely cause first.
        probability: How probable it is that the training is harmed, from 0 to 1, as measured on trainings whose truth is known;
            None for an info of a rule, and where the user has set the severity, or written the rule.
        evidence: What speaks for and against that, by name.
    """

    kind: str
    site: str
    value: float
    threshold: float
    epoch: int
    step: int
    severity: Severity
    message: str = ""
    since_step: int | None = None
    cause: str = ""
    consequences: tuple[str, ...] = ()
    batch: int | None = None
    title: str = ""
    diagnosis: str = ""
    advice: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    samples: tuple[int | str, ...] = dataclasses.field(default=(), kw_only=True)
    causes: tuple[Cause, ...] = dataclasses.field(default=(), kw_only=True)
    remedies: tuple[Remedy, ...] = dataclasses.field(default=(), kw_only=True)
    probability: float | None = dataclasses.field(default=None, kw_only=True)
    evidence: tuple[str, ...] = dataclasses.field(default=(), kw_only=True)

    def __post_init__(self) -> None:
        set_field = object.__setattr__  # frozen for everybody else
        if not self.title:
            set_field(self, "title", kind_of(self.kind).title)
        if not self.message:
            set_field(self, "message", self.diagnosis)
            set_field(self, "diagnosis", "")

    @property
    def name(self) -> str:
        """``kind at site``."""
        return f"{self.kind} at {self.site}"

    @property
    def fingerprint(self) -> str:
        """What stands for the kind and the site: 16 hexadecimal digits, the same in every run, on every rank and machine."""
        return fingerprint_of(self.kind, self.site)

    @property
    def where(self) -> str:
        """The site, and how many more have the same problem."""
        return readable(self.site) + (f" and {len(self.also)} more site{'s' * (len(self.also) > 1)}" if self.also else "")

    @property
    def headline(self) -> str:
        """The cause; what was measured where none is known."""
        return self.diagnosis or self.message

    @property
    def measured(self) -> str:
        """What was measured; empty where the headline says it."""
        return "" if self.message in self.headline else self.message

    @property
    def seen(self) -> str:
        """The cause, what was measured, and the samples."""
        return " ".join(filter(None, (self.headline, capital(self.measured), self.of_samples)))

    @property
    def of_samples(self) -> str:
        """The samples in a sentence; empty for none."""
        shown = some([*map(str, self.samples)], MOST_SAMPLES)
        return f"Sample{'s' * (len(self.samples) > 1)} {shown}." if self.samples else ""

    @property
    def text(self) -> str:
        """The cause, what was measured, and what to try, in one line, whoever wrote them."""
        return " ".join(" ".join([self.seen, *(f"{step}." for step in self.advice)]).split())

    @property
    def began(self) -> int:
        """The global step since which the problem exists, as far as it is known."""
        return self.step if self.since_step is None else self.since_step

    @property
    def when(self) -> str:
        """The epoch and the step, and since when the problem exists if it is known more exactly."""
        since = [f"step {self.since_step}"] if self.since_step not in (None, self.step) else []
        since += [] if self.batch is None else [f"batch {self.batch}"]
        return f"epoch {self.epoch}, step {self.step}" + (f", since {', '.join(since)}" if since else "")

    @property
    def follows(self) -> str:
        """The consequences in a sentence; empty for none."""
        return f"Consequences: {_grouped(self.consequences)}." if self.consequences else ""

    def __str__(self) -> str:
        """At most three lines: the cause, or what was measured; what else was seen; and what to try first.

        The first two have at most 160 characters, unless a single sentence has more: sentences that do not fit move on to the
        second line, and from there they are left out.
        """
        sure = "" if self.probability is None else f", {self.probability:.0%} likely"
        head, rest = _fitting(f"[{self.severity}] {self.kind} at {self.where} ({self.when}{sure}):", _sentences(self.headline))
        seen = [*rest, *_sentences(self.measured)]
        shown, _ = _fitting("seen:" if seen else "", [*seen, *_sentences(f"{self.of_samples} {self.follows}")])
        lines = [head, *([shown] if shown else [])]
        if self.advice:
            first, *more = self.advice
            where = f" ({len(more)} more in the report)" if more else ""
            lines.append(f"try: {inside_a_sentence(first.removeprefix('Try ').rstrip('.'))}{where}.")
        return "\n  ".join(" ".join(line.split()) for line in lines)  # a line each, whoever wrote the texts

    def __repr__(self) -> str:
        """The arguments that make an equal alert, without those that are as by default."""
        defaults = {field.name: field.default for field in dataclasses.fields(self)} | {"title": kind_of(self.kind).title}
        given = {name: getattr(self, name) for name in defaults}
        return f"Alert({', '.join(f'{name}={value!r}' for name, value in given.items() if value != defaults[name])})"

    def _repr_html_(self) -> str:
        return lines_html(str(self).split("\n"))

    def record(self) -> dict[str, Any]:
        """The alert in plain types that JSON can say; numbers that are not finite become texts, as in reports."""
        return dict(to_plain(self))


def fingerprint_of(kind: str, site: str) -> str:
    """What stands for a kind at a site: 16 hexadecimal digits."""
    return blake2s(f"{kind}\0{site}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()


def _sentences(text: str) -> list[str]:
    return [sentence for sentence in re.split(r"(?<=[.!?]) +(?=[A-Z])", " ".join(text.split())) if sentence]


def _fitting(start: str, sentences: Sequence[str]) -> tuple[str, list[str]]:
    """A line of as many sentences as it holds, one at least, and those that are left."""
    line, left = f"{start} {' '.join(sentences[:1])}".strip(), list(sentences[1:])
    while left and len(line) + 1 + len(left[0]) <= WIDTH:
        line = f"{line} {left.pop(0)}"
    return line, left


def _grouped(names: Sequence[str], most: int = 3) -> str:
    """``zero at 12 sites (a, b, c, …), vanishing at x``: consequences in a line."""
    sites: dict[str, list[str]] = {}
    for name in names:
        kind, _, site = name.partition(" at ")
        sites.setdefault(kind, []).append(site)
    parts = []
    for kind, affected in sites.items():
        shown = ", ".join(map(readable, affected[:most])) + (", …" if len(affected) > most else "")
        parts.append(f"{kind} at {shown}" if len(affected) == 1 else f"{kind} at {len(affected)} sites ({shown})")
    return "; ".join(parts)


def limit_of(kind: str, alerts: Iterable[Alert]) -> float:
    """The threshold of a rule: the mildest of its last alerts, which are all beyond it, or the default; 0 without one."""
    found = [alert for alert in alerts if alert.kind == kind]
    if not found:
        known = known_kind(kind)
        return 0.0 if known is None else known.limit
    last = [alert for alert in found if alert.step == found[-1].step]
    return (min if last[0].value >= last[0].threshold else max)(alert.threshold for alert in last)


class AlertError(RuntimeError):
    """Raised by ``on_alert="raise"``.

    Attributes:
        alerts: What made it raise, causes first.
    """

    def __init__(self, alerts: Sequence[Alert]) -> None:
        self.alerts = tuple(alerts)
        super().__init__("\n".join(str(alert) for alert in self.alerts))


Observer = Callable[[Alert], object]


class AlertObservers:
    """Functions that are called with each alert, in the order in which they subscribed.

    An error of one affects neither the others nor training: it goes to ``on_fault``.

    Example:
        >>> from lightning_hooks.alerts import Alert, AlertObservers
        >>> observers, seen = AlertObservers(), []
        >>> observers.subscribe(lambda alert: seen.append(alert.name))
        >>> observers.notify(Alert("dead", "relu", 1.0, 0.5, 0, 9, "critical", "…"), on_fault=print)
        >>> seen
        ['dead at relu']
    """

    def __init__(self) -> None:
        self._observers: list[Observer] = []

    def subscribe(self, observer: Observer) -> None:
        """Call ``observer`` with every alert from now on; a second subscription changes nothing.

        Raises:
            TypeError: If it cannot be called.
        """
        if not callable(observer):
            raise TypeError(f"An observer is a function of an Alert; got {observer!r}.")
        if observer not in self._observers:
            self._observers.append(observer)

    def unsubscribe(self, observer: Observer) -> None:
        """Call ``observer`` no more.

        Raises:
            ValueError: If it is not subscribed.
        """
        if observer not in self._observers:
            raise ValueError(f"{observer!r} is not subscribed; the subscribers are {self._observers!r}.")
        self._observers.remove(observer)

    def notify(self, alert: Alert, on_fault: Callable[[Observer, Exception], None]) -> None:
        """Call all of them, in order."""
        for observer in list(self._observers):
            try:
                observer(alert)
            except Exception as error:  # noqa: BLE001  an error of a subscriber must not end training
                on_fault(observer, error)
