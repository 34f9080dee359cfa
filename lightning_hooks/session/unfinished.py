"""The window under way in a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from lightning_hooks.declare.collector import Collector
from lightning_hooks.declare.warn import warn
from lightning_hooks.session.windows import Windows

LAYOUT = 9
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
