"""What the health report shows of single diagnostics, as plain data that needs no torch."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple


class Panel(NamedTuple):
    """Curves over the windows."""

    curves: Mapping[str, tuple[str, str]]  # what, to its statistic, and that of its largest value or nothing
    limit: str = ""  # the statistic of the last window that is a limit of the curves; empty without
    rule: str = ""  # the kind of alert whose limit is one; empty without


class Section(NamedTuple):
    """A section of the report.

    Attributes:
        title: Its heading.
        prefix: The monitor's.
        table: The table, each of whose rows is shown.
        stats: The statistics that are shown; those that end with ``steps`` are counts of all windows.
        panels: The curves of a row.
        facts: Given the counts, the statistics of the last window, and what a window is called: what is written above the curves,
            and a sentence below them, empty for none.
        columns: The titles of the table in Markdown, each with its statistic.
    """

    title: str
    prefix: str
    table: str
    stats: tuple[str, ...]
    panels: tuple[Panel, ...]
    facts: Callable[[Mapping[str, int], Any, str], tuple[list[tuple[str, float]], str]]
    columns: Mapping[str, str]


def _facts(counts: Mapping[str, int], stats: Any, window: str) -> tuple[list[tuple[str, float]], str]:
    total = counts["steps"] + counts["skipped_steps"]
    causes = ", ".join(f"{parameter} ({share:.0%})" for parameter, share in stats.top_parameters[:3])
    facts = [
        (f"of {total} steps clipped", counts["clipped_steps"] / total if total else math.nan),
        ("skipped by a loss scaler", counts["skipped_steps"]),
        ("taken with NaN or infinite gradients", counts["nonfinite_steps"]),
        (f"of the norm left on average, last {window}", stats.coefficient),
    ]
    return facts, f"Clips of the last {window} were caused by: {causes}." if causes else ""


SECTIONS = (
    Section(
        title="Clipping",
        prefix="gradient_clip",
        table="optimizers",
        stats=(
            *("norm_before", "norm_before_max", "norm_after", "rate"),
            *("steps", "clipped_steps", "skipped_steps", "nonfinite_steps"),
        ),
        panels=(
            Panel({"norm before clipping": ("norm_before", "norm_before_max"), "norm after": ("norm_after", "")}, limit="limit"),
            Panel({"share of steps clipped": ("rate", "")}, rule="always_clipped"),
        ),
        facts=_facts,
        columns={
            "steps": "steps", "clipped": "rate", "norm before": "norm_before", "norm after": "norm_after",
            "skipped": "skipped_steps", "non-finite": "nonfinite_steps",
        },
    ),
)  # fmt: skip
