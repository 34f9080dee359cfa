"""Rules over gradient-flow reports. All are on the root mean square per element, so that a layer's size does not matter."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import accumulate

from lightning_hooks.alerts.alert import Alert, Severity
from lightning_hooks.alerts.feature_rules import only_the_first_step
from lightning_hooks.alerts.reports import GradientFlowReport


def _alert(
    report: GradientFlowReport, kind: str, site: str, value: float, threshold: float, severity: Severity, message: str
) -> Alert:
    return Alert(kind, site, value, threshold, report.epoch, report.step, severity, message)


def _rms_by_module(report: GradientFlowReport) -> list[tuple[str, float]]:
    """The modules with a gradient above 0, in model order. Zero has its own rule, and NaN too."""
    return [(site, stats.rms) for site, stats in report.modules.items() if stats.rms > 0]


def _maxima_after(values: Sequence[float]) -> list[float]:
    """For each place the largest of the values after it; 0 for the last."""
    maxima = list(accumulate(reversed(values[1:]), max, initial=0.0))
    return maxima[::-1]


@dataclass(frozen=True, slots=True, eq=False)
class Vanishing:
    """Gradients that are lost on the way back through the model.

    A module counts only if every module before it has lost its gradient too: in a transformer the queries and keys of a
    healthy layer get very little, and the layers before them plenty.

    Attributes:
        relative: RMS, and norm, over the largest among the modules after, below which the gradient has vanished. Ratios down
            to 1e-2 occur in healthy networks, so the default is far lower.
        absolute: An RMS below which a gradient counts as vanished whatever the others are; close to what a float32
            update can no longer carry.
    """

    relative: float = 1e-4
    absolute: float = 1e-12

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert per module whose gradient has vanished.

        None where gradients explode or are not finite: what is small beside those says nothing.
        """
        if any(stats.nonfinite_fraction > 0 for stats in report.modules.values()) or any(Exploding()(report)):
            return
        flow = _rms_by_module(report)
        # A mean over n positions leaves each a n-th of the gradient and the norm a root of that: the norm must be small too.
        norms = [rms * math.sqrt(report.modules[site].count / report.modules[site].calls) for site, rms in flow]
        largest_after = _maxima_after([rms for _, rms in flow])
        largest_norm_after = _maxima_after(norms)
        before = norm_before = 0.0
        for place, (site, rms) in enumerate(flow):
            before, norm_before = max(before, rms), max(norm_before, norms[place])
            after, norm_after = largest_after[place], largest_norm_after[place]
            if before < self.relative * after and norm_before < self.relative * norm_after:
                share = rms / after
                yield self._found(report, site, share, self.relative, f"{share:.1e} times that of a layer after it")
            elif before < self.absolute:
                yield self._found(report, site, rms, self.absolute, f"below {self.absolute:.0e}")

    def _found(self, report: GradientFlowReport, site: str, value: float, threshold: float, what: str) -> Alert:
        return _alert(
            report, "vanishing", site, value, threshold, "warning",
            f"the gradient at its output has an RMS of {report.modules[site].rms:.1e}, {what}: this layer and those before "
            "it hardly learn. Usual causes are saturating activations (sigmoid, tanh) in a deep stack, an initialisation "
            "too small, or depth without shortcuts. Try ReLU or GELU, He initialisation, normalisation layers or residual "
            "connections.",
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Exploding:
    """Gradients that grow on the way back, or are huge everywhere.

    Attributes:
        relative: RMS over that near the loss (the largest among the last eighth of the modules), above which a gradient
            explodes, provided that every module before has at least a hundredth as much too large a gradient.
        absolute: An RMS, of a module's or a parameter's gradient, above which it explodes whatever the others are
            (1e3 in the hook literature and NeuralDBG).
    """

    relative: float = 1e4
    absolute: float = 1e3

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert per module or parameter whose gradient explodes."""
        flow = _rms_by_module(report)
        near_loss = max((rms for _, rms in flow[-max(1, len(flow) // 8) :]), default=0.0)
        before = float("inf")
        for site, rms in flow:
            before = min(before, rms)
            if rms > self.relative * near_loss and before > 0.01 * self.relative * near_loss:
                yield self._found(report, site, rms / near_loss, self.relative, rms, "grows on the way back", "critical")
            elif rms > self.absolute:
                yield self._found(report, site, rms, self.absolute, rms, "is huge")
        for site, gradient in report.parameters.items():
            if gradient.rms > self.absolute:
                yield self._found(report, site, gradient.rms, self.absolute, gradient.rms, "is huge")

    def _found(
        self,
        report: GradientFlowReport,
        site: str,
        value: float,
        threshold: float,
        rms: float,
        what: str,
        severity: Severity = "warning",  # a gradient that is only large may be in the units of the loss
    ) -> Alert:
        return _alert(
            report, "exploding", site, value, threshold, severity,
            f"its gradient {what} (RMS {rms:.1e}; {value:.1e} against a limit of {threshold:.0e}): steps become wild and "
            "weights may end as NaN. Usual causes are a learning rate or an initialisation too large, or a recurrent net "
            "without clipping. Try a lower learning rate, gradient_clip_val=1.0 if nothing clips yet, a smaller "
            "initialisation or normalisation layers.",
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class NonfiniteGradients:
    """NaN or infinite gradients at steps that were taken (steps that a loss scaler skipped do not count)."""

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert per module and parameter with such gradients."""
        for site, stats in report.modules.items():
            if stats.nonfinite_fraction > 0:
                yield self._found(report, site, stats.nonfinite_fraction, f"{stats.nonfinite_fraction:.2%} of the gradient")
        for site, gradient in report.parameters.items():
            if gradient.nonfinite_steps:
                steps = gradient.nonfinite_steps
                yield self._found(report, site, steps, f"at {steps} measured step{'s' * (steps > 1)} the gradient")

    def _found(self, report: GradientFlowReport, site: str, value: float, what: str) -> Alert:
        return _alert(
            report, "nonfinite", site, value, 0.0, "critical",
            f"{what} is NaN or infinite; in a parameter's gradient one such step ruins the weights. Usually the loss or an "
            "operation met a bad argument (log or sqrt of 0, division by 0, overflow), or the weights have blown up. "
            "Check the inputs and the loss for such operations, add an eps inside them, or lower the learning rate.",
        )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Zero:
    """Gradients that arrive and are exactly zero everywhere.

    Attributes:
        threshold: Share of zero elements over the epoch at or above which it counts, in (0, 1].
    """

    threshold: float = 1.0

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert per parameter whose gradient is zero."""
        if only_the_first_step(report):
            return
        for site, gradient in report.parameters.items():
            if gradient.zero_fraction >= self.threshold:
                yield _alert(
                    report, "zero", site, gradient.zero_fraction, self.threshold, "warning",
                    "its gradient is exactly zero at every measured step: it is connected to the loss but does not learn. "
                    "Usually the units after it are dead or saturated, its output is multiplied by zero or masked, or its "
                    "input is all zeros. Look at the layers after it.",
                )  # fmt: skip


@dataclass(frozen=True, slots=True, eq=False)
class Missing:
    """Parameters that require gradients and never get one."""

    def __call__(self, report: GradientFlowReport) -> Iterator[Alert]:
        """Yield an alert per parameter whose gradient was None at every measured step."""
        for site, gradient in report.parameters.items():
            if gradient.missing_steps and not gradient.steps and not gradient.nonfinite_steps:
                yield _alert(
                    report, "missing", site, gradient.missing_steps, 0.0, "warning",
                    "it requires a gradient but had none (None, not zero) at every measured step: the loss does not depend "
                    "on it. Usually its layer is not used in forward, or a detach(), .item(), .data or no_grad() cuts the "
                    "path. Use it, free the path, or freeze it with requires_grad_(False).",
                )  # fmt: skip
