"""What belongs to the feature statistics of models that have something to measure: attention, routers of experts."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence

from torch import nn

from lightning_hooks.alerts import RULES, AttentionReport, FeatureReport, RouterReport
from lightning_hooks.declare.rulebook import hand_out
from lightning_hooks.diagnostics.attention.collector import AttentionCollector
from lightning_hooks.diagnostics.features.collector import FeatureCollector
from lightning_hooks.diagnostics.routers.collector import RouterCollector, find_routers
from lightning_hooks.session.logged import of_each
from lightning_hooks.session.member import Member
from lightning_hooks.session.settings import Settings

ATTENTION, ROUTERS = "AttentionMonitor", "RouterMonitor"
"""The names of the monitors that measure the same alone."""


class BuiltIn:
    """The members that join a session together with the feature statistics.

    One whose monitor observes the training separately does not: it has the report then.

    Args:
        settings: The arguments of the feature statistics.

    Attributes:
        own: The settings of the feature statistics alone.
        attention: Measures attention.
        routers: Measures what routers choose.
    """

    def __init__(self, settings: Settings) -> None:
        features, *logged = of_each(settings.logged, FeatureCollector.ranking, AttentionCollector.ranking, RouterCollector.ranking)
        known = {report: RULES[report] for report in (FeatureReport, AttentionReport, RouterReport)}
        of_features, *rules = hand_out(settings.rules, known, FeatureReport).values()
        self.own = dataclasses.replace(settings, rules=of_features, logged=features)
        for_attention, for_routers = (
            dataclasses.replace(settings, rules=given, logged=tags, histograms=False, check_every_n_steps=None)
            for given, tags in zip(rules, logged, strict=True)
        )
        self.attention = Member(ATTENTION, AttentionCollector, for_attention)
        self.routers = Member(ROUTERS, RouterCollector, dataclasses.replace(for_routers, modules=None))

    @property
    def attention_report(self) -> AttentionReport | None:
        """The latest report of attention; None where there is none to report."""
        report: AttentionReport | None = self.attention.latest_report
        return report if report is not None and report.sites else None

    @property
    def router_report(self) -> RouterReport | None:
        """The latest report of routers; None where there are none."""
        report: RouterReport | None = self.routers.latest_report
        return report

    @property
    def members(self) -> Sequence[Member]:
        """All of them."""
        return self.attention, self.routers

    def joining(self, model: nn.Module, listed: Collection[str] = ()) -> list[Member]:
        """Return those that join a run; the others have no report of it.

        Args:
            model: The model.
            listed: The names of the monitors that observe the training separately.
        """
        joins = {
            self.attention: self.own.functional and ATTENTION not in listed,
            self.routers: ROUTERS not in listed and bool(find_routers(model)),
        }
        for member in (member for member, wanted in joins.items() if not wanted):
            member.report = member.epoch_report = None
        return [member for member, wanted in joins.items() if wanted]
