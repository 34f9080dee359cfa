"""Windows of training batches, merged to the epoch and to what rules judge that need more samples, and the one in a checkpoint."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from lightning_hooks.declare.collector import Collector, WindowTables
from lightning_hooks.declare.warn import warn
from lightning_hooks.session.settings import ReportEvery

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


@dataclass(slots=True)
class Merged:
    """The tables of several windows in a row, merged, on the host.

    Attributes:
        table: As collectors pack it; None for no window.
        batches: Training batches in it.
    """

    table: Tensor | None = None
    batches: int = 0

    def add(self, collector: WindowTables[Any], table: Tensor, batches: int) -> None:
        """Add a window."""
        self.table = table if self.table is None else collector.merge_windows(self.table, table)
        self.batches += batches

    def clear(self) -> None:
        """Start again."""
        self.table, self.batches = None, 0

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs."""
        return {"table": self.table, "batches": self.batches}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of an earlier run."""
        self.table, self.batches = state["table"], int(state["batches"])


class Windows:
    """The windows of one member in the epoch under way.

    Attributes:
        length: Training batches of a window; None for an epoch.
        index: The windows of this epoch that have ended.
        epoch: These, merged.
        long: The windows since rules that judge epochs were applied, merged.
    """

    def __init__(self) -> None:
        self.length: int | None = None
        self.index = 0
        self.epoch, self.long = Merged(), Merged()

    def start(self, length: int | None) -> None:
        """A run starts."""
        self.length = length
        self.long.clear()
        self.end_epoch()

    def is_full(self, batches: int) -> bool:
        """Whether a window of so many training batches is complete."""
        return batches >= (math.inf if self.length is None else self.length)

    def add(self, collector: WindowTables[Any], table: Tensor, batches: int, epoch_ends: bool) -> Tensor | None:
        """A window has ended.

        Args:
            collector: What its table is of.
            table: Its table, of all ranks, on the host.
            batches: Its training batches.
            epoch_ends: Whether the epoch ends with it.

        Returns:
            The table that rules which judge epochs are to be applied to; None if they wait for more windows.
        """
        self.index += 1
        began_together = self.long.table is self.epoch.table
        self.epoch.add(collector, table, batches)
        if began_together:  # both are of the same windows, which are merged once
            self.long = Merged(self.epoch.table, self.long.batches + batches)
        else:
            self.long.add(collector, table, batches)
        if self.long.batches < ENOUGH and not epoch_ends:
            return None
        found = self.long.table
        self.long.clear()
        return found

    def end_epoch(self) -> None:
        """The epoch is over."""
        self.index = 0
        self.epoch.clear()

    def state_dict(self) -> dict[str, Any]:
        """Return what :meth:`load_state_dict` needs."""
        return {"index": self.index, "epoch": self.epoch.state_dict(), "long": self.long.state_dict()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of an earlier run."""
        self.index = int(state["index"])
        self.epoch.load_state_dict(state["epoch"])
        self.long.load_state_dict(state["long"])


LAYOUT = 10
"""Of the table that a checkpoint in the middle of an epoch holds; one of another layout is skipped."""


def save_window(collector: Collector[Any], table: Tensor, windows: Windows, batches: int, sampled_batches: int) -> dict[str, Any]:
    """Return a window under way in plain types and tensors.

    Args:
        collector: Its collector.
        table: Its packed tables, of all ranks together.
        windows: Those that have ended.
        batches: Training batches so far.
        sampled_batches: Those of them that were sampled.
    """
    return {
        "places": collector.names,
        "layout": LAYOUT,
        "tables": {name: packed.clone() for name, packed in collector.tables.split(table.to("cpu")).items()},
        "histograms": [] if collector.histograms is None else collector.histograms.names,
        "batches": batches,
        "sampled_batches": sampled_batches,
        "windows": windows.state_dict(),
    }


def load_window(
    name: str, collector: Collector[Any], windows: Windows, state: Mapping[str, Any], is_global_zero: bool
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
    if is_global_zero:
        _load_table(collector, state)
    return batches, int(state["sampled_batches"])


def _load_table(collector: Collector[Any], state: Mapping[str, Any]) -> None:
    histograms = [] if collector.histograms is None else collector.histograms.names
    for name, table in collector.tables.items():
        if name in state["tables"] and (name != "histograms" or histograms == state["histograms"]):
            table.unpack(state["tables"][name])
