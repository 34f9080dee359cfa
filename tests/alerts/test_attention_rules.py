"""Rules over attention, on reports of one site changed at one number."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from lightning_hooks.alerts import (
    AttentionCollapse,
    AttentionLogits,
    AttentionReport,
    AttentionStats,
    AttentionUniform,
    HeadStats,
    MaskedRows,
    Rule,
)

HEAD = HeadStats(max_logit=4.0, entropy=0.8, first_token_share=0.1, masked_rows=0.0, nonfinite_rows=0.0)
STATS = AttentionStats(
    calls=10, rows=640, heads=(HEAD,) * 4, max_logit=4.0, entropy=0.8, first_token_share=0.1, masked_rows=0.0, nonfinite_rows=0.0,
    begin_max_logit=3.0, end_max_logit=4.0,
)  # fmt: skip


def report(step: int = 2000, **changes: Any) -> AttentionReport:
    return AttentionReport(3, step, {"block.attn/sdpa": replace(STATS, **changes)}, 10, 100)


def found(rule: Any, given: AttentionReport) -> list[tuple[str, str]]:
    return [(alert.kind, alert.severity) for alert in rule(given)]


def heads(*entropies: float, first: float = 0.1) -> tuple[HeadStats, ...]:
    return tuple(replace(HEAD, entropy=entropy, first_token_share=first) for entropy in entropies)


@pytest.mark.parametrize("rule", [AttentionLogits(), AttentionCollapse(), AttentionUniform(), MaskedRows()])
def test_healthy_attention_has_no_alert(rule: Rule) -> None:
    assert found(rule, report()) == []
    nothing = math.nan
    unknown = replace(HEAD, max_logit=nothing, entropy=nothing, first_token_share=nothing)
    empty = report(
        heads=(unknown,),
        max_logit=nothing,
        entropy=nothing,
        first_token_share=nothing,
        begin_max_logit=nothing,
        end_max_logit=nothing,
    )
    assert found(rule, empty) == []


LOGITS = ("attention_logits", "warning")


@pytest.mark.parametrize(
    ("changes", "alerts"),
    [
        ({"max_logit": 50.1, "half_precision": True}, [LOGITS]),
        ({"max_logit": 50.0, "half_precision": True}, []),
        ({"max_logit": 50.1}, []),  # float32 holds them
        ({"begin_max_logit": 10.0, "end_max_logit": 30.1}, [LOGITS]),
        ({"begin_max_logit": 10.1, "end_max_logit": 30.1}, []),  # not 3 times
        ({"begin_max_logit": 2.0, "end_max_logit": 29.9}, []),  # harmless still
        ({"begin_max_logit": -8.0, "end_max_logit": 31.0}, [LOGITS]),
        ({"begin_max_logit": math.nan, "end_max_logit": 90.0}, []),
    ],
)
def test_attention_logits(changes: Any, alerts: Any) -> None:
    assert found(AttentionLogits(), report(**changes)) == alerts


COLLAPSE = ("attention_collapse", "warning")


@pytest.mark.parametrize(
    ("changes", "alerts"),
    [
        ({"heads": heads(0.04, 0.04, 0.04, 0.9)}, [COLLAPSE]),
        ({"heads": heads(0.04, 0.04, 0.9, 0.9)}, []),  # half of the heads is not most
        ({"heads": heads(0.051, 0.051, 0.051, 0.051)}, []),
        ({"heads": heads(0.04, 0.04, 0.04, 0.04, first=0.6)}, []),  # sinks
        ({"heads": heads(0.04, 0.04, 0.04, 0.9), "max_logit": 29.0}, []),  # sharp on purpose
        ({"heads": heads(0.01)}, [COLLAPSE]),
    ],
)
def test_attention_collapse(changes: Any, alerts: Any) -> None:
    assert found(AttentionCollapse(), report(**{"max_logit": 120.0, **changes})) == alerts


@pytest.mark.parametrize(
    ("changes", "step", "alerts"),
    [
        ({"heads": heads(0.9995, 0.9991)}, 1000, [("attention_uniform", "info")]),
        ({"heads": heads(0.9995, 0.9991)}, 999, []),
        ({"heads": heads(0.9995, 0.9985)}, 1000, []),
    ],
)
def test_attention_uniform(changes: Any, step: int, alerts: Any) -> None:
    assert found(AttentionUniform(), report(step, **changes)) == alerts


@pytest.mark.parametrize(
    ("changes", "severity"),
    [
        ({"masked_rows": 0.3}, "info"),
        ({"masked_rows": 0.3, "nonfinite_rows": 0.5}, "info"),  # NaN that come from elsewhere
        ({"masked_rows": 0.3, "masked_samples": 0.1}, "warning"),
        ({"masked_rows": 0.3, "masked_nonfinite_rows": 0.3}, "warning"),
    ],
)
def test_masked_rows(changes: Any, severity: str) -> None:
    assert found(MaskedRows(), report(**changes)) == [("masked_rows", severity)]
