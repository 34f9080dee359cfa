"""Rules over the weights that a training starts from: constants, and a head that stays as it was initialised."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.alerts.rule import Rule
from lightning_hooks.alerts.update_rules import had_gradient
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.windows import GradientFlowReport


@dataclass(frozen=True, slots=True, eq=False)
class ConstantWeights(Rule):
    """Layers that start with one number, other than 0, in all their weights.

    All outputs of such a layer are the same, and if the next layer's weights are one number too they get the same gradient: they
    stay the same (Goodfellow et al. 2016, "Deep Learning", section 8.4, on breaking symmetry). A single such layer, as some heads
    are, is harmless: the layers around it give its outputs different gradients. Zeros have rules of their own.

    Attributes:
        layers: Layers that must start so.
    """

    kind: ClassVar[str] = "poor_init"

    layers: int = 2

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert at the first of such layers."""
        constant = report.model_setup.constant_weights
        if report.epoch > 0 or len(constant) < self.layers:
            return
        (site, value), *others = constant.items()
        more = ", …" * (len(others) > 2)
        yield self.alert(
            report, site, float(len(constant)), float(self.layers), "warning",
            f"all its initial weights are {value:.3g}, and those of {', '.join(name for name, _ in others[:2])}{more} are one "
            f"number too ({len(constant)} layers, limit {self.layers}): their outputs are all the same, get the same gradient and "
            "stay the same. Common cause: nn.init.constant_ or ones_ on weights.",
            advice=("Initialise weights at random, as PyTorch does by default",),
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
                f"parameters before it train ({trains[0]}, …): what it puts out is a random combination that never gets better. "
                "Common causes: a new head that was frozen with the rest of a pretrained model, or is missing in peft's "
                "modules_to_save.",
                advice=("Call requires_grad_(True) on it, and give it to the optimizer",),
            )  # fmt: skip
