"""Attention: logits that grow, attention to one key or to all alike, queries without a key."""

from __future__ import annotations

import statistics
from typing import ClassVar

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.cause import (
    EXCLUDES,
    PROOF,
    SOON,
    STRONG,
    CauseEvidence,
    Judgement,
    Remedy,
    possible_cause,
    replace,
    rounded,
)
from lightning_hooks.declare.kinds import ALWAYS, Kind
from lightning_hooks.declare.rule import Alerts, Rule, percent
from lightning_hooks.diagnostics.attention.table import AttentionReport, AttentionStats
from lightning_hooks.diagnostics.causes import rates, weights
from lightning_hooks.diagnostics.causes.facts import Facts


def _last(facts: Facts) -> AttentionReport:
    return facts.window.report(AttentionReport) or AttentionReport(0, 0, {})


@possible_cause("replace it by its opposite, if that was meant", "pass a causal mask")
def wrong_mask(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A mask hides all keys, or shows what it should hide."""
    mask = f"the mask of {alert.site}"
    if alert.site in _last(facts).target_shown:
        found.add(True, PROOF, "each query may attend to the token that is its target")
        remedy = replace(mask, "a causal one", "a loss that falls on new data too", "is_causal=True")
        return f"{alert.site} has no mask that hides the next token from a query, or one with the opposite meaning.", [remedy]
    found.add(True, STRONG, alert.message)
    return "A mask hides all keys.", [replace(mask, "its opposite, if that was meant", code="~mask")]


@possible_cause("divide the scores by the root of the width of a head")
def unscaled_scores(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The scores of an attention layer are not scaled as those of the others."""
    sites, gains = _last(facts).sites, weights.usable_gains(facts)
    others = [stats.max_logit for site, stats in sites.items() if site != alert.site and stats.max_logit > 0]
    if alert.site not in sites or not others:
        return None
    times = sites[alert.site].max_logit / statistics.median(others)
    around = facts.module_of(alert.site)
    within = [gain for site, gain in gains.items() if site.startswith(f"{around}.") or site == around]
    away = bool(within) and max(within) > 2 * statistics.median(gains.values())
    found.add(times > 10, STRONG, f"its largest score is {times:.3g} times that of the others")
    found.add(away, EXCLUDES, f"the weights of {around} are larger than the others")
    to, code = rounded(1 / times), "scores / math.sqrt(head_dim)"
    remedy = Remedy("scale", f"the scores of {alert.site}", None, to, "", "entropies like those of the others", SOON, code)
    return f"The scores of {alert.site} are {times:.3g} times as large as those of the other layers.", [remedy]


@possible_cause("invert the mask")
def inverted_mask(_: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """A mask hides what it should show."""
    hidden = [name for name, stats in _last(facts).sites.items() if stats.first_token_share < 1e-12 and stats.entropy > 1e-3]
    found.add(bool(hidden), STRONG, "no query sees the first key of any sample, where padding comes last")
    if not hidden:
        return None
    remedy = replace(
        f"the mask of {hidden[0]}", "its opposite, if it is True where a key may be seen", "a loss that falls", "~mask"
    )
    return f"{hidden[0]} attends to other keys than the first one, which its mask hides in all samples.", [remedy]


class AttentionLogits(Rule, kind="attention_logits"):
    """Attention logits that are too large for half precision, or that grow fast.

    Logits that grow come before the divergence of large transformers (Wortsman et al., "Small-scale proxies for large-scale
    Transformer training instabilities", arXiv 2309.14322). At 50, bfloat16 numbers are in steps of 0.25: rounding changes a
    probability by up to 13 %. The remedies are a norm of queries and keys (QK-norm), or clipping their weights (qk-clip of Megatron
    and Kimi K2, which acts at 100).

    Attributes:
        threshold: Largest logit in bfloat16 or float16 above which it counts.
        growth: How many times the largest logit of the window's first call that of its last call is, where that counts.
    """

    threshold: float = 50.0
    growth: ClassVar[float] = 3.0
    least: ClassVar[float] = 30.0  # largest logit below which growth is harmless: logits of 1 or 2 are usual when training starts

    def __call__(self, report: AttentionReport) -> Alerts:
        for site, stats in sorted(report.sites.items(), key=lambda item: -item[1].max_logit):
            begin, end = stats.begin_max_logit, stats.end_max_logit
            limit = max(self.growth * max(begin, 1.0), self.least)
            if stats.half_precision and stats.max_logit > self.threshold:
                yield self.finding(
                    report, site, stats.max_logit, self.threshold,
                    f"its largest logit is {stats.max_logit:.3g} in half precision (limit {self.threshold:g}): rounding to "
                    "bfloat16 changes probabilities by 10% there.",
                )  # fmt: skip
            elif end > limit:
                yield self.finding(
                    report, site, end, limit,
                    f"its largest logit grew from {begin:.3g} to {end:.3g} within this window (limit {limit:.3g}).",
                )  # fmt: skip


class AttentionCollapse(Rule, kind="attention_collapse", shares=("threshold",)):
    """Most heads of a layer attend to a single key, and not to the first one.

    The softmax is saturated then, and queries and keys get no gradient (Zhai et al., "Stabilizing Transformer Training by
    Preventing Attention Entropy Collapse", arXiv 2303.06296). Heads that attend to the first token, as most heads of large language
    models do, are attention sinks (Xiao et al., arXiv 2309.17453) and do not count.

    Attributes:
        threshold: Mean entropy over its maximum below which a head has collapsed, in [0, 1].
        everywhere: The threshold where all layers, two or more, are below it: some layer of a healthy model looks further.
    """

    threshold: float = 0.05
    share: ClassVar[float] = 0.5  # share of the heads that must have collapsed, in [0, 1]
    sink: ClassVar[float] = 0.5  # mean share of the first token above which a head is a sink, in [0, 1]
    least: ClassVar[float] = 30.0  # largest logit below which a layer is not judged: attention to one key on purpose needs few
    everywhere: ClassVar[float] = 0.2

    def __call__(self, report: AttentionReport) -> Alerts:
        all_do = len(report.sites) > 1 and all(self._collapsed(stats, self.everywhere) for stats in report.sites.values())
        limit = max(self.threshold, self.everywhere * all_do)
        for site, stats in sorted(report.sites.items(), key=lambda item: item[1].entropy):
            if collapsed := self._collapsed(stats, limit):
                yield self.finding(
                    report, site, statistics.fmean(collapsed), limit,
                    f"{len(collapsed)} of its {len(stats.heads)} heads attend to a single key: their entropy is below "
                    f"{percent(limit)} of its maximum{', in all attention layers' * all_do}, and the softmax (largest logit "
                    f"{stats.max_logit:.3g}) passes almost no gradient.",
                )  # fmt: skip

    def _collapsed(self, stats: AttentionStats, limit: float) -> list[float]:
        found = [head.entropy for head in stats.heads if head.entropy < limit and head.first_token_share < self.sink]
        return found * (len(found) > self.share * len(stats.heads) and stats.max_logit > self.least)


class AttentionUniform(Rule, kind="attention_uniform", judges="epoch", shares=("threshold",)):
    """All heads of a layer attend to all keys alike, long after training began: the layer takes a mean.

    Attributes:
        threshold: Mean entropy over its maximum above which a head counts, in [0, 1].
    """

    threshold: float = 0.999
    min_steps: ClassVar[int] = 1000  # optimizer steps before which nothing is judged

    def __call__(self, report: AttentionReport) -> Alerts:
        for site, stats in report.sites.items():
            lowest = min((head.entropy for head in stats.heads), default=0.0)
            if lowest > self.threshold and report.step >= self.min_steps:
                yield self.finding(
                    report, site, lowest, self.threshold,
                    f"all of its heads attend to all keys alike after {report.step} steps: their entropy is above "
                    f"{percent(self.threshold)} of its maximum.",
                    conclusive=False,
                )  # fmt: skip


class MaskedRows(Rule, kind="masked_rows"):
    """Queries that may attend to no key.

    Padding before a causal sequence makes such rows, which do no harm where their outputs are not used. A sample none of whose
    queries has a key has an inverted or an empty mask.
    """

    def __call__(self, report: AttentionReport) -> Alerts:
        for site, stats in report.sites.items():
            for conclusive, value, more in stats.masked[:1]:
                yield self.finding(
                    report, site, value, 0.0,
                    f"{percent(stats.masked_rows)} of its queries may attend to no key{more.format(percent(value))}.",
                    conclusive=conclusive,
                )  # fmt: skip


class TargetShown(Rule, kind="masked_rows"):
    """Attention of each token to the next one, where the next one is the target.

    A model that has another attention which hides it, as a decoder has behind an encoder, is not judged.
    """

    def __call__(self, report: AttentionReport) -> Alerts:
        for site in report.target_shown[:1]:
            yield self.finding(
                report, site, 1.0, 0.0,
                "a query may attend to the token that comes next, and this token is its target in the cross entropy: the loss "
                "falls without anything being learned that holds where the next token is not known.",
                advice=("Pass is_causal=True, or a mask that hides what comes later",
                    "Check what True means: nn.MultiheadAttention hides such a key, scaled_dot_product_attention shows it"),
            )  # fmt: skip


__all__ = ["AttentionCollapse", "AttentionLogits", "AttentionUniform", "MaskedRows", "TargetShown"]

KINDS = (
    Kind(
        "attention_logits", "Very large attention logits", group="Attention, experts, residual streams", states="symptom",
        causes=(rates.group_too_fast, weights.initial_scale, unscaled_scores, rates.rate_too_high, rates.unusual_setting),
        meaning="The largest logit of an attention layer, scale times query times key, is too large for half precision or grows "
        "fast. This comes before divergence in large transformers.",
        formula="alert if max_logit > {AttentionLogits.threshold} in bfloat16 or float16\n"
        "      or end_max_logit > {AttentionLogits.growth} * max(begin_max_logit, 1), and > {AttentionLogits.least}\n\n"
        "begin_max_logit and end_max_logit are those of the first and the last sampled call of the window.",
        advice=("Normalise queries and keys (QK-norm), or clip their weights (QK-clip)",
            "Try a lower learning rate or a longer warm-up", "Divide the logits by the root of a head's width"),
    ),
    Kind(
        "attention_collapse", "Attention to a single key", group="Attention, experts, residual streams",
        states="symptom",
        measures="share",
        causes=(rates.group_too_fast, weights.initial_scale, unscaled_scores, rates.rate_too_high, rates.unusual_setting),
        meaning="Most heads of an attention layer attend to a single key, which is not the first one. Their softmax is saturated, "
        "and hardly any gradient reaches queries and keys.",
        formula="entropy = mean over query rows of -sum(p * log(p)) / log(keys that the row may attend to)\n\n"
        "alert if entropy < {AttentionCollapse.threshold} and first_token_share < {AttentionCollapse.sink}\n"
        "      in more than {AttentionCollapse.share} of the heads, and max_logit > {AttentionCollapse.least};\n"
        "      entropy < {AttentionCollapse.everywhere} is enough where that is so in all attention layers, two or more",
        advice=("Normalise queries and keys (QK-norm)", "Try a lower learning rate, a longer warm-up or a smaller initialisation",
            "Divide the logits by the root of a head's width"),
    ),
    Kind(
        "attention_uniform", "Attention to all keys alike", group="Attention, experts, residual streams", states="symptom",
        measures="share",
        causes=(weights.initial_scale, weights.constant_weights),
        meaning="All heads of an attention layer still attend to all keys alike after 1000 steps. The layer only takes a mean.",
        formula="alert if entropy > {AttentionUniform.threshold} in every head, after {AttentionUniform.min_steps} optimizer "
        "steps",
        inconclusive=ALWAYS,
        advice=("Check that queries and keys differ between positions", "Check the gradients of the query and key weights"),
    ),
    Kind(
        "masked_rows", "A mask that hides every key or shows the target", group="Attention, experts, residual streams",
        states="fact",
        about="nonfinite", measures="share",
        causes=(wrong_mask,),
        meaning="Some queries of an attention layer may attend to no key at all. Their output is NaN, zero or the mean of "
        "everything, depending on how attention is computed. Or they may attend to the next token where that is their target.",
        formula="alert if a query row may attend to no key\n"
        "      or if the labels of a cross entropy are the embedded tokens moved by one, and queries of all attentions of these "
        "tokens may attend to the next one",
        inconclusive="where each sample has queries with a key, and no row becomes NaN",
        advice=("Check what True means: nn.MultiheadAttention hides such a key, scaled_dot_product_attention shows it",
            "Leave out samples that are all padding"),
    ),
)  # fmt: skip
