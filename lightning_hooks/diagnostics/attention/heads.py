"""The numbers of each head in one call of attention, from at most 64 of its query rows.

A query row is one query of one sample: its logits ``scale * q·k`` over all keys, and their softmax. Rows are evenly spaced over
the batch and over the queries; where there are at most 64, all are taken. Nothing else is computed, so nothing is of the size
queries times keys.
"""

from __future__ import annotations

import functools
import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from lightning_hooks.statistics.columns import MAXIMUM_OR_NONE, SUM, Columns, Reduction
from lightning_hooks.statistics.reduction import largest, paired

MOST_ROWS = 64  # query rows of a call that are measured
MOST_SAMPLES = 8  # samples that they are taken from, where each has enough of them
MASKED = -9000.0  # a number at or below it that is added to a logit masks the key: -10000, -1e9, the smallest of a dtype, -inf
DIVERGED = 1000.0  # size of a logit that no mask has touched, from which on attention has diverged
HIDDEN = 1e30  # what is subtracted from the logit of a masked key: an infinity would make arithmetic slow on the CPU
# A key whose logit is so far below the largest has no share: its exponential is the smallest that is no denormal number.
NEGLIGIBLE = -87.0
HALF = (torch.bfloat16, torch.float16)


def _known(one: Tensor, other: Tensor) -> Tensor:
    """The one where it is known, else the other."""
    return torch.where(torch.isneginf(one), other, one)


class Head(Columns):
    """What the line of a head holds: what :func:`product_heads` returns of a call, then what a table adds to it."""

    ROWS = SUM  # query rows
    MASKED = SUM  # rows that may attend to no key
    NONFINITE = SUM  # rows whose logits or outputs hold NaN or an infinite value
    MASKED_NONFINITE = SUM  # rows that are both
    JUDGED = SUM  # finite rows that may attend to two keys or more
    ENTROPY = SUM  # over JUDGED rows: entropy / log(keys that they may attend to)
    FIRST = SUM  # over JUDGED rows: the probability of the first key
    SAMPLES = SUM  # samples that rows are from
    MASKED_SAMPLES = SUM  # samples all of whose rows may attend to no key
    MAX = MAXIMUM_OR_NONE  # the largest logit of a key that is not masked
    CALLS = SUM
    HALF_CALLS = SUM  # calls in half precision
    BEGIN = Reduction(largest, empty=-math.inf, over_windows=paired(_known))  # MAX of the window's first call
    END = Reduction(largest, empty=-math.inf, over_windows=paired(lambda first, last: _known(last, first)))  # MAX of its last call


MEASURED = list(Head)[: Head.MAX + 1]  # what is measured of a call


class Grid(NamedTuple):
    """Which query rows are measured."""

    samples: int
    step: int  # from each of them to the next
    chosen: Tensor  # the samples, (samples, 1)
    queries: Tensor  # of each sample, (samples, queries per sample)

    def rows(self, values: Tensor) -> Tensor:
        """The rows of a tensor ``(samples, heads, queries, width)``: ``(samples taken, heads, queries per sample, width)``."""
        return values[self.chosen, :, self.queries].transpose(1, 2)

    def whole(self, values: Tensor) -> Tensor:
        """All of the samples that rows are taken from, without a copy; of a tensor with one sample for all, that."""
        return values if values.shape[0] == 1 else values[: self.samples * self.step : self.step]


@functools.lru_cache(maxsize=64)
def grid(samples: int, queries: int, device: torch.device | str = "cpu") -> Grid:
    """Choose query rows: of every sample its first query, its last, and between them others than in the next sample."""
    if samples * queries <= MOST_ROWS:
        taken, each = samples, queries
    else:
        taken = min(samples, max(MOST_SAMPLES, MOST_ROWS // queries))
        each = min(queries, MOST_ROWS // taken)
    numbers = torch.arange(taken, device=device)[:, None]
    places = torch.arange(each, device=device).expand(taken, each) * taken
    if each > 2:
        places[:, 1:-1] = places[:, 1:-1] + numbers
    step = max(samples // max(taken, 1), 1)
    return Grid(taken, step, numbers * step, places * (queries - 1) // max((each - 1) * taken, 1))


def product_heads(
    query: Tensor,
    key: Tensor,
    mask: Tensor | None = None,
    causal: bool = False,
    scale: float | None = None,
    output: Tensor | None = None,
    heads: int = 1,
) -> Tensor:
    """Summarise a call of ``scaled_dot_product_attention``.

    Args:
        query: ``(…, heads, queries, width)``, or ``(samples times heads, queries, width)``.
        key: ``(…, groups, keys, width)``; each group of keys belongs to ``heads / groups`` heads in a row.
        mask: True (or 0) where a query may attend to a key; floating-point numbers are added to the logits. Of a shape that
            broadcasts to ``(…, heads, queries, keys)``; None for none.
        causal: Whether query i may attend to the first i + 1 keys only.
        scale: Of the logits; None for one over the root of the width.
        output: What the call returned, to count rows that are not finite.
        heads: How many heads three dimensions hold.

    Returns:
        ``(heads, len(MEASURED))``, float32 (float64 for float64).
    """
    mask = None if mask is None else _mask_of(mask, query, key, heads)
    query, key = _four(query, heads), _four(key, heads)
    chosen = grid(query.shape[0], query.shape[-2], query.device)
    logits = _logits(chosen.rows(query), chosen.whole(key), 1 / math.sqrt(query.shape[-1]) if scale is None else scale)
    allowed, bias = None if mask is None else chosen.rows(mask), None
    if allowed is not None and allowed.dtype != torch.bool:
        allowed, bias = ~(allowed <= MASKED), allowed.to(logits.dtype)
    if causal:
        before = torch.arange(logits.shape[-1], device=query.device) <= chosen.queries[:, None, :, None]
        allowed = before if allowed is None else allowed & before
    finite = None if output is None else torch.isfinite(chosen.rows(_four(output, heads))).all(-1)
    if allowed is None:
        keys, top = logits.new_full(logits.shape[:-1], logits.shape[-1]), logits.amax(-1)
    else:
        shown = allowed.to(logits.dtype)
        keys = shown.sum(-1).expand(logits.shape[:-1])
        top = logits.add_(shown.sub_(1).mul_(HIDDEN)).amax(-1)
    return _summary(logits if bias is None else logits.add_(bias), keys, top, finite)


def written_out_heads(logits: Tensor, heads: int = 1) -> Tensor:
    """Summarise the input of a softmax over keys: logits with the mask added.

    Args:
        logits: ``(…, heads, queries, keys)``, or ``(samples times heads, queries, keys)``; a key counts as masked where they are
            -9000 or less, unless the largest ones of other rows are beyond ±1000, or those of such rows differ by more: a
            mask adds one number.
        heads: How many heads three dimensions hold.

    Returns:
        ``(heads, len(MEASURED))``, float32 (float64 for float64).
    """
    logits = _four(logits, heads)
    rows = grid(logits.shape[0], logits.shape[-2], logits.device).rows(logits)
    rows = rows.to(torch.promote_types(rows.dtype, torch.float32))
    top, keys = rows.amax(-1), (rows > MASKED).to(rows.dtype).sum(-1)
    known = top.nan_to_num(0.0, math.inf, 0.0)
    hidden = (keys == 0) & (known < 0)
    spread = torch.where(hidden, known, -math.inf).amax() - torch.where(hidden, known, math.inf).amin()
    # Then a row of large negative logits is no mask.
    diverged = torch.maximum(torch.where(hidden, 0.0, known).abs().amax(), spread) > DIVERGED
    return _summary(rows, torch.where(diverged, keys.clamp(min=1), keys), top, torch.isfinite(top))


def is_half(*tensors: Any) -> bool:
    """Whether any of these is a tensor in bfloat16 or float16."""
    return any(isinstance(tensor, Tensor) and tensor.dtype in HALF for tensor in tensors)


def _four(values: Tensor, heads: int) -> Tensor:
    """As ``(samples, heads, …, …)``: more dimensions are samples, three are samples times heads."""
    if values.dim() == 4:
        return values
    return values.flatten(0, -4) if values.dim() > 4 else values.reshape(values.shape[0] // heads, heads, *values.shape[1:])


def _mask_of(mask: Tensor, query: Tensor, key: Tensor, heads: int) -> Tensor:
    """The mask of :func:`product_heads` as ``(samples, heads or 1, queries, keys)``, without a copy of what it repeats."""
    lead, sizes = query.shape[:-3], (query.shape[-2], key.shape[-2])
    if query.dim() == 3:
        return _four(mask.expand(query.shape[0], *sizes), heads)
    mask = mask.expand(*mask.shape[:-2] or (1,), *sizes)
    repeated = mask.shape[:-3].numel() == 1
    one = mask.reshape(1, *mask.shape[-3:]) if repeated else mask.expand(*lead, -1, -1, -1).flatten(0, -4)
    return one.expand(lead.numel(), -1, -1, -1)


def _logits(rows: Tensor, keys: Tensor, scale: float) -> Tensor:
    """``scale * q·k`` of queries ``(samples, heads, queries, width)`` with keys ``(samples or 1, groups, keys, width)``."""
    wide = torch.promote_types(rows.dtype, torch.float32)
    samples, heads, queries, width = rows.shape
    grouped = rows.to(wide).mul(scale).reshape(samples, keys.shape[1], -1, width)
    each = keys.to(wide).transpose(-1, -2).expand(samples, -1, -1, -1)
    # In one product keys would be copied.
    return torch.stack([torch.bmm(q, k) for q, k in zip(grouped, each, strict=True)]).view(samples, heads, queries, -1)


def _summary(scores: Tensor, keys: Tensor, top: Tensor, finite: Tensor | None) -> Tensor:
    """The numbers of each head.

    Args:
        scores: ``(samples, heads, queries, keys)``: logits with the mask added; they are overwritten.
        keys: How many keys each row may attend to.
        top: The largest logit of each row, of these keys.
        finite: Whether what the row gives is finite; None where that is not known.
    """
    highest = scores.amax(-1, keepdim=True)  # NaN where any is
    masked = (keys == 0) & ~torch.isnan(top)
    sound = torch.isfinite(highest[..., 0]) & torch.isfinite(top) & ~masked
    nonfinite = ~(sound | masked) if finite is None else ~((sound | masked) & finite)
    below = scores.sub_(highest).clamp_(min=NEGLIGIBLE)
    shares = below.exp()
    total = shares.sum(-1)
    first = shares[..., 0] / total
    entropy = total.log() - shares.mul_(below).sum(-1) / total  # of shares / total
    judged = sound & (keys > 1)
    counts = torch.stack((torch.ones_like(masked), masked, nonfinite, masked & nonfinite, judged)).sum((1, 3)).to(top.dtype)
    sums = torch.where(judged, torch.stack((entropy / keys.log(), first)), top.new_zeros(())).sum((1, 3))
    samples = torch.stack((torch.ones_like(masked[..., 0]), masked.all(-1))).sum(1).to(top.dtype)
    return torch.cat((counts, sums, samples, torch.where(sound, top, -math.inf).amax((0, 2))[None])).t()
