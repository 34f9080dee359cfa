"""Attention by head, as a figure."""

from __future__ import annotations

from lightning_hooks.diagnostics.attention.table import AttentionReport
from lightning_hooks.plots.canvas import Figure
from lightning_hooks.plots.heat import CellFigure, cell_figure

_SCALES = {"entropy": "entropy over its maximum", "first_token_share": "share of the first token"}
_MEANING = {
    "entropy": "0: one key, 1: all keys alike",
    "first_token_share": "1: attention sink",
    "max_logit": "largest logit, scale times q·k",
    "masked_rows": "share of queries that may attend to no key",
    "nonfinite_rows": "share of queries with NaN or infinite values",
}


def attention_heads(report: AttentionReport, stat: str = "entropy") -> Figure:
    """Draw one statistic of every attention head of a window: a row per layer, a column per head.

    Args:
        report: The window's.
        stat: ``entropy``, ``first_token_share``, ``max_logit``, ``masked_rows`` or ``nonfinite_rows``.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If there is no such statistic.
    """
    if stat not in _MEANING:
        raise ValueError(f"stat must be one of {', '.join(_MEANING)}; got {stat!r}.")
    heads = {name: [getattr(head, stat) for head in stats.heads] for name, stats in report.sites.items()}
    title, line = f"Attention {stat} by head", f"{report.when}; {_MEANING[stat]}"
    limits = None if stat == "max_logit" else (0.0, 1.0)
    return cell_figure(CellFigure(title, line, heads, "head", _SCALES.get(stat, stat), limits, "No attention was seen."))
