"""Rules over routers and codebooks: choices that are always the same, experts that get no tokens."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import ClassVar

from lightning_hooks.alerts.rule import Judges, Rule, percent
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.routers import RouterReport
from lightning_hooks.statistics.routing import CodebookStats, RouterStats


@dataclass(frozen=True, slots=True, eq=False)
class DeadExperts(Rule):
    """Experts of a mixture that get next to no tokens: their weights do not train.

    Shazeer et al. (arXiv 1701.06538) describe how a router without a loss for balance comes to favour a few experts, which then
    learn faster and are favoured more; Fedus et al. (arXiv 2101.03961) give the loss that is usual now.

    Attributes:
        threshold: Load of an expert at or below which it is dead, as a share of an even load, in [0, 1].
        share: Share of the experts from which it is a warning; of fewer it is an info, as the others have room for what they do.
        min_choices: Choices that each expert would have had at an even load, below which a router is not judged.
    """

    kind: ClassVar[str] = "dead_experts"
    judges: ClassVar[Judges] = "epoch"
    shares: ClassVar[tuple[str, ...]] = ("threshold", "share")

    threshold: float = 0.01
    share: float = 0.25
    min_choices: int = 100
    times: int = field(default=2, kw_only=True)  # in two windows in a row: an expert may be found again
    of: int = field(default=2, kw_only=True)

    def __call__(self, report: RouterReport) -> Iterator[Alert]:
        """Yield an alert per router with such experts."""
        for site, stats in report.routers.items():
            dead = [number for number, share in enumerate(stats.load) if share * stats.experts <= self.threshold]
            if dead and _is_judged(stats, self.min_choices):
                shown = ", ".join(map(str, dead[:8])) + (", …" if len(dead) > 8 else "")
                share = len(dead) / stats.experts
                yield self.alert(
                    report, site, share, self.share, "warning" if share >= self.share else "info",
                    f"{len(dead)} of its {stats.experts} experts ({shown}) got at most {percent(self.threshold)} of an even share "
                    f"of {stats.tokens} tokens, so that they do not train.",
                    "Common causes: no loss for balance or one that weighs too little, a learning rate too high for the router, a "
                    "router that started far from even.",
                )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class RouterCollapse(Rule):
    """A router, or a quantiser, that makes the same few choices for everything.

    The effective number of choices is the exponential of the entropy of their shares. A router's is at least ``top_k``, as each
    token gets so many experts; what is judged is where it lies between that (0) and the number of experts (1). A codebook's is at
    least 1.

    Attributes:
        threshold: Where a router's effective number of experts lies, in [0, 1], at or below which it has collapsed.
        codes: The same of a codebook, of which few codes are used in health too.
        min_choices: Choices that each expert would have had at an even load, or that are made of codes in all, below which nothing
            is judged.
        least_codes: Codes below which a codebook is not judged.
    """

    kind: ClassVar[str] = "router_collapse"
    judges: ClassVar[Judges] = "epoch"
    shares: ClassVar[tuple[str, ...]] = ("threshold", "codes")

    threshold: float = 0.1
    codes: float = 0.01
    min_choices: int = 100
    least_codes: int = 16
    times: int = field(default=2, kw_only=True)  # in two windows in a row: a router may start from few choices
    of: int = field(default=2, kw_only=True)

    def __call__(self, report: RouterReport) -> Iterator[Alert]:
        """Yield a warning per router and quantiser that has collapsed."""
        for site, stats in report.routers.items():
            if _is_judged(stats, self.min_choices):
                yield from self._router(report, site, stats)
        for site, book in report.codebooks.items():
            yield from self._codebook(report, site, book)

    def _router(self, report: RouterReport, site: str, stats: RouterStats) -> Iterator[Alert]:
        effective, room = stats.experts**stats.balance, stats.experts - stats.top_k
        if effective - stats.top_k <= self.threshold * room:
            yield self.alert(
                report, site, effective, stats.top_k + self.threshold * room, "warning",
                f"its {stats.tokens} tokens, with {stats.top_k} of {stats.experts} experts each, go to {effective:.3g} experts in "
                f"effect; one of them gets {percent(max(stats.load) * stats.top_k)} of all tokens.",
                "Common causes: no loss for balance or one that weighs too little, a learning rate too high for the router, "
                "inputs to it that are alike.",
            )  # fmt: skip

    def _codebook(self, report: RouterReport, site: str, book: CodebookStats) -> Iterator[Alert]:
        limit = 1 + self.codes * (book.size - 1)
        if book.size >= self.least_codes and book.codes >= max(self.min_choices, 10 * limit) and book.perplexity <= limit:
            yield self.alert(
                report, site, book.perplexity, limit, "warning",
                f"it chooses {book.perplexity:.3g} of its {book.size} codes in effect (perplexity), over {book.codes} choices.",
                "Common causes: codes far from what they are to stand for, none that are started again when they are not used, "
                "a learning rate too high.",
                advice=(
                    "Start codes that are not used again from outputs of the encoder",
                    "Learn the codebook by moving averages, or codes of fewer dimensions",
                    "Initialise it by k-means of a batch",
                ),
            )  # fmt: skip


def _is_judged(stats: RouterStats, min_choices: int) -> bool:
    """Whether there is a choice between experts, and enough of them were made."""
    return stats.experts > stats.top_k and stats.tokens * stats.top_k >= min_choices * stats.experts
