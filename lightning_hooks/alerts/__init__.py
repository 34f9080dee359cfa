"""Reports, the rules that read them, and the alerts that come out."""

from lightning_hooks.alerts import (
    activation_rules,
    attention_rules,
    batch_rules,
    call_rules,
    clip_rules,
    constant_rules,
    exploding_rules,
    learning_rules,
    loss_input_rules,
    loss_rules,
    nonfinite_rules,
    optimizer_rules,
    registration_rules,
    representation_rules,
    residual_rules,
    router_rules,
    setup_rules,
    still_weight_rules,
    update_rules,
    vanishing_rules,
    weight_rules,
)
from lightning_hooks.alerts.activation_rules import *
from lightning_hooks.alerts.attention_rules import *
from lightning_hooks.alerts.batch_rules import *
from lightning_hooks.alerts.call_rules import *
from lightning_hooks.alerts.clip_rules import *
from lightning_hooks.alerts.constant_rules import *
from lightning_hooks.alerts.defaults import ALERT_KINDS, RULES
from lightning_hooks.alerts.exploding_rules import *
from lightning_hooks.alerts.learning_rules import *
from lightning_hooks.alerts.loss_input_rules import *
from lightning_hooks.alerts.loss_rules import *
from lightning_hooks.alerts.nonfinite_rules import *
from lightning_hooks.alerts.observers import AlertObservers
from lightning_hooks.alerts.optimizer_rules import *
from lightning_hooks.alerts.registration_rules import *
from lightning_hooks.alerts.representation_rules import *
from lightning_hooks.alerts.residual_rules import *
from lightning_hooks.alerts.router_rules import *
from lightning_hooks.alerts.rule import Rule
from lightning_hooks.alerts.rulebook import Mute, RuleBook
from lightning_hooks.alerts.setup_rules import *
from lightning_hooks.alerts.still_weight_rules import *
from lightning_hooks.alerts.update_rules import *
from lightning_hooks.alerts.vanishing_rules import *
from lightning_hooks.alerts.weight_rules import *
from lightning_hooks.alerts.windows import AlertWindow
from lightning_hooks.reports.alert import Alert, AlertError
from lightning_hooks.reports.attention import AttentionReport
from lightning_hooks.reports.model_setup import BatchCounts, LabelCounts, ModelSetup, UnregisteredModules, VectorDecay
from lightning_hooks.reports.optimizers import GroupSettings, OptimizerStats
from lightning_hooks.reports.routers import RouterReport
from lightning_hooks.reports.setups import ParameterSetup
from lightning_hooks.reports.windows import ClipReport, FeatureReport, GradientFlowReport, RangeReport
from lightning_hooks.statistics.attention_stats import AttentionStats, HeadStats
from lightning_hooks.statistics.call_checks import DropoutUse, SoftmaxUse
from lightning_hooks.statistics.loss import LossReport
from lightning_hooks.statistics.outputs import OutputStats
from lightning_hooks.statistics.precision import PrecisionStats
from lightning_hooks.statistics.representation import RepresentationStats
from lightning_hooks.statistics.residual import ResidualStats
from lightning_hooks.statistics.targets import TargetStats

__all__ = [
    "ALERT_KINDS",
    "RULES",
    "Alert",
    "AlertError",
    "AlertObservers",
    "AlertWindow",
    "AttentionReport",
    "AttentionStats",
    "BatchCounts",
    "ClipReport",
    "DropoutUse",
    "FeatureReport",
    "GradientFlowReport",
    "GroupSettings",
    "HeadStats",
    "LabelCounts",
    "LossReport",
    "ModelSetup",
    "Mute",
    "OptimizerStats",
    "OutputStats",
    "ParameterSetup",
    "PrecisionStats",
    "RangeReport",
    "RepresentationStats",
    "ResidualStats",
    "RouterReport",
    "Rule",
    "RuleBook",
    "SoftmaxUse",
    "TargetStats",
    "UnregisteredModules",
    "VectorDecay",
]
__all__ += activation_rules.__all__
__all__ += attention_rules.__all__
__all__ += batch_rules.__all__
__all__ += call_rules.__all__
__all__ += clip_rules.__all__
__all__ += constant_rules.__all__
__all__ += exploding_rules.__all__
__all__ += learning_rules.__all__
__all__ += loss_input_rules.__all__
__all__ += loss_rules.__all__
__all__ += nonfinite_rules.__all__
__all__ += optimizer_rules.__all__
__all__ += registration_rules.__all__
__all__ += representation_rules.__all__
__all__ += residual_rules.__all__
__all__ += router_rules.__all__
__all__ += setup_rules.__all__
__all__ += still_weight_rules.__all__
__all__ += update_rules.__all__
__all__ += vanishing_rules.__all__
__all__ += weight_rules.__all__
