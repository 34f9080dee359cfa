"""Reports as a pandas table."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from lightning_hooks.declare.brief import TABLES

if TYPE_CHECKING:
    import pandas


def frame(reports: Iterable[Any]) -> pandas.DataFrame:
    """Return reports as one long table: a row for each epoch and each module, parameter or optimizer.

    Args:
        reports: Of one kind.

    Returns:
        Columns ``epoch``, ``step``, ``of`` (``module``, ``parameter`` or ``optimizer``), ``name``, and one per statistic; NaN where
        one does not apply.

    Raises:
        ImportError: If pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        raise ImportError("to_frame() needs pandas: pip install pandas.") from error
    rows = []
    for report in reports:
        for table, noun in TABLES.items():
            for name, stats in getattr(report, table, {}).items():
                values = {field.name: getattr(stats, field.name) for field in dataclasses.fields(stats)}
                rows.append({"epoch": report.epoch, "step": report.step, "of": noun, "name": name, **values})
    return pd.DataFrame(rows, columns=None if rows else ["epoch", "step", "of", "name"])
