"""What rules of several diagnostics ask of a training's settings and past before they call a number bad."""

from __future__ import annotations

import re

from lightning_hooks.diagnostics.loss.report import NO_LOSS
from lightning_hooks.diagnostics.reports import FeatureReport, GradientFlowReport

_SCALE_FREE = re.compile(r"ada|rmsprop|rprop|lion|lamb|novograd|muon|prodigy|shampoo|soap|sophia|adopt", re.IGNORECASE)


def is_scale_free(optimizer: str) -> bool:
    """Whether the size of the gradient cancels in an optimizer's step, as in Adam's: by its name, such as ``0-AdamW``."""
    return _SCALE_FREE.search(optimizer) is not None


def takes_many_steps(optimizer: str) -> bool:
    """Whether one step of an optimizer is a search of many, as LBFGS's of up to 20 is by default: by its name."""
    return "lbfgs" in optimizer.lower()


def is_free_of_scale(report: GradientFlowReport) -> bool:
    """Whether the size of the gradient does no harm: it cancels in the steps of all optimizers, and the loss falls."""
    names = {name for setup in report.setups.values() for name in setup.optimizers}
    return bool(names) and all(map(is_scale_free, names)) and loss_falls(report)


def loss_falls(report: GradientFlowReport) -> bool:
    """Whether the loss is lower than in the training's first window; in that one there is nothing to compare with, and it may be.

    A loss that is not known, or not finite, does not fall.
    """
    first = next((earlier.loss for earlier in report.earlier if earlier.loss is not None), None)
    loss = report.loss
    return loss is not None and not loss.nonfinite_steps and (first is None or loss.mean < first.mean)


def falls_within(report: GradientFlowReport, to: float = 1.0, least: int = 4) -> bool:
    """Whether the loss of a window's last quarter is below this share of that of its first, as far as it is kept.

    Args:
        report: Of the window.
        to: The share.
        least: How many losses there must be.
    """
    loss = report.loss or NO_LOSS
    losses = () if loss.nonfinite_steps else loss.recent
    quarter = len(losses) // 4
    return len(losses) >= max(least, 4) and sum(losses[-quarter:]) < to * sum(losses[:quarter])


def surely_falls(report: GradientFlowReport) -> bool:
    """Whether the loss falls, in the first window by more than chance makes of a few batches."""
    return loss_falls(report) if report.earlier else falls_within(report, 0.9, 16)


def only_the_first_step(report: FeatureReport | GradientFlowReport) -> bool:
    """Whether only the first batch of training was sampled: what is initialised to zero is still zero then, as it should be."""
    return report.epoch == 0 and report.sampled_batches == 1


def unused_tensors(report: GradientFlowReport) -> list[str]:
    """What optimizers hold that is no parameter of the model and never had a gradient: layers that were replaced since."""
    found = report.parameters
    return [name for name in report.model_setup.foreign if name in found and found[name].missing_steps and not found[name].steps]


def had_gradient(report: GradientFlowReport, parameter: str) -> bool:
    """Whether a parameter had a gradient at some step: one that is frozen at the epoch's end may train in turn with others."""
    return parameter in report.parameters and report.parameters[parameter].steps > 0


def has_converged(report: GradientFlowReport, to: float = 0.01) -> bool:
    """Whether the gradient is at most this share of that of training's first window, or is not known."""
    return not report.total_norm > to * report.first.total_norm


def weight_ratios(report: GradientFlowReport) -> dict[str, float]:
    """Of the weights (two dimensions or more) that were updated, the measured update ratios.

    Biases and scales are left out, of any shape: what starts at 0 grows by any factor.
    """
    matrices = {name for name, setup in report.setups.items() if setup.dimensions > 1 and name.rpartition(".")[2] != "bias"}
    return {
        name: stats.update_ratio for name, stats in report.parameters.items() if name in matrices and stats.update_ratio is not None
    }
