"""Activations: dead units, saturated activations, and modules that were not measured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import Kind, Severity
from lightning_hooks.declare.rule import Judges, Rule, percent
from lightning_hooks.diagnostics.causes.code import softmax_of_one
from lightning_hooks.diagnostics.causes.data import large_inputs
from lightning_hooks.diagnostics.causes.steps import STEP_SIZE
from lightning_hooks.diagnostics.causes.weights import constant_weights, initial_scale, offset_bias
from lightning_hooks.diagnostics.reports import FeatureReport


@dataclass(frozen=True, slots=True, eq=False)
class Dead(Rule):
    """Units of a rectifier that never fired in the epoch.

    The hook literature and SageMaker's dead-ReLU rule flag half of a layer. Small healthy nets get there, such as a VAE's encoder
    (56 %) and the mobile nets of ReLU6 and hard-swish (65 %).

    Attributes:
        threshold: Share of a rectifier's units, in [0, 1].
        dying: Share that is enough where it has grown by ``growth`` since training's first epoch.
        growth: As a share of the units.
        min_samples: Values seen of each unit, below which only a layer without any unit that fired is judged.
        min_units: Units below which a layer is judged only above ``of_few``: a few more of 32 units may be dead by chance.
        of_few: That share.
    """

    kind: ClassVar[str] = "dead"
    judges: ClassVar[Judges] = "epoch"
    shares: ClassVar[tuple[str, ...]] = ("threshold", "dying", "growth", "of_few")

    threshold: float = 0.7
    dying: float = 0.6
    growth: float = 0.2
    min_samples: ClassVar[int] = 16
    min_units: ClassVar[int] = 64
    of_few: float = 0.8

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert per rectifier with more dead units than the threshold."""
        for site, stats in report.sites.items():
            dead = stats.dead_fraction
            if dead is None:
                continue
            first = next((earlier.sites[site].dead_fraction for earlier in report.earlier if site in earlier.sites), None)
            limit = min(self.dying, self.threshold) if first is not None and dead - first > self.growth else self.threshold
            if stats.unit_samples and stats.count / stats.unit_samples < self.min_units:
                limit = max(limit, self.of_few)
            if dead > limit and (dead == 1.0 or stats.unit_samples is None or stats.unit_samples >= self.min_samples):
                severity: Severity = "critical" if dead == 1.0 else "warning"
                below = f"; {percent(first)} at first" if first is not None and limit < self.threshold else ""
                yield self.alert(
                    report, site, dead, limit, severity,
                    f"{percent(dead)} of its units output zero for every sampled input (limit "
                    f"{percent(limit)}{below}): they pass no gradient and cannot recover.",
                )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Saturated(Rule):
    """A bounded activation that sits at its bounds.

    Calls of ``softmax`` are not judged: the distributions of a classifier may be certain, and attention has rules of its own. Nor
    is what gives a few numbers: a share or a rate that is learned is kept in bounds so.

    Attributes:
        threshold: Share of its values, in [0, 1]. Half is the share the hook literature and SageMaker's rules flag.
        learned: The same for an activation that was below it in training's first window: gates learn to be open or shut.
        min_values: Values of a call below which it is not judged.
    """

    kind: ClassVar[str] = "saturated"
    judges: ClassVar[Judges] = "epoch"
    shares: ClassVar[tuple[str, ...]] = ("threshold", "learned")

    threshold: float = 0.5
    learned: float = 0.9
    min_values: ClassVar[int] = 8

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert per activation that is saturated more often than the threshold."""
        first = report.first.sites
        for site, stats in report.sites.items():
            saturated = stats.saturated_fraction
            if saturated is None or report.functions.get(site) == "softmax" or stats.count < self.min_values * stats.calls:
                continue
            began = first[site].saturated_fraction if site in first else None
            limit = self.threshold if began is None or began > self.threshold else max(self.learned, self.threshold)
            if saturated > limit:
                yield self.alert(
                    report, site, saturated, limit, "warning",
                    f"{percent(saturated)} of its values are at a bound of the activation (limit "
                    f"{percent(limit)}), where the slope is almost zero and gradients vanish.",
                )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Silent(Rule):
    """A selected module whose hook never ran, or whose output holds no number."""

    kind: ClassVar[str] = "silent"
    judges: ClassVar[Judges] = "epoch"

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an info per silent module."""
        for site in report.silent:
            if site in report.unmeasured:
                yield self.alert(
                    report, site, 0.0, 1.0, "info",
                    "it was called, but its output holds no floating-point tensor (integers, None, or another object), or only one "
                    "that has no values of its own (under torch.func): there is nothing to measure.",
                    advice=("Leave it out with modules=, or mute this with rules=['-silent']",),
                )  # fmt: skip
            else:
                yield self.alert(
                    report, site, 0.0, 1.0, "info",
                    "it was not called in any sampled training batch, so it was not measured (it is not zero and not dead).",
                )  # fmt: skip


__all__ = ["Dead", "Saturated", "Silent"]

KINDS = (
    Kind(
        "dead", "Dead units", group="Forward", states="symptom", measures="share", limit=Dead().threshold,
        causes=(offset_bias, constant_weights, initial_scale, *STEP_SIZE, large_inputs),
        meaning="Units of a rectifier (`nn.ReLU`, `nn.ReLU6`) gave 0 for every sampled input of the epoch. They pass no gradient, "
        "so they cannot recover by themselves.",
        formula="dead_fraction = units that are 0 in every sampled batch of the epoch / units of the layer\n\n"
        "alert if dead_fraction > {Dead.threshold}\n"
        "      or dead_fraction > {Dead.dying} and dead_fraction - dead_fraction in the first epoch > {Dead.growth}\n"
        "In a layer of fewer than {Dead.min_units} units the limit is at least {Dead.of_few}.\n"
        "With fewer than {Dead.min_samples} values of each unit only a layer whose units are all dead is judged.",
        severities="warning; critical if all units are dead",
        advice=("Try a lower learning rate or a warm-up", "Check the layer's bias and initialisation",
            "Use a LeakyReLU or GELU in its place"),
    ),
    Kind(
        "saturated", "Saturated activations", group="Forward",
        states="symptom", measures="share", limit=Saturated().threshold,
        causes=(large_inputs, softmax_of_one, initial_scale, offset_bias, *STEP_SIZE),
        meaning="Most values of a bounded activation (sigmoid, tanh, softmax, ReLU6, hardtanh and the flat tail of GELU, SiLU, "
        "ELU, softplus) are at a bound, where the slope is almost zero. Little gradient passes.",
        formula="saturated_fraction = values within 1 % of the activation's range from a bound / values\n\n"
        "alert if saturated_fraction > {Saturated.threshold}; > {Saturated.learned} if it was below {Saturated.threshold} in the "
        "first window",
        advice=("Normalise the inputs", "Put a normalisation layer before it", "Try a smaller initialisation"),
    ),
    Kind(
        "silent", "Modules that were not measured", group="Set-up", states="fact", measures="nothing",
        meaning="A chosen module was never called in a sampled training batch, or it returned no floating-point tensor. Nothing "
        "is known about it: it is neither zero nor dead.",
        formula="alert if calls = 0, or no output holds a floating-point tensor",
        severities="info",
        advice=("Remove it if it is not used", "Call it as module(x) instead of module.forward(x)",
            "Call torch.compiler.reset() before fit if the model was compiled earlier"),
    ),
)  # fmt: skip

RULES = (Dead(), Saturated(), Silent())
