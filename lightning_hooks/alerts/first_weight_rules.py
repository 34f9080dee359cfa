"""Rules over the weights that a training starts from: constants, and a head that stays as it was initialised."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.alerts.rule import Rule
from lightning_hooks.alerts.update_rules import had_gradient
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.windows import GradientFlowReport
from lightning_hooks.statistics.first_weights import TIME_STEP


@dataclass(frozen=True, slots=True, eq=False)
class ConstantWeights(Rule):
    """Layers that start with one number, other than 0, in all their weights.

    All outputs of such a layer are the same, and if the next layer's weights are one number too they get the same gradient: they
    stay the same (Goodfellow et al. 2016, "Deep Learning", section 8.4, on breaking symmetry). A single such layer, as some heads
    are, is harmless: the layers around it give its outputs different gradients. Zeros have rules of their own.

    The time-step bias of a state-space layer is drawn so that each head has another time scale (Dao and Gu 2024, arXiv 2405.21060,
    0.001 to 0.1 steps); one number for all of them is what is left where that initialisation was skipped.

    Attributes:
        layers: Layers that must start so.
    """

    kind: ClassVar[str] = "poor_init"

    layers: int = 2

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert at the first of such layers."""
        if report.epoch > 0:
            return
        found = report.model_setup.constant_weights
        yield from self._time_steps(report, [name for name in found if name.endswith(TIME_STEP)])
        constant = {name: value for name, value in found.items() if not name.endswith(TIME_STEP)}
        if len(constant) < self.layers:
            return
        (site, value), *others = constant.items()
        more = ", …" * (len(others) > 2)
        yield self.alert(
            report, site, float(len(constant)), float(self.layers), "warning",
            f"all its initial weights are {value:.3g}, and those of {', '.join(name for name, _ in others[:2])}{more} are one "
            f"number too ({len(constant)} layers, limit {self.layers}): their outputs are all the same, get the same gradient and "
            "stay the same.",
            "Common cause: nn.init.constant_ or ones_ on weights.",
            advice=("Initialise weights at random, as PyTorch does by default",),
        )  # fmt: skip

    def _time_steps(self, report: GradientFlowReport, names: list[str]) -> Iterator[Alert]:
        for name in names:
            value = report.model_setup.constant_weights[name]
            yield self.alert(
                report, name, value, 0.0, "warning",
                f"the time-step bias of this state-space layer is {value:.3g} for all heads: they all forget at the same rate, "
                f"with time steps of {math.log1p(math.exp(value)):.2g} where 0.001 to 0.1 are usual.",
                "Common cause: an initialisation that was skipped, or overwritten by one for biases.",
                advice=("Draw the time steps log-uniformly from 0.001 to 0.1, and set the bias to the inverse of their softplus",),
            )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class OneSignWeights(Rule):
    """Layers whose initial weights are all above 0, or all below.

    Weights drawn around 0 are so with a probability of a half to the power of their number. Outputs of such a layer are next to the
    same for all inputs, as large as the sum of the inputs, and grow with the fan-in from layer to layer.

    Attributes:
        layers: Layers that must start so; a single one may be made so on purpose.
    """

    kind: ClassVar[str] = "poor_init"

    layers: int = 2

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert at the first of such layers."""
        found = report.model_setup.one_sign_weights
        if report.epoch == 0 and len(found) >= self.layers:
            site, mean = next(iter(found.items()))
            yield self.alert(
                report, site, float(len(found)), float(self.layers), "warning",
                f"all its initial weights are {'above' if mean > 0 else 'below'} 0 (mean {mean:.3g}), and so are those of "
                f"{len(found) - 1} more of its layers (limit {self.layers}): outputs for positive inputs differ little, "
                "and grow from layer to layer.",
                "Common cause: uniform_() or rand without bounds, whose numbers are from 0 to 1.",
                advice=(
                    "Initialise weights around 0, as PyTorch does by default",
                    "Where weights are to keep one sign, mute this with rules=['-poor_init']",
                ),
            )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class FrozenHead(Rule):
    """A last layer that is frozen as it was initialised while layers before it train.

    That a layer has not been trained is known where its bias is exactly 0, or its weights and bias are uniform within the bounds
    of PyTorch's default; a head without a bias that was initialised otherwise is not judged.
    """

    kind: ClassVar[str] = "not_optimized"

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert at the layer nearest the loss."""
        site = next((site for site in report.order if f"{site}.weight" in report.setups), "")
        if site not in report.model_setup.untrained or had_gradient(report, f"{site}.weight"):
            return
        trains = [name for name, setup in report.setups.items() if setup.trains and setup.optimizers and setup.has_gradient]
        if trains:
            yield self.alert(
                report, site, 0.0, 0.0, "warning",
                f"the last layer before the loss is frozen, and its weights are as they were initialised, while {len(trains)} "
                f"parameters before it train ({trains[0]}, …): its output is a random combination that never gets better.",
                "Common causes: a new head that was frozen with the rest of a pretrained model, or is missing in peft's "
                "modules_to_save.",
                advice=("Call requires_grad_(True) on it, and give it to the optimizer",),
            )  # fmt: skip
