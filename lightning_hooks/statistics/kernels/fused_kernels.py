"""The Triton kernels behind :mod:`.fused`; imported only where Triton is (it is part of torch's CUDA builds)."""

# The names are Triton's own here, and a kernel's arguments are pointers and numbers: no types to give.
# ruff: noqa: ANN001, ANN201

from __future__ import annotations

import triton
import triton.language as tl

PARTIAL = 10
"""Numbers of a partial: count, mean, M2, min, max, zeros, nonfinite, saturated, M3, M4."""


# What is not specialized is not compiled again for each value of it: the first steps of a fit would wait for that. Of ``n`` a
# multiple of 16 is worth it: values are read by 16 bytes then.
@triton.jit(do_not_specialize=["rounds", "units", "inner"])
def partials(
    x_ptr,
    n,
    rounds,
    out_ptr,
    low,
    high,
    known_ptr,
    units,
    inner,
    BLOCK: tl.constexpr,  # noqa: N803  the convention for compile-time constants
    WIDE: tl.constexpr,  # noqa: N803
    BOUNDS: tl.constexpr,  # noqa: N803
    UNITS: tl.constexpr,  # noqa: N803
    MOMENTS: tl.constexpr,  # noqa: N803
):
    """Summarise a share of the values in each program: one read of them."""
    working = tl.float64 if WIDE else tl.float32
    program = tl.program_id(0).to(tl.int64)
    lanes = tl.arange(0, BLOCK)
    start = program * rounds * BLOCK
    # Deviations are taken from the mean of the share's first finite values, so that squares do not cancel.
    offsets = start + lanes
    x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0).to(working)
    finite = (offsets < n) & ((x - x) == 0.0)  # not for NaN and infinities
    turn = 1
    while (tl.sum(finite.to(tl.int32), axis=0) == 0) & (turn < rounds):
        offsets = start + turn * BLOCK + lanes
        x = tl.load(x_ptr + offsets, mask=offsets < n, other=0.0).to(working)
        finite = (offsets < n) & ((x - x) == 0.0)
        turn += 1
    first = tl.sum(tl.where(finite, x, 0.0).to(tl.float64), axis=0) / tl.maximum(tl.sum(finite.to(tl.float64), axis=0), 1.0)
    pivot = first.to(working)
    shift = tl.zeros([BLOCK], dtype=tl.float64)
    square = tl.zeros([BLOCK], dtype=tl.float64)
    # Third and fourth powers are of deviations in units of those of the first values: float64 is slow on many devices.
    cube = tl.zeros([BLOCK], dtype=working)
    fourth = tl.zeros([BLOCK], dtype=working)
    unit_of = 1.0
    if MOMENTS:
        spread = tl.max(tl.where(finite, tl.abs(x - pivot), 0.0), axis=0)
        unit_of = tl.where(spread > 1e-37, spread, 1.0)
    inverse = 1.0 / unit_of
    lowest = tl.full([BLOCK], float("inf"), dtype=working)
    highest = tl.full([BLOCK], float("-inf"), dtype=working)
    count = tl.zeros([BLOCK], dtype=tl.int32)
    zeros = tl.zeros([BLOCK], dtype=tl.int32)
    bad = tl.zeros([BLOCK], dtype=tl.int32)
    beyond = tl.zeros([BLOCK], dtype=tl.int32)
    for turn in range(rounds):
        offsets = start + turn * BLOCK + lanes
        inside = offsets < n
        x = tl.load(x_ptr + offsets, mask=inside, other=0.0).to(working)
        finite = inside & ((x - x) == 0.0)
        deviation = tl.where(finite, x - pivot, 0.0).to(tl.float64)  # in float64 their squares neither overflow nor vanish
        shift += deviation
        square += deviation * deviation
        if MOMENTS:
            scaled = tl.where(finite, x - pivot, 0.0) * inverse
            scaled_square = scaled * scaled
            cube += scaled_square * scaled
            fourth += scaled_square * scaled_square
        lowest = tl.minimum(lowest, tl.where(finite, x, float("inf")))
        highest = tl.maximum(highest, tl.where(finite, x, float("-inf")))
        count += finite.to(tl.int32)
        zeros += (inside & (x == 0.0)).to(tl.int32)
        bad += (inside & ((x - x) != 0.0)).to(tl.int32)
        if BOUNDS:
            beyond += (inside & ((x <= low) | (x >= high))).to(tl.int32)
        if UNITS:
            unit = (offsets // inner) % units
            tl.store(known_ptr + unit, tl.full([BLOCK], 1, dtype=tl.int8), mask=inside & (x != 0.0))  # all write the same
    total = tl.sum(count.to(tl.float64), axis=0)
    moved = tl.sum(shift, axis=0) / tl.maximum(total, 1.0)
    out = out_ptr + program * 10
    tl.store(out, total)
    tl.store(out + 1, pivot.to(tl.float64) + moved)
    tl.store(out + 2, tl.maximum(tl.sum(square, axis=0) - moved * moved * total, 0.0))
    tl.store(out + 3, tl.min(lowest, axis=0).to(tl.float64))
    tl.store(out + 4, tl.max(highest, axis=0).to(tl.float64))
    tl.store(out + 5, tl.sum(zeros.to(tl.float64), axis=0))
    tl.store(out + 6, tl.sum(bad.to(tl.float64), axis=0))
    tl.store(out + 7, tl.sum(beyond.to(tl.float64), axis=0))
    if MOMENTS:  # moved from the pivot to the mean, as native.c does
        to = unit_of.to(tl.float64)
        thirds = tl.sum(cube.to(tl.float64), axis=0) * to * to * to
        fourths = tl.sum(fourth.to(tl.float64), axis=0) * to * to * to * to
        squares = tl.sum(square, axis=0)
        sums = moved * total
        tl.store(out + 8, thirds - moved * (3.0 * squares - 2.0 * moved * sums))
        central = fourths - moved * (4.0 * thirds - moved * (6.0 * squares - 3.0 * moved * sums))
        tl.store(out + 9, tl.maximum(central, 0.0))


@triton.jit(do_not_specialize=["programs", "calls", "saturable"])
def into_row(
    partial_ptr,
    programs,
    row_ptr,
    now_ptr,
    calls,
    units,
    saturable,
    PROGRAMS: tl.constexpr,  # noqa: N803
    CALLS: tl.constexpr,  # noqa: N803
    COUNT: tl.constexpr,  # noqa: N803
    MEAN: tl.constexpr,  # noqa: N803
    M2: tl.constexpr,  # noqa: N803
    MIN: tl.constexpr,  # noqa: N803
    MAX: tl.constexpr,  # noqa: N803
    ZEROS: tl.constexpr,  # noqa: N803
    NONFINITE: tl.constexpr,  # noqa: N803
    SATURATED: tl.constexpr,  # noqa: N803
    SATURABLE: tl.constexpr,  # noqa: N803
    NORM: tl.constexpr,  # noqa: N803
    NORM_MAX: tl.constexpr,  # noqa: N803
    UNITS: tl.constexpr,  # noqa: N803
    FIRST_NONFINITE: tl.constexpr,  # noqa: N803
    MOMENT_COUNT: tl.constexpr,  # noqa: N803
    MOMENT_MEAN: tl.constexpr,  # noqa: N803
    MOMENT_M2: tl.constexpr,  # noqa: N803
    MOMENT_M3: tl.constexpr,  # noqa: N803
    MOMENT_M4: tl.constexpr,  # noqa: N803
    MOMENTS: tl.constexpr,  # noqa: N803
):
    """Merge the partials (Chan, Golub and LeVeque 1979), and the row with them: one program."""
    lanes = tl.arange(0, PROGRAMS)
    there = lanes < programs
    part = partial_ptr + lanes * 10
    count = tl.load(part, mask=there, other=0.0)
    mean = tl.load(part + 1, mask=there, other=0.0)
    total = tl.sum(count, axis=0)
    center = tl.sum(count * mean, axis=0) / tl.maximum(total, 1.0)
    away = tl.where(count > 0, mean - center, 0.0)
    squares = tl.load(part + 2, mask=there, other=0.0)
    m2 = tl.sum(squares + count * away * away, axis=0)
    bad = tl.sum(tl.load(part + 6, mask=there, other=0.0), axis=0)
    norm = tl.sqrt(m2 + total * center * center)
    known = tl.load(row_ptr + COUNT)
    known_mean = tl.load(row_ptr + MEAN)
    both = known + total
    delta = center - known_mean
    share = total / tl.maximum(both, 1.0)
    tl.store(row_ptr + CALLS, tl.load(row_ptr + CALLS) + calls)
    tl.store(row_ptr + COUNT, both)
    tl.store(row_ptr + MEAN, known_mean + delta * share)
    tl.store(row_ptr + M2, tl.load(row_ptr + M2) + m2 + delta * delta * known * share)
    low = tl.min(tl.load(part + 3, mask=there, other=float("inf")), axis=0)
    tl.store(row_ptr + MIN, tl.minimum(tl.load(row_ptr + MIN), low))
    high = tl.max(tl.load(part + 4, mask=there, other=float("-inf")), axis=0)
    tl.store(row_ptr + MAX, tl.maximum(tl.load(row_ptr + MAX), high))
    zeros = tl.sum(tl.load(part + 5, mask=there, other=0.0), axis=0)
    tl.store(row_ptr + ZEROS, tl.load(row_ptr + ZEROS) + zeros)
    tl.store(row_ptr + NONFINITE, tl.load(row_ptr + NONFINITE) + bad)
    beyond = tl.sum(tl.load(part + 7, mask=there, other=0.0), axis=0)
    tl.store(row_ptr + SATURATED, tl.load(row_ptr + SATURATED) + beyond)
    tl.store(row_ptr + SATURABLE, tl.load(row_ptr + SATURABLE) + saturable)
    tl.store(row_ptr + NORM, tl.load(row_ptr + NORM) + norm)
    tl.store(row_ptr + NORM_MAX, tl.maximum(tl.load(row_ptr + NORM_MAX), norm))
    tl.store(row_ptr + UNITS, tl.maximum(tl.load(row_ptr + UNITS), units))
    first = tl.load(row_ptr + FIRST_NONFINITE)
    tl.store(row_ptr + FIRST_NONFINITE, tl.where(bad > 0, tl.minimum(first, tl.load(now_ptr)), first))
    if MOMENTS:  # Pebay (2008), as in moments.py
        thirds = tl.load(part + 8, mask=there, other=0.0)
        fourths = tl.load(part + 9, mask=there, other=0.0)
        m3 = tl.sum(thirds + away * (3.0 * squares + away * away * count), axis=0)
        m4 = tl.sum(fourths + away * (4.0 * thirds + away * (6.0 * squares + away * away * count)), axis=0)
        had = tl.load(row_ptr + MOMENT_COUNT)
        had_m2 = tl.load(row_ptr + MOMENT_M2)
        had_m3 = tl.load(row_ptr + MOMENT_M3)
        had_m4 = tl.load(row_ptr + MOMENT_M4)
        had_mean = tl.load(row_ptr + MOMENT_MEAN)
        together = had + total
        gap = center - had_mean
        up = gap * total / tl.maximum(together, 1.0)
        down = gap * had / tl.maximum(together, 1.0)
        known_m3 = had_m3 - up * (3.0 * had_m2 + up * up * had)
        new_m3 = m3 + down * (3.0 * m2 + down * down * total)
        known_m4 = had_m4 - up * (4.0 * had_m3 - up * (6.0 * had_m2 + up * up * had))
        new_m4 = m4 + down * (4.0 * m3 + down * (6.0 * m2 + down * down * total))
        tl.store(row_ptr + MOMENT_COUNT, together)
        tl.store(row_ptr + MOMENT_MEAN, had_mean + up)
        tl.store(row_ptr + MOMENT_M2, had_m2 + m2 + gap * down * total)
        tl.store(row_ptr + MOMENT_M3, known_m3 + new_m3)
        tl.store(row_ptr + MOMENT_M4, known_m4 + new_m4)
