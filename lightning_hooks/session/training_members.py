"""The members that observe a whole training: features with attention and routers, gradients, clipping."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Any

from torch import nn

from lightning_hooks.alerts import RULES, AttentionReport, ClipReport, FeatureReport, GradientFlowReport, RouterReport
from lightning_hooks.declare.rulebook import hand_out
from lightning_hooks.diagnostics.attention.collector import AttentionCollector
from lightning_hooks.diagnostics.clipping_events.collector import ClipCollector
from lightning_hooks.diagnostics.features.collector import FeatureCollector
from lightning_hooks.diagnostics.gradients.collector import GradientCollector
from lightning_hooks.diagnostics.routers.collector import RouterCollector
from lightning_hooks.session.built_in import BuiltIn
from lightning_hooks.session.logged import of_each
from lightning_hooks.session.member import Member
from lightning_hooks.session.settings import Settings
from lightning_hooks.session.sinks import Outlets

SHARED = ("report_every_n_steps", "on_alert", "summary", "report_dir", "figures", "progress_bar")
"""The arguments that all members take."""
OF_SITES = ("modules", "every_n_steps", "max_overhead", "histograms", "check_every_n_steps")
"""Those that members which observe modules take too."""
OF_STEPS = ("capsule", "max_capsule_mb", "keep_batches", "learning")
"""Those about single steps, which the gradient flow takes."""


def arguments_of_each(**arguments: Any) -> tuple[dict[str, Any], dict[str, Any], dict[str, Any]]:
    """Return the arguments of the feature statistics, of the gradient flow and of the clipping events.

    Args:
        **arguments: Those of :class:`~lightning_hooks.TrainingMonitor`; what is left out has its default.

    Raises:
        TypeError: If there is no argument of a name.
    """
    known = {field.name for field in fields(Settings)}
    unknown = sorted(arguments.keys() - known)
    if unknown:
        raise TypeError(f"There is no argument {unknown[0]!r}; there are {', '.join(sorted(known))}.")
    given = {name: arguments[name] for name in SHARED if name in arguments}
    of_sites = {**given, **{name: arguments[name] for name in OF_SITES if name in arguments}}
    handed = hand_out(arguments.get("rules", ()), RULES)
    ranking = (*FeatureCollector.ranking, *AttentionCollector.ranking, *RouterCollector.ranking)
    feature_tags, gradient_tags = of_each(arguments.get("logged", "auto"), ranking, GradientCollector.ranking)
    of_features = list(
        {id(rule): rule for report in (FeatureReport, AttentionReport, RouterReport) for rule in handed[report]}.values()
    )
    features = {**of_sites, "rules": of_features, "logged": feature_tags, "functional": arguments.get("functional", True)}
    evidence = {name: arguments[name] for name in OF_STEPS if name in arguments}
    gradients = {**of_sites, **evidence, "rules": handed[GradientFlowReport], "logged": gradient_tags}
    return features, gradients, {**given, "rules": handed[ClipReport]}


class TrainingMembers:
    """The members that observe a whole training.

    Args:
        **arguments: Those of :class:`~lightning_hooks.TrainingMonitor`.

    Attributes:
        outlets: Where the run is sent to: what ``notify`` and ``live`` say.

    Raises:
        ImportError: If figures are asked for and matplotlib is not installed.
        TypeError: If an argument is of a wrong type.
        ValueError: If an argument is out of range.
    """

    def __init__(self, *, notify: Any = None, live: bool = False, **arguments: Any) -> None:
        self.outlets = Outlets(notify, live)
        of_features, of_gradients, of_clipping = arguments_of_each(**arguments)
        self._built_in = BuiltIn(Settings(**of_features))
        features = Member("FeatureStatsMonitor", FeatureCollector, self._built_in.own)
        gradients = Member("GradientFlowMonitor", GradientCollector, Settings(**of_gradients))
        clipping = Member("GradientClipMonitor", ClipCollector, Settings(**of_clipping))
        clipping.selection = features.selection
        self._features, self._others = features, (gradients, clipping)

    @property
    def all(self) -> Sequence[Member]:
        """All of them, in the order in which they join."""
        return (self._features, *self._built_in.members, *self._others)

    def joining(self, model: nn.Module) -> Sequence[Member]:
        """Return those that have something to measure in a model."""
        return (self._features, *self._built_in.joining(model), *self._others)
