"""What rules of several diagnostics ask of a training's settings and past before they call a number bad."""

from __future__ import annotations

import re

from lightning_hooks.diagnostics.reports import FeatureReport, GradientFlowReport

_SCALE_FREE = re.compile(r"ada|rmsprop|rprop|lion|lamb|novograd|muon|prodigy|shampoo|soap|sophia|adopt", re.IGNORECASE)


def is_scale_free(optimizer: str) -> bool:
    """Whether the size of the gradient cancels in an optimizer's step, as in Adam's: by its name, such as ``0-AdamW``."""
    return _SCALE_FREE.search(optimizer) is not None


def takes_many_steps(optimizer: str) -> bool:
    """Whether one step of an optimizer is a search of many, as LBFGS's of up to 20 is by default: by its name."""
    return "lbfgs" in optimizer.lower()


def all_scale_free(report: GradientFlowReport) -> bool:
    """Whether all optimizers that hold a parameter are."""
    names = {name for setup in report.setups.values() for name in setup.optimizers}
    return bool(names) and all(map(is_scale_free, names))


def loss_falls(report: GradientFlowReport) -> bool:
    """Whether the loss is lower than in the training's first window; in that one there is nothing to compare with, and it may be.

    A loss that is not known, or not finite, does not fall.
    """
    first = next((earlier.loss for earlier in report.earlier if earlier.loss is not None), None)
    if report.loss is None or report.loss.nonfinite_steps:
        return False
    return first is None or report.loss.mean < first.mean


def falls_within(report: GradientFlowReport, to: float = 1.0, least: int = 4) -> bool:
    """Whether the loss of a window's last quarter is below this share of that of its first, as far as it is kept.

    Args:
        report: Of the window.
        to: The share.
        least: How many losses there must be.
    """
    losses = report.loss.recent if report.loss is not None and not report.loss.nonfinite_steps else ()
    quarter = len(losses) // 4
    return len(losses) >= max(least, 4) and sum(losses[-quarter:]) < to * sum(losses[:quarter])


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


def first_called(report: FeatureReport) -> list[str]:
    """The module called first, if one was."""
    return [site for site in report.order or report.sites if site in report.sites][:1]


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
