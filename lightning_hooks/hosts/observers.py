"""What observes a whole training: the members, what each is given of a monitor's arguments, and what they have reported."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Sequence
from dataclasses import fields
from typing import TYPE_CHECKING, Any, TypeVar

from torch import nn
from typing_extensions import override

from lightning_hooks.alerts import RULES, Alert, AttentionReport, ClipReport, FeatureReport, GradientFlowReport, RouterReport
from lightning_hooks.declare.collector import Collector
from lightning_hooks.declare.rulebook import rules_by_report
from lightning_hooks.diagnostics.attention.collector import AttentionCollector
from lightning_hooks.diagnostics.clipping_events.collector import ClipCollector
from lightning_hooks.diagnostics.features.collector import FeatureCollector
from lightning_hooks.diagnostics.gradients.collector import GradientCollector
from lightning_hooks.diagnostics.learning.report import LearningReport
from lightning_hooks.diagnostics.routers.collector import RouterCollector
from lightning_hooks.run_report.page import RunReport
from lightning_hooks.run_report.verdict import Status
from lightning_hooks.session.logged import statistics_by_ranking
from lightning_hooks.session.member import Member
from lightning_hooks.session.settings import Settings
from lightning_hooks.session.sinks import ReportTargets
from lightning_hooks.session.terminal import open_alerts, run_report, verdict_of
from lightning_hooks.session.windows import History

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

T = TypeVar("T")

Collectors = Sequence[type[Collector[Any]]]

# Those of the monitor of feature statistics: the others join where the model has what they measure
FEATURES: Collectors = (FeatureCollector, AttentionCollector, RouterCollector)
# Those of each of the three monitors that observe a training together
OF_TRAINING: Sequence[Collectors] = (FEATURES, (GradientCollector,), (ClipCollector,))
# The arguments that all members take; Collector.takes names the others
TAKEN_BY_ALL = ("report_every_n_steps", "on_alert", "min_probability", "summary", "report_dir", "figures", "progress_bar")


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
    built_in = {kind.report_type: RULES.get(kind.report_type, ()) for group in groups for kind in group}
    rules = rules_by_report(arguments.get("rules", ()), built_in, others)
    rankings = [[statistic for kind in group for statistic in kind.ranking] for group in groups]
    found = []
    for group, statistics in zip(groups, statistics_by_ranking(arguments.get("logged", "auto"), rankings), strict=True):
        taken = {*TAKEN_BY_ALL, *(name for kind in group for name in kind.takes)}
        own = {id(rule): rule for kind in group for rule in rules[kind.report_type]}
        given = {**arguments, "rules": list(own.values()), "logged": statistics}
        found.append({name: value for name, value in given.items() if name in {"rules", *taken}})
    return found


def members_of(kinds: Collectors, others: type[Any] | None = None, **arguments: Any) -> list[Member]:
    """Make the members of some collectors, each with those of the arguments that it takes."""
    given = zip(kinds, arguments_of_each([(kind,) for kind in kinds], others, **arguments), strict=True)
    return [Member(kind.monitor, kind, Settings(**own)) for kind, own in given]


def joining(members: Sequence[Member], model: nn.Module, listed: Collection[str] = ()) -> list[Member]:
    """Return the members that have something to measure in a model; the others have no report of the run.

    The monitors that are ``listed`` observe the training separately.
    """
    joins = {member: member.kind.applies(model, member.settings.functional, member.name in listed) for member in members}
    for member in (member for member, wanted in joins.items() if not wanted):
        member.report = member.epoch_report = None
    return [member for member, wanted in joins.items() if wanted]


class TrainingMembers:
    """The members that observe a whole training, by the arguments of :class:`~lightning_hooks.TrainingMonitor`.

    Attributes:
        outlets: Where the run is sent to: what ``notify`` and ``live`` say.
        groups: The members of each of the three monitors that measure the same.
        all: All members, in the order in which they join.
        resumed: How far a training in Fabric's loop was whose checkpoint was loaded; None without.

    Raises:
        ImportError: If figures are asked for and matplotlib is not installed.
        TypeError: If an argument is of a wrong type.
        ValueError: If an argument is out of range.
    """

    def __init__(self, *, notify: Any = None, live: bool = False, functional: bool = True, **arguments: Any) -> None:
        self.outlets = ReportTargets(notify, live)
        self.all = members_of([kind for group in OF_TRAINING for kind in group], functional=functional, **arguments)
        self.groups = [[member for member in self.all if member.kind in group] for group in OF_TRAINING]
        self.resumed: dict[str, int] | None = None
        self.all[-1].selection = self.all[0].selection  # clipping events have no modules of their own


class WithMembers:
    """What has members: their alerts, and their states in a checkpoint."""

    @property
    def members(self) -> Sequence[Member]:
        """What it measures."""
        raise NotImplementedError

    def subscribe(self, observer: Callable[[Alert], object]) -> None:
        """Call ``observer`` with every new alert, after those that subscribed before and next to what ``on_alert`` says.

        One that raises gives a warning and harms neither the others nor training. Infos are handed over too; a consequence of
        another alert is not, but named in that one's ``consequences``.
        """
        for member in self.members:
            member.alerting.observers.subscribe(observer)

    def unsubscribe(self, observer: Callable[[Alert], object]) -> None:
        """Do not call ``observer`` any more.

        Raises:
            ValueError: If it is not subscribed.
        """
        for member in self.members:
            member.alerting.observers.unsubscribe(observer)

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed training needs. Ranks may be merged: every rank is asked."""
        return {member.kind.prefix: member.state_dict() for member in self.members}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Go on from an earlier training, when the next one starts."""
        known = [member for member in self.members if member.kind.prefix in state_dict]
        for member in known or self.members:
            member.load_state_dict(state_dict.get(member.kind.prefix, {}))


class ModelReports(WithMembers):
    """The reports of what only some models have."""

    def latest(self, kind: type[T]) -> T | None:
        """The latest report of a class; None before the first, and where none of the members makes such reports in this run."""
        return next((member.latest_report for member in self.members if member.kind.report_type is kind), None)

    @property
    def attention(self) -> AttentionReport | None:
        """The latest report of attention; None before the first, and where the model has none or an AttentionMonitor reports it."""
        report = self.latest(AttentionReport)
        return report if report is not None and report.sites else None

    @property
    def routers(self) -> RouterReport | None:
        """The latest report of routers; None before the first, and where the model has none or a RouterMonitor reports it."""
        return self.latest(RouterReport)


class TrainingReports(ModelReports):
    """What the members that observe a training have reported.

    Attributes:
        observers: The members.
    """

    observers: TrainingMembers

    @property
    @override
    def members(self) -> Sequence[Member]:
        return self.observers.all

    @property
    def features(self) -> FeatureReport | None:
        """The latest report of module outputs; None before the first."""
        return self.latest(FeatureReport)

    @property
    def gradients(self) -> GradientFlowReport | None:
        """The latest report of gradients; None before the first."""
        return self.latest(GradientFlowReport)

    @property
    def learning(self) -> LearningReport | None:
        """What of the training learns, in the latest report of gradients; None before the first, and with ``learning=False``."""
        return None if self.gradients is None else self.gradients.learning

    @property
    def clipping(self) -> ClipReport | None:
        """The latest report of clipping events; None before the first."""
        return self.latest(ClipReport)

    @property
    def history(self) -> dict[str, deque[Any]]:
        """The reports of this fit, oldest first, by monitor, as :meth:`plot` names them."""
        return {member.kind.report_name: member.history.reports for member in self.members}

    @property
    def report(self) -> RunReport:
        """The health report of the run so far, which a notebook shows; its ``.path`` is the page on disk."""
        return run_report(self.members)

    def plot(self, stat: str | None = None, monitor: str = "features") -> Figure:
        """Draw what was reported in this fit: a matplotlib figure.

        Args:
            stat: A statistic, such as ``rms``, for a heat map of all layers over the windows; None for what suits the reports best.
            monitor: ``features``, ``gradients``, ``clipping``, ``attention`` or ``routers``.

        Raises:
            ImportError: If matplotlib is not installed.
            ValueError: If there is no report yet, no such statistic or no such monitor.
        """
        return self._history_of(monitor).plot(stat)

    def to_frame(self, monitor: str = "features") -> pandas.DataFrame:
        """Return what was reported in this fit as a pandas table: a row for each window and each module, parameter or optimizer.

        Args:
            monitor: ``features``, ``gradients``, ``clipping``, ``attention`` or ``routers``.

        Raises:
            ImportError: If pandas is not installed.
            ValueError: If there is no report yet or no such monitor.
        """
        return self._history_of(monitor).to_frame()

    def _history_of(self, monitor: str) -> History:
        known = {member.kind.report_name: member.history for member in self.members}
        if monitor not in known:
            raise ValueError(f"monitor must be one of {', '.join(known)}; got {monitor!r}.")
        return known[monitor]

    @property
    def alerts(self) -> list[Alert]:
        """The open alerts: root causes above info that last, the most severe first, each as it was first passed on."""
        return open_alerts(self.members)

    @property
    def verdict(self) -> str:
        """The verdict of the run so far, as at its end and in the health report; empty before the first report."""
        return verdict_of(self.members).headline if any(member.has_reported or member.end for member in self.members) else ""

    @property
    def status(self) -> Status:
        """The verdict in a word: ``failed``, ``critical``, ``warning``, ``healthy`` or ``unknown``, as before the first report."""
        return verdict_of(self.members).status
