"""The rules that the monitors start with."""

from __future__ import annotations

from typing import Any

from lightning_hooks.alerts.clip_rules import AlwaysClipped, ClipIneffective, StepsSkipped
from lightning_hooks.alerts.feature_rules import Constant, Dead, NonfiniteFeatures, Saturated, Silent
from lightning_hooks.alerts.gradient_rules import Exploding, Missing, NonfiniteGradients, Stretching, Vanishing, Zero
from lightning_hooks.alerts.model_rules import ConstantTargets, DoubleSoftmax, PoorInit, SameSamples, Shared, ValidationShift
from lightning_hooks.alerts.rule import Rule
from lightning_hooks.alerts.step_rules import Diverging, NonfiniteSteps, NotZeroed, Spike, WastedClip
from lightning_hooks.alerts.update_rules import NotOptimized, NotUpdated, UpdateTooLarge, UpdateTooSmall
from lightning_hooks.reports.windows import ClipReport, FeatureReport, GradientFlowReport

RULES: dict[type[Any], tuple[Rule, ...]] = {
    FeatureReport: (
        *(NonfiniteFeatures(), Dead(), Saturated(), Constant(), SameSamples()),
        *(PoorInit(), ValidationShift(), Shared(), Silent()),
    ),
    GradientFlowReport: (
        *(NonfiniteGradients(), Exploding(), Stretching(), Vanishing(), Zero(), Missing(), NotOptimized()),
        *(UpdateTooLarge(), UpdateTooSmall(), NotUpdated(), ConstantTargets(), DoubleSoftmax()),
    ),
    ClipReport: (
        NonfiniteSteps(),
        Diverging(),
        Spike(),
        NotZeroed(),
        StepsSkipped(),
        ClipIneffective(),
        WastedClip(),
        AlwaysClipped(),
    ),
}
"""By the report that they read."""
