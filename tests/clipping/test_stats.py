"""The tally of clip events, against a plain loop over steps."""

import math
from dataclasses import asdict

import numpy as np
import pytest
import torch

from lightning_hooks.clipping.stats import PAGE, TOP, ClipLedger, clip_stats, merge_tallies, tally

NAMES = [f"p{i}" for i in range(7)]


def expected_stats(before, after, taken):
    """What the documentation of ClipStats says, step by step."""
    steps = clipped = nonfinite = 0
    befores, afters, coefficients, shares = [], [], [], np.zeros(len(NAMES))
    for old, new, took in zip(before.numpy(), after.numpy(), taken, strict=True):
        if not took:
            continue
        steps += 1
        old_total, new_total = np.sqrt((old**2).sum()), np.sqrt((new**2).sum())
        if not (np.isfinite(old_total) and np.isfinite(new_total)):
            nonfinite += 1
            continue
        befores.append(old_total)
        afters.append(new_total)
        if old_total > 0:
            coefficients.append(new_total / old_total)
        if any(n < o * (1 - 1e-6) for o, n in zip(old, new, strict=True)):
            clipped += 1
            shares += old**2 / old_total**2
    order = sorted(range(len(NAMES)), key=lambda i: -shares[i])[:TOP]
    nan = math.nan
    return {
        "steps": steps, "clipped_steps": clipped, "rate": clipped / steps if steps else nan,
        "norm_before": np.mean(befores) if befores else nan, "norm_before_max": max(befores, default=nan),
        "norm_after": np.mean(afters) if afters else nan, "norm_after_max": max(afters, default=nan),
        "coefficient": np.mean(coefficients) if coefficients else nan,
        "nonfinite_steps": nonfinite, "skipped_steps": len(taken) - steps,
    }, [(NAMES[i], shares[i] / clipped) for i in order if shares[i] > 0]  # fmt: skip


def assert_stats(row, before, after, taken):
    stats = clip_stats(row.tolist(), NAMES, limit=1.5)
    numbers, top = expected_stats(before, after, taken)
    found = asdict(stats)
    assert {key: found[key] for key in numbers} == pytest.approx({k: float(v) for k, v in numbers.items()}, nan_ok=True)
    assert [name for name, _ in stats.top_parameters] == [name for name, _ in top]
    assert [share for _, share in stats.top_parameters] == pytest.approx([share for _, share in top])
    assert stats.limit == 1.5


def history(steps, seed=0):
    """Steps of every kind: clipped by norm, by the value of one element, untouched, zero, not finite, skipped."""
    torch.manual_seed(seed)
    before = torch.rand(steps, len(NAMES), dtype=torch.float64) * torch.arange(1, len(NAMES) + 1)
    after = before.clone()
    taken = [step % 11 != 7 for step in range(steps)]
    for step in range(steps):
        if step % 3 == 0:
            after[step] *= 0.5
        elif step % 7 == 1:
            after[step, 2] *= 0.999
        elif step % 13 == 5:
            before[step] = after[step] = 0
        elif step % 10 == 4:
            before[step, 1] = after[step, 1] = math.inf
        elif step % 10 == 8:
            before[step, 3] = after[step, 3] = math.nan
    return before, after, taken


@pytest.mark.parametrize("steps", [1, 5, 40, 130])
def test_tally_equals_a_plain_loop(steps):
    before, after, taken = history(steps)
    assert_stats(tally(before, after, torch.tensor(taken)), before, after, taken)


@pytest.mark.parametrize("steps", [0, 1, PAGE - 1, PAGE, PAGE + 1, 3 * PAGE + 5])
def test_a_ledger_equals_a_plain_loop(steps):
    before, after, taken = history(steps)
    ledger = ClipLedger(len(NAMES))
    for step in range(steps):
        ledger.write(before[step], after[step], taken[step])
        if step in (3, 50):  # looking in between changes nothing
            ledger.close_page()
    ledger.close_page()
    assert_stats(ledger.total, before, after, taken)


def test_ranks_and_pages_merge_like_the_whole():
    before, after, taken = history(90)
    parts = [slice(0, 20), slice(20, 21), slice(21, 90)]
    tallies = [tally(before[part], after[part], torch.tensor(taken[part])) for part in parts]
    whole = tally(before, after, torch.tensor(taken))
    torch.testing.assert_close(merge_tallies(torch.stack(tallies)), whole, rtol=1e-12, atol=1e-12)
    both = torch.stack([torch.stack((one, one)) for one in tallies])  # several optimizers at once
    torch.testing.assert_close(merge_tallies(both), torch.stack((whole, whole)), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("position", [0, 5, PAGE - 1])
@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_an_optimizer_that_skips_by_itself(position, bad):
    """Steps whose gradients were not finite were skipped, whatever the caller believed; earlier pages are not judged."""
    before, after, taken = history(PAGE)
    ledger = ClipLedger(len(NAMES))
    for step in range(position):
        ledger.write(before[step], after[step], taken[step])
    nonfinite = torch.ones(len(NAMES), dtype=torch.float64)
    nonfinite[2] = bad
    ledger.write(nonfinite, nonfinite, taken=True, skips_nonfinite=True)
    well = torch.ones(len(NAMES), dtype=torch.float64)
    ledger.write(well, well, taken=True, skips_nonfinite=True)
    all_before = torch.cat((before[:position], nonfinite[None], well[None]))
    all_after = torch.cat((after[:position], nonfinite[None], well[None]))
    ledger.close_page()
    assert_stats(ledger.total, all_before, all_after, [*taken[:position], False, True])


def test_a_ledger_resumes():
    before, after, taken = history(60)
    first, second = ClipLedger(len(NAMES)), ClipLedger(len(NAMES))
    for step in range(25):
        first.write(before[step], after[step], taken[step])
    first.close_page()
    saved = first.total
    kept = saved.clone()
    second.total = saved.clone()
    for step in range(25, 60):
        second.write(before[step], after[step], taken[step])
    second.close_page()
    assert_stats(second.total, before, after, taken)
    first.reset()
    second.reset()
    assert torch.equal(saved, kept), "what was given out must not change"
    assert first.total.sum() == second.total.sum() == 0
