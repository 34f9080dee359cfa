"""NaN and infinite values: in outputs, in gradients, and at steps that were taken with them."""

from __future__ import annotations

import math
from typing import Any

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule, in_batch, percent, where
from lightning_hooks.declare.window import batch_of
from lightning_hooks.diagnostics.causes.code import NONFINITE
from lightning_hooks.diagnostics.clipping_events.report import ClipReport
from lightning_hooks.diagnostics.features.table import FeatureStats
from lightning_hooks.diagnostics.reports import FeatureReport, GradientFlowReport


class NonfiniteFeatures(Rule, kind="nonfinite", shares=("threshold",), urgent=True):
    """NaN or infinite outputs.

    Attributes:
        threshold: Share of a module's values above which it counts, in [0, 1].
    """

    threshold: float = 0.0

    def __call__(self, report: FeatureReport) -> Alerts:
        sampled = f" (one batch in {report.every_n_steps} is sampled)" * (report.every_n_steps > 1)
        for site, stats in where(report.sites, lambda stats: stats.nonfinite_fraction > self.threshold):
            first, of_data = stats.first_nonfinite_batch, _in_data(report, stats)
            yield self.finding(
                report, site, stats.nonfinite_fraction, self.threshold,
                f"{percent(stats.nonfinite_fraction)} of its output values are NaN or infinite, first in training batch "
                f"{first} of the epoch{sampled}{of_data}.",
                batch=first,
                advice=("Remove or replace such values in the data, and clean that sample",) * bool(of_data),
            )  # fmt: skip


def _in_data(report: FeatureReport, stats: FeatureStats) -> str:
    """That the batch itself held such values by then, and where, as a clause; empty where it did not."""
    if not batch_of(report.inputs.get("training")) <= batch_of(stats) < math.inf:
        return ""
    at = f", first at {list(report.input_nonfinite)}" if report.input_nonfinite else ""
    return f", as are values of {in_batch(report.input_place)}{at}"


class NonfiniteWeights(Rule, kind="nonfinite", urgent=True):
    """Weights that are NaN or infinite before the first step. Where loss and gradients are finite, nothing uses them: an info."""

    def __call__(self, report: GradientFlowReport) -> Alerts:
        found = [stats.nonfinite_fraction for stats in report.modules.values()]
        steps = [stats.nonfinite_steps for stats in (*report.parameters.values(), report.loss) if stats is not None]
        bad = any(found) or any(steps)
        for name, weight in report.model_setup.nonfinite_weights.items():
            yield self.finding(
                report, name, weight.count, 0.0,
                f"{weight.count} of its {weight.elements} numbers {('has', 'have')[weight.count > 1]} been NaN or infinite since "
                f"before the first step, the first at {list(weight.index)}"
                f"{': the loss is finite, so nothing uses them' * (not bad)}.",
                conclusive=bad,
                since_step=0,
                advice=("Initialise or load it again",
                    "Look for torch.empty without an initialisation, a division by 0 in one, or a broken checkpoint"),
            )  # fmt: skip


class NonfiniteGradients(Rule, kind="nonfinite", urgent=True):
    """NaN or infinite gradients at steps that were taken (steps that a loss scaler skipped do not count)."""

    def __call__(self, report: GradientFlowReport) -> Alerts:
        for site, stats in where(report.modules, lambda stats: stats.nonfinite_fraction > 0):
            batch, what = stats.first_nonfinite_batch, f"{percent(stats.nonfinite_fraction)} of the gradient"
            first = f", first in training batch {batch} of the epoch" * (batch is not None)
            yield self._found(report, site, stats.nonfinite_fraction, what, first, batch=batch)
        for site, gradient in report.parameters.items():
            if gradient.nonfinite_steps and site not in report.model_setup.nonfinite_weights:
                steps, since = gradient.nonfinite_steps, gradient.first_nonfinite_step
                first = f", first at step {since}" * (since is not None)
                yield self._found(
                    report, site, steps, f"at {steps} measured step{'s' * (steps > 1)} the gradient", first, since_step=since
                )

    def _found(self, report: GradientFlowReport, site: str, value: float, what: str, first: str, **when: Any) -> Alert:
        return self.finding(
            report, site, value, 0.0,
            f"{what} is NaN or infinite{first}; one step with such a gradient makes a parameter NaN.",
            **when,
        )  # fmt: skip


class NonfiniteSteps(Rule, kind="nonfinite", urgent=True):
    """Steps that were taken with a NaN or infinite gradient; every step is checked, so the batch is exact."""

    def __call__(self, report: ClipReport) -> Alerts:
        """Yield an alert per optimizer that took such a step.

        Where only some gradients were finite, the backward pass fails between the last parameter that is not and those after it:
        the site is that parameter. Where none was, the loss or the forward pass failed: the site is the optimizer.
        """
        for site, events in report.events.items():
            at = f"at training batch {events.first_nonfinite_batch} of the epoch"
            if events.nonfinite_share < 1.0 and events.first_nonfinite_parameters and events.first_nonfinite_batch is not None:
                yield self.finding(
                    report, events.first_nonfinite_parameters[-1], events.nonfinite_share, 0.0,
                    f"{at} a step was taken with a gradient that is NaN or infinite up to this layer and finite after it: the "
                    "backward pass fails between this layer and the next.",
                    advice=("Add an eps inside it",),
                    batch=events.first_nonfinite_batch,
                )  # fmt: skip
            elif events.first_nonfinite_batch is not None:
                yield self.finding(
                    report, site, events.nonfinite_share, 0.0,
                    f"{at} a step was taken with gradients that were all NaN or infinite: the loss was already, or the forward "
                    "pass before it.",
                    advice=(
                        "Check that batch and the arguments of the loss (log of 0, division by 0)",
                        "Check the steps before for a learning rate that is too large",
                    ),
                    batch=events.first_nonfinite_batch,
                )  # fmt: skip


__all__ = ["NonfiniteFeatures", "NonfiniteGradients", "NonfiniteSteps", "NonfiniteWeights"]

KINDS = (
    Kind(
        "nonfinite", "NaN or infinite values", group="Forward", states="fact", about="nonfinite",
        causes=NONFINITE,
        meaning="A module's output, the gradient at a module or the gradient of a parameter holds NaN or infinite values. One "
        "optimizer step with such a gradient ruins the weights.",
        formula="alert if nonfinite_fraction > {NonfiniteFeatures.threshold}    (outputs, and gradients at modules)\n"
        "alert if a measured step of a parameter had a gradient that is not finite\n"
        "alert if any optimizer step, sampled or not, was taken with such a gradient\n"
        "alert if a parameter held such a value before the first step",
        critical=0.0,
        inconclusive="for a weight at the start while loss and gradients are finite",
        advice=("Check the inputs of that batch and this module's operation", "Try a lower learning rate or gradient clipping"),
    ),
)  # fmt: skip
