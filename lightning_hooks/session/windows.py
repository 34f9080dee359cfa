"""Windows of training batches: merged over ranks, and to longer ones; in a checkpoint; and the reports that are kept of them."""

from __future__ import annotations

import dataclasses
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from lightning_hooks.declare.collector import Collector, WindowTables
from lightning_hooks.declare.context import Context
from lightning_hooks.declare.plain import TABLES
from lightning_hooks.declare.warn import warn
from lightning_hooks.plots.heat import heatmap
from lightning_hooks.plots.series import as_reports
from lightning_hooks.session.settings import ReportEvery
from lightning_hooks.statistics.reduction import Span, all_ranks, largest, merged_over_ranks

if TYPE_CHECKING:
    import pandas
    from matplotlib.figure import Figure

LONGEST_EPOCH = 2000  # up to so many training batches an epoch is one window by default
AUTO_WINDOW = 500  # training batches of a window by default where epochs are longer, or have no known length
ENOUGH = 500  # training batches that rules which judge epochs wait for, where an epoch does not end before


def window_length(every: ReportEvery, batches_per_epoch: float) -> int | None:
    """How many training batches make a window, by ``report_every_n_steps``; None for an epoch."""
    if every == "auto":
        return None if batches_per_epoch <= LONGEST_EPOCH else AUTO_WINDOW
    return every


@dataclass(eq=False)
class MergedWindows:
    """The windows of one member in the epoch under way. Tables are as collectors pack them, of all ranks, on the host.

    Attributes:
        length: Training batches of a window; None for an epoch.
        index: The windows of this epoch that have ended.
        epoch: Their tables, merged; None for none.
        long: The tables of the windows since rules that judge epochs were applied, merged; None for none.
        long_batches: Training batches in these.
    """

    length: int | None = None
    index: int = 0
    epoch: Tensor | None = None
    long: Tensor | None = None
    long_batches: int = 0

    def add(self, collector: WindowTables[Any], table: Tensor, batches: int, epoch_ends: bool) -> Tensor | None:
        """A window of so many training batches has ended, and the epoch with it or not.

        Returns:
            The table that rules which judge epochs are to be applied to; None if they wait for more windows.
        """
        alike, epoch = self.long is self.epoch, self.epoch  # alike: both are of the same windows, which are merged once
        self.index += 1
        self.epoch = table if epoch is None else collector.merge_windows(epoch, table)
        self.long = self.epoch if alike else table if self.long is None else collector.merge_windows(self.long, table)
        self.long_batches += batches
        if self.long_batches < ENOUGH and not epoch_ends:
            return None
        found, self.long, self.long_batches = self.long, None, 0
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs."""
        return {name: getattr(self, name) for name in ("index", "epoch", "long", "long_batches")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of an earlier run."""
        for name in self.state_dict():
            setattr(self, name, state[name])


LAYOUT = 15  # of the table that a checkpoint in the middle of an epoch holds; one of another layout is skipped


def save_window(context: Context, collector: Collector[Any], table: Tensor, windows: MergedWindows) -> dict[str, Any]:
    """Return a window under way, with its packed tables of all ranks together, in plain types and tensors."""
    return {
        "places": collector.names,
        "layout": LAYOUT,
        "tables": {name: packed.clone() for name, packed in collector.tables.split(table.to("cpu")).items()},
        "histograms": [] if collector.histograms is None else collector.histograms.names,
        "batches": context.batches,
        "sampled_batches": context.sampled_batches,
        "windows": windows.state_dict(),
    }


def load_window(
    name: str, collector: Collector[Any], windows: MergedWindows, state: Mapping[str, Any], is_global_zero: bool
) -> tuple[int, int]:
    """Go on with the window that a checkpoint interrupted; a warning where it does not fit. Rank 0 takes the table of all ranks.

    Returns:
        The training batches of the window so far, and the sampled ones among them.
    """
    batches = int(state["batches"])  # the epoch's clock goes on, whatever happens to its table
    if state.get("layout") != LAYOUT or state["places"] != collector.names:
        warn(
            f"{name}: the checkpoint was written in the middle of an epoch, by another version of lightning_hooks or with other "
            "sites. Statistics of this epoch start from here; later ones are not affected. To keep them, resume with the same "
            "model and modules=."
        )
        return batches, 0
    windows.load_state_dict(state["windows"])
    histograms = [] if collector.histograms is None else collector.histograms.names
    for name, table in collector.tables.named.items() if is_global_zero else ():
        if name in state["tables"] and (name != "histograms" or histograms == state["histograms"]):
            table.unpack(state["tables"][name])
    return batches, int(state["sampled_batches"])


def merged(collectors: Sequence[WindowTables[Any]], flags: Sequence[bool] = ()) -> tuple[list[Tensor], list[bool]]:
    """Merge the packed tables of all ranks: three collectives for all of them.

    Returns:
        The tables, and whether each of the flags is set on any rank.
    """
    packed = [(one.tables.spans, one.tables.pack()) for one in collectors]
    if all_ranks() is None:
        return merged_over_ranks(*packed), [*flags]
    raised = packed[0][1].new_tensor([float(flag) for flag in flags]) if packed else torch.empty(0)
    *tables, of_any = merged_over_ranks(*packed, ((Span(len(flags), largest),), raised))
    return tables, [bool(flag) for flag in of_any.tolist()]


MOST_EPOCHS = 1000
# A row of a report takes about 400 bytes: so many are some 40 MB, which 60 layers with 120 parameters reach after 550 epochs
MOST_ROWS = 100_000


class History:
    """The last reports of one monitor, oldest first."""

    def __init__(self, name: str, kind: type[Collector[Any]]) -> None:
        self._name, self._kind = name, kind
        self.reports: deque[Any] = deque(maxlen=MOST_EPOCHS)

    def add(self, report: Any) -> None:
        """Keep a report; one of the same window as the last takes its place."""
        if report is None or (self.reports and self.reports[-1] is report):
            return
        if not self.reports:
            rows = sum(len(getattr(report, table, ())) for table in TABLES)
            self.reports = deque(maxlen=max(1, min(MOST_EPOCHS, MOST_ROWS // max(rows, 1))))
        elif _window(self.reports[-1]) == _window(report):
            self.reports.pop()
        self.reports.append(report)

    def plot(self, stat: str | None = None) -> Figure:
        """Draw the reports: a heat map of one statistic, or what suits them best; errors as for :meth:`to_frame`."""
        reports = as_reports(self._known())
        draw = self._kind.picture(reports, stat)
        return heatmap(reports, stat or "scale") if draw is None else draw()

    def to_frame(self) -> pandas.DataFrame:
        """Return the reports as one long table: a row for each window and each site.

        Returns:
            Columns ``epoch``, ``step``, ``of`` (``module``, ``parameter`` or ``optimizer``), ``name``, and one per statistic; NaN
            where one does not apply.

        Raises:
            ImportError: If pandas is not installed.
            ValueError: If there is no report yet.
        """
        try:
            import pandas as pd
        except ImportError as error:
            raise ImportError("to_frame() needs pandas: pip install pandas.") from error
        rows = [
            {"epoch": report.epoch, "step": report.step, "of": noun, "name": name}
            | {field.name: getattr(stats, field.name) for field in dataclasses.fields(stats)}
            for report in self._known()
            for table, noun in TABLES.items()
            for name, stats in getattr(report, table, {}).items()
        ]
        return pd.DataFrame(rows, columns=None if rows else ["epoch", "step", "of", "name"])

    def _known(self) -> list[Any]:
        if not self.reports:
            raise ValueError(
                f"{self._name} has no report yet: expected a window of trainer.fit() that has ended, got none. Call this after "
                "the first window: an epoch, or report_every_n_steps batches."
            )
        return list(self.reports)


def _window(report: Any) -> tuple[int, int | None]:
    return report.epoch, getattr(report, "window", None)
