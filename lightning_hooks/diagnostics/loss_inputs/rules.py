"""What losses are given: numbers that are no logits, targets out of reach, pairs, a second softmax."""

from __future__ import annotations

from typing import ClassVar

from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule, percent, where
from lightning_hooks.diagnostics.causes.code import (
    BLANK_LABEL,
    LABELS_OF_ZERO,
    NO_LOGARITHMS,
    NO_LOGITS,
    RATES_FOR_LOGARITHMS,
    SHIFTED_TWICE,
    activation_before_loss,
)
from lightning_hooks.diagnostics.causes.wiring import compared_in_pairs
from lightning_hooks.diagnostics.loss_inputs.predictions import CERTAIN, EDGE, FEWEST_LOGITS, MANY_ZEROS
from lightning_hooks.diagnostics.loss_inputs.targets import BINARY_CROSS_ENTROPY, BLANK, KL_DIVERGENCE, RATES, SIGNS
from lightning_hooks.diagnostics.reports import FeatureReport, GradientFlowReport
from lightning_hooks.hooks.functions import ALIGNED


class LabelsShifted(Rule, kind="output_range"):
    """The one cross entropy of a model whose labels are the tokens two places ahead: they were shifted by hand, and by the model.

    A model with several losses may predict several of the tokens that follow.
    """

    def __call__(self, report: FeatureReport) -> Alerts:
        one = len(report.outputs) == 1
        for site, copies in where(report.copies, lambda copies: one and 0 < copies.token_calls == copies.two_ahead):
            yield self.finding(
                report, site, 2.0, 1.0,
                f"its labels are the tokens two places ahead of those that the model is given, in all {copies.token_calls} batches "
                "that were compared: the next token is never asked for.",
                advice=("Shift labels once: models of transformers do it themselves",),
            )  # fmt: skip


class OutputRange(Rule, kind="output_range"):
    """Logits that cross entropy does not expect: probabilities, what a ReLU or tanh leaves, logarithms of probabilities.

    Cross entropy takes any real numbers and applies a softmax to them. Of ``C`` numbers in [-1, 1] that softmax gives a class at
    most ``e² / (e² + C - 1)``. Logarithms of probabilities are left as they are, which is harmless.

    ``nll_loss`` takes logarithms of probabilities and applies nothing. Logits that it is given have numbers of both signs in a row,
    while logarithms that are weighted (a focal loss, a reward) have one sign there.
    """

    share: ClassVar[float] = CERTAIN
    zeros: ClassVar[float] = MANY_ZEROS
    bound: ClassVar[float] = EDGE
    min_logits: ClassVar[int] = FEWEST_LOGITS
    mixed: ClassVar[float] = 0.25  # share of the rows with numbers of both signs from which on ``nll_loss`` is given logits

    def __call__(self, report: FeatureReport) -> Alerts:
        for site, stats in report.outputs.items():
            of_logarithms = site.rpartition("/")[2].startswith("nll_loss")
            for measured, limit, conclusive, message, advice in _FORMS.get((of_logarithms, stats.form), ()):
                value, most = getattr(stats, measured), 7.389 / (6.389 + stats.classes)
                message = message.format(share=percent(value), limit=percent(limit), of=stats, most=percent(most))
                yield self.finding(report, site, value, limit, message, conclusive=conclusive, advice=advice)
            past = [window.outputs[site].mixed_signs for window in report.earlier if site in window.outputs]
            mixed = max([*past, stats.mixed_signs])  # those of a label may have risen above 0 since, and the others with them
            unknown = stats.enough and stats.form != "probabilities" and stats.log_probabilities <= 1 - self.share
            if of_logarithms and unknown and mixed >= self.mixed:
                have = ("have", "had")[mixed > stats.mixed_signs]
                yield self.finding(
                    report, site, mixed, self.mixed,
                    f"its inputs are not logarithms of probabilities: {percent(mixed)} of its rows {have} numbers both below and "
                    f"above 0 (limit {percent(self.mixed)}), up to {stats.max_logit:.3g}.",
                    advice=("Use cross_entropy, or give nll_loss the log_softmax of the logits",),
                )  # fmt: skip


_PROBABILITIES = "its inputs are probabilities: {share} of its rows have no number below 0 and sum to 1, and it "
# By whether a loss takes logarithms, and the form of its input: what is measured, its limit, whether it is
# conclusive, message and advice.
_FORMS: dict[tuple[bool, str], list[tuple[str, float, bool, str, tuple[str, ...]]]] = {
    (False, "probabilities"): [(
        "probabilities", CERTAIN, True,
        _PROBABILITIES + "applies a softmax itself, so that gradients are small and the loss cannot reach 0.", (),
    )],
    (True, "probabilities"): [(
        "probabilities", CERTAIN, True, _PROBABILITIES + "expects their logarithms, and takes none itself.",
        ("Use cross_entropy of the logits, or nll_loss of log_softmax",),
    )],
    (False, "logarithms"): [(
        "log_probabilities", CERTAIN, False, "its inputs are logarithms of probabilities, as nll_loss expects them.",
        ("Use nll_loss, or remove the log_softmax before it",),
    )],
    (False, "rectified"): [(
        "zero_fraction", MANY_ZEROS, True,
        "no logit is below 0, and {share} of them are exactly 0 (limit {limit}): a rectifier comes before the loss.", (),
    )],
    (False, "bounded"): [(
        "max_logit", 1 - EDGE, True,
        "its logits fill the range from {of.min_logit:.3g} to {of.max_logit:.3g} and do not leave it: of {of.classes} classes "
        "none can get more than {most}.", ("Remove the tanh, or multiply by a scale such as 10 to 30",),
    )],
}  # fmt: skip


class TargetSums(Rule, kind="output_range"):
    """A cross entropy whose targets are rows of numbers that do not sum to 1, as those of several labels."""

    share: ClassVar[float] = 0.25  # share of the rows from which it counts
    min_rows: ClassVar[int] = 32  # fewer rows are not judged

    def __call__(self, report: FeatureReport) -> Alerts:
        for site, stats in where(report.outputs, lambda stats: stats.rows >= self.min_rows and stats.unnormalized >= self.share):
            yield self.finding(
                report, site, stats.unnormalized, self.share,
                f"{percent(stats.unnormalized)} of its targets are rows of numbers that do not sum to 1 (limit "
                f"{percent(self.share)}): it expects the probabilities of classes that exclude one another.",
                advice=("Use binary_cross_entropy_with_logits for several labels", "Use mse_loss for other numbers",
                    "Divide each row by its sum"),
            )  # fmt: skip


class PairedTargets(Rule, kind="output_range"):
    """A loss of outputs of shape ``(n, 1)`` and targets of shape ``(n,)``: both are expanded, and every output meets every target.

    What is compared in pairs on purpose is not reduced by the loss itself, as in quantile regression.
    """

    def __call__(self, report: FeatureReport) -> Alerts:
        for site, stats in where(report.targets, lambda stats: stats.paired):
            yield self.finding(
                report, site, stats.pairs, max(stats.inputs, stats.targets),
                f"its input of {stats.inputs} numbers and its target of {stats.targets} have different shapes, and both are "
                f"expanded to {stats.pairs} pairs, in {stats.paired} of {stats.calls} sampled calls: every output is compared "
                "with every target, and the best output is their mean.",
                advice=("Give both the same shape: output.squeeze(-1), or target.unsqueeze(-1)",),
            )  # fmt: skip


class UnreachableTargets(Rule, kind="output_range"):
    """Targets that the function before the loss cannot put out: a sigmoid for prices, a tanh for scores up to 10.

    A binary cross entropy has no lowest value for targets below 0 or above 1, and ``kl_div`` and ``ctc_loss`` none where their
    input is above 0, as no logarithm of a probability is. ``ctc_loss`` removes blanks from what outputs spell, so that no output
    spells one.

    Attributes:
        share: Share of the targets outside of its values, above which it counts; of ``kl_div`` and ``ctc_loss`` that of the input
            above 0.
    """

    share: ClassVar[float] = 0.05
    min_targets: ClassVar[int] = 64  # fewer numbers are not judged

    def __call__(self, report: FeatureReport) -> Alerts:
        for site, stats in report.targets.items():
            limit = self.share * (stats.bound != BLANK)
            if stats.bounded >= self.min_targets and stats.outside > limit * stats.bounded:
                share = stats.outside / stats.bounded
                message, advice = _UNREACHABLE.get(stats.bound, _BEYOND_A_FUNCTION)
                message = message.format(share=percent(share), limit=percent(self.share), of=stats)
                yield self.finding(report, site, share, limit, message, advice=tuple(a.format(of=stats) for a in advice))


_BEYOND_A_FUNCTION: tuple[str, tuple[str, ...]] = (
    "{share} of its targets are {of.beyond} (limit {limit}; {of.bounded} were seen), and a {of.bound} comes right before it.",
    ("Remove the {of.bound} before the loss", "Scale the targets to the range of the outputs"),
)
_ABOVE_0 = "{share} of the numbers of its input are above 0 (limit {limit}), where logarithms of probabilities never are."
_LOG_SOFTMAX = "Give it the log_softmax of the logits"
# What bounds targets to the message and the advice where they are outside; of a function before the loss above.
_UNREACHABLE: dict[str, tuple[str, tuple[str, ...]]] = {
    ALIGNED: (_ABOVE_0, (_LOG_SOFTMAX,)),
    KL_DIVERGENCE: (_ABOVE_0, (_LOG_SOFTMAX, "Pass log_target=True if the target is a logarithm as well")),
    BLANK: (
        "{share} of its labels are the blank, which no label may be ({of.bounded} were seen).",
        ("Add 1 to the labels, and a class to the outputs", "Pass blank= with a class that is no label"),
    ),
    SIGNS: (
        "{share} of its targets are 0 ({of.bounded} were seen): it expects -1 and 1.",
        ("Pass 2 * labels - 1",),
    ),
    RATES: (
        "the function before it gives rates, none of {of.bounded} below 0, and it takes them for their logarithms.",
        ("Pass log_input=False", "Remove the function before it"),
    ),
    BINARY_CROSS_ENTROPY: (
        "{share} of its targets are {of.beyond} (limit {limit}; {of.bounded} were seen): it expects probabilities.",
        ("Pass targets from 0 to 1, such as (labels + 1) / 2",),
    ),
}


class DoubleSoftmax(Rule, kind="double_softmax"):
    """A softmax (or sigmoid) before a loss that applies one itself."""

    def __call__(self, report: GradientFlowReport) -> Alerts:
        if report.squashed_twice:
            yield self.finding(
                report, report.squashed_twice, 2.0, 1.0,
                "the loss applies a softmax or sigmoid to the output of another one (cross_entropy and "
                "binary_cross_entropy_with_logits expect logits): gradients are small and the loss cannot reach 0.",
            )  # fmt: skip


class TargetLearns(Rule, kind="output_range"):
    """Layers whose only gradient says that the target of a loss be nearer to its input.

    A teacher that an optimizer holds, and whose outputs are not detached, comes to meet its student. Layers that another loss
    trains too, and rows of a table that are compared as centres are, do not count.
    """

    def __call__(self, report: GradientFlowReport) -> Alerts:
        if report.target_layer:
            yield self.finding(
                report, report.target_layer, 1.0, 0.0,
                "an optimizer updates it, and its only gradient is that of the target of a loss whose input learns as well: the "
                "target moves to what the model puts out, and both may agree on anything.",
                advice=("Compute targets under torch.no_grad(), or detach them", "Leave their parameters out of the optimizer"),
            )  # fmt: skip


__all__ = [
    "DoubleSoftmax",
    "LabelsShifted",
    "OutputRange",
    "PairedTargets",
    "TargetLearns",
    "TargetSums",
    "UnreachableTargets",
]

KINDS = (
    Kind(
        "output_range", "A loss given what it does not expect", group="Loss", states="fact",
        causes=(
            compared_in_pairs, BLANK_LABEL, LABELS_OF_ZERO, SHIFTED_TWICE, NO_LOGARITHMS, RATES_FOR_LOGARITHMS,
            activation_before_loss, NO_LOGITS,
        ),
        meaning="`cross_entropy` is given numbers that are no logits: probabilities, what a ReLU or a tanh leaves. It applies a "
        "softmax itself and expects any real numbers. Or `nll_loss` is given numbers that are no logarithms of probabilities, or "
        "`mse_loss`, `l1_loss`, `smooth_l1_loss` or `huber_loss` compares every output with every target, because their shapes "
        "differ, or has targets that the sigmoid, softmax, tanh or ReLU before it cannot put out. Or `binary_cross_entropy` has "
        "targets below 0 or above 1, or `kl_div` or `ctc_loss` is given no logarithms of probabilities. Or labels of `ctc_loss` "
        "are its blank, or those of a loss of pairs are 0 and not -1. Or labels of `cross_entropy` "
        "are the tokens two places ahead. Or `poisson_nll_loss` is given rates and takes "
        "logarithms. Or layers learn only as the target of such a loss.",
        formula="alert if {OutputRange.share} of the rows have no number below 0 and the sum 1    (probabilities)\n"
        "      or min(logits) = 0 < max(logits) and more than {OutputRange.zeros} of the logits are 0    (a rectifier)\n"
        "      or min(logits) and max(logits) are within {OutputRange.bound} of -1 and 1 and not beyond, of more than 2 classes"
        "    (a tanh)\n"
        "info if {OutputRange.share} of the rows have logsumexp(row) = 0    (logarithms of probabilities)\n\n"
        "nll_loss: alert if {OutputRange.share} of the rows are probabilities\n"
        "                or {OutputRange.mixed} of the rows have numbers below 0 and above it, and none has logsumexp(row) = 0\n\n"
        "judged from {OutputRange.min_logits} logits on\n\n"
        "cross_entropy: alert if {TargetSums.share} of the rows of its targets sum neither to 1 nor to 0\n"
        "               or it is the only one, and its labels are the tokens that the model is given, two places ahead\n\n"
        "mse_loss, l1_loss, smooth_l1_loss, huber_loss, unless reduction = 'none':\n"
        "          alert if the shapes of input and target differ, and both are expanded\n"
        "          or more than {UnreachableTargets.share} of the targets are outside of the values of the sigmoid, softmax, tanh "
        "or ReLU before it\n"
        "binary_cross_entropy, with logits or not: alert if more than {UnreachableTargets.share} of the targets are outside of 0 "
        "to 1\n"
        "kl_div, ctc_loss: alert if more than {UnreachableTargets.share} of the numbers of its input are above 0\n"
        "ctc_loss: alert if any of the labels is its blank\n"
        "poisson_nll_loss: alert if log_input is True and its input is that of an exp, relu, sigmoid or softplus\n"
        "cosine_embedding_loss, margin_ranking_loss, hinge_embedding_loss, soft_margin_loss: alert if more than "
        "{UnreachableTargets.share} of the targets are 0\n"
        "mse_loss, l1_loss, smooth_l1_loss, huber_loss, kl_div: alert if a layer that an optimizer holds has a gradient "
        "through their target alone, while their input has one too",
        inconclusive="for logarithms of probabilities",
        advice=("Give cross_entropy the output of the last linear layer, without an activation",
            "Give mse_loss and its like outputs and targets of the same shape",
            "Give nll_loss the log_softmax of the logits, or log(p) of probabilities"),
    ),
    Kind(
        "double_softmax", "A softmax before a loss that applies one", group="Loss",
        states="fact", measures="nothing",
        causes=(activation_before_loss,),
        meaning="The loss applies a softmax or sigmoid to the output of a softmax or sigmoid. `cross_entropy` and "
        "`binary_cross_entropy_with_logits` expect logits. Gradients are small and the loss cannot reach 0.",
        formula="alert if the input of the loss's softmax or sigmoid is the output of a softmax or sigmoid, in the first batch",
        advice=("Remove it before the loss, or use nll_loss of log_softmax, or binary_cross_entropy",),
    ),
)  # fmt: skip
