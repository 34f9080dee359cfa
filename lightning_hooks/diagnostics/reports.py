"""The reports that several diagnostics share, of module outputs and of gradients, and what rules ask of them."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass, field
from typing import ClassVar

from typing_extensions import override

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import BACKWARD, FORWARD, STEP
from lightning_hooks.declare.window import Moment, Report, batch_of
from lightning_hooks.diagnostics.batches.inputs import FeatureScales, MissedRow
from lightning_hooks.diagnostics.calls import DropoutUse, PrecisionStats, SoftmaxUse
from lightning_hooks.diagnostics.features.table import FeatureStats
from lightning_hooks.diagnostics.gradients.tables import GradientStats, ParameterGradientStats
from lightning_hooks.diagnostics.learning.report import LearningReport
from lightning_hooks.diagnostics.loss.report import NO_LOSS, LossReport
from lightning_hooks.diagnostics.loss_inputs.leaks import TargetCopies
from lightning_hooks.diagnostics.loss_inputs.predictions import OutputStats
from lightning_hooks.diagnostics.loss_inputs.targets import TargetStats
from lightning_hooks.diagnostics.loss_inputs.validated import ClassPairs
from lightning_hooks.diagnostics.metrics.use import MetricUse
from lightning_hooks.diagnostics.optimizer.table import OptimizerStats
from lightning_hooks.diagnostics.ranks import RankDifference
from lightning_hooks.diagnostics.representations import RepresentationStats
from lightning_hooks.diagnostics.residual_stream.table import ResidualStats
from lightning_hooks.diagnostics.setup.checks import ModelSetup
from lightning_hooks.diagnostics.setup.parameters import ParameterSetup
from lightning_hooks.diagnostics.unusual import UnusualBatch


@dataclass(frozen=True, slots=True, repr=False)
class FeatureReport(Report):
    """Feature statistics of one window.

    Attributes:
        sites: Module name, or name of a functional call, to its statistics, in the order of their first call; only what was called.
        silent: Selected modules whose hook never ran in a sampled batch, on any rank.
        unmeasured: Of these, the modules that were called and whose output holds no floating-point number, on any rank.
        sampled_batches: Training batches that were sampled, on the rank with the most.
        batches: Training batches of the window, on the rank with the most.
        order: The selected modules in the order in which they were first called in this fit; those never called come last.
        inputs: ``training`` and ``validation`` to the statistics of the model's inputs, in the sampled training batches and
            in the first validation batches of the window; empty where batches hold no floating-point tensor.
        input_place: Where in a batch that was found, such as ``[0]``.
        input_nonfinite: Where the first NaN or infinite value of the first sampled batch with some is in that, on this rank; empty
            without.
        layer_inputs: Likewise of what the first layer is given, in the window's first sampled batches and the first batch of its
            validations; empty where that is no data.
        first_layer: That layer.
        images: Whether it looks like images: four dimensions, of which the second or the last one has 1, 3 or 4 channels.
        same_samples: Whether all samples of the window's first batch were the same, to the bit; None where that was not checked.
        initial_gains: Module name to the gain of the weights that training started from: root mean square times the root of the
            fan-in.
        initial_rms: The same, without the fan-in.
        initial_roles: Module name to what it is in its block, by its type and the last part of its name; not of heads and of layers
            that no other is like.
        functions: Those of the sites that are calls of a function, such as ``blocks.3.attn/sdpa``, to its name, ``sdpa``.
        shared: Modules that one parent holds under several names: the first name to the others.
        of_libraries: The modules with an output that hardly varies (by 1 % of its size) that a library's class holds.
        residual: Block name to the residual stream behind it, in the order of depth; blocks are the modules of one class in
            one list, such as a transformer's layers, whose output has the shape of their input.
        outputs: Calls of ``cross_entropy`` and ``nll_loss`` (``cross_entropy``, ``loss/nll_loss``) to what they were given.
        targets: Calls of ``mse_loss``, ``l1_loss``, ``smooth_l1_loss`` and ``huber_loss`` to what they compared.
        representations: Module name to how much its outputs differ from sample to sample, in the window's first sampled batches;
            only modules with the samples along the first dimension of their output.
        over_samples: Modules with ``batch_first=False`` whose output has the samples along its first dimension, where a batch holds
            one number a sample.
        softmax: Calls of ``softmax`` and ``log_softmax`` to the dimension along which they normalise.
        dropout: Calls of ``dropout`` with ``p`` above 0, and of ``sdpa`` with ``dropout_p``, to the modes in which they drop.
        id_out_of_range: The id beyond an embedding's table with which training ended; None where it did not end so.
        feature_scales: Linear layer that is given data to how the sizes of its features differ.
        copies: Calls of losses whose targets stand in what the model is given to how often they do.
        validated: Calls of ``cross_entropy`` and ``nll_loss`` in validation to their labels and predictions.
        agreement: Calls of losses between numbers in validation to the correlation of predictions with targets, times the root of
            the samples.
        precision: In which precision linear and convolution layers compute; None where half precision was not asked for.
    """

    sites: dict[str, FeatureStats]
    silent: tuple[str, ...] = ()
    sampled_batches: int = 0
    batches: int = 0
    order: tuple[str, ...] = ()
    inputs: dict[str, FeatureStats] = field(default_factory=dict)
    input_place: str = ""
    input_nonfinite: tuple[int, ...] = ()
    layer_inputs: dict[str, FeatureStats] = field(default_factory=dict)
    first_layer: str = ""
    images: bool = False
    same_samples: bool | None = None
    initial_gains: dict[str, float] = field(default_factory=dict)
    initial_rms: dict[str, float] = field(default_factory=dict)
    initial_roles: dict[str, str] = field(default_factory=dict)
    shared: dict[str, tuple[str, ...]] = field(default_factory=dict)
    unmeasured: tuple[str, ...] = ()
    of_libraries: tuple[str, ...] = ()
    functions: dict[str, str] = field(default_factory=dict)
    residual: dict[str, ResidualStats] = field(default_factory=dict)
    outputs: dict[str, OutputStats] = field(default_factory=dict)
    representations: dict[str, RepresentationStats] = field(default_factory=dict)
    over_samples: tuple[str, ...] = ()
    softmax: dict[str, SoftmaxUse] = field(default_factory=dict)
    dropout: dict[str, DropoutUse] = field(default_factory=dict)
    precision: PrecisionStats | None = None
    id_out_of_range: MissedRow | None = None
    targets: dict[str, TargetStats] = field(default_factory=dict)
    feature_scales: dict[str, FeatureScales] = field(default_factory=dict)
    copies: dict[str, TargetCopies] = field(default_factory=dict)
    validated: dict[str, ClassPairs] = field(default_factory=dict)
    agreement: dict[str, float] = field(default_factory=dict)

    @property
    def first_called(self) -> str:
        """The module called first; empty if none was."""
        return next((site for site in self.order or self.sites if site in self.sites), "")

    @override
    def moment_of(self, alert: Alert) -> Moment:
        return FORWARD, batch_of(self.sites.get(alert.site)), self.every_n_steps

    @property
    @override
    def forward_order(self) -> list[str]:
        return list(dict.fromkeys((*self.order, *self.sites)))


@dataclass(frozen=True, slots=True, repr=False)
class GradientFlowReport(Report):
    """Gradient flow of one window.

    Attributes:
        modules: Module name to the gradient at its output, in the order in which modules were first called; only where one arrived.
        parameters: Parameter name to its gradient at the optimizer step, in the order in which their modules were first called;
            only where one was measured or missing.
        total_norm: Mean over measured optimizer steps of the L2 norm over all the optimizer's gradients; with several
            optimizers the root of the summed squares of their means; NaN if none was finite.
        silent: Selected modules at whose output no gradient arrived in a sampled batch, on any rank: frozen, detached,
            unused, or never called.
        sampled_batches: Training batches that were sampled, on the rank with the most.
        batches: Training batches of the window, on the rank with the most.
        order: The selected modules in the order in which gradients first arrived in this fit; those without one come last.
        setups: Parameter name to how it is set up: whether it trains, which optimizers hold it, its learning rate.
        loss: The loss of the window's batches; None where none is known.
        optimizers: Optimizer name (``0-Adam``) to what it did and how it is set.
        planned_steps: The ``step`` at which training ends if nothing ends it before; None where that is not known.
        ranks_differ: Parameters that differ between ranks, though each is to hold them alike; None where they do not, and where
            that is not known: one rank, shards, local SGD.
        squashed_twice: The module whose softmax or sigmoid the loss squashes once more; empty if there is none.
        loss_aligns: Whether the loss sums over alignments of labels with outputs, as CTC does.
        loss_sign: 1 if the loss is a distance of outputs from targets, such as a cross entropy, -1 if it is minus one, else 0.
        linear_layers: Of a network that is linear as a whole the first and the last of its layers, and how many these are.
        target_layer: A layer that an optimizer holds, and that has a gradient as the target of a loss alone; empty for none.
        viewed: The module before a view that mixes up dimensions; empty for none.
        learning: What of the training learns; None where that is not measured.
        model_setup: What is out of the ordinary in the modules' modes and settings and in the batches.
        largest_losses: The batches of the run so far with the five largest finite losses, the largest first; of a window of more
            than 4096 batches the last ones count.
        metrics: The model's torchmetrics metrics, by name, to how they are used.
    """

    subject: ClassVar[str] = "Gradient"

    modules: dict[str, GradientStats]
    parameters: dict[str, ParameterGradientStats]
    total_norm: float
    silent: tuple[str, ...] = ()
    sampled_batches: int = 0
    batches: int = 0
    order: tuple[str, ...] = ()
    setups: dict[str, ParameterSetup] = field(default_factory=dict)
    squashed_twice: str = ""
    loss: LossReport | None = None
    model_setup: ModelSetup = field(default_factory=ModelSetup)
    optimizers: dict[str, OptimizerStats] = field(default_factory=dict)
    planned_steps: int | None = None
    ranks_differ: RankDifference | None = None
    loss_aligns: bool = False
    loss_sign: int = 0
    linear_layers: tuple[str, str, int] | None = None
    target_layer: str = ""
    viewed: str = ""
    learning: LearningReport | None = None
    largest_losses: tuple[UnusualBatch, ...] = ()
    metrics: dict[str, MetricUse] = field(default_factory=dict)

    @property
    def minimized(self) -> LossReport:
        """The loss, if the training loop minimises it; else one of no batch, with numbers that are NaN."""
        return self.loss if self.loss is not None and self.loss.optimized else NO_LOSS

    @property
    def learned(self) -> LearningReport:
        """What of the training learns; one of which nothing is known where that is not measured."""
        return self.learning or LearningReport()

    @property
    def over_constant(self) -> float:
        """The loss over that of the best constant answer; NaN where that is not known."""
        known = self.learned.over_constant
        return math.nan if known is None else known

    @override
    def moment_of(self, alert: Alert) -> Moment:
        if alert.site in self.modules:
            return BACKWARD, batch_of(self.modules[alert.site]), 1
        if alert.site == "loss":  # before all gradients
            return BACKWARD, None, 1
        known_before = alert.kind == "nonfinite" and alert.site in self.model_setup.nonfinite_weights
        return STEP, -1.0 if known_before else None, 1

    @property
    @override
    def forward_order(self) -> list[str]:
        return [site for site in self.order if site in self.modules][::-1] or list(self.modules)


_SCALE_FREE = re.compile(r"ada|rmsprop|rprop|lion|lamb|novograd|muon|prodigy|shampoo|soap|sophia|adopt", re.IGNORECASE)


def is_scale_free(optimizer: str) -> bool:
    """Whether the size of the gradient cancels in an optimizer's step, as in Adam's: by its name, such as ``0-AdamW``."""
    return _SCALE_FREE.search(optimizer) is not None


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
