"""Attention: any statistic of every head as a heat map, layers by heads."""

from __future__ import annotations

import numpy as np

from lightning_hooks.diagnostics.attention.report import AttentionReport
from lightning_hooks.plots.canvas import Figure, color_bar, heading, name_layers, nothing, single, style, table

SHARES = {"entropy": "entropy over its maximum", "first_token_share": "share of the first token"}
_MEANING = {
    "entropy": "0: one key, 1: all keys alike",
    "first_token_share": "1: attention sink",
    "max_logit": "largest logit, scale times q·k",
    "masked_rows": "share of queries that may attend to no key",
    "nonfinite_rows": "share of queries with NaN or infinite values",
}


@style()
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
    title = f"Attention {stat} by head"
    names = tuple(report.sites)
    most = max((len(stats.heads) for stats in report.sites.values()), default=0)
    values = np.full((len(names), most), np.nan)
    for row, stats in enumerate(report.sites.values()):
        values[row, : len(stats.heads)] = [getattr(head, stat) for head in stats.heads]
    if not values.size:
        return nothing(title, "No attention was seen.")
    longest = min(max(map(len, names)), 34)
    width = float(np.clip(3.0 + 0.065 * longest + 0.3 * most, 5.6, 13.0))
    figure, axes = single(width, float(np.clip(1.9 + 0.24 * len(names), 2.8, 12.5)))
    heading(axes, title, f"{report.when}; {_MEANING[stat]}", width - 2.5)
    low, high = (None, None) if stat == "max_logit" else (0.0, 1.0)
    shown = np.ma.masked_invalid(values)
    mesh = table(axes, shown, (64, 64), vmin=low, vmax=high, cmap="viridis")
    step = -(-most // 16)
    axes.set_xticks(range(0, most, step))
    axes.set_xlabel("head")
    name_layers(axes, names, "y", "layer")
    if not np.ma.getmaskarray(shown).all():
        color_bar(figure, mesh, axes, SHARES.get(stat, stat))
    return figure
