"""The batches of a run with the largest losses and gradient norms, as its report and ``health.json`` show them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from lightning_hooks.declare.alert import MOST_SAMPLES
from lightning_hooks.declare.plain import to_plain
from lightning_hooks.diagnostics.unusual import UnusualBatch
from lightning_hooks.run_report.text import DASH


@dataclass(frozen=True, slots=True)
class UnusualBatches:
    """The batches with the largest of a number, the largest first."""

    measure: str  # "loss", or "gradient_norm"
    optimizer: str  # whose gradients; empty for the loss
    batches: tuple[UnusualBatch, ...]

    @property
    def title(self) -> str:
        """What they are, for a heading."""
        return f"Largest gradient norms before clipping, {self.optimizer}" if self.optimizer else "Largest losses"

    @property
    def rows(self) -> list[tuple[UnusualBatch, str]]:
        """Each with its samples in a few words."""
        return [(one, listed_samples(one)) for one in self.batches]


def unusual_batches(reports: Iterable[Any]) -> list[UnusualBatches]:
    """The losses, then the gradient norms of each optimizer; what is not known is left out.

    Args:
        reports: The last report of each monitor.
    """
    known = [report for report in reports if report is not None]
    losses = [UnusualBatches("loss", "", getattr(report, "largest_losses", ())) for report in known]
    norms = [
        UnusualBatches("gradient_norm", optimizer, batches)
        for report in known
        for optimizer, batches in getattr(report, "largest_norms", {}).items()
    ]
    found = {(one.measure, one.optimizer): one for one in (*losses, *norms) if one.batches}
    return list(found.values())


def plain_batches(reports: Iterable[Any]) -> list[dict[str, Any]]:
    """The same in plain JSON types, a batch each."""
    return [
        {"measure": found.measure, "optimizer": found.optimizer or None, **to_plain(one)}
        for found in unusual_batches(reports)
        for one in found.batches
    ]


def listed_samples(one: UnusualBatch) -> str:
    """The samples of a batch in a few words; a dash where they are not known."""
    shown = ", ".join(map(str, one.samples[:MOST_SAMPLES]))
    more = len(one.samples) - MOST_SAMPLES
    return f"{shown} and {more} more" if more > 0 else shown or DASH
