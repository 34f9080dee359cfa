"""Rules over what losses are given, and over calls of softmax and dropout, and the precision of what layers compute."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.alerts.rule import Rule, in_batch, percent
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.windows import FeatureReport
from lightning_hooks.statistics.outputs import OutputStats


@dataclass(frozen=True, slots=True, eq=False)
class OutputRange(Rule):
    """Logits that cross entropy does not expect: probabilities, what a ReLU or tanh leaves, logarithms of probabilities.

    Cross entropy takes any real numbers and applies a softmax to them. Of ``C`` numbers in [-1, 1] that softmax gives a class at
    most ``e² / (e² + C - 1)``. Logarithms of probabilities are left as they are, which is harmless.

    ``nll_loss`` takes logarithms of probabilities and applies nothing. Logits that it is given have numbers of both signs in a row,
    while logarithms that are weighted (a focal loss, a reward) have one sign there.

    Attributes:
        share: Share of the rows that must be probabilities, or their logarithms.
        mixed: Share of the rows with numbers of both signs from which on ``nll_loss`` is given logits.
        zeros: Share of the logits that must be exactly 0 for a rectifier.
        bound: Logits must come so close to both -1 and 1, and not pass them, for a tanh or a cosine.
        min_logits: Logits below which a window is not judged.
    """

    kind: ClassVar[str] = "output_range"
    shares: ClassVar[tuple[str, ...]] = ("share", "mixed", "zeros")

    share: float = 0.99
    mixed: float = 0.25
    zeros: float = 0.05
    bound: float = 0.01
    min_logits: int = 256

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert per loss that gets other numbers than logits."""
        for site, stats in report.outputs.items():
            if stats.classes < 2 or stats.rows * stats.classes < self.min_logits:
                continue
            low, high = stats.min_logit, stats.max_logit
            if site.rpartition("/")[2].startswith("nll_loss"):
                yield from self._of_logarithms(report, site, stats)
            elif stats.probabilities >= self.share:
                yield self.alert(
                    report, site, stats.probabilities, self.share, "warning",
                    f"its input are probabilities: {percent(stats.probabilities)} of its rows have no number below 0 and the sum "
                    "1.",
                    "It applies a softmax itself, so that gradients are small and the loss cannot reach 0.",
                )  # fmt: skip
            elif stats.log_probabilities >= self.share and stats.max_logit <= 0:
                yield self.alert(
                    report, site, stats.log_probabilities, self.share, "info",
                    "its input are logarithms of probabilities, as nll_loss expects them.",
                    "Its own log_softmax leaves them as they are: nothing is wrong, but computed twice.",
                    advice=("Use nll_loss, or remove the log_softmax before it",),
                )  # fmt: skip
            elif low == 0 and stats.zero_fraction >= self.zeros:
                yield self.alert(
                    report, site, stats.zero_fraction, self.zeros, "warning",
                    f"no logit is below 0, and {percent(stats.zero_fraction)} of them are exactly 0 (limit {percent(self.zeros)}): "
                    "a rectifier comes before the loss.",
                    "It cannot make a class unlikely, and where all logits are 0 no gradient comes back.",
                )  # fmt: skip
            elif (
                stats.classes > 2 and abs(low + 1) <= self.bound and abs(high - 1) <= self.bound and high <= 1 <= -low + self.bound
            ):
                yield self._bounded(report, site, stats)

    def _of_logarithms(self, report: FeatureReport, site: str, stats: OutputStats) -> Iterator[Alert]:
        if stats.probabilities >= self.share:
            yield self.alert(
                report, site, stats.probabilities, self.share, "warning",
                f"its input are probabilities: {percent(stats.probabilities)} of its rows have no number below 0 and the sum 1.",
                "It expects their logarithms, and takes none itself: it is minus the mean probability of the label, whose "
                "gradient is smallest where the model is most wrong. Common cause: softmax instead of log_softmax.",
                advice=("Use cross_entropy of the logits, or nll_loss of log_softmax",),
            )  # fmt: skip
        elif stats.mixed_signs >= self.mixed and stats.log_probabilities <= 1 - self.share:
            yield self.alert(
                report, site, stats.mixed_signs, self.mixed, "warning",
                f"its input are no logarithms of probabilities: {percent(stats.mixed_signs)} of its rows have numbers both below "
                f"and above 0 (limit {percent(self.mixed)}), up to {stats.max_logit:.3g}.",
                "It applies no softmax: the loss falls without end as the label's number grows, whatever the others are. Common "
                "cause: logits without a log_softmax.",
                advice=("Use cross_entropy, or give nll_loss the log_softmax of the logits",),
            )  # fmt: skip

    def _bounded(self, report: FeatureReport, site: str, stats: OutputStats) -> Alert:
        most = 7.389 / (7.389 + stats.classes - 1)
        return self.alert(
            report, site, stats.max_logit, 1.0, "warning",
            f"its logits fill the range from {stats.min_logit:.3g} to {stats.max_logit:.3g} and do not leave it: of "
            f"{stats.classes} classes none can get more than {percent(most)}.",
            "Common causes: a tanh before the loss, cosines that are not divided by a temperature.",
            advice=("Remove the tanh, or multiply by a scale such as 10 to 30",),
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class IdOutOfRange(Rule):
    """An id that an embedding has no row for, with which training ended. It is looked for on the CPU, in one process."""

    kind: ClassVar[str] = "id_out_of_range"
    urgent: ClassVar[bool] = True

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert at the embedding."""
        found = report.id_out_of_range
        if found is not None:
            where = in_batch(found.place) if found.place else "its input"
            when = "" if found.batch is None else f", in training batch {found.batch} of the epoch"
            yield self.alert(
                report, found.site, found.id, found.rows, "critical",
                f"id {found.id} in a table of {found.rows} rows, at {list(found.index)} of {where}{when}.",
                "Training ended at this lookup. Common causes: a vocabulary larger than the table, ids of another tokenizer, a "
                "padding of -100 that reaches the model.",
                batch=found.batch,
            )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class SoftmaxDim(Rule):
    """A softmax along the wrong dimension: over the samples of a batch, or against the mask of its scores.

    Attributes:
        share: Share of what ``nll_loss`` is given above which its rows are logarithms of probabilities, along whatever else.
    """

    kind: ClassVar[str] = "softmax_dim"
    shares: ClassVar[tuple[str, ...]] = ("share",)

    share: float = 0.01

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert per softmax of which every call is along such a dimension."""
        for site, use in report.softmax.items():
            if use.over_batch == use.calls:
                yield self.alert(
                    report, site, 1.0, 1.0, "warning",
                    "it normalises along the first dimension, which are the samples of the batch: what a sample gets depends on "
                    "the others in its batch, and the classes of one sample do not sum to 1.",
                    "Common causes: dim=0, or no dim at all.",
                )  # fmt: skip
            elif use.against_mask:
                yield self.alert(
                    report, site, use.against_mask / use.calls, 0.0, "warning",
                    f"it normalises along the queries in {use.against_mask} of {use.calls} calls: along its dimension whole lines "
                    "are masked, or all but what comes later, as they are across a mask that is made for the keys.",
                    "Tokens see what comes after them.",
                )  # fmt: skip
        for site, stats in report.outputs.items():
            if 0 < stats.across == stats.calls and stats.log_probabilities <= self.share:
                yield self.alert(
                    report, site, 1.0, 1.0, "warning",
                    "its input are logarithms of probabilities that sum to 1 along another dimension than that of the classes, the "
                    f"second, in all of its {stats.calls} sampled calls: those of one sample do not sum to 1.",
                    "Common causes: log_softmax with a wrong dim, classes that are not in the second dimension.",
                    advice=("Pass dim=1 to log_softmax",),
                )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class DropoutInEval(Rule):
    """Dropout that drops in a module in eval mode: ``F.dropout(x, p)`` does unless it is given ``training=self.training``.

    So does ``scaled_dot_product_attention`` with a ``dropout_p`` above 0, whatever the module's mode. In training it is as
    wrong as in validation: nobody puts a part into eval mode to have it drop.
    """

    kind: ClassVar[str] = "dropout_in_eval"

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert per call that drops something all the same."""
        for site, use in report.dropout.items():
            if use.in_eval_mode or use.in_validation:
                seen = f"{use.in_eval_mode} of {use.calls} calls seen in training"
                where = "in validation" if use.in_validation else f"in a part of the model that is in eval mode ({seen})"
                attention = "sdpa" in site.rpartition("/")[2]
                yield self.alert(
                    report, site, use.p, 0.0, "warning",
                    f"it drops {percent(use.p)} {where}: results there are noisy, and differ from run to run.",
                    f"Common cause: {'a fixed dropout_p' if attention else 'no training=self.training'} in its call.",
                    advice=(
                        f"Pass {'dropout_p=self.p if self.training else 0.0' if attention else 'training=self.training'}",
                        "Where it is on purpose (Monte Carlo dropout), mute this with rules=['-dropout_in_eval']",
                    ),
                )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class PrecisionNotApplied(Rule):
    """Half precision was asked for, and most of the model computes in float32 all the same.

    Heads, routers and losses may be kept in float32 on purpose: the share is of the numbers in the layers' weights.

    Attributes:
        threshold: Share of the weights of linear and convolution layers whose outputs are in float32.
    """

    kind: ClassVar[str] = "precision_not_applied"
    shares: ClassVar[tuple[str, ...]] = ("threshold",)

    threshold: float = 0.5

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert at the first layer of those in float32."""
        precision = report.precision
        if precision is None or precision.full_share <= self.threshold:
            return
        layers, more = ", ".join(precision.full[:3]), ", …" * (len(precision.full) > 3)
        yield self.alert(
            report, precision.full[0], precision.full_share, self.threshold, "warning",
            f"precision is {precision.asked}, but {len(precision.full)} of {precision.layers} linear and convolution layers, with "
            f"{percent(precision.full_share)} of their weights (limit {percent(self.threshold)}), put out float32 "
            f"({layers}{more}).",
            "Common causes: autocast(enabled=False) around the model, a forward outside of training_step, weights and inputs cast "
            "with .float().",
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class LabelsIgnoredByLoss(Rule):
    """Calls of ``cross_entropy`` or ``nll_loss`` all of whose targets are ``ignore_index``: nothing to average, so NaN.

    As :class:`LabelsIgnored`, for the targets that the function is given: shifted, masked or made in ``training_step``.

    Attributes:
        threshold: Share of its calls that must be ignored as a whole, unless one returned NaN.
    """

    kind: ClassVar[str] = "labels_ignored"
    shares: ClassVar[tuple[str, ...]] = ("threshold",)

    threshold: float = 0.5

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield a warning if calls are lost, an info if a few are and return a number all the same."""
        for site, stats in report.outputs.items():
            if not stats.ignored_calls:
                continue
            share = stats.ignored_calls / stats.calls
            yield self.alert(
                report, site, share, self.threshold, "warning" if stats.lost_calls or share >= self.threshold else "info",
                f"all targets are ignore_index in {stats.ignored_calls} of its {stats.calls} sampled calls "
                f"({percent(stats.ignored_fraction)} of all targets): it averages over nothing, which is NaN.",
                "Common causes: labels masked as a whole, sequences cut off before their answer, a wrong ignore_index.",
            )  # fmt: skip
