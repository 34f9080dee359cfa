"""Whether a second run is cured of what the first one had: its alerts, and how the two learn."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal

from lightning_hooks.declare.plain import to_plain
from lightning_hooks.run_report.health import bounded, ending_of
from lightning_hooks.run_report.run import Run
from lightning_hooks.run_report.verdict import Course, Verdict, courses, judge

TOLERANCE = 0.05  # losses that differ by less than this share of how far the loss moved in either run are the same
SCHEMA_VERSION = 1  # of the document
MOST, SHOWN = 100, 10  # alerts of one group in the document, and in the terminal
GROUPS = {"gone": "Gone", "stay": "Still open", "new": "New", "unreached": "Not reached"}
Losses = tuple[float, float]  # the first and the last of a run; NaN where it is not known or not finite


def verify(a: Run, b: Run) -> dict[str, Any]:
    """Find what became of the alerts of a run, above info, in a second run that was to cure them.

    An alert is one kind at one site. The second run is cured if it ends without any alert that the first one had and without new
    ones, and learns: its loss is lower than that of the first, or as low and falling.

    Returns:
        The verification in plain JSON types; ``docs/guides/verify.schema.json`` describes it.

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
    groups = {
        "gone": [course for course in missing if course.epochs[0] <= reached],
        "stay": [course for key, course in before.items() if key in ended],
        "new": [course for key, course in ended.items() if key not in before],
        "unreached": [course for course in missing if course.epochs[0] > reached],
    }
    of, at, *losses = _losses(a, b)
    learned, verdicts = learning(*losses), (judge(a), judge(b))
    failed = [verdict.status == "failed" for verdict in verdicts]
    reasons = _reasons(groups, failed, learned, losses[1])
    worse = learned == "worse" or failed == [False, True] or (groups["new"] and not groups["gone"])
    return dict(
        bounded(
            {
                "schema_version": SCHEMA_VERSION,
                "outcome": "worse" if worse else "same" if reasons else "cured",
                "reasons": reasons,
                "a": _run(a, verdicts[0]),
                "b": _run(b, verdicts[1]),
                **{group: _listed(found) for group, found in groups.items()},
                "learning": learned,
                "loss": {
                    "of": of,
                    "at": at,
                    "unit": b.unit,
                    **{
                        run: dict(zip(("first", "last"), map(to_plain, both), strict=True))
                        for run, both in zip("ab", losses, strict=True)
                    },
                },
            }
        )
    )


def _reasons(groups: Mapping[str, list[Course]], failed: list[bool], learned: str, losses: Losses) -> list[str]:
    """Why the second run, with these losses, is not cured, in sentences; none if it is."""
    had = groups["gone"] or groups["stay"] or groups["unreached"] or failed[0] or learned == "better"
    falls = losses[0] - losses[1] > TOLERANCE * max(map(abs, losses))
    reasons = {
        "A ended without a problem: there is nothing to cure.": not had,
        "B ended with an exception.": failed[1],
        "Alerts of A are still open in B.": groups["stay"],
        "B has new alerts.": groups["new"],
        "B has not come as far as A had when some of its alerts began.": groups["unreached"],
        "It is not known whether B learns better: both runs need a finite loss at the same place.": learned == "unknown",
        "B learns worse: its loss is higher.": learned == "worse",
        "B learns no better: its loss is as in A, and does not fall.": learned == "same" and not falls,
    }
    return [text for text, holds in reasons.items() if holds]


def learning(a: Losses, b: Losses) -> Literal["better", "same", "worse", "unknown"]:
    """Whether the second run learns better, by how far either loss has moved."""
    one, other = a[1], b[1]
    if math.isnan(one) or math.isnan(other):
        return "unknown" if math.isnan(one) == math.isnan(other) else "better" if math.isnan(one) else "worse"
    moves = [abs(last - first) for first, last in (a, b) if first != last and not math.isnan(first)]
    moved = max(moves, default=max(abs(one), abs(other)))
    return "same" if abs(other - one) <= TOLERANCE * moved else "better" if other < one else "worse"


def lines(found: Mapping[str, Any]) -> list[str]:
    """A verification as lines for a terminal."""
    shown, loss = [*(f"{run.upper()}  {found[run]['run']}: {found[run]['verdict']}" for run in "ab"), ""], found["loss"]
    for group, title in GROUPS.items():
        alerts = found[group]
        if alerts:
            shown += [
                f"{title} ({len(alerts)}):",
                *(f"  [{one['severity']}] {one['kind']} at {one['site']}" for one in alerts[:SHOWN]),
                *[f"  and {len(alerts) - SHOWN} more"] * (len(alerts) > SHOWN),
            ]
    if loss["at"] is not None:
        courses = ", ".join(f"{loss[run]['first']} to {loss[run]['last']} in {run.upper()}" for run in "ab")
        shown.append(f"The {loss['of']} loss up to {loss['unit']} {loss['at']}: {courses}: {found['learning']}.")
    return [*shown, f"Outcome: {found['outcome']}. {' '.join(found['reasons'])}".strip()]


def _losses(a: Run, b: Run) -> tuple[str, int | None, Losses, Losses]:
    """Which loss, the last window that both runs have, and those of each: of validation if both have as many, else of training."""
    both = sorted(set(a.epochs) & set(b.epochs))
    validations = [_validations(run) for run in (a, b)]
    if both and all(validations) and (max(a.epochs), len(validations[0])) == (max(b.epochs), len(validations[1])):
        of_a, of_b = ((found[0], found[-1]) for found in validations)
        return "validation", both[-1], of_a, of_b
    of_a, of_b = ((_finite(run.loss(both[0])), _finite(run.loss(both[-1]))) if both else (math.nan, math.nan) for run in (a, b))
    return "training", both[-1] if both else None, of_a, of_b


def _validations(run: Run) -> list[float]:
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
            **{name: getattr(course.alert, name) for name in ("kind", "site", "fingerprint")},
            "severity": course.severity,
            "since": course.epochs[0],
        }
        for course in found[:MOST]
    ]
