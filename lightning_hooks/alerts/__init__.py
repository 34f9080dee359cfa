"""Reports, the rules that read them, and the alerts that come out."""

from lightning_hooks.alerts.attention_rules import AttentionCollapse, AttentionLogits, AttentionUniform, MaskedRows
from lightning_hooks.alerts.batch_rules import BatchRepeated, LabelsIgnored, RanksSameBatch
from lightning_hooks.alerts.clip_rules import AlwaysClipped, ClipIneffective, StepsSkipped
from lightning_hooks.alerts.defaults import RULES
from lightning_hooks.alerts.feature_rules import Constant, Dead, NonfiniteFeatures, Saturated, Silent
from lightning_hooks.alerts.first_weight_rules import ConstantWeights, FrozenHead, OneSignWeights
from lightning_hooks.alerts.gradient_rules import Exploding, NonfiniteGradients, Stretching, Vanishing
from lightning_hooks.alerts.loss_rules import LossDiverging, LossMaximized, LossNonfinite, LossPlateau, LossSpiking, Overfitting
from lightning_hooks.alerts.missing_rules import Missing, Zero
from lightning_hooks.alerts.model_rules import (
    ConstantTargets,
    DoubleSoftmax,
    PoorInit,
    SameSamples,
    Shared,
    TinyInput,
    ValidationShift,
)
from lightning_hooks.alerts.observers import AlertObservers
from lightning_hooks.alerts.optimizer_rules import DecayDominates, LrZero, OptimizerSettings, SecondMomentStale
from lightning_hooks.alerts.output_rules import (
    DropoutInEval,
    IdOutOfRange,
    LabelsIgnoredByLoss,
    OutputRange,
    PrecisionNotApplied,
    SoftmaxDim,
)
from lightning_hooks.alerts.rank_rules import RanksDiffer
from lightning_hooks.alerts.representation_rules import RepresentationCollapse, SameOutputs
from lightning_hooks.alerts.residual_rules import ActivationOutliers, ResidualDoubling, ResidualGrowth
from lightning_hooks.alerts.router_rules import DeadExperts, RouterCollapse
from lightning_hooks.alerts.rule import Rule
from lightning_hooks.alerts.rulebook import Mute, RuleBook
from lightning_hooks.alerts.setup_rules import EvalMode, FrozenStatistics, ModuleSettings, OptimizerChoices, Unregistered
from lightning_hooks.alerts.step_rules import Discarded, Diverging, NonfiniteSteps, NotZeroed, Spike, WastedClip
from lightning_hooks.alerts.target_rules import PairedTargets, SameTargets, UnreachableTargets
from lightning_hooks.alerts.update_rules import NeverStepped, NotOptimized, NotUpdated, UpdateTooLarge, UpdateTooSmall
from lightning_hooks.alerts.weight_rules import GrowthWithoutGain, UpdatesLost, UpdateSpike, WeightsGrowing
from lightning_hooks.alerts.windows import AlertWindow
from lightning_hooks.reports.alert import ALERT_KINDS, Alert, AlertError
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
    "ActivationOutliers",
    "Alert",
    "AlertError",
    "AlertObservers",
    "AlertWindow",
    "AlwaysClipped",
    "AttentionCollapse",
    "AttentionLogits",
    "AttentionReport",
    "AttentionStats",
    "AttentionUniform",
    "BatchCounts",
    "BatchRepeated",
    "ClipIneffective",
    "ClipReport",
    "Constant",
    "ConstantTargets",
    "ConstantWeights",
    "Dead",
    "DeadExperts",
    "DecayDominates",
    "Discarded",
    "Diverging",
    "DoubleSoftmax",
    "DropoutInEval",
    "DropoutUse",
    "EvalMode",
    "Exploding",
    "FeatureReport",
    "FrozenHead",
    "FrozenStatistics",
    "GradientFlowReport",
    "GroupSettings",
    "GrowthWithoutGain",
    "HeadStats",
    "IdOutOfRange",
    "LabelCounts",
    "LabelsIgnored",
    "LabelsIgnoredByLoss",
    "LossDiverging",
    "LossMaximized",
    "LossNonfinite",
    "LossPlateau",
    "LossReport",
    "LossSpiking",
    "LrZero",
    "MaskedRows",
    "Missing",
    "ModelSetup",
    "ModuleSettings",
    "Mute",
    "NeverStepped",
    "NonfiniteFeatures",
    "NonfiniteGradients",
    "NonfiniteSteps",
    "NotOptimized",
    "NotUpdated",
    "NotZeroed",
    "OneSignWeights",
    "OptimizerChoices",
    "OptimizerSettings",
    "OptimizerStats",
    "OutputRange",
    "OutputStats",
    "Overfitting",
    "PairedTargets",
    "ParameterSetup",
    "PoorInit",
    "PrecisionNotApplied",
    "PrecisionStats",
    "RangeReport",
    "RanksDiffer",
    "RanksSameBatch",
    "RepresentationCollapse",
    "RepresentationStats",
    "ResidualDoubling",
    "ResidualGrowth",
    "ResidualStats",
    "RouterCollapse",
    "RouterReport",
    "Rule",
    "RuleBook",
    "SameOutputs",
    "SameSamples",
    "SameTargets",
    "Saturated",
    "SecondMomentStale",
    "Shared",
    "Silent",
    "SoftmaxDim",
    "SoftmaxUse",
    "Spike",
    "StepsSkipped",
    "Stretching",
    "TargetStats",
    "TinyInput",
    "UnreachableTargets",
    "Unregistered",
    "UnregisteredModules",
    "UpdateSpike",
    "UpdateTooLarge",
    "UpdateTooSmall",
    "UpdatesLost",
    "ValidationShift",
    "Vanishing",
    "VectorDecay",
    "WastedClip",
    "WeightsGrowing",
    "Zero",
]
