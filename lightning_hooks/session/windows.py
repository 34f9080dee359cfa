"""Windows of training batches: merged over ranks, to the epoch and to what rules judge that need more samples; in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.declare.collector import Collector, WindowTables
from lightning_hooks.declare.context import Context
from lightning_hooks.declare.warn import warn
from lightning_hooks.session.settings import ReportEvery
from lightning_hooks.statistics.reduction import Span, all_ranks, largest, merged_over_ranks

LONGEST_EPOCH = 2000
"""Up to so many training batches an epoch is one window by default."""
AUTO_WINDOW = 500
"""Training batches of a window by default where epochs are longer, or have no known length."""
ENOUGH = 500
"""Training batches that rules which judge epochs wait for, where an epoch does not end before."""


def window_length(every: ReportEvery, batches_per_epoch: float) -> int | None:
    """How many training batches make a window; None for an epoch.

    Args:
        every: ``report_every_n_steps``.
        batches_per_epoch: Training batches of an epoch; infinite where that is not known.
    """
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
        """A window has ended.

        Args:
            collector: What its table is of.
            table: Its table.
            batches: Its training batches.
            epoch_ends: Whether the epoch ends with it.

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

    def end_epoch(self) -> None:
        """The epoch is over."""
        self.index, self.epoch = 0, None

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs."""
        return {name: getattr(self, name) for name in ("index", "epoch", "long", "long_batches")}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of an earlier run."""
        for name in self.state_dict():
            setattr(self, name, state[name])


LAYOUT = 13
"""Of the table that a checkpoint in the middle of an epoch holds; one of another layout is skipped."""


def save_window(context: Context, collector: Collector[Any], table: Tensor, windows: MergedWindows) -> dict[str, Any]:
    """Return a window under way in plain types and tensors.

    Args:
        context: Counts its batches.
        collector: Its collector.
        table: Its packed tables, of all ranks together.
        windows: Those that have ended.
    """
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
    """Go on with the window that a checkpoint interrupted; a warning where it does not fit.

    Args:
        name: The monitor's, for messages.
        collector: Its collector.
        windows: Receives those that have ended.
        state: From :func:`save_window`.
        is_global_zero: Whether this rank takes the table, which is that of all ranks together.

    Returns:
        The training batches of the window so far, and the sampled ones among them.
    """
    batches = int(state["batches"])  # the epoch's clock goes on, whatever happens to its table
    if state.get("layout") != LAYOUT:
        warn(
            f"{name}: another version of lightning_hooks wrote the checkpoint, in the middle of an epoch. "
            "Statistics of this epoch start from here; later ones are not affected."
        )
        return batches, 0
    if state["places"] != collector.names:
        then, now = set(state["places"]), set(collector.names)
        warn(
            f"{name}: the checkpoint was written in the middle of an epoch with {len(then)} sites, now there "
            f"are {len(now)} ({len(then & now)} in common). Statistics of this epoch start from here; later ones are not "
            "affected. To keep them, resume with the same model and the same modules=."
        )
        return batches, 0
    windows.load_state_dict(state["windows"])
    histograms = [] if collector.histograms is None else collector.histograms.names
    for name, table in collector.tables.items() if is_global_zero else ():
        if name in state["tables"] and (name != "histograms" or histograms == state["histograms"]):
            table.unpack(state["tables"][name])
    return batches, int(state["sampled_batches"])


def merged(collectors: Sequence[WindowTables[Any]], flags: Sequence[bool] = ()) -> tuple[list[Tensor], list[bool]]:
    """Merge the packed tables of all ranks: three collectives for all of them.

    Args:
        collectors: Whose tables; the same on all ranks.
        flags: What this rank has to say.

    Returns:
        The tables, and whether each flag is set on any rank.
    """
    packed = [(one.tables.spans, one.tables.pack()) for one in collectors]
    if all_ranks() is None:
        return merged_over_ranks(*packed), [*flags]
    raised = packed[0][1].new_tensor([float(flag) for flag in flags]) if packed else torch.empty(0)
    *tables, of_any = merged_over_ranks(*packed, ((Span(len(flags), largest),), raised))
    return tables, [bool(flag) for flag in of_any.tolist()]
