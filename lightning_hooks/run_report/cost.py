"""What the monitors took, of a run's own clock."""

from __future__ import annotations

import math
import statistics

from lightning_hooks.run_report.numerals import number, percent, seconds
from lightning_hooks.run_report.run import Run


def costs(run: Run) -> list[tuple[str, str]]:
    """(what, how much) of all that is known."""
    found: list[tuple[str, str]] = []
    ends: dict[int, float] = {}
    for record in run.monitors:
        for epoch, took in record.seconds.items():
            if math.isfinite(took):
                ends[epoch] = ends.get(epoch, 0.0) + took
    if ends:
        found.append((f"per {run.window}'s end: merging, judging, logging (median)", seconds(statistics.median(ends.values()))))
    durations = {epoch: float(event["seconds"]) for epoch, event in run.timing.items() if _known(event.get("seconds"))}
    if durations:
        found.append((f"per {run.window} (median)", seconds(statistics.median(durations.values()))))
        parts = [ends[epoch] / durations[epoch] for epoch in durations if epoch in ends and durations[epoch] > 0]
        if parts:
            found.append(
                (
                    f"of {'an' if run.unit == 'epoch' else 'a'} {run.window}'s time is its end in the monitors",
                    percent(statistics.median(parts)),
                )
            )
    shares = [record.last.overhead for record in run.monitors if getattr(record.last, "overhead", None) is not None]
    if shares:
        found.append((f"of a training batch's time added by the monitors, last {run.window}", percent(sum(shares))))
    sizes = [float(event["bytes"]) for event in run.timing.values() if _known(event.get("bytes"))]
    if sizes:
        found.append(("of tables on the device", f"{number(sizes[-1] / 1000)} kB"))
    return found


def _known(value: object) -> bool:
    return isinstance(value, (int, float)) and math.isfinite(value) and value > 0
