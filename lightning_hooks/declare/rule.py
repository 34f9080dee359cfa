"""What every built-in rule has: its sites, how often a problem must be found, and the findings that it makes."""

from __future__ import annotations

import fnmatch
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import FrozenInstanceError, dataclass
from typing import Any, ClassVar, Literal, NoReturn, TypeVar

from typing_extensions import dataclass_transform

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import SEVERITIES, Severity, kind_of
from lightning_hooks.trackers.console import some

Judges = Literal["window", "epoch"]
S = TypeVar("S")
K = TypeVar("K")
V = TypeVar("V")
Alerts = Iterator[Alert]


@dataclass_transform(frozen_default=True, eq_default=False)
@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class Rule:
    """Base class of the built-in rules, and of your own if they are to be chosen by site and tuned in YAML.

    A rule is a pure function of a report: ``rule(report)`` yields findings, as :meth:`finding` makes them. The report knows those
    of earlier windows: ``report.first``, ``report.previous()`` and ``report.earlier``. The annotation of the argument decides which
    reports it gets; without one, all. A subclass is a frozen dataclass, whose thresholds are fields; its ``kind``, and what else
    holds for the whole class, may be given with the base: ``class Quiet(Rule, kind="quiet")``.

    Attributes:
        sites: Glob patterns of the sites it applies to. The earlier rule of the same class applies to the others.
        times: The alert counts only after it was found in ``times`` …
        of: … of the last ``of`` reports.
        severity: The severity of its alerts, instead of the one that follows from a finding and its probability.

    Example:
        >>> from lightning_hooks.alerts import Dead
        >>> Dead(threshold=0.8, sites="encoder.*", times=2, of=3).matches("encoder.relu")
        True
    """

    kind: ClassVar[str] = ""
    judges: ClassVar[Judges] = "window"  # ``epoch`` for a rule that needs more than one short window: see RuleBook.judge
    urgent: ClassVar[bool] = False  # whether it runs within an epoch too, where check_every_n_steps is set
    shares: ClassVar[tuple[str, ...]] = ()  # fields that are shares, from 0 to 1

    sites: str | Sequence[str] = "*"
    times: int = 1
    of: int = 1
    severity: Severity | None = None

    def __init_subclass__(cls, **declared: Any) -> None:
        unknown = declared.keys() - Rule.__annotations__.keys()
        if unknown:
            raise TypeError(f"{cls.__name__}: a rule declares no {', '.join(sorted(unknown))}; got class {cls.__name__}(Rule, …).")
        for name, value in declared.items():
            setattr(cls, name, value)
        if "__dataclass_fields__" not in vars(cls):  # as it is in the copy that slots=True makes of a class
            dataclass(frozen=True, eq=False)(cls)
            del cls.__setattr__, cls.__delattr__  # Rule has them; a decorator of the user's would not write over them

    def __post_init__(self) -> None:
        check_patterns(self.sites, type(self).__name__)
        if not 1 <= self.times <= self.of:
            raise ValueError(
                f"{type(self).__name__} needs 1 <= times <= of: an alert counts when found in `times` of the last `of` reports; "
                f"got times={self.times!r}, of={self.of!r}."
            )
        if self.severity is not None and self.severity not in SEVERITIES:
            raise ValueError(f"severity must be one of {', '.join(SEVERITIES)}, or None; got {self.severity!r}.")
        for field in self.shares:
            check_share(getattr(self, field), f"{type(self).__name__}: {field}")

    def matches(self, site: str) -> bool:
        """Whether the rule applies to a site."""
        return matches(self.sites, site)

    def finding(
        self,
        report: Any,
        site: str,
        value: float,
        threshold: float,
        message: str,
        since_step: int | None = None,
        batch: int | None = None,
        advice: tuple[str, ...] = (),
        conclusive: object = True,
    ) -> Alert:
        """Make a finding of this rule's kind on a report's epoch and step. How severe it is follows from its kind and value.

        Args:
            report: The report.
            site: Where.
            value: What was measured.
            threshold: The limit of the rule.
            message: What was measured, in one sentence with its numbers.
            since_step: The global step at which it was first seen, where that is known.
            batch: The training batch at which it was first seen, where that is known.
            advice: What to try, where that depends on what was seen; empty for that of its kind.
            conclusive: Whether the finding is a problem by itself. If not, it is an info, and evidence for causes.
        """
        known = kind_of(self.kind)
        severity = self.severity or (known.severity_of(value) if conclusive else "info")
        return Alert(
            self.kind, site, value, threshold, report.epoch, report.step, severity,
            message, since_step, batch=batch, advice=advice or known.advice,
        )  # fmt: skip


def _frozen(_: Rule, name: str, *__: object) -> NoReturn:
    raise FrozenInstanceError(f"cannot assign to field {name!r}")


Rule.__setattr__ = Rule.__delattr__ = _frozen  # type: ignore[assignment,method-assign]


def where(found: Mapping[str, S], holds: Callable[[S], object]) -> list[tuple[str, S]]:
    """The sites for which something holds, each with what is known of it, in their order."""
    return [(site, stats) for site, stats in found.items() if holds(stats)]


def percent(share: float) -> str:
    """A share in percent, in at most three significant digits: ``0.0123`` is ``1.23%``."""
    return f"{100 * share:.3g}%"


def subject(names: Sequence[str], one: str, many: str) -> str:
    """The first three names, how many more there are, and the verb that fits one of them or many: ``a, b are``."""
    return f"{some(names, 3)} {many if len(names) > 1 else one}"


def grouped(pairs: Iterable[tuple[K, V]]) -> dict[K, list[V]]:
    """The second ones of pairs, by the first."""
    found: dict[K, list[V]] = {}
    for key, value in pairs:
        found.setdefault(key, []).append(value)
    return found


def in_batch(place: str) -> str:
    """A tensor of a batch in words, of its place: ``tensor 0 of the batch`` for ``[0]``."""
    key = re.fullmatch(r"\[('[^']*'|\d+)\]", place)
    if key is None:
        return "the batch" if place in ("", "batch") else f"the tensor batch{place}"
    return f"{'the ' * (not key[1].isdigit())}tensor {key[1]} of the batch"


def check_share(value: Any, what: str) -> None:
    """Raise if a value is not a share, from 0 to 1: a limit in percent would never be reached."""
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise TypeError(f"{what} must be a share, from 0 to 1; got {value!r}.")
    if not 0 <= value <= 1:
        meant = f" {value:g} % is {value / 100:g}." if 1 < value <= 100 else ""
        raise ValueError(f"{what} must be a share, from 0 to 1; got {value!r}.{meant}")


def check_patterns(sites: Any, owner: str) -> None:
    """Raise a TypeError if ``sites`` is not a glob pattern or a sequence of them."""
    patterns = (sites,) if isinstance(sites, str) else sites
    if not isinstance(patterns, list | tuple) or not all(isinstance(pattern, str) for pattern in patterns) or not patterns:
        raise TypeError(f"{owner}: sites must be a glob pattern such as 'encoder.*', or a list of them; got {sites!r}.")


def matches(sites: str | Sequence[str], site: str) -> bool:
    """Whether a site matches a glob pattern or one of several."""
    patterns = (sites,) if isinstance(sites, str) else sites
    return any(site == pattern or fnmatch.fnmatchcase(site, pattern) for pattern in patterns)  # a name may hold brackets
