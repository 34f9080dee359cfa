"""Rules over feature reports. Each is a pure function with its threshold as a field."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar

from lightning_hooks.alerts.rule import Judges, Rule, percent
from lightning_hooks.reports.alert import Alert
from lightning_hooks.reports.kinds import Severity
from lightning_hooks.reports.windows import FeatureReport, GradientFlowReport
from lightning_hooks.statistics import FeatureStats


def only_the_first_step(report: FeatureReport | GradientFlowReport) -> bool:
    """Whether only the first batch of training was sampled: what is initialised to zero is still zero then, as it should be."""
    return report.epoch == 0 and report.sampled_batches == 1


@dataclass(frozen=True, slots=True, eq=False)
class Dead(Rule):
    """Units of a rectifier that never fired in the epoch.

    The hook literature and SageMaker's dead-ReLU rule flag half of a layer. Small healthy nets get there, such as a VAE's encoder
    (56 %) and the mobile nets of ReLU6 and hard-swish (65 %).

    Attributes:
        threshold: Share of a rectifier's units, in [0, 1]: the limit that alerts and figures state.
        dying: Share that is enough where it has grown by ``growth`` since training's first epoch.
        growth: As a share of the units.
        min_samples: Values seen of each unit, below which only a layer without any unit that fired is judged.
        min_units: Units below which a layer is judged only above ``of_few``: a few more of 32 units may be dead by chance.
        of_few: That share.
    """

    kind: ClassVar[str] = "dead"
    judges: ClassVar[Judges] = "epoch"
    shares: ClassVar[tuple[str, ...]] = ("threshold", "dying", "growth", "of_few")

    threshold: float = 0.7
    dying: float = 0.6
    growth: float = 0.2
    min_samples: int = 16
    min_units: int = 64
    of_few: float = 0.8

    def __call__(self, report: FeatureReport, history: Sequence[FeatureReport] = ()) -> Iterator[Alert]:
        """Yield an alert per rectifier with more dead units than the threshold."""
        for site, stats in report.sites.items():
            first = next((earlier.sites[site].dead_fraction for earlier in history if site in earlier.sites), None)
            grown = first is not None and (stats.dead_fraction or 0.0) - first > self.growth
            enough = min(self.dying, self.threshold) if grown else self.threshold
            units = stats.count / stats.unit_samples if stats.unit_samples else math.inf
            enough = enough if units >= self.min_units else max(enough, self.of_few)
            few = stats.unit_samples is not None and stats.unit_samples < self.min_samples and stats.dead_fraction != 1.0
            if stats.dead_fraction is not None and stats.dead_fraction > enough and not few:
                severity: Severity = "critical" if stats.dead_fraction == 1.0 else "warning"
                below = f"; {percent(first)} at first" if first is not None and stats.dead_fraction <= self.threshold else ""
                yield self.alert(
                    report, site, stats.dead_fraction, self.threshold, severity,
                    f"{percent(stats.dead_fraction)} of its units output zero for every sampled input (limit "
                    f"{percent(self.threshold)}{below}): they pass no gradient and cannot recover.",
                    "Common causes: a learning rate that is too high, or a large negative bias.",
                )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Saturated(Rule):
    """A bounded activation that sits at its bounds.

    Calls of ``softmax`` are not judged: the distributions of a classifier may be certain, and attention has rules of its own.

    Attributes:
        threshold: Share of its values, in [0, 1]. Half is the share the hook literature and SageMaker's rules flag.
        learned: The same for an activation that was below it in training's first window: gates learn to be open or shut.
    """

    kind: ClassVar[str] = "saturated"
    judges: ClassVar[Judges] = "epoch"
    shares: ClassVar[tuple[str, ...]] = ("threshold", "learned")

    threshold: float = 0.5
    learned: float = 0.9

    def __call__(self, report: FeatureReport, history: Sequence[FeatureReport] = ()) -> Iterator[Alert]:
        """Yield an alert per activation that is saturated more often than the threshold."""
        first = history[0].sites if history else {}
        sites = {site: stats for site, stats in report.sites.items() if report.functions.get(site) != "softmax"}
        last = next(reversed(sites), None)  # a confident classifier's last activation is meant to be there
        for site, stats in sites.items():
            began = first[site].saturated_fraction if site in first else None
            limit = self.threshold if began is None or began > self.threshold else max(self.learned, self.threshold)
            if stats.saturated_fraction is not None and stats.saturated_fraction > limit:
                of_model = site in report.functions and "/" not in site  # for a metric, perhaps
                severity: Severity = "info" if site == last or of_model else "warning"
                yield self.alert(
                    report, site, stats.saturated_fraction, limit, severity,
                    f"{percent(stats.saturated_fraction)} of its values are at a bound of the activation (limit "
                    f"{percent(limit)}), where the slope is almost zero and gradients vanish.",
                    "Common causes: inputs that are too large, from unnormalised data or a wide initialisation.",
                )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Constant(Rule):
    """A module whose output is the same value for every input.

    It is an info for a call of sigmoid at 0.5: a gate that its zero-initialised branch has not moved yet; for the first of several
    calls of softmax: routing by agreement starts with even weights; for a call of relu at 0
    that gives one number for each sample: a hinge loss whose margin is kept; and for a module inside a library's model that has
    been so from the start: positions of padding, a branch for inputs that this task does not have.

    Attributes:
        threshold: Standard deviation over root mean square at or below which an output counts as constant. The default
            is about eight float32 roundings.
    """

    kind: ClassVar[str] = "constant"
    judges: ClassVar[Judges] = "epoch"

    threshold: float = 1e-6

    def __call__(self, report: FeatureReport, history: Sequence[FeatureReport] = ()) -> Iterator[Alert]:
        """Yield an alert per module whose output does not vary; rectifiers are judged by their dead units."""
        if only_the_first_step(report):
            return
        calls = report.functions
        for site, stats in report.sites.items():
            if stats.count < 2 or (stats.dead_fraction or 0.0) == 1.0:
                continue
            spread = stats.std / stats.rms if stats.rms > 0 else 0.0
            if spread <= self.threshold:
                gate = "sigmoid" in (calls.get(site), calls.get(f"{site}/sigmoid")) and abs(stats.mean - 0.5) < 1e-3
                hinge = calls.get(site) == "relu" and stats.dead_fraction is None and stats.rms == 0
                routing = calls.get(site) == "softmax" and calls.get(f"{site}_1") == "softmax" and f"{site}_1" in report.sites
                meant = site in report.of_libraries and all(site in earlier.of_libraries for earlier in history)
                yield self.alert(
                    report, site, spread, self.threshold, "info" if gate or routing or hinge or meant else "warning",
                    f"every value of its output is {stats.mean:.3g}, whatever the input (relative spread {spread:.1g}, limit "
                    f"{self.threshold:.1g}).",
                    "Common causes: a constant input, weights that are all zero, or dead layers before it.",
                )  # fmt: skip


def _batch(stats: FeatureStats, report: FeatureReport) -> str:
    """Where it was first seen, and how exact that is."""
    sampled = "" if report.every_n_steps == 1 else f" (one batch in {report.every_n_steps} is sampled)"
    return f"training batch {stats.first_nonfinite_batch} of the epoch{sampled}"


@dataclass(frozen=True, slots=True, eq=False)
class NonfiniteFeatures(Rule):
    """NaN or infinite outputs.

    Attributes:
        threshold: Share of a module's values above which it counts, in [0, 1].
    """

    kind: ClassVar[str] = "nonfinite"
    shares: ClassVar[tuple[str, ...]] = ("threshold",)
    urgent: ClassVar[bool] = True

    threshold: float = 0.0

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an alert per module that put out values that are not finite, in model order."""
        for site, stats in report.sites.items():
            if stats.nonfinite_fraction > self.threshold:
                yield self.alert(
                    report, site, stats.nonfinite_fraction, self.threshold, "critical",
                    f"{percent(stats.nonfinite_fraction)} of its output values are NaN or infinite, first in "
                    f"{_batch(stats, report)}.",
                    "Common causes: such values in the input, weights that have diverged, or an operation with an invalid "
                    "argument (log of 0, division by 0, overflow in half precision).",
                    batch=stats.first_nonfinite_batch,
                )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Silent(Rule):
    """A selected module whose hook never ran, or whose output holds no number."""

    kind: ClassVar[str] = "silent"
    judges: ClassVar[Judges] = "epoch"

    def __call__(self, report: FeatureReport) -> Iterator[Alert]:
        """Yield an info per silent module."""
        for site in report.silent:
            if site in report.unmeasured:
                yield self.alert(
                    report, site, 0.0, 1.0, "info",
                    "it was called, but its output holds no floating-point tensor (integers, None, or another object), or only one "
                    "that has no values of its own (under torch.func): there is nothing to measure.",
                    advice=("Leave it out with modules=, or mute this with rules=['-silent']",),
                )  # fmt: skip
                continue
            yield self.alert(
                report, site, 0.0, 1.0, "info",
                "it was not called in any sampled training batch, so it was not measured (it is not zero and not dead).",
                "Common causes: an unused branch, a call as .forward(x) instead of module(x), a layer of which only the weights "
                "are used, or a model that was compiled before the hooks were registered.",
            )  # fmt: skip
