"""The figure of attention heads shows the numbers of the report."""

from __future__ import annotations

import io
import math
from dataclasses import replace

import numpy as np
import pytest

from lightning_hooks.alerts import AttentionReport, AttentionStats, HeadStats
from lightning_hooks.plots import attention_heads

HEAD = HeadStats(max_logit=4.0, entropy=0.8, first_token_share=0.1, masked_rows=0.0, nonfinite_rows=0.0)


def report(*layers: tuple[float, ...]) -> AttentionReport:
    sites = {}
    for number, entropies in enumerate(layers):
        heads = tuple(replace(HEAD, entropy=entropy, max_logit=10 * entropy) for entropy in entropies)
        sites[f"blocks.{number}.attn/sdpa"] = AttentionStats(1, 64, heads, 4.0, 0.8, 0.1, 0.0, 0.0)
    return AttentionReport(2, 100, sites)


@pytest.mark.parametrize("stat", ["entropy", "max_logit"])
def test_a_cell_for_each_head(stat: str) -> None:
    figure = attention_heads(report((0.1, 0.2, 0.3), (0.4, math.nan)), stat)
    figure.savefig(io.BytesIO(), format="png", dpi=40)
    axes = figure.axes[0]
    (mesh,) = axes.collections
    scale = 10 if stat == "max_logit" else 1
    values = np.ma.filled(mesh.get_array(), np.nan)
    np.testing.assert_allclose(values, np.array([[0.1, 0.2, 0.3], [0.4, np.nan, np.nan]]) * scale)
    assert axes.get_title(loc="left").startswith(f"Attention {stat} by head")
    assert mesh.norm.vmax == (1.0 if stat == "entropy" else pytest.approx(4.0))


def test_an_unknown_statistic_is_an_error() -> None:
    with pytest.raises(ValueError, match=r"stat must be one of entropy, first_token_share, .*; got 'rms'"):
        attention_heads(report((0.1,)), "rms")
