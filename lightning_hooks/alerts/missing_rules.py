"""Parameters that no gradient reaches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.alerts.links import in_a_row, of_whole, upstream
from lightning_hooks.alerts.past import another_expert_learns, had_gradient, only_the_first_step
from lightning_hooks.alerts.rule import Judges, Rule, percent
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.kinds import Kind, Severity
from lightning_hooks.reports.windows import GradientFlowReport


@dataclass(frozen=True, slots=True, eq=False)
class Zero(Rule):
    """Gradients that arrive and are exactly zero everywhere.

    It is an info for an expert that tokens may choose, and for the bias of a module whose weight has a gradient: then the loss does
    not depend on an offset, as that of a critic in a Wasserstein GAN, which is a difference of its outputs. So it is for a small
    part of a library's model, as the queries of a last block whose other outputs nothing reads, and where no parameter has a
    gradient because the loss itself was 0 in these batches and is not in others: a hinge whose margin all samples keep.

    Attributes:
        threshold: Share of zero elements over the epoch at or above which it counts, in (0, 1].
        part: Share of what trains that such a part is at most: a larger one is multiplied by zero, or its gates are shut.
    """

    kind: ClassVar[str] = "zero"
    judges: ClassVar[Judges] = "epoch"
    shares: ClassVar[tuple[str, ...]] = ("threshold", "part")

    _CAUSES: ClassVar[str] = (
        "Common causes: dead or saturated units after it, an output that is masked or multiplied by zero, an input of zeros, or an "
        "expert that no token reached."
    )

    threshold: float = 1.0
    part: float = 0.5

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert per parameter whose gradient is zero."""
        if only_the_first_step(report):
            return
        small, met = self._share(report) <= self.part, _loss_is_met(report)
        for site, gradient in report.parameters.items():
            if gradient.zero_fraction >= self.threshold:
                spare = report.setups[site].spare if small and site in report.setups else ""
                why = f"This seems intended: it is {spare}." if spare else met or self._CAUSES
                harmless = spare or met or another_expert_learns(report, site) or _weight_learns(report, site)
                severity: Severity = "info" if harmless else "warning"
                yield self.alert(
                    report, site, gradient.zero_fraction, self.threshold, severity,
                    f"{percent(gradient.zero_fraction)} of its gradient is exactly zero (limit {percent(self.threshold)}): it is "
                    "connected to the loss but does not learn.",
                    why,
                )  # fmt: skip

    def _share(self, report: GradientFlowReport) -> float:
        """Of the numbers that train, those of parameters whose gradient is zero."""
        trains = {name: setup.elements for name, setup in report.setups.items() if setup.trains}
        zero = [name for name, gradient in report.parameters.items() if gradient.zero_fraction >= self.threshold]
        return sum(trains.get(name, 0) for name in zero) / max(sum(trains.values()), 1)


def _weight_learns(report: GradientFlowReport, site: str) -> bool:
    """Whether a parameter is the bias of a module whose weight has a gradient."""
    module, _, name = site.rpartition("bias")
    weight = report.parameters.get(f"{module}weight")
    return not name and weight is not None and bool(weight.steps) and weight.zero_fraction < 1


def _loss_is_met(report: GradientFlowReport) -> str:
    """What it says where no parameter has a gradient because the loss was exactly 0 in some batches; empty otherwise."""
    measured = [gradient for gradient in report.parameters.values() if gradient.steps]
    losses = report.loss.recent[-report.loss.count :] if report.loss is not None and report.loss.count else ()
    zero = losses.count(0.0)
    if zero == len(losses) or any(gradient.zero_fraction < 1 or gradient.steps > zero for gradient in measured):
        return ""
    return f"The loss itself was 0 in {zero} of {len(losses)} batches, as that of a hinge whose margin all samples keep."


@dataclass(frozen=True, slots=True, eq=False)
class Missing(Rule):
    """Parameters that require gradients and never get one.

    It is an info for unused branches of a library's model and for target networks, and a warning for a parameter of the user's own
    model, for one that had a gradient in an earlier epoch, and for the body of a library's model: modules that run before all that
    trains, hold most of the model, and whose outputs require a gradient, so that they do not run under ``no_grad``.
    """

    kind: ClassVar[str] = "missing"
    judges: ClassVar[Judges] = "epoch"

    def __call__(self, report: GradientFlowReport, history: Sequence[GradientFlowReport] = ()) -> Iterator[Alert]:
        """Yield an alert per parameter whose gradient was None at every measured step."""
        for site, gradient in report.parameters.items():
            if site in report.setups and report.setups[site].has_gradient:
                continue  # at a step that was not sampled: a branch that is taken by chance
            if gradient.missing_steps and not gradient.steps and not gradient.nonfinite_steps:
                last = next((earlier.epoch for earlier in history[::-1] if had_gradient(earlier, site)), None)
                spare = report.setups[site].spare if site in report.setups and last is None else ""
                known = f"This seems intended: it is {spare}. " if spare else ""
                known = f"It last had one in epoch {last}. " if last is not None else known
                severity: Severity = "info" if spare or another_expert_learns(report, site) else "warning"
                yield self.alert(
                    report, site, gradient.missing_steps, 0.0, severity,
                    "it requires a gradient but had none (None, not zero) at every measured step: the loss does not depend "
                    "on it.",
                    f"{known}Common causes: its layer is not used in forward, or a detach(), .item(), .data or no_grad() "
                    "breaks the path.",
                )  # fmt: skip


__all__ = ["Missing", "Zero"]

KINDS = (
    Kind(
        name="zero",
        title="Gradients that are exactly zero",
        group="Backward",
        meaning="A parameter's gradient arrives and is exactly 0. The parameter is connected to the loss but does not learn.",
        formula=(
            "zero_fraction = elements of the gradient that are exactly 0, over all measured steps\n\n"
            "alert if zero_fraction >= {Zero.threshold}\n"
            "an info for one of several experts, for a bias where the weight of its module has a gradient, and in a library's "
            "model,\n"
            "unless more than {Zero.part} of what trains has none; and where no parameter has a gradient and the loss was 0 in "
            "as many\n"
            "batches as were measured, and not in all"
        ),
        severities="warning; info for an expert, a bias whose weight learns, and in a library's model",
        advice=("Check the layers after it: dead units, masks, a multiplication by zero",),
        rank=1150,
        measures="share",
        follows={"labels_ignored": of_whole, "constant": of_whole, "dead": of_whole, "saturated": upstream, "vanishing": upstream},
        spreads=in_a_row,
    ),
    Kind(
        name="missing",
        title="Parameters without a gradient",
        group="Backward",
        meaning="A parameter requires a gradient but its `.grad` is None at every measured step. The loss does not depend on it.",
        formula="alert if .grad is None at every measured step of the epoch",
        severities=(
            "warning; info for an unused part of a library's model, unless it holds blocks that were called or is its body, and "
            "for a copy that follows another module"
        ),
        advice=(
            "Use it in forward",
            "Remove what breaks the path to the loss",
            "Freeze it with requires_grad_(False) if it is not to learn",
        ),
        rank=600,
        measures="nothing",
        spreads=in_a_row,
    ),
)

RULES = (Zero(), Missing())
