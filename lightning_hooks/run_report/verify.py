"""Whether a second run is cured of what the first one had: its alerts, and how the two learn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from lightning_hooks.declare.plain import to_plain
from lightning_hooks.run_report.health import bounded, ending_of
from lightning_hooks.run_report.run import Run
from lightning_hooks.run_report.verdict import Course, Verdict, courses, judge

Outcome = Literal["cured", "same", "worse"]
Learning = Literal["better", "same", "worse", "unknown"]

TOLERANCE = 0.05  # losses that differ by less than this share of how far the loss moved in either run are the same
SCHEMA_VERSION = 1  # of the document
MOST = 100  # alerts of one group in the document


@dataclass(frozen=True, slots=True)
class Losses:
    """The loss of both runs."""

    of: Literal["validation", "training"]  # validation where both runs have a validation loss, else training
    a: tuple[float, float]  # the first run's first and last, at places that both have; NaN where it is not known or not finite
    b: tuple[float, float]  # the same of the second
    at: int | None  # the last place that both have: an epoch, or a step where windows are shorter; None where there is none

    @property
    def learning(self) -> Learning:
        """Whether the second run learns better."""
        a, b = self.a[1], self.b[1]
        if math.isnan(a) or math.isnan(b):
            return "unknown" if math.isnan(a) == math.isnan(b) else "better" if math.isnan(a) else "worse"
        moves = [abs(last - first) for first, last in (self.a, self.b) if first != last and not math.isnan(first)]
        moved = max(moves, default=max(abs(a), abs(b)))
        return "same" if abs(b - a) <= TOLERANCE * moved else "better" if b < a else "worse"

    @property
    def falls(self) -> bool:
        """Whether the loss of the second run falls by more than what counts as the same."""
        first, last = self.b
        return first - last > TOLERANCE * max(abs(first), abs(last))


@dataclass(frozen=True, slots=True)
class Verification:
    """What became of a first run's alerts in a second run. Alerts are those above info."""

    a: Run  # the first run
    b: Run  # the second
    verdicts: tuple[Verdict, Verdict]
    gone: tuple[Course, ...]  # of the first run, that the second does not end with, or never has where the first ended without it
    stay: tuple[Course, ...]  # alerts of the first run that the second ends with
    new: tuple[Course, ...]  # alerts that the second run ends with and the first never had
    unreached: tuple[Course, ...]  # alerts of the first run that began later than the second run has come
    losses: Losses

    @property
    def outcome(self) -> Outcome:
        """``cured``, ``same`` or ``worse``."""
        learning = self.losses.learning
        if learning == "worse" or self.verdicts[1].status == "failed" != self.verdicts[0].status or (self.new and not self.gone):
            return "worse"
        return "same" if self.reasons else "cured"

    @property
    def reasons(self) -> list[str]:
        """Why the second run is not cured, in sentences; none if it is."""
        learning, (before, after) = self.losses.learning, self.verdicts
        had = self.gone or self.stay or self.unreached or before.status == "failed" or learning == "better"
        return [
            text
            for holds, text in (
                (not had, "A ended without a problem: there is nothing to cure."),
                (after.status == "failed", "B ended with an exception."),
                (bool(self.stay), "Alerts of A are still open in B."),
                (bool(self.new), "B has new alerts."),
                (bool(self.unreached), "B has not come as far as A had when some of its alerts began."),
                (learning == "unknown", "It is not known whether B learns better: both runs need a finite loss at the same place."),
                (learning == "worse", "B learns worse: its loss is higher."),
                (learning == "same" and not self.losses.falls, "B learns no better: its loss is as in A, and does not fall."),
            )
            if holds
        ]

    def document(self) -> dict[str, Any]:
        """The verification in plain JSON types; ``docs/guides/verify.schema.json`` describes it."""
        losses = self.losses
        document: dict[str, Any] = bounded(
            {
                "schema_version": SCHEMA_VERSION,
                "outcome": self.outcome,
                "reasons": self.reasons,
                "a": _run(self.a, self.verdicts[0]),
                "b": _run(self.b, self.verdicts[1]),
                **{group: _listed(getattr(self, group)) for group in ("gone", "stay", "new", "unreached")},
                "learning": losses.learning,
                "loss": {
                    "of": losses.of,
                    "at": losses.at,
                    "unit": self.b.unit,
                    "a": dict(zip(("first", "last"), map(to_plain, losses.a), strict=True)),
                    "b": dict(zip(("first", "last"), map(to_plain, losses.b), strict=True)),
                },
            }
        )
        return document

    def lines(self) -> list[str]:
        """The verification as lines for a terminal."""
        losses = self.losses
        lines = [f"A  {self.a.name}: {self.verdicts[0].headline}", f"B  {self.b.name}: {self.verdicts[1].headline}", ""]
        for title, group in (("Gone", self.gone), ("Still open", self.stay), ("New", self.new), ("Not reached", self.unreached)):
            if group:
                lines.append(f"{title} ({len(group)}):")
                lines += [f"  [{c.severity}] {c.alert.kind} at {c.alert.site}" for c in group[:10]]
                lines += [f"  and {len(group) - 10} more"] * (len(group) > 10)
        if losses.at is not None:
            shown = [f"{first:.4g} to {last:.4g} in {letter}" for letter, (first, last) in (("A", losses.a), ("B", losses.b))]
            lines.append(f"The {losses.of} loss up to {self.b.unit} {losses.at}: {', '.join(shown)}: {losses.learning}.")
        return [*lines, f"Outcome: {self.outcome}. {' '.join(self.reasons)}".strip()]


def verify(a: Run, b: Run) -> Verification:
    """Find what became of the alerts of a run in a second run that was to cure them.

    An alert is one kind at one site. The second run is cured if it ends without any alert above info that the first one had and
    without new ones, and learns: its loss is lower than that of the first, or as low and falling.

    Raises:
        ValueError: If the windows of one are epochs and those of the other are shorter.
    """
    if a.epochs and b.epochs and a.unit != b.unit:
        raise ValueError(
            f"cannot verify: the windows of {a.name} are numbered by {a.unit} and those of {b.name} by {b.unit}. Train both with "
            "the same report_every_n_steps."
        )
    before, after = ({course.key: course for course in courses(run) if course.serious} for run in (a, b))
    ended = {key: course for key, course in after.items() if course.lasts}
    reached = max(b.epochs, default=-1)
    missing = [course for key, course in before.items() if key not in (ended if course.lasts else after)]
    return Verification(
        a,
        b,
        (judge(a), judge(b)),
        tuple(course for course in missing if course.epochs[0] <= reached),
        tuple(course for key, course in before.items() if key in ended),
        tuple(course for key, course in ended.items() if key not in before),
        tuple(course for course in missing if course.epochs[0] > reached),
        _losses(a, b),
    )


def _losses(a: Run, b: Run) -> Losses:
    """The losses at the windows that both runs have: of validation if both have those, else of training."""
    both = sorted(set(a.epochs) & set(b.epochs))
    validations = [_validations(run) for run in (a, b)]
    if both and all(validations) and (max(a.epochs), len(validations[0])) == (max(b.epochs), len(validations[1])):
        of_a, of_b = ((found[0], found[-1]) for found in validations)
        return Losses("validation", of_a, of_b, both[-1])
    of_training = [(run.loss(both[0]), run.loss(both[-1])) if both else (math.nan, math.nan) for run in (a, b)]
    of_a, of_b = ((_finite(first), _finite(last)) for first, last in of_training)
    return Losses("training", of_a, of_b, both[-1] if both else None)


def _validations(run: Run) -> list[float]:
    """The validation losses that the last report holds, oldest first."""
    reports = (record.last for record in run.of("gradient_flow"))
    found = (report.loss.validations for report in reports if report is not None and report.loss is not None)
    return [_finite(validation.loss) for validation in next(found, ())]


def _finite(value: float) -> float:
    return value if math.isfinite(value) else math.nan


def _run(run: Run, verdict: Verdict) -> Mapping[str, Any]:
    return {
        "run": run.name,
        "status": verdict.status,
        "verdict": verdict.plain,
        "training": ending_of(run.end),
        "windows": verdict.windows,
    }


def _listed(found: Sequence[Course]) -> list[dict[str, Any]]:
    return [
        {
            "kind": course.alert.kind,
            "site": course.alert.site,
            "fingerprint": course.alert.fingerprint,
            "severity": course.severity,
            "since": course.epochs[0],
        }
        for course in found[:MOST]
    ]
