"""Calls of softmax and dropout, views, and the precision of what layers compute."""

from __future__ import annotations

from typing import ClassVar

from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule, percent, where
from lightning_hooks.diagnostics.causes.code import DROPS_IN_EVAL, NOT_CAST, VIEWED_DIMENSIONS, WRONG_DIMENSION
from lightning_hooks.diagnostics.causes.wiring import wrong_axis
from lightning_hooks.diagnostics.reports import FeatureReport, GradientFlowReport


class SoftmaxDim(Rule, kind="softmax_dim"):
    """A softmax along the wrong dimension: over the samples of a batch, or against the mask of its scores.

    Attributes:
        share: Share of what ``nll_loss`` is given above which its rows are logarithms of probabilities, along whatever else.
    """

    share: ClassVar[float] = 0.01

    def __call__(self, report: FeatureReport) -> Alerts:
        for site, use in report.softmax.items():
            if use.over_batch == use.calls:
                yield self.finding(
                    report, site, 1.0, 1.0,
                    "it normalises along the first dimension, which are the samples of the batch: what a sample gets depends on "
                    "the others in its batch, and the classes of one sample do not sum to 1.",
                )  # fmt: skip
            elif use.against_mask:
                yield self.finding(
                    report, site, use.against_mask / use.calls, 0.0,
                    f"it normalises along the queries in {use.against_mask} of {use.calls} calls: along its dimension whole lines "
                    "are masked, or all but what comes later, as across a mask for the keys: tokens see what comes after them.",
                )  # fmt: skip
        for site, stats in where(
            report.outputs, lambda stats: 0 < stats.across == stats.calls and stats.log_probabilities <= self.share
        ):
            yield self.finding(
                report, site, 1.0, 1.0,
                "its inputs are logarithms of probabilities that sum to 1 along a dimension other than that of the classes, the "
                f"second, in all of its {stats.calls} sampled calls: those of one sample do not sum to 1.",
                advice=("Pass dim=1 to log_softmax",),
            )  # fmt: skip


class ViewedDimensions(Rule, kind="softmax_dim"):
    """A view, or reshape, in the place of a transpose, which would move the numbers: positions become channels, or classes."""

    def __call__(self, report: GradientFlowReport) -> Alerts:
        for site in {report.viewed} - {""}:
            yield self.finding(
                report, site, 1.0, 1.0,
                "its output, or what is computed from it, is viewed with its dimensions in another order: a view moves no numbers, "
                "so that those of several positions become one channel, or one class.",
                advice=("Use transpose(1, 2), or permute, in place of view or reshape",),
            )  # fmt: skip


class OverSamples(Rule, kind="softmax_dim"):
    """A recurrent layer, or attention, with ``batch_first=False``, PyTorch's default, that is given samples first.

    It runs over the samples of a batch, as if they were the positions of a sequence.
    """

    def __call__(self, report: FeatureReport) -> Alerts:
        for site in report.over_samples[:1]:
            yield self.finding(
                report, site, 1.0, 1.0,
                "it has batch_first=False, and is given batches with the samples first: it runs from sample to sample, and what a "
                "sample gets depends on the others in its batch.",
                advice=("Pass batch_first=True", "Transpose the first two dimensions of what it is given"),
            )  # fmt: skip


class DropoutInEval(Rule, kind="dropout_in_eval"):
    """Dropout that drops in a module in eval mode: ``F.dropout(x, p)`` does unless it is given ``training=self.training``.

    So does ``scaled_dot_product_attention`` with a ``dropout_p`` above 0, in any mode of the module. In training it is as
    wrong as in validation: nobody puts a part into eval mode to have it drop.
    """

    def __call__(self, report: FeatureReport) -> Alerts:
        for site, use in where(report.dropout, lambda use: use.in_eval_mode or use.in_validation):
            is_sdpa = "sdpa" in site.rpartition("/")[2]
            yield self.finding(
                report, site, use.p, 0.0,
                f"it drops {percent(use.p)} {use.where}: results there are noisy, and differ from run to run.",
                advice=(
                    f"Pass {('training=self.training', 'dropout_p=self.p if self.training else 0.0')[is_sdpa]}",
                    "Where it is on purpose (Monte Carlo dropout), mute this with rules=['-dropout_in_eval']",
                ),
            )  # fmt: skip


class PrecisionNotApplied(Rule, kind="precision_not_applied", shares=("threshold",)):
    """Half precision was asked for, and most of the model computes in float32 all the same.

    Heads, routers and losses may be kept in float32 on purpose: the share is of the numbers in the layers' weights.

    Attributes:
        threshold: Share of the weights of linear and convolution layers whose outputs are in float32.
    """

    threshold: float = 0.5

    def __call__(self, report: FeatureReport) -> Alerts:
        precision = report.precision
        if precision is not None and precision.full_share > self.threshold:
            layers, more = ", ".join(precision.full[:3]), ", …" * (len(precision.full) > 3)
            yield self.finding(
                report, precision.full[0], precision.full_share, self.threshold,
                f"precision is {precision.asked}, but {len(precision.full)} of {precision.layers} linear and convolution layers, "
                f"with {percent(precision.full_share)} of their weights (limit {percent(self.threshold)}), put out float32 "
                f"({layers}{more}).",
            )  # fmt: skip


__all__ = ["DropoutInEval", "OverSamples", "PrecisionNotApplied", "SoftmaxDim", "ViewedDimensions"]

KINDS = (
    Kind(
        "softmax_dim", "Dimensions that are mixed up", group="Forward", states="fact", measures="share",
        causes=(wrong_axis, VIEWED_DIMENSIONS, WRONG_DIMENSION),
        meaning="A softmax or log_softmax normalises along the wrong dimension: over the samples of the batch, or over the "
        "queries of an attention whose mask is made for the keys. Or a view mixes up the dimensions of a tensor, or a "
        "module with batch_first=False is given samples first.",
        formula="alert if each call is along dimension 0, whose size is that of the batch, and each sample has a target of its "
        "own\n"
        "      or a line along the dimension is masked as a whole, and none along the last one\n"
        "      or of a square matrix line 0 of the last dimension is whole, and in line 0 of this one all but the first number is "
        "masked\n"
        "      or what nll_loss is given has logsumexp = 0 along another dimension than the second, and not along that one\n"
        "or if a module with batch_first=False puts out a tensor of three dimensions, the first as long as the batch and the "
        "second not, nor 1,\n   and the batch holds one number a sample\n"
        "or if, in the graph of the first sampled loss, a view has the sizes of its input in another order, or makes four "
        "dimensions of (samples, positions, channels)\n   with channels second, or positions third; not of what was cut or padded "
        "before, or is cut next, or has its first dimension moved next",
        advice=("Pass dim=-1 for classes in the last dimension and for attention scores of shape (…, queries, keys)",
            "Where samples are weighted against one another on purpose, mute this with rules=['-softmax_dim']"),
    ),
    Kind(
        "dropout_in_eval", "Dropout that drops in evaluation", group="Forward", states="fact", measures="share",
        causes=(DROPS_IN_EVAL,),
        meaning="A call of `dropout`, or of `scaled_dot_product_attention` with a `dropout_p`, drops something though the module "
        "that makes it is in eval mode. Validation is noisy, and so is what the model predicts later.",
        formula="alert if p > 0 and training=True (dropout) or dropout_p > 0 (attention), and module.training is False,\n"
        "      in a sampled training batch, or in the first batch of a validation",
        advice=("Pass training=self.training to F.dropout, or use nn.Dropout",
            "Pass dropout_p=self.p if self.training else 0.0 to scaled_dot_product_attention",
            "Where it is on purpose (Monte Carlo dropout), mute this with rules=['-dropout_in_eval']"),
    ),
    Kind(
        "precision_not_applied", "Half precision that is not applied", group="Set-up", states="fact", measures="share",
        causes=(NOT_CAST,),
        meaning="The Trainer's precision is half precision, and most linear and convolution layers compute in float32 all the "
        "same. Training takes the time and memory of float32.",
        formula="share = numbers in the weights of the linear and convolution layers with outputs in float32\n"
        "        / those of all that were called\n\n"
        "alert if share > {PrecisionNotApplied.threshold} under bf16-mixed, 16-mixed, bf16-true or 16-true",
        advice=("Remove autocast(enabled=False) and .float() around the model",
            "Call the model within training_step, or under trainer.precision_plugin.forward_context()"),
    ),
)  # fmt: skip
