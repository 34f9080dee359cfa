"""How modules, parameter groups and monitored metrics are set: unusual settings, weight decay, optimizers that share."""

from __future__ import annotations

import math
from itertools import pairwise
from typing import ClassVar

from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule, grouped, percent, subject, where
from lightning_hooks.diagnostics.causes import code, rates, weights, wiring
from lightning_hooks.diagnostics.loss.report import NO_LOSS
from lightning_hooks.diagnostics.loss_inputs.targets import RARE
from lightning_hooks.diagnostics.reports import FeatureReport, GradientFlowReport
from lightning_hooks.trackers import some


class LinearNetwork(Rule, kind="settings"):
    """Layers one after another with nothing between them that is not linear: together they are one linear layer.

    A layer that is narrower than those around it is a choice (a linear autoencoder, an adapter of low rank) and not named.
    """

    def __call__(self, report: GradientFlowReport) -> Alerts:
        if report.linear_layers is not None:
            first, last, layers = report.linear_layers
            yield self.finding(
                report, first, layers, 1,
                f"from here to {last} there is nothing but linear maps: its {layers} layers are together one linear layer.",
                advice=("Put an activation such as nn.ReLU between them",),
            )  # fmt: skip


class ModuleSettings(Rule, kind="settings"):
    """Settings with which a module hardly lets anything through, or whose statistics mean nothing.

    Attributes:
        values: Values from which a batch norm computes a mean, below which it is noise (Wu and He 2018 find errors to grow from
            batches of 16 down to 2).
        dropout: Share that a dropout drops. Its paper (Srivastava et al. 2014) finds 0.4 to 0.8 of units kept to be best.
    """

    values: float = 4.0
    dropout: ClassVar[float] = 0.9
    eps: ClassVar[float] = 1.0  # what a norm adds to the variance; PyTorch's is 1e-5, and activations have a variance of about 1
    left: ClassVar[float] = 0.5  # share that running statistics keep of 0 and 1 after all planned steps

    def __call__(self, report: GradientFlowReport) -> Alerts:
        setup = report.model_setup
        few = {site: values for site, values in setup.values_per_channel.items() if values < self.values}
        found = [("values", value, self.values, [*few]) for value in sorted(few.values())[:1]]
        known = {
            site: {**values, "momentum": (1 - values.get("momentum", 1.0)) ** (report.planned_steps or math.inf)}
            for site, values in setup.settings.items()
            if site not in setup.eval_modes
        }
        for setting, limit in (("p", self.dropout), ("eps", self.eps), ("momentum", self.left), ("normalized", 1.0)):
            far = ((values[setting], site) for site, values in known.items() if values.get(setting, -1.0) >= limit)
            found += [(setting, value, limit, sites) for value, sites in grouped(far).items()]
        for setting, value, limit, (site, *others) in found:
            message, advice = _EXTREME[setting]
            message = message.format(value=value, limit=limit, share=percent(value), most=percent(limit))
            more = f" (also {some(others, 3)})" * bool(others)
            yield self.finding(report, site, value, limit, f"{message}{more}.", advice=advice)


_EXTREME: dict[str, tuple[str, tuple[str, ...]]] = {
    "values": (
        "batch norm has {value:.3g} values per channel and batch (limit {limit:.3g}): its mean and variance are noise, and unlike "
        "those of validation",
        ("Use larger batches", "Use GroupNorm or LayerNorm in its place"),
    ),
    "p": (
        "dropout, or stochastic depth, drops {share} of its input (limit {most}): little of it is left",
        ("Set p between 0.1 and 0.5: it is the share to drop, not the share to keep",),
    ),
    "eps": (
        "eps is {value:.3g} (limit {limit:.3g}), as large as the variance of ordinary activations",
        ("Set eps=1e-5",),
    ),
    "normalized": (
        "layer norm over a single number: it puts out its bias, whatever it is given",
        ("Remove the norm: a single number has no spread",),
    ),
    "momentum": (
        "batch norm with a momentum so small that {share} of 0 and 1 are left in its running statistics after all planned steps "
        "(limit {most})",
        ("Set momentum=0.1, PyTorch's default",),
    ),
}
"""Setting to the message and the advice where it is extreme."""


class OptimizerChoices(Rule, kind="settings"):
    """Weight decay on biases and norms, and parameters that several optimizers hold: infos.

    Recipes leave biases and the scales of norms out of weight decay (He et al. 2019, "Bag of tricks", section 3.1; GPT-2 and its
    successors), with little effect at small decays.

    Attributes:
        weight_decay: Weight decay up to which it is not worth a remark: the default of AdamW.
    """

    weight_decay: float = 0.01

    def __call__(self, report: GradientFlowReport) -> Alerts:
        for optimizer, decay in where(report.model_setup.vector_decay, lambda decay: decay.weight_decay > self.weight_decay):
            yield self.finding(
                report, optimizer, decay.weight_decay, self.weight_decay,
                f"its weight decay of {decay.weight_decay:.2g} also applies to {decay.parameters} biases and scales of norms, "
                "which most recipes leave out.",
                conclusive=False,
                advice=("Put parameters of one dimension into a group with weight_decay=0",),
            )  # fmt: skip
        held = {name: tuple(dict.fromkeys(setup.optimizers)) for name, setup in report.setups.items()}
        shared = {name: optimizers for name, optimizers in held.items() if len(optimizers) > 1}
        if shared:
            first, optimizers = next(iter(shared.items()))
            # Losses of their own have parameters of their own too: an encoder and one of two heads.
            others = [name for name, holders in held.items() if name not in shared and not set(optimizers).isdisjoint(holders)]
            whole = len(set(shared.values())) == 1 and not others
            yield self.finding(
                report, first, len(shared), 0,
                f"{subject([*shared], 'is', 'are')} held by several optimizers ({', '.join(optimizers)}): each updates what the "
                f"other has set{', and none holds anything else' * whole}.",
                conclusive=whole,
                advice=("Give each parameter to one optimizer, unless they take turns on purpose",),
            )  # fmt: skip


class ClassWeights(Rule, kind="settings"):
    """Weights of classes that are upside down: of a rare class they make even less.

    Weights are there to make up for classes that are rare; where they are the numbers of the classes, or the share of positive
    targets, the model learns to name the frequent ones only.

    Attributes:
        ratio: Mean weight of the labels over that of the classes from which frequent classes weigh more.
        share: Share of the columns of a binary cross entropy whose positive targets must be rare, and weighted down by half.
    """

    ratio: float = 1.3
    share: ClassVar[float] = 0.5

    def __call__(self, report: FeatureReport) -> Alerts:
        advice = ("Weigh each class by one over its number: the rarer it is, the more",)
        for site, outputs in where(report.outputs, lambda outputs: outputs.frequent_weight >= self.ratio):
            yield self.finding(
                report, site, outputs.frequent_weight, self.ratio,
                f"its labels weigh {outputs.frequent_weight:.3g} times as much as its classes do (limit {self.ratio:g}): "
                "frequent classes have the large weights, and rare ones count for even less.",
                advice=advice,
            )  # fmt: skip
        for site, targets in where(report.targets, lambda targets: targets.weighted_down >= self.share):
            yield self.finding(
                report, site, targets.weighted_down, self.share,
                f"its positive targets are rare (below {percent(RARE)}), and pos_weight makes them count for less than half "
                f"(in {percent(targets.weighted_down)} of its columns; limit {percent(self.share)}).",
                advice=("Pass pos_weight = negatives / positives", *advice),
            )  # fmt: skip


class LabelSmoothing(Rule, kind="settings"):
    """Labels smoothed so far that most of each target is spread over all classes: 0.1 is usual (Szegedy et al. 2016).

    Attributes:
        share: What is spread, from which on it counts.
    """

    share: float = 0.5

    def __call__(self, report: FeatureReport) -> Alerts:
        for site, outputs in where(report.outputs, lambda outputs: outputs.smoothing >= self.share):
            yield self.finding(
                report, site, outputs.smoothing, self.share,
                f"its label_smoothing of {outputs.smoothing:.3g} (limit {self.share:g}) spreads {percent(outputs.smoothing)} of "
                "each target over all classes: little of it says which one is right.",
                advice=("Set label_smoothing=0.1: it is the share to spread, not the share to keep",),
            )  # fmt: skip


class WatchedBackwards(Rule, kind="settings"):
    """A monitored metric that moves against its mode at every validation while the validation loss falls.

    ``EarlyStopping``, ``ModelCheckpoint`` and ``ReduceLROnPlateau`` treat lower values as better by default: with an accuracy they
    stop a training, keep its first weights or lower its rate because it learns.
    """

    validations: ClassVar[int] = 4  # validations in a row

    def __call__(self, report: GradientFlowReport) -> Alerts:
        loss = report.loss or NO_LOSS
        (tag, mode), last = loss.watched, loss.validations[-self.validations :]
        sign, way, better = {"min": (1, "rose", "max"), "max": (-1, "fell", "min")}.get(mode, (0, "", ""))
        worse = all(sign * one.watched > sign * before.watched for before, one in pairwise(last))
        falls = all(one.loss < before.loss for before, one in pairwise(last))
        if worse and falls and len(last) == self.validations:
            yield self.finding(
                report, tag, float(self.validations), float(self.validations),
                f"it {way} steadily over the last {self.validations} validations, from {last[0].watched:.3g} to "
                f"{last[-1].watched:.3g}, while the validation loss fell: whatever monitors it has mode={mode!r} and takes that "
                "for worse.",
                advice=(f"Set mode={better!r} where {tag!r} is monitored",),
            )  # fmt: skip


__all__ = ["ClassWeights", "LabelSmoothing", "LinearNetwork", "ModuleSettings", "OptimizerChoices", "WatchedBackwards"]

KINDS = (
    Kind(
        "settings", "An unusual setting", group="Set-up", states="fact",
        causes=(
            wiring.no_activation, weights.small_batches, weights.module_setting, code.UPSIDE_DOWN, code.SMOOTHED, code.NORM_OF_ONE,
            rates.unusual_setting,
        ),
        meaning="A module, an optimizer, a loss or a callback has a setting that hardly anybody wants: a batch norm over very few "
        "values or with next to no momentum, a dropout that drops nearly everything, a norm with a large eps, layers without an "
        "activation between them, two optimizers of the same parameters, weight decay on biases and norms, weights of a loss that "
        "make rare classes count for even less, labels that are smoothed by half and more, early stopping or a schedule that takes "
        "what is better for worse.",
        formula="alert if a batch norm in training mode has fewer than {ModuleSettings.values} values per channel and batch\n"
        "      or (1 - momentum) ^ planned steps >= {ModuleSettings.left} in a batch norm that has not been trained before\n"
        "      or the p of a dropout or a stochastic depth >= {ModuleSettings.dropout}\n"
        "      or a norm's eps >= {ModuleSettings.eps}, or a layer norm is over a single number\n"
        "      or all layers are linear and nothing is between them, in the graph of the first sampled loss, none of them narrower "
        "than both its neighbours\n"
        "      or a cross entropy whose labels weigh {ClassWeights.ratio} times as much as its classes do\n"
        "      or pos_weight < 0.5 for targets of which fewer than 0.25 are positive, in {ClassWeights.share} of the columns\n"
        "      or the label_smoothing of a cross entropy >= {LabelSmoothing.share}\n"
        "      or a monitored metric gets worse by its mode over {WatchedBackwards.validations} validations in a row, while their "
        "loss falls\n"
        "info if weight_decay > {OptimizerChoices.weight_decay} applies to biases and norms\n"
        "     or two optimizers hold one parameter; a warning if they hold the same parameters",
        inconclusive="for weight decay on biases and norms, and for a part that two optimizers hold",
        advice=("Set it to the value that the message gives", "Where it is on purpose, mute this with rules=['-settings']"),
    ),
)  # fmt: skip
