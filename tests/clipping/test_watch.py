"""Single steps held against those before, against a plain loop over lists."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
import torch

from lightning_hooks.clipping.stats import ClipLedger
from lightning_hooks.clipping.watch import FIRST_STEPS, WINDOW, EventColumn, NormHistory, step_events
from lightning_hooks.diagnostics.clipping_events.collector import MERGED_EVENTS
from lightning_hooks.statistics.reduction import Span, by_columns, merge_ranks

NAMES = ["a", "b", "c"]


def history(steps: int, seed: int = 0) -> tuple[torch.Tensor, list[bool]]:
    """Norms that wander, with jumps, zeros, NaN, infinite ones and steps that were not taken."""
    torch.manual_seed(seed)
    norms = torch.rand(steps, 3, dtype=torch.float64) + 0.1
    for step in range(steps):
        norms[step] *= 1 + step / 50
        if step % 37 == 20:
            norms[step, step % 3] *= 30
        if step % 29 == 3:
            norms[step] = 0
    return norms, [step % 11 != 7 for step in range(steps)]


def reference(norms: torch.Tensor, taken: list[bool], batches: list[int]) -> dict[str, Any]:
    """What the documentation of StepEvents says, step by step."""
    past: list[float] = []
    best: dict[str, Any] = {}
    for row, took, batch in zip(norms.tolist(), taken, batches, strict=True):
        total = math.sqrt(sum(value * value for value in row))
        if not took:
            past.append(math.nan)
            continue
        if not math.isfinite(total):
            past.append(math.nan)
            nonfinite = [name for name, value in zip(NAMES, row, strict=True) if not math.isfinite(value)]
            had = sum(value != 0 for value in row)
            best.setdefault("bad", (batch, tuple(dict.fromkeys((nonfinite[0], nonfinite[-1]))), len(nonfinite) / had))
            continue
        known = [value for value in past if math.isfinite(value)]
        if known and max(known) > 0 and total / max(known) > best.get("jump", (0,))[0]:
            window = [value for value in past[-WINDOW:] if math.isfinite(value)]
            deviation = float(np.std(window, ddof=1)) if len(window) > 1 else 0.0
            above = total - float(np.mean(window))
            sigmas = above / deviation if deviation else math.copysign(math.inf, above) if above else math.nan
            best["jump"] = (
                total / max(known),
                sigmas,
                total,
                float(np.mean(window)),
                len(window),
                batch,
                NAMES[int(np.argmax(row))],
            )
        if (
            len(known) >= FIRST_STEPS
            and max(known[:FIRST_STEPS]) > 0
            and total / max(known[:FIRST_STEPS]) > best.get("growth", (0,))[0]
        ):
            best["growth"] = (total / max(known[:FIRST_STEPS]), total, batch)
        past.append(total)
    return best


def assert_events(events: Any, best: dict[str, Any]) -> None:
    jump = (events.jump, events.jump_sigmas, events.jump_norm, events.jump_mean, events.jump_before)
    if "jump" in best:
        assert jump == pytest.approx(best["jump"][:5], nan_ok=True)
        assert (events.jump_batch, events.jump_parameter) == best["jump"][5:]
    else:
        assert all(math.isnan(value) for value in jump[:4])
        assert (events.jump_batch, events.jump_parameter) == (None, "")
    growth = (events.growth, events.growth_norm, events.growth_batch)
    if "growth" in best:
        assert growth == pytest.approx(best["growth"])
    else:
        assert math.isnan(growth[0])
        assert math.isnan(growth[1])
        assert growth[2] is None
    found = (events.first_nonfinite_batch, events.first_nonfinite_parameters, events.nonfinite_share)
    assert found == best.get("bad", (None, (), 0.0))


@pytest.mark.parametrize("steps", [1, 5, 9, 64, 300])
@pytest.mark.parametrize("page", [1, 7, 32, 128, 200])
@pytest.mark.parametrize("seed", [0, 1])
def test_watch_equals_a_plain_loop(steps: int, page: int, seed: int) -> None:
    norms, taken = history(steps, seed)
    batches = list(range(steps))
    watch = NormHistory()
    for start in range(0, steps, page):
        part = slice(start, start + page)
        watch.read(norms[part], batches[part], torch.tensor(taken[part]))
    assert_events(step_events(watch.events.tolist(), NAMES), reference(norms, taken, batches))


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ([math.nan, 1.0, 1.0], (("a",), 1 / 3)),
        ([math.nan, math.inf, 1.0], (("a", "b"), 2 / 3)),
        ([math.nan, 0.0, math.nan], (("a", "c"), 1.0)),  # b had no gradient
        ([math.inf] * 3, (("a", "c"), 1.0)),
    ],
)
def test_first_step_that_is_not_finite(row: list[float], expected: Any) -> None:
    norms, taken = history(40)
    taken[17] = taken[18] = True
    norms[6], taken[6] = math.nan, False  # skipped by a loss scaler: nothing was lost
    norms[17] = torch.tensor(row, dtype=torch.float64)
    norms[18] = math.nan
    watch = NormHistory()
    watch.read(norms, list(range(100, 140)), torch.tensor(taken))
    events = step_events(watch.events.tolist(), NAMES)
    assert (events.first_nonfinite_batch, events.first_nonfinite_parameters, events.nonfinite_share) == (117, *expected)
    assert_events(events, reference(norms, taken, list(range(100, 140))))


def test_the_past_lasts_over_epochs_and_through_a_state() -> None:
    norms, taken = history(90)
    ledger = ClipLedger(3)
    for row, took in zip(norms[:50], taken[:50], strict=True):
        ledger.write(row, row, took, batch=0)
    ledger.close_page()
    assert ledger.watch.events[0] > 0
    ledger.reset()
    resumed = ClipLedger(3)
    resumed.watch.load(ledger.watch.state())
    for one in (ledger, resumed):
        for batch, (row, took) in enumerate(zip(norms[50:], taken[50:], strict=True)):
            one.write(row, row, took, batch=batch)
        one.close_page()
        events = step_events(one.watch.events.tolist(), NAMES, unzeroed=3, wasted=4)
        whole = reference(norms, taken, [*range(50), *range(40)])
        late = reference(torch.cat((norms[:50] * 0, norms[50:])), [False] * 50 + taken[50:], [0] * 50 + list(range(40)))
        assert whole["jump"][5] < 40
        assert events.growth == pytest.approx(max(whole["growth"][0], 0))
        assert events.jump <= whole["jump"][0]
        assert events.jump_before > late["jump"][4]  # steps of the epoch before count
        assert (events.unzeroed_steps, events.wasted_clips) == (3, 4)


def test_events_of_ranks_merge_to_the_largest_and_the_first() -> None:
    first, second = (torch.arange(len(EventColumn), dtype=torch.float64) + offset for offset in (0, 100))
    first[EventColumn.GROWTH], second[EventColumn.GROWTH] = 9.0, 2.0
    merged = merge_ranks((Span(len(EventColumn), by_columns(MERGED_EVENTS)),), (first[None], second[None]))[0]
    assert torch.equal(merged[: EventColumn.GROWTH], second[: EventColumn.GROWTH])
    assert torch.equal(merged[EventColumn.GROWTH :], first[EventColumn.GROWTH :])
