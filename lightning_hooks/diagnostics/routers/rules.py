"""Routers and codebooks: choices that are always the same, experts that get no tokens."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from itertools import takewhile
from typing import ClassVar, TypeVar

from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule, percent
from lightning_hooks.diagnostics.causes import rates, steps, weights
from lightning_hooks.diagnostics.routers.routing import CodebookStats, RouterReport, RouterStats

T = TypeVar("T")


class DeadExperts(Rule, kind="dead_experts", judges="epoch", shares=("threshold", "share")):
    """Experts of a mixture that get next to no tokens: their weights do not train.

    Shazeer et al. (arXiv 1701.06538) describe how a router without a loss for balance comes to favour a few experts, which then
    learn faster and are favoured more; Fedus et al. (arXiv 2101.03961) give the loss that is usual now.

    Attributes:
        threshold: Load of an expert at or below which it is dead, as a share of an even load, in [0, 1].
        share: Share of the experts from which it is a warning; of fewer it is an info, as the others have room for what they do.
        min_batches: Training batches, in windows in a row, in all of which they got so little, where they are half of the experts
            or more.
        of_few: The same where they are fewer: in a healthy training one expert of four gets nothing for 24 batches, and is found
            again.
    """

    threshold: float = 0.01
    share: float = 0.25
    min_choices: ClassVar[int] = 100  # choices that each expert would have had at an even load, below which a router is not judged
    min_batches: ClassVar[int] = 20
    of_few: ClassVar[int] = 40

    def __call__(self, report: RouterReport) -> Alerts:
        for site, stats in report.routers.items():
            dead = self._dead(report, site)
            needed = (self.of_few, self.min_batches)[2 * len(dead) >= stats.experts]
            if dead and _batches_in_a_row(report, partial(self._lasts, site, dead)) >= needed:
                shown = ", ".join(map(str, sorted(dead)[:8])) + ", …" * (len(dead) > 8)
                share = len(dead) / stats.experts
                many = share >= self.share
                yield self.finding(
                    report, site, share, self.share * many,
                    f"{len(dead)} of its {stats.experts} experts ({shown}) got at most {percent(self.threshold)} of an even share "
                    f"of {stats.tokens} tokens, so that they do not train.",
                    conclusive=many,
                )  # fmt: skip

    def _lasts(self, site: str, dead: set[int], window: RouterReport) -> bool:
        return dead <= self._dead(window, site)

    def _dead(self, report: RouterReport, site: str) -> set[int]:
        judged = [stats for stats in _of(report.routers, site) if _is_judged(stats, self.min_choices)]
        return {n for stats in judged for n, share in enumerate(stats.load) if share * stats.experts <= self.threshold}


class RouterCollapse(Rule, kind="router_collapse", judges="epoch", shares=("threshold",)):
    """A router, or a quantiser, that makes the same few choices for everything.

    The effective number of choices is the exponential of the entropy of their shares. A router's is at least ``top_k``, as each
    token gets so many experts; what is judged is where it lies between that (0) and the number of experts (1). A codebook's is at
    least 1.

    Attributes:
        threshold: Where a router's effective number of experts lies, in [0, 1], at or below which it has collapsed.
        min_choices: Choices that each expert would have had at an even load, or that are made of codes in all, below which nothing
            is judged.
        min_batches: Training batches, in windows in a row, in all of which it must have collapsed: a router may start from few
            choices.
    """

    threshold: float = 0.1
    codes: ClassVar[float] = 0.01  # the same of a codebook, of which few codes are used in health too
    min_choices: ClassVar[int] = 100
    least_codes: ClassVar[int] = 16  # codes below which a codebook is not judged
    min_batches: ClassVar[int] = 20

    def __call__(self, report: RouterReport) -> Alerts:
        for site, stats in self._collapsed(report, report.routers):
            yield self.finding(
                report, site, stats.effective, self._least(stats),
                f"its {stats.tokens} tokens, with {stats.top_k} of {stats.experts} experts each, go to {stats.effective:.3g} "
                f"experts in effect; one of them gets {percent(max(stats.load) * stats.top_k)} of all tokens.",
            )  # fmt: skip
        for site, book in self._collapsed(report, report.codebooks):
            yield self.finding(
                report, site, book.perplexity, self._fewest(book),
                f"it chooses {book.perplexity:.3g} of its {book.size} codes in effect (perplexity), over {book.codes} choices.",
                advice=(
                    "Start codes that are not used again from outputs of the encoder",
                    "Learn the codebook by moving averages, or codes of fewer dimensions",
                    "Initialise it by k-means of a batch",
                ),
            )  # fmt: skip

    def _collapsed(self, report: RouterReport, found: Mapping[str, T]) -> list[tuple[str, T]]:
        rows = ((site, stats, _batches_in_a_row(report, partial(self._has_collapsed, site))) for site, stats in found.items())
        return [(site, stats) for site, stats, batches in rows if batches >= self.min_batches]

    def _has_collapsed(self, site: str, window: RouterReport) -> bool:
        judged = [stats for stats in _of(window.routers, site) if _is_judged(stats, self.min_choices)]
        large = [book for book in _of(window.codebooks, site) if book.size >= self.least_codes]
        books = [book for book in large if book.codes >= max(self.min_choices, 10 * self._fewest(book))]
        return any(stats.effective <= self._least(stats) for stats in judged) or any(
            book.perplexity <= self._fewest(book) for book in books
        )

    def _least(self, stats: RouterStats) -> float:
        return stats.top_k + self.threshold * (stats.experts - stats.top_k)

    def _fewest(self, book: CodebookStats) -> float:
        return 1 + self.codes * (book.size - 1)


def _of(found: Mapping[str, T], site: str) -> list[T]:
    return [stats for name, stats in found.items() if name == site]


def _batches_in_a_row(report: RouterReport, holds: Callable[[RouterReport], bool]) -> int:
    return sum(window.batches for window in takewhile(holds, reversed(report.windows)))


def _is_judged(stats: RouterStats, min_choices: int) -> bool:
    return stats.experts > stats.top_k and stats.tokens * stats.top_k >= min_choices * stats.experts


__all__ = ["DeadExperts", "RouterCollapse"]

KINDS = (
    Kind(
        "router_collapse", "A router that makes the same few choices", group="Attention, experts, residual streams",
        states="symptom",
        causes=(steps.wrong_sign, weights.offset_bias, rates.group_too_fast, rates.rate_too_high),
        meaning="A router of a mixture of experts sends nearly all tokens to as few experts as it can, or a vector quantiser "
        "chooses the same few codes for everything. The other experts and codes do not train, and the model has the capacity of a "
        "much smaller one.",
        formula="effective = exp(entropy of the load of experts) = experts ^ balance, from top_k to the number of experts\n\n"
        "alert if effective - top_k <= {RouterCollapse.threshold} * (experts - top_k)\n"
        "      or of a codebook perplexity - 1 <= {RouterCollapse.codes} * (codes - 1), with at least "
        "{RouterCollapse.least_codes} codes\n"
        "in windows in a row of at least {RouterCollapse.min_batches} batches, each of at least {RouterCollapse.min_choices} "
        "choices for each expert\n"
        "at an even load",
        advice=("Add a loss for balance, or weigh it more (router_aux_loss_coef of transformers, from 0.01 on)",
            "Try a lower learning rate for the router, noise on its logits, or a z-loss", "Normalise what it reads"),
    ),
    Kind(
        "dead_experts", "Experts that get no tokens", group="Attention, experts, residual streams", states="symptom",
        measures="share",
        causes=(steps.wrong_sign, weights.offset_bias, rates.group_too_fast, rates.rate_too_high),
        meaning="Some experts of a mixture get no tokens, or next to none, batch after batch. They do not train, and since they "
        "do not train the router has no reason to choose them.",
        formula="alert if experts have a load <= {DeadExperts.threshold} / number of experts\n"
        "warning, not info, if they are >= {DeadExperts.share} of all experts\n"
        "in windows in a row of at least {DeadExperts.min_batches} batches ({DeadExperts.of_few} for less than half of the "
        "experts),\n"
        "each of at least {DeadExperts.min_choices} choices for each expert at an even load",
        inconclusive="for less than a quarter of the experts",
        advice=("Add a loss for balance, or weigh it more (router_aux_loss_coef of transformers, from 0.01 on)",
            "Start the router from smaller weights, or with a lower learning rate", "Use fewer experts"),
    ),
)  # fmt: skip
