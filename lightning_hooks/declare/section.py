"""What the health report shows of the rows of one table, such as the optimizers: plain data that needs no torch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple


class Panel(NamedTuple):
    """Curves over the windows.

    Attributes:
        curves: What, to its statistic, and that of its largest value or nothing.
        limit: The statistic of the last window that is a limit of the curves; empty without.
        rule: The kind of alert whose limit is one; empty without.
        kind: The scale of numbers that are no shares: ``log`` or ``linear``.
    """

    curves: Mapping[str, tuple[str, str]]
    limit: str = ""
    rule: str = ""
    kind: Literal["log", "linear"] = "log"


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
