"""The members that observe a whole training, and what each of them is given of a monitor's arguments."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields
from typing import Any

from torch import nn

from lightning_hooks.alerts import RULES
from lightning_hooks.declare.collector import Collector
from lightning_hooks.declare.rulebook import rules_by_report
from lightning_hooks.diagnostics.collectors import OF_TRAINING
from lightning_hooks.session.logged import statistics_by_ranking
from lightning_hooks.session.member import Member
from lightning_hooks.session.settings import Settings
from lightning_hooks.session.sinks import Outlets

Collectors = Sequence[type[Collector[Any]]]

TAKEN_BY_ALL = ("report_every_n_steps", "on_alert", "summary", "report_dir", "figures", "progress_bar")
"""The arguments that all members take; :attr:`Collector.takes` names the others."""


def arguments_of_each(groups: Sequence[Collectors], others: type[Any] | None = None, **arguments: Any) -> list[dict[str, Any]]:
    """Return the arguments of each group of collectors: the rules and statistics that it knows, and of the others those it takes.

    Args:
        groups: The collectors, those together that are given the same arguments.
        others: The class of the reports that a function is given which does not say what it reads; None if that is an error.
        **arguments: Those of :class:`~lightning_hooks.TrainingMonitor`; what is left out has its default.

    Raises:
        TypeError: If there is no argument of a name, or one is of a wrong type.
        ValueError: If a rule or a statistic is for none of them.
    """
    known = sorted(field.name for field in fields(Settings))
    unknown = sorted(arguments.keys() - set(known))
    if unknown:
        raise TypeError(f"There is no argument {unknown[0]!r}; there are {', '.join(known)}.")
    built_in = {kind.report_type: RULES[kind.report_type] for group in groups for kind in group if kind.report_type is not None}
    rules = rules_by_report(arguments.get("rules", ()), built_in, others)
    rankings = [[statistic for kind in group for statistic in kind.ranking] for group in groups]
    found = []
    for group, statistics in zip(groups, statistics_by_ranking(arguments.get("logged", "auto"), rankings), strict=True):
        taken = {*TAKEN_BY_ALL, *(name for kind in group for name in kind.takes)}
        own = {id(rule): rule for kind in group if kind.report_type is not None for rule in rules[kind.report_type]}
        given = {**arguments, "rules": list(own.values()), "logged": statistics}
        found.append({name: value for name, value in given.items() if name in {"rules", *taken}})
    return found


def members_of(kinds: Collectors, arguments: Sequence[Mapping[str, Any]]) -> list[Member]:
    """Make the members of some collectors, each with its arguments."""
    return [Member(kind.monitor, kind, Settings(**given)) for kind, given in zip(kinds, arguments, strict=True)]


def joining(members: Sequence[Member], model: nn.Module, listed: Collection[str] = ()) -> list[Member]:
    """Return the members that have something to measure in a model; the others have no report of the run.

    Args:
        members: The members.
        model: The model.
        listed: The names of the monitors that observe the training separately.
    """
    joins = {member: member.kind.applies(model, member.settings.functional, member.name in listed) for member in members}
    for member in (member for member, wanted in joins.items() if not wanted):
        member.report = member.epoch_report = None
    return [member for member, wanted in joins.items() if wanted]


class TrainingMembers:
    """The members that observe a whole training.

    Args:
        notify: As for :class:`~lightning_hooks.TrainingMonitor`, as are the others.
        live: Whether the page is shown.
        functional: Whether calls of functions are sites.
        **arguments: The others.

    Attributes:
        outlets: Where the run is sent to: what ``notify`` and ``live`` say.
        groups: The members of each of the three monitors that measure the same.
        all: All members, in the order in which they join.

    Raises:
        ImportError: If figures are asked for and matplotlib is not installed.
        TypeError: If an argument is of a wrong type.
        ValueError: If an argument is out of range.
    """

    def __init__(self, *, notify: Any = None, live: bool = False, functional: bool = True, **arguments: Any) -> None:
        self.outlets = Outlets(notify, live)
        kinds = [(kind,) for group in OF_TRAINING for kind in group]
        given = iter(arguments_of_each(kinds, functional=functional, **arguments))
        self.groups = [members_of(group, [next(given) for _ in group]) for group in OF_TRAINING]
        self.all = [member for group in self.groups for member in group]
        self.all[-1].selection = self.all[0].selection  # clipping events have no modules of their own
