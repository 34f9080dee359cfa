"""The rules in force: the built-in ones, and what the user changed, muted or added."""

from __future__ import annotations

import dataclasses
import difflib
import importlib
import inspect
import types
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple, Union, get_args, get_origin

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import KINDS, SEVERITIES
from lightning_hooks.declare.rule import Judges, Rule, check_patterns, matches


@dataclass(frozen=True, slots=True, eq=False)
class Mute:
    """Mutes alerts: they are not delivered, not counted, and not in the report.

    Attributes:
        kind: A kind of alert, or ``*`` for all.
        sites: Glob patterns of the sites.
    """

    kind: str = "*"
    sites: str | Sequence[str] = "*"

    def __post_init__(self) -> None:
        if not isinstance(self.kind, str):
            raise TypeError(f"Mute: kind must be a kind of alert such as 'silent', or '*'; got {self.kind!r}.")
        check_patterns(self.sites, "Mute")

    def mutes(self, alert: Alert) -> bool:
        """Whether an alert is muted."""
        return self.kind in ("*", alert.kind) and matches(self.sites, alert.site)


RuleLike = Rule | Callable[..., Iterable[Alert]]
# What ``rules=[…]`` may hold: a rule; a Mute; ``{"kind": "dead", "threshold": 0.8, "sites": "encoder.*"}``; ``{"mute": "dead",
# "sites": "encoder.*"}``; ``{"class_path": "my.Rule", "init_args": {…}}``; ``"-dead"`` or ``"-dead at encoder.*"``; or a function
# from a report to alerts
RuleSpec = Rule | Mute | dict[str, Any] | str | Callable[..., Iterable[Alert]]


class Candidate(NamedTuple):
    """An alert, and in how many reports it must be found before it counts."""

    alert: Alert
    times: int = 1
    of: int = 1
    set_by_user: bool = False  # whether the user has set its severity


class RuleBook:
    """Applies rules to reports.

    Of several rules of one class, the last one whose ``sites`` match a site applies to it, so that a rule in ``given`` replaces the
    built-in one, everywhere or at some sites. A function is added to them. Mutes are applied last, whatever the order.

    Args:
        defaults: The built-in rules.
        given: The user's.
        reads: The class of the reports.

    Raises:
        TypeError: If an entry is none of the forms of ``RuleSpec``.
        ValueError: If it names a kind that is not known, a field that the rule does not have, or reads another report.
    """

    def __init__(self, defaults: Sequence[RuleLike], given: Sequence[RuleSpec] = (), reads: type[Any] | None = None) -> None:
        entries = _parsed(given)
        self.defaults = tuple(defaults)
        self.reads = reads
        self.mutes: list[Mute] = []
        self._groups: dict[object, list[RuleLike]] = {}
        for rule in self.defaults:
            self._add(rule)
        open_ended = any(callable(entry) for entry in entries)  # an own rule may have a kind of its own
        for entry in entries:
            self._enter(entry, open_ended)

    @property
    def rules(self) -> tuple[RuleLike, ...]:
        """The rules in force."""
        return tuple(rule for group in self._groups.values() for rule in group)

    @property
    def kinds_of_epochs(self) -> frozenset[str]:
        """The kinds that only rules which judge epochs raise."""
        rules = [rule for rule in self.rules if isinstance(rule, Rule)]
        return frozenset(rule.kind for rule in rules) - {rule.kind for rule in rules if rule.judges == "window"}

    @property
    def kinds(self) -> tuple[str, ...]:
        """The kinds that the rules in force look for, but for those that are muted everywhere and those of functions."""
        muted = {mute.kind for mute in self.mutes if mute.sites == "*"}
        kinds = dict.fromkeys(rule.kind for rule in self.rules if isinstance(rule, Rule) and rule.kind not in muted)
        return () if "*" in muted else tuple(kinds)

    def judge(
        self,
        report: Any,
        on_fault: Callable[[RuleLike, Exception], None] | None = None,
        urgent: bool = False,
        judges: Judges | None = None,
    ) -> list[Candidate]:
        """Apply the rules to a report.

        Args:
            report: The report, which knows those of the windows before.
            on_fault: Called with a rule that raised and its error; the other rules go on. None lets it raise.
            urgent: Apply only rules that are urgent and whose alerts count at once.
            judges: Apply only rules that judge every window, or only those that judge epochs; None for all.
        """
        found: list[Candidate] = []
        for group in self._groups.values():
            for place, rule in enumerate(group):
                waits = urgent and not (isinstance(rule, Rule) and rule.urgent and rule.times == 1)
                if waits or judges not in (None, rule.judges if isinstance(rule, Rule) else "window"):
                    continue
                try:
                    alerts = [_sound(alert) for alert in rule(report)]  # type: ignore[operator]
                except Exception as error:
                    if on_fault is None:
                        raise
                    on_fault(rule, error)
                    continue
                settled = (rule.times, rule.of, rule.severity is not None) if isinstance(rule, Rule) else ()
                found += [Candidate(alert, *settled) for alert in alerts if _decides(group, place, alert.site)]
        return [one for one in found if not any(mute.mutes(one.alert) for mute in self.mutes)]

    def _add(self, rule: RuleLike) -> None:
        group = self._groups.setdefault(type(rule) if isinstance(rule, Rule) else object(), [])
        if isinstance(rule, Rule) and rule.sites == "*":
            group.clear()
        group.append(rule)

    def _enter(self, entry: RuleSpec, open_ended: bool) -> None:
        if isinstance(entry, dict):
            for rule in self._rules_of(entry):
                self._add(rule)
        elif isinstance(entry, Mute):
            if entry.kind not in ("*", *KINDS) and not open_ended:
                raise ValueError(f"Mute: no rule raises {entry.kind!r}.{_closest(entry.kind, KINDS)}")
            self.mutes.append(entry)
        elif callable(entry):
            wanted = reports_of(entry)
            if wanted and self.reads is not None and self.reads not in wanted:
                raise ValueError(
                    f"{_name(entry)} reads a {wanted[0].__name__}, and this monitor makes a {self.reads.__name__}: give it to the "
                    "monitor that makes such reports, or all rules to monitors(rules=…), which gives each rule to its monitor."
                )
            self._add(entry)
        else:
            raise TypeError(
                "rules holds rules such as Dead(threshold=0.8), Mute('silent'), {'kind': 'dead', 'threshold': 0.8}, "
                f"'-silent', or functions from a report to alerts; got {entry!r}."
            )

    def _rules_of(self, entry: dict[str, Any]) -> list[Rule]:
        """The built-in rules of a kind that have all the fields that are given, with these."""
        of_kind, fields = _rules_of_kind(entry, self.defaults), {name: value for name, value in entry.items() if name != "kind"}
        if not of_kind:
            kinds = list(dict.fromkeys(rule.kind for rule in self.defaults if isinstance(rule, Rule)))
            raise ValueError(
                f"rules: {entry!r} needs the 'kind' of a rule of this monitor ({', '.join(kinds)}), or 'mute'."
                f"{_closest(str(entry.get('kind')), kinds)}"
            )
        fits = [rule for rule, has_fields in of_kind if has_fields]
        if not fits:
            names = {type(rule).__name__: [field.name for field in dataclasses.fields(rule)] for rule, _ in of_kind}
            have = ", ".join(f"{rule} has the fields {', '.join(known)}" for rule, known in names.items())
            raise ValueError(f"rules: {have}; got {', '.join(map(repr, fields))} in {entry!r}.")
        return [dataclasses.replace(rule, **fields) for rule in fits]


def _parsed(given: Sequence[RuleSpec]) -> list[RuleSpec]:
    """The user's entries, with mutes and what a class path names as objects."""
    if isinstance(given, str | dict) or not isinstance(given, Sequence):
        raise TypeError(f"rules must be a list of rules; got {given!r}.")
    entries: list[RuleSpec] = []
    for entry in given:
        if isinstance(entry, str):
            entry = _mute_of(entry)
        elif isinstance(entry, dict) and "class_path" in entry:
            entry = instance_of(entry)
        elif isinstance(entry, dict) and "mute" in entry:
            entry = Mute(entry["mute"], **{name: value for name, value in entry.items() if name != "mute"})
        entries.append(entry)
    return entries


def _rules_of_kind(entry: Mapping[str, Any], rules: Sequence[RuleLike]) -> list[tuple[Rule, bool]]:
    """The rules of the kind that an entry names, each with whether it has all the fields that are given."""
    names = entry.keys() - {"kind"}
    of_kind = [rule for rule in rules if isinstance(rule, Rule) and rule.kind == entry.get("kind")]
    return [(rule, names <= {field.name for field in dataclasses.fields(rule)}) for rule in of_kind]


def rules_by_report(
    given: Sequence[RuleSpec], built_in: Mapping[type[Any], Sequence[RuleLike]], others: type[Any] | None = None
) -> dict[type[Any], list[RuleSpec]]:
    """Sort entries by the reports that they are for: a rule by those that it reads; a mute is for all.

    Args:
        given: The user's entries.
        built_in: The classes of reports to the built-in rules that read them.
        others: The class of the reports that an entry is for which names none; None if that is an error.

    Returns:
        The class of the reports to the entries for them, in order.

    Raises:
        TypeError: If ``given`` is no list.
        ValueError: If an entry is for none of them, or a function does not say which report it reads.
    """
    by_report: dict[type[Any], list[RuleSpec]] = {reads: [] for reads in built_in}
    for as_given, entry in zip(given, _parsed(given), strict=True):
        if others is None and callable(entry) and not reports_of(entry):
            raise ValueError(
                f"rules: {_name(entry)} does not say which report it reads. Annotate its first parameter, as in "
                "def rule(report: FeatureReport), or give it to one monitor."
            )
        chosen = _reports_for(entry, built_in) or ([] if others is None else [others])
        if not chosen:
            known = dict.fromkeys(rule.kind for rules in built_in.values() for rule in rules if isinstance(rule, Rule))
            raise ValueError(f"rules: {entry!r} fits none of the monitors, whose kinds are {', '.join(known)}.")
        for reads in chosen:
            by_report[reads].append(entry if callable(entry) else as_given)
    return by_report


def _reports_for(entry: RuleSpec, built_in: Mapping[type[Any], Sequence[RuleLike]]) -> list[type[Any]]:
    """The classes of reports that an entry is for: those that its rule reads; all for a mute."""
    if isinstance(entry, dict):
        fits = {reads: [has_fields for _, has_fields in _rules_of_kind(entry, rules)] for reads, rules in built_in.items()}
        # Where no rule of the kind has the fields, an error names those there are.
        return [reads for reads, known in fits.items() if any(known)] or [reads for reads, known in fits.items() if known]
    return [reads for reads in built_in if not callable(entry) or reads in reports_of(entry)]


def reports_of(rule: Any) -> tuple[type[Any], ...]:
    """The classes of reports that a rule reads, by the annotation of its first parameter; none if that names none."""
    function = rule if inspect.isroutine(rule) else type(rule).__call__
    try:
        first = [p for p in inspect.signature(function, eval_str=True).parameters.values() if p.name != "self"][:1]
    except (NameError, TypeError, ValueError):  # annotations that cannot be evaluated, a builtin
        return ()
    annotation = first[0].annotation if first else Any
    known = get_args(annotation) if get_origin(annotation) in (Union, types.UnionType) else (annotation,)
    return tuple(kind for kind in known if isinstance(kind, type) and kind not in (inspect.Parameter.empty, Any))


def _sound(alert: Any) -> Alert:
    """What a rule gave, with numbers that are plain.

    Raises:
        TypeError, ValueError: If it is no alert, or holds something other than it should.
    """
    if not isinstance(alert, Alert):
        raise TypeError(f"a rule gives lightning_hooks.Alert objects; got {alert!r}")
    advice: Any = alert.advice
    texts = (alert.kind, alert.site, alert.message, alert.title, alert.diagnosis, *advice)
    if alert.severity not in SEVERITIES or isinstance(advice, str) or not all(isinstance(text, str) for text in texts):
        raise TypeError(
            "an alert has texts as kind, site, message, title and diagnosis, a tuple of texts as advice, and a severity of "
            f"{', '.join(SEVERITIES)}; got {alert!r}"
        )
    plain: dict[str, Any] = {
        **{name: float(getattr(alert, name)) for name in ("value", "threshold")},
        **{name: int(getattr(alert, name)) for name in ("epoch", "step")},
        **{name: None if getattr(alert, name) is None else int(getattr(alert, name)) for name in ("since_step", "batch")},
        "advice": tuple(alert.advice),
    }
    return dataclasses.replace(alert, **plain)


def _decides(group: Sequence[RuleLike], place: int, site: str) -> bool:
    return not any(isinstance(later, Rule) and later.matches(site) for later in group[place + 1 :]) and (
        not isinstance(group[place], Rule) or group[place].matches(site)  # type: ignore[union-attr]
    )


def instance_of(entry: Mapping[str, Any]) -> Any:
    """What a configuration describes as LightningCLI does."""
    module, _, name = str(entry["class_path"]).rpartition(".")
    try:
        kind = getattr(importlib.import_module(module), name)
    except (ImportError, AttributeError, ValueError) as error:
        raise ValueError(f"rules: {entry['class_path']!r} cannot be imported: {error}.") from error
    return kind(**entry.get("init_args", {})) if isinstance(kind, type) else kind


def _mute_of(entry: str) -> Mute:
    if not entry.startswith("-") or len(entry) == 1:
        raise ValueError(f"rules: a string mutes a kind, as '-silent' or '-dead at encoder.*' do; got {entry!r}.")
    kind, _, sites = entry[1:].partition(" at ")
    return Mute(kind.strip(), sites.strip() or "*")


def _closest(kind: str, known: Iterable[str]) -> str:
    found = difflib.get_close_matches(kind, list(known), 1)
    return f" Did you mean {found[0]!r}?" if found else ""


def _name(rule: Any) -> str:
    return getattr(rule, "__name__", type(rule).__name__)
