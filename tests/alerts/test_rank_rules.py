"""Rules over what ranks have in common, just below and just above their thresholds."""

from __future__ import annotations

from dataclasses import replace

from lightning_hooks.alerts import GradientFlowReport, RanksDiffer
from lightning_hooks.diagnostics.ranks import RankDifference

REPORT = GradientFlowReport(2, 40, {}, {}, 1.0)


def test_ranks_that_differ() -> None:
    found = RankDifference("net.0.weight", "gradients", 0.25, 3, 8, 8)
    (alert,) = RanksDiffer()(replace(REPORT, ranks_differ=found))
    assert (alert.kind, alert.site, alert.value, alert.threshold, alert.severity) == (
        *("ranks_differ", "net.0.weight", 0.25, 1e-5, "critical"),
    )
    assert alert.seen == (
        "its gradient still differs between ranks after the reduction, by 25% (limit 0.001%), at 3 of 8 parameters: each "
        "trains a model of its own."
    )
    (alert,) = RanksDiffer()(replace(REPORT, ranks_differ=replace(found, what="weights")))
    assert alert.seen == (
        "its weights differ between ranks, by about 25% (limit 0.001%), at 8 of 8 parameters; gradients agree, as far as they were "
        "measured."
    )


def test_ranks_that_agree_or_are_not_known_to_differ() -> None:
    assert list(RanksDiffer()(REPORT)) == []
    almost = replace(REPORT, ranks_differ=RankDifference("a", "weights", 0.01, 0, 1, 8))
    assert list(RanksDiffer(threshold=0.01)(almost)) == []
    assert len(list(RanksDiffer(threshold=0.009)(almost))) == 1
