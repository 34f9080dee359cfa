"""Reports, the rules that read them, and the alerts that come out."""

from types import ModuleType
from typing import Any

from lightning_hooks.declare.alert import Alert, AlertError, AlertObservers
from lightning_hooks.declare.book import AlertBook
from lightning_hooks.declare.kinds import KINDS, STATES
from lightning_hooks.declare.rule import Rule
from lightning_hooks.declare.rulebook import Mute, RuleBook, reports_of
from lightning_hooks.diagnostics import modules
from lightning_hooks.diagnostics.attention.rules import *
from lightning_hooks.diagnostics.attention.table import AttentionReport, AttentionStats, HeadStats
from lightning_hooks.diagnostics.batches.hashes import BatchCounts
from lightning_hooks.diagnostics.batches.rules import *
from lightning_hooks.diagnostics.call_rules import *
from lightning_hooks.diagnostics.calls import DropoutUse, PrecisionStats, SoftmaxUse
from lightning_hooks.diagnostics.clipping_events.report import ClipReport
from lightning_hooks.diagnostics.clipping_events.rules import *
from lightning_hooks.diagnostics.features.rules import *
from lightning_hooks.diagnostics.gradients.exploding_rules import *
from lightning_hooks.diagnostics.gradients.update_rules import *
from lightning_hooks.diagnostics.gradients.vanishing_rules import *
from lightning_hooks.diagnostics.gradients.weight_rules import *
from lightning_hooks.diagnostics.learning.report import LearningReport, ParameterLearning
from lightning_hooks.diagnostics.learning.rules import *
from lightning_hooks.diagnostics.loss.learning_rules import *
from lightning_hooks.diagnostics.loss.report import LossReport
from lightning_hooks.diagnostics.loss.rules import *
from lightning_hooks.diagnostics.loss_inputs.leak_rules import *
from lightning_hooks.diagnostics.loss_inputs.leaks import TargetCopies
from lightning_hooks.diagnostics.loss_inputs.predictions import OutputStats
from lightning_hooks.diagnostics.loss_inputs.rules import *
from lightning_hooks.diagnostics.loss_inputs.targets import LabelCounts, TargetStats
from lightning_hooks.diagnostics.loss_inputs.validated import ClassPairs
from lightning_hooks.diagnostics.metrics.rules import *
from lightning_hooks.diagnostics.metrics.use import MetricUse
from lightning_hooks.diagnostics.nonfinite.rules import *
from lightning_hooks.diagnostics.optimizer.rules import *
from lightning_hooks.diagnostics.optimizer.table import GroupSettings, OptimizerStats
from lightning_hooks.diagnostics.ranges import RangeReport
from lightning_hooks.diagnostics.reports import FeatureReport, GradientFlowReport
from lightning_hooks.diagnostics.representation_rules import *
from lightning_hooks.diagnostics.representations import RepresentationStats
from lightning_hooks.diagnostics.residual_stream.rules import *
from lightning_hooks.diagnostics.residual_stream.table import ResidualStats
from lightning_hooks.diagnostics.routers.routing import RouterReport
from lightning_hooks.diagnostics.routers.rules import *
from lightning_hooks.diagnostics.setup.checks import ModelSetup, UnregisteredModules, VectorDecay
from lightning_hooks.diagnostics.setup.initial_rules import *
from lightning_hooks.diagnostics.setup.module_rules import *
from lightning_hooks.diagnostics.setup.outside import CopyStats, WeightsSet
from lightning_hooks.diagnostics.setup.parameters import ParameterSetup, Unloaded
from lightning_hooks.diagnostics.setup.registration_rules import *
from lightning_hooks.diagnostics.setup.rules import *
from lightning_hooks.diagnostics.unusual import UnusualBatch

FILES = modules("rules")
"""The files of rules, each with its ``KINDS``."""

_kinds = sorted((kind for file in FILES for kind in file.KINDS), key=lambda kind: STATES.index(kind.states))
KINDS.update((kind.name, kind) for kind in _kinds)

ALERT_KINDS: tuple[str, ...] = tuple(KINDS)
"""Every kind that the built-in rules raise, facts first, then symptoms, then the course of the loss."""

RULES: dict[type[Any], tuple[Rule, ...]] = {}
"""By the report that they read, in the order of their kinds."""


def declared_in(file: ModuleType) -> list[Rule]:
    """The rules that a file declares, in order."""
    classes = (found for found in vars(file).values() if isinstance(found, type) and issubclass(found, Rule))
    return [rule() for rule in classes if rule.__module__ == file.__name__]


for _rule in sorted((rule for file in FILES for rule in declared_in(file)), key=lambda rule: ALERT_KINDS.index(rule.kind)):
    for _report in reports_of(_rule):
        RULES[_report] = (*RULES.get(_report, ()), _rule)


def kinds_of(report: type[Any]) -> tuple[str, ...]:
    """The kinds that the built-in rules raise on a class of reports."""
    return tuple(dict.fromkeys(rule.kind for rule in RULES.get(report, ())))


__all__ = [
    "ALERT_KINDS",
    "RULES",
    "Alert",
    "AlertBook",
    "AlertError",
    "AlertObservers",
    "AttentionReport",
    "AttentionStats",
    "BatchCounts",
    "ClassPairs",
    "ClipReport",
    "CopyStats",
    "DropoutUse",
    "FeatureReport",
    "GradientFlowReport",
    "GroupSettings",
    "HeadStats",
    "LabelCounts",
    "LearningReport",
    "LossReport",
    "MetricUse",
    "ModelSetup",
    "Mute",
    "OptimizerStats",
    "OutputStats",
    "ParameterLearning",
    "ParameterSetup",
    "PrecisionStats",
    "RangeReport",
    "RepresentationStats",
    "ResidualStats",
    "RouterReport",
    "Rule",
    "RuleBook",
    "SoftmaxUse",
    "TargetCopies",
    "TargetStats",
    "Unloaded",
    "UnregisteredModules",
    "UnusualBatch",
    "VectorDecay",
    "WeightsSet",
]
__all__ += [name for file in FILES for name in file.__all__]
