"""The causes of alerts, as they follow from the facts of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.cause import Cause
from lightning_hooks.declare.host import Host
from lightning_hooks.declare.kinds import kind_of
from lightning_hooks.declare.warn import Once
from lightning_hooks.declare.window import Window
from lightning_hooks.diagnostics.causes.facts import Facts
from lightning_hooks.diagnostics.causes.run_facts import RunFacts
from lightning_hooks.diagnostics.nonfinite.bad_step import BadStep
from lightning_hooks.judge.weights import probability_of_cause

# The probability from which on a cause is shown, and the one from which on it leaves no room for others
POSSIBLE, CERTAIN = 0.2, 0.9
MOST_CAUSES = 3  # causes of one alert


class Diagnosis:
    """Names the causes of new alerts."""

    def __init__(self, host: Host) -> None:
        self._facts = RunFacts(host)
        self._warn_once = Once()

    def explained(
        self, alerts: Sequence[Alert], window: Window, bad_step: BadStep | None, earlier: Sequence[Alert] = ()
    ) -> list[Alert]:
        """Alerts with their causes and remedies. What fails leaves them as they are, with a warning.

        Args:
            alerts: Root causes that are new.
            window: The reports of all monitors.
            bad_step: What running the first bad step again has shown.
            earlier: Alerts of earlier windows that are open.
        """
        try:
            facts = self._facts.at(window, alerts, bad_step, earlier) if alerts else Facts()
        except Exception as error:  # noqa: BLE001  it is no part of the training
            self._warn("the facts", error)
            return list(alerts)
        return [with_causes(alert, facts, self._warn) for alert in alerts]

    def _warn(self, what: str, error: Exception) -> None:
        self._warn_once(f"The causes of alerts: {what} raised {type(error).__name__}: {error}; training goes on.", about=what)


def with_causes(alert: Alert, facts: Facts, on_fault: Callable[[str, Exception], None] | None = None) -> Alert:
    """An alert with its causes; where one is decisive, in its words and with its remedies as advice."""
    causes = _causes(alert, facts, on_fault)
    remedies = tuple(remedy for cause in causes for remedy in cause.remedies)
    best = causes[0] if causes else None
    if best is None or not best.decisive or best.evidence_for == (alert.message,):  # no more than what its rule says
        diagnosis = alert.diagnosis or ("" if best is not None and best.decisive else _unexplained(alert, best))
        return dataclasses.replace(alert, causes=causes, remedies=remedies, diagnosis=diagnosis)
    able = causes if best.probability < CERTAIN else (best,)
    advice = tuple(remedy.text for cause in able for remedy in cause.remedies) or alert.advice
    known, stated = alert.diagnosis, best.statement
    diagnosis = known if stated in known else stated if known in stated else f"{stated} {known}"
    diagnosis = "" if diagnosis in alert.message else diagnosis
    return dataclasses.replace(alert, causes=causes, remedies=remedies, diagnosis=diagnosis, advice=advice)


def _unexplained(alert: Alert, best: Cause | None) -> str:
    """The words for a loss that nothing explains; none for a symptom, whose own words are enough."""
    kind = kind_of(alert.kind)
    if kind.states != "outcome" or not kind.causes:
        return ""
    titles = {one.name: one.title for one in kind.causes}
    likely = "" if best is None else f"; the most likely ({100 * best.probability:.0f}%) is that {titles[best.name]}"
    return f"Unexplained: of {len(kind.causes)} possible causes none stands out{likely}."


def _causes(alert: Alert, facts: Facts, on_fault: Callable[[str, Exception], None] | None) -> tuple[Cause, ...]:
    """The causes of an alert, the most probable first. One that raises is left out, and given to ``on_fault`` if there is one."""
    found = []
    for one in kind_of(alert.kind).causes:
        try:
            cause = one.judge(alert, facts)
        except Exception as error:
            if on_fault is None:
                raise
            on_fault(one.name, error)
            continue
        if cause is not None and (cause := weighed(cause)).probability >= POSSIBLE:
            found.append(cause)
    return tuple(sorted(found, key=lambda cause: -cause.probability)[:MOST_CAUSES])


def weighed(cause: Cause) -> Cause:
    """A cause with its probability."""
    return dataclasses.replace(cause, probability=round(probability_of_cause(cause.strengths), 2))
