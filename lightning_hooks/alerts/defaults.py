"""The rules that the monitors start with."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from lightning_hooks.alerts.attention_rules import AttentionCollapse, AttentionLogits, AttentionUniform, MaskedRows
from lightning_hooks.alerts.batch_rules import BatchRepeated, LabelsIgnored, RanksSameBatch
from lightning_hooks.alerts.clip_rules import AlwaysClipped, ClipIneffective, StepsSkipped
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
from lightning_hooks.alerts.setup_rules import EvalMode, FrozenStatistics, ModuleSettings, OptimizerChoices, Unregistered
from lightning_hooks.alerts.step_rules import Discarded, Diverging, NonfiniteSteps, NotZeroed, Spike, WastedClip
from lightning_hooks.alerts.target_rules import PairedTargets, SameTargets, UnreachableTargets
from lightning_hooks.alerts.update_rules import NeverStepped, NotOptimized, NotUpdated, UpdateTooLarge, UpdateTooSmall
from lightning_hooks.alerts.weight_rules import GrowthWithoutGain, UpdatesLost, UpdateSpike, WeightsGrowing
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.attention import AttentionReport
from lightning_hooks.reports.routers import RouterReport
from lightning_hooks.reports.windows import ClipReport, FeatureReport, GradientFlowReport

RULES: dict[type[Any], tuple[Rule, ...]] = {
    FeatureReport: (
        *(NonfiniteFeatures(), Dead(), Saturated(), Constant(), SameSamples(), TinyInput()),
        *(PoorInit(), ValidationShift(), Shared(), Silent()),
        *(
            RepresentationCollapse(),
            SameOutputs(),
            OutputRange(),
            SoftmaxDim(),
            DropoutInEval(),
            PrecisionNotApplied(),
            IdOutOfRange(),
            LabelsIgnoredByLoss(),
        ),
        *(PairedTargets(), UnreachableTargets(), SameTargets()),
        *(ActivationOutliers(), ResidualGrowth(), ResidualDoubling()),
    ),
    AttentionReport: (AttentionLogits(), AttentionCollapse(), AttentionUniform(), MaskedRows()),
    GradientFlowReport: (
        *(NonfiniteGradients(), Exploding(), Stretching(), Vanishing(), Zero(), Missing(), NotOptimized()),
        *(UpdateTooLarge(), UpdateTooSmall(), NotUpdated(), NeverStepped(), ConstantTargets(), DoubleSoftmax()),
        *(UpdatesLost(), UpdateSpike(), WeightsGrowing(), GrowthWithoutGain()),
        *(SecondMomentStale(), LrZero(), OptimizerSettings(), DecayDominates()),
        *(ConstantWeights(), OneSignWeights(), FrozenHead()),
        *(EvalMode(), FrozenStatistics(), ModuleSettings(), OptimizerChoices(), Unregistered()),
        *(LabelsIgnored(), BatchRepeated(), RanksSameBatch(), RanksDiffer()),
        *(LossNonfinite(), LossSpiking(), LossDiverging(), LossMaximized(), LossPlateau(), Overfitting()),
    ),
    ClipReport: (
        NonfiniteSteps(),
        Diverging(),
        Spike(),
        NotZeroed(),
        Discarded(),
        StepsSkipped(),
        ClipIneffective(),
        WastedClip(),
        AlwaysClipped(),
    ),
    RouterReport: (RouterCollapse(), DeadExperts()),
}
"""By the report that they read."""

LIMITS = {
    "dead": Dead().threshold,
    "saturated": Saturated().threshold,
    "always_clipped": AlwaysClipped().threshold,
    "exploding": Exploding().absolute,
    "update_too_small": UpdateTooSmall().threshold,
    "update_too_large": UpdateTooLarge().threshold,
}
"""The thresholds that pictures draw, by kind of alert."""


def limit_of(kind: str, alerts: Iterable[Alert]) -> float:
    """The threshold of a rule: that of its last alert, which the user may have set, or the default."""
    thresholds = [alert.threshold for alert in alerts if alert.kind == kind]
    return thresholds[-1] if thresholds else LIMITS.get(kind, 0.0)
