"""Reports, the rules that read them, and the alerts that come out."""

from lightning_hooks.alerts.clip_rules import AlwaysClipped, ClipIneffective, StepsSkipped
from lightning_hooks.alerts.defaults import RULES
from lightning_hooks.alerts.feature_rules import Constant, Dead, NonfiniteFeatures, Saturated, Silent
from lightning_hooks.alerts.gradient_rules import Exploding, Missing, NonfiniteGradients, Stretching, Vanishing, Zero
from lightning_hooks.alerts.model_rules import ConstantTargets, DoubleSoftmax, PoorInit, SameSamples, Shared, ValidationShift
from lightning_hooks.alerts.observers import AlertObservers
from lightning_hooks.alerts.rule import Rule
from lightning_hooks.alerts.rulebook import Mute, RuleBook
from lightning_hooks.alerts.step_rules import Diverging, NonfiniteSteps, NotZeroed, Spike, WastedClip
from lightning_hooks.alerts.update_rules import NotOptimized, NotUpdated, UpdateTooLarge, UpdateTooSmall
from lightning_hooks.alerts.windows import AlertWindow
from lightning_hooks.reports.alert import ALERT_KINDS, Alert, AlertError
from lightning_hooks.reports.setups import ParameterSetup
from lightning_hooks.reports.windows import ClipReport, FeatureReport, GradientFlowReport, RangeReport
from lightning_hooks.statistics.loss import LossReport

__all__ = [
    "ALERT_KINDS",
    "RULES",
    "Alert",
    "AlertError",
    "AlertObservers",
    "AlertWindow",
    "AlwaysClipped",
    "ClipIneffective",
    "ClipReport",
    "Constant",
    "ConstantTargets",
    "Dead",
    "Diverging",
    "DoubleSoftmax",
    "Exploding",
    "FeatureReport",
    "GradientFlowReport",
    "LossReport",
    "Missing",
    "Mute",
    "NonfiniteFeatures",
    "NonfiniteGradients",
    "NonfiniteSteps",
    "NotOptimized",
    "NotUpdated",
    "NotZeroed",
    "ParameterSetup",
    "PoorInit",
    "RangeReport",
    "Rule",
    "RuleBook",
    "SameSamples",
    "Saturated",
    "Shared",
    "Silent",
    "Spike",
    "StepsSkipped",
    "Stretching",
    "UpdateTooLarge",
    "UpdateTooSmall",
    "ValidationShift",
    "Vanishing",
    "WastedClip",
    "Zero",
]
