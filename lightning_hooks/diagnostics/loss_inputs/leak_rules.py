"""Targets that the inputs hold: a column of them, or the tokens at the same positions."""

from __future__ import annotations

from typing import ClassVar

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.cause import PROOF, SOON, CauseEvidence, Judgement, Remedy, possible_cause
from lightning_hooks.declare.kinds import Kind
from lightning_hooks.declare.rule import Alerts, Rule, percent
from lightning_hooks.diagnostics.causes.facts import Facts
from lightning_hooks.diagnostics.reports import FeatureReport


@possible_cause("set that column to 0, or take it out", "compare the logits with the tokens that follow")
def target_in_input(alert: Alert, facts: Facts, found: CauseEvidence) -> Judgement:
    """The model is given what it should predict."""
    copies = facts.features.copies.get(alert.site)
    if copies is None:
        return None
    if copies.in_column:
        place = f"column {copies.column} of what {copies.site} is given"
        found.add(True, PROOF, f"{place} follows the targets of all {copies.targets} samples that were compared")
        code = f"x.view(len(x), -1)[:, {copies.column}] = 0"
        remedy = Remedy("fill", place, None, 0, "", "a loss that says what the model knows of new data", SOON, code)
        return f"{place[:1].upper()}{place[1:]} is the target of {alert.site}.", [remedy]
    found.add(True, PROOF, "labels are the tokens at the same positions")
    code = "cross_entropy(logits[:, :-1].flatten(0, 1), tokens[:, 1:].flatten())"
    remedy = Remedy("replace", f"the labels of {alert.site}", None, "the tokens that follow", "", "", SOON, code)
    return f"The labels of {alert.site} are not shifted by one position.", [remedy]


class TargetLeak(Rule, kind="target_leak"):
    """A loss whose target is a column of the model's input, or whose labels are the tokens that the model is given.

    Labels that are the tokens at the same positions are usual where a decoder shifts them itself, or where text goes through a
    bottleneck. They count where the model soon names them without an error, as neither does.
    """

    targets: ClassVar[int] = 24  # the fewest targets that must be so: those of all calls that were compared
    accuracy: ClassVar[float] = 0.98  # share of the labels that are tokens and are predicted right, from which on they are copied
    windows: ClassVar[int] = 4  # in which of the first windows that counts

    def __call__(self, report: FeatureReport) -> Alerts:
        for site, copies in report.copies.items():
            enough, early = copies.targets >= self.targets, len(report.earlier) < self.windows
            if enough and 0 < copies.calls == copies.in_column:
                yield self.finding(
                    report, site, 1.0, 1.0,
                    f"its target is column {copies.column} of what {copies.site} is given, but for the unit, in all {copies.calls} "
                    "batches that were compared.",
                )  # fmt: skip
            accuracy = max((stats.accuracy for name, stats in report.outputs.items() if name == site), default=0.0)
            if enough and early and 0 < copies.token_calls == copies.as_tokens and accuracy >= self.accuracy:
                yield self.finding(
                    report, site, accuracy, self.accuracy,
                    "its labels are the tokens that the model is given, at the same positions, in all "
                    f"{copies.token_calls} batches that were compared, and {percent(accuracy)} of them are predicted right.",
                    advice=("Compare logits[:, :-1] with tokens[:, 1:]",),
                )  # fmt: skip


__all__ = ["TargetLeak"]

KINDS = (
    Kind(
        "target_leak", "Targets that the inputs hold", group="Data", states="fact", measures="share",
        causes=(target_in_input,),
        meaning="What a loss compares outputs with is part of the model's input: one of its columns, or the tokens at the same "
        "positions. The loss falls fast, and says nothing of data whose targets are not known.",
        formula="r = correlation of the target with a column of what the first module is given, over the samples of a batch\n\n"
        "alert if r² = 1 but for roundings in all batches that are compared, of at least {TargetLeak.targets} targets in all\n"
        "or if the labels of a cross entropy are the tokens that the model is given, but for ignored ones, of as many, and\n"
        "      {TargetLeak.accuracy} of them are predicted right in one of the first {TargetLeak.windows} windows",
        advice=("Take the target out of the inputs", "Where the target is to be passed on, mute this with rules=['-target_leak']"),
    ),
)  # fmt: skip
