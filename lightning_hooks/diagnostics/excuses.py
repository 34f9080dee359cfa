"""Excuses of rules in several diagnostics; those of one rule stand in its file."""

from __future__ import annotations

from lightning_hooks.declare.excuses import Excuse
from lightning_hooks.diagnostics.past import another_expert, falls_within, has_converged, loss_falls, only_the_first_step

CONVERGED = Excuse(
    "converged", "the gradient is small against that of the first epoch",
    lambda rule, _, report, history: has_converged(report, history, rule.converged), lowers_to=None,
)  # fmt: skip
FIRST_STEP_ONLY = Excuse(
    "first_step_only", "only the first batch of training was sampled, and what starts at zero is still zero",
    lambda _, __, report, ___: only_the_first_step(report), lowers_to=None,
)  # fmt: skip
LOSS_FALLS = Excuse(
    "loss_falls", "the loss falls, and what learns is not lost",
    lambda _, __, report, history: loss_falls(report, history) if history else falls_within(report, 0.9, 16),  # more than by chance
    lowers_to="warning",
)  # fmt: skip
ANOTHER_EXPERT_LEARNS = Excuse(
    "another_expert_learns", "it belongs to one of several experts, of which tokens chose others",
    lambda _, alert, report, __: another_expert(report, alert.site),
)  # fmt: skip
