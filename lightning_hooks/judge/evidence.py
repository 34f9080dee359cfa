"""What speaks for and against a problem: of which class it is, how large, whether a cause is known, how the loss goes."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable
from functools import cached_property

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import KINDS, kind_of
from lightning_hooks.declare.window import Window
from lightning_hooks.diagnostics.loss.report import falls
from lightning_hooks.diagnostics.reports import GradientFlowReport
from lightning_hooks.judge.weights import probability

WHOLE = 0.999  # a share from which on it is all
GOES_WELL = 0.9  # the last losses over those at the start, below which the loss falls
# How many times its limit a value is, or the limit the value, below which it is near it, and above which it is far from it
NEAR, FAR = 1.5, 10.0
LIKELY = 0.8  # the probability from which on a cause is more than one of two
POSSIBLE = 0.5  # the probability below which a problem is shown in the report only


class Judge:
    """Says how probable each problem of a window is."""

    def __init__(self, window: Window) -> None:
        self._window = window

    @cached_property
    def _falls(self) -> bool:
        flow = self._window.report(GradientFlowReport)
        return flow is not None and falls(flow.loss, GOES_WELL)

    def judged(self, alert: Alert, least: float, effects: Iterable[Alert] = ()) -> Alert:
        """A problem with its probability, at least that of each thing it explains. One of a kind of the user's own stays as it is.

        Args:
            alert: The one that stands for it.
            least: The probability from which on it is more than an info.
            effects: What it explains.
        """
        if alert.kind not in KINDS or alert.severity == "info":
            return alert
        known = [one for one in effects if one.kind in KINDS and one.severity != "info"]
        evidence = max((tuple(self.evidence(one)) for one in (alert, *known)), key=probability)
        found = round(probability(evidence), 3)
        severity = alert.severity if found >= least else "info"
        return dataclasses.replace(alert, probability=found, evidence=evidence, severity=severity)

    def evidence(self, alert: Alert) -> list[str]:
        """What holds of a problem, by name."""
        kind = kind_of(alert.kind)
        cause = next((cause for cause in alert.causes if cause.decisive), None)
        found = [kind.states, f"kind {kind.name}", *([] if cause is None else [f"cause {cause.name}"])]
        if kind.states == "fact":
            return found
        found.append(f"{kind.states}, cause {'unknown' if cause is None else 'known'}")
        found += [f"{kind.states}, cause likely"] if cause is not None and cause.probability >= LIKELY else []
        found.append(f"{kind.states}, loss {'falls' if self._falls else 'stands'}")
        return [*found, _size(alert, kind.measures)]


def _size(alert: Alert, measures: str) -> str:
    if measures == "share":
        return "all of it" if alert.value >= WHOLE else "a part of it"
    value, limit = abs(alert.value), abs(alert.threshold)
    times = max(value / limit, limit / value) if 0 < value < math.inf and 0 < limit < math.inf else math.inf
    return "near its limit" if times < NEAR else "far over its limit" if times > FAR else "over its limit"
