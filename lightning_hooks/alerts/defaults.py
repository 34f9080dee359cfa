"""The rules that the monitors start with."""

from __future__ import annotations

from typing import Any

from lightning_hooks.alerts.clip_rules import AlwaysClipped, ClipIneffective, StepsSkipped
from lightning_hooks.alerts.feature_rules import Constant, Dead, NonfiniteFeatures, Saturated, Silent
from lightning_hooks.alerts.gradient_rules import Exploding, Missing, NonfiniteGradients, Vanishing, Zero
from lightning_hooks.alerts.reports import ClipReport, FeatureReport, GradientFlowReport
from lightning_hooks.alerts.rule import Rule

FEATURE_RULES: tuple[Rule, ...] = (NonfiniteFeatures(), Dead(), Saturated(), Constant(), Silent())
GRADIENT_RULES: tuple[Rule, ...] = (NonfiniteGradients(), Exploding(), Vanishing(), Zero(), Missing())
CLIP_RULES: tuple[Rule, ...] = (StepsSkipped(), ClipIneffective(), AlwaysClipped())

RULES: dict[type[Any], tuple[Rule, ...]] = {
    FeatureReport: FEATURE_RULES,
    GradientFlowReport: GRADIENT_RULES,
    ClipReport: CLIP_RULES,
}
"""By the report that they read."""
