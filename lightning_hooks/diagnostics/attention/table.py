"""Attention of one window: the table, a line for each head of each site, of one size on every rank, and its named numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum

import torch
from torch import Tensor, nn

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.plain import PlainReport
from lightning_hooks.diagnostics.attention.heads import N_HEAD, Head
from lightning_hooks.hooks.attributes import stored_count
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.reduction import Span, Spans, added, largest, paired
from lightning_hooks.statistics.rows import lasting


class HeadLine(IntEnum):
    """What a line of a table holds of one head next to :class:`~lightning_hooks.diagnostics.attention.heads.Head`."""

    CALLS = N_HEAD
    HALF_CALLS = N_HEAD + 1  # calls in half precision
    BEGIN = N_HEAD + 2  # the largest logit of the window's first call; -inf before
    END = N_HEAD + 3  # that of its last call


N_LINE = N_HEAD + len(HeadLine)


@dataclass(frozen=True, slots=True)
class HeadStats:
    """One head of attention over the query rows that were looked at, all ranks pooled.

    Attributes:
        max_logit: The largest logit, scale times q·k, of a key that is not masked; NaN if there was none.
        entropy: Mean over rows of the entropy of the probabilities over its maximum, the logarithm of the number of keys that the
            row may attend to, in [0, 1]; NaN if no row had two.
        first_token_share: Mean over the same rows of the probability of the first key, in [0, 1].
        masked_rows: Share of rows that may attend to no key, in [0, 1].
        nonfinite_rows: Share of rows with NaN or an infinite value in their logits or outputs, in [0, 1].
    """

    max_logit: float
    entropy: float
    first_token_share: float
    masked_rows: float
    nonfinite_rows: float


@dataclass(frozen=True, slots=True)
class AttentionStats:
    """One site of attention in the sampled batches of a window, all ranks pooled.

    Of each call at most 64 query rows are looked at: all where there are fewer, else evenly spaced ones.

    Attributes:
        calls: How often it was called.
        rows: Query rows that were looked at, of each head.
        heads: The same numbers for each head, the first 128.
        max_logit: The largest logit of all heads; NaN if there was none.
        entropy: Mean over heads of the entropy over its maximum, in [0, 1]: 0 for one key, 1 for all keys alike.
        first_token_share: Mean over heads of the probability of the first key, in [0, 1].
        masked_rows: Share of rows that may attend to no key, of the head with most, in [0, 1].
        nonfinite_rows: Share of rows with NaN or an infinite value in their logits or outputs, of the head with most, in [0, 1].
        masked_nonfinite_rows: Share of rows that may attend to no key and give NaN, of the head with most, in [0, 1].
        masked_samples: Share of samples none of whose rows may attend to any key, of the head with most, in [0, 1].
        begin_max_logit: The largest logit of the window's first call.
        end_max_logit: That of its last call.
        half_precision: Whether it was called in bfloat16 or float16.
    """

    calls: int
    rows: int
    heads: tuple[HeadStats, ...]
    max_logit: float
    entropy: float
    first_token_share: float
    masked_rows: float
    nonfinite_rows: float
    masked_nonfinite_rows: float = 0.0
    masked_samples: float = 0.0
    begin_max_logit: float = math.nan
    end_max_logit: float = math.nan
    half_precision: bool = False


def attention_stats(lines: Sequence[Sequence[float]]) -> AttentionStats:
    """Name the numbers of one site.

    Args:
        lines: One per head, as Python numbers; of at least one head, each with a call.
    """
    heads = tuple(map(_head_stats, lines))
    return AttentionStats(
        calls=int(max(line[HeadLine.CALLS] for line in lines)),
        rows=int(max(line[Head.ROWS] for line in lines)),
        heads=heads,
        max_logit=_largest([head.max_logit for head in heads]),
        entropy=_mean([head.entropy for head in heads]),
        first_token_share=_mean([head.first_token_share for head in heads]),
        masked_rows=max(head.masked_rows for head in heads),
        nonfinite_rows=max(head.nonfinite_rows for head in heads),
        masked_nonfinite_rows=max(_share(line[Head.MASKED_NONFINITE], line[Head.ROWS]) for line in lines),
        masked_samples=max(_share(line[Head.MASKED_SAMPLES], line[Head.SAMPLES]) for line in lines),
        begin_max_logit=_largest([_known(line[HeadLine.BEGIN]) for line in lines]),
        end_max_logit=_largest([_known(line[HeadLine.END]) for line in lines]),
        half_precision=any(line[HeadLine.HALF_CALLS] for line in lines),
    )


def _head_stats(line: Sequence[float]) -> HeadStats:
    return HeadStats(
        max_logit=_known(line[Head.MAX]),
        entropy=_share(line[Head.ENTROPY], line[Head.JUDGED]),
        first_token_share=_share(line[Head.FIRST], line[Head.JUDGED]),
        masked_rows=_share(line[Head.MASKED], line[Head.ROWS]),
        nonfinite_rows=_share(line[Head.NONFINITE], line[Head.ROWS]),
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _known(logit: float) -> float:
    return math.nan if logit == -math.inf else logit


def _largest(values: Sequence[float]) -> float:
    return max((value for value in values if not math.isnan(value)), default=math.nan)


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


@dataclass(frozen=True, slots=True, repr=False)
class AttentionReport(PlainReport):
    """Attention of one window.

    Attributes:
        sites: Site (``blocks.3.attn/sdpa``, ``blocks.3.attn/softmax``) to its statistics, in the order of their first call; only
            sites that were called.
        sampled_batches: Training batches that were sampled, on the rank with the most.
        batches: Training batches of the window, on the rank with the most.
    """

    epoch: int
    step: int
    sites: dict[str, AttentionStats]
    sampled_batches: int = 0
    batches: int = 0
    alerts: tuple[Alert, ...] = ()
    overhead: float | None = field(default=None, compare=False, repr=False)
    every_n_steps: int = 1
    window: int | None = None


HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_head", "n_heads", "nhead", "heads", "n_local_heads")
"""Attributes that hold the number of heads of a layer."""
FEWEST_HEADS = 16
MOST_HEADS = 128
"""Heads of a site with a line of their own; where a site has more, the others are left out."""
MOST_SITES = 256
"""Sites of attention that are measured: the first ones."""

_SUMS = [column for column in Head if column is not Head.MAX] + [HeadLine.CALLS, HeadLine.HALF_CALLS]
_ORDER = [*_SUMS, Head.MAX, HeadLine.BEGIN, HeadLine.END]  # of the columns in a packed table
_LOGITS = [Head.MAX, HeadLine.BEGIN, HeadLine.END]


class AttentionTable:
    """Lines of all heads on the device, made when a site is first called.

    Args:
        sites: The most sites there can be.
        heads: The most heads a site has a line for.
        device: Where the lines live.
    """

    def __init__(self, sites: int, heads: int, device: torch.device | str = "cpu") -> None:
        self.n_sites, self.n_heads = sites, heads
        self.device = torch.device(device)
        self._empty = torch.zeros(N_LINE, dtype=row_dtype(self.device))
        self._empty[_LOGITS] = -math.inf
        self._empty = self._empty.to(self.device)
        self._lines: dict[int, Tensor] = {}  # site -> (heads, N_LINE)

    def add(self, site: int, heads: Tensor, half: bool) -> None:
        """Record one call at a site.

        Args:
            site: Its number, from 0.
            heads: ``(heads, N_HEAD)``.
            half: Whether the call was in half precision.
        """
        if site >= self.n_sites:
            return
        found = heads[: self.n_heads].to(self.device, self._empty.dtype)
        lines = self._lines.get(site)
        if lines is None or lines.shape[0] < found.shape[0]:
            lines = self._grow(site, found.shape[0])
        own = lines[: found.shape[0]]  # a site may be called with several numbers of heads
        top = found[:, Head.MAX]
        own[:, : Head.MAX] += found[:, : Head.MAX]
        own[:, Head.MAX] = torch.maximum(own[:, Head.MAX], top)
        own[:, HeadLine.CALLS] += 1
        own[:, HeadLine.HALF_CALLS] += half
        own[:, HeadLine.BEGIN] = torch.where(torch.isneginf(own[:, HeadLine.BEGIN]), top, own[:, HeadLine.BEGIN])
        own[:, HeadLine.END] = top

    def _grow(self, site: int, heads: int) -> Tensor:
        lines = lasting(lambda: self._empty.repeat(heads, 1))
        if site in self._lines:
            lines[: self._lines[site].shape[0]] = self._lines[site]
        self._lines[site] = lines
        return lines

    def pack(self) -> Tensor:
        """Return everything as one vector, of the same length on every rank."""
        whole = self._empty.repeat(self.n_sites, self.n_heads, 1)
        for site, lines in self._lines.items():
            whole[site, : lines.shape[0]] = lines
        return whole.view(-1, N_LINE)[:, _ORDER].t().flatten()

    def unpack(self, packed: Tensor) -> None:
        """Load a vector that :meth:`pack` or a merge gave."""
        whole = self._whole(packed).to(self.device, self._empty.dtype)
        for site, count in enumerate((whole[..., HeadLine.CALLS] > 0).sum(-1).tolist()):
            if count:
                self._lines[site] = whole[site, :count].clone()

    def _whole(self, packed: Tensor) -> Tensor:
        """A packed table as ``(sites, heads, N_LINE)``."""
        columns = packed.view(N_LINE, -1)
        whole = torch.empty_like(columns)
        whole[_ORDER] = columns
        return whole.t().reshape(self.n_sites, self.n_heads, N_LINE)

    @property
    def spans(self) -> Spans:
        """How the packed tables of ranks and of windows merge."""
        n = self.n_sites * self.n_heads
        begin, end = Span(n, largest, paired(_first_known)), Span(n, largest, paired(_last_known))
        return Span(n * len(_SUMS), added), Span(n, largest), begin, end

    def read(self, packed: Tensor, names: Sequence[str]) -> dict[str, AttentionStats]:
        """Name the numbers of a packed table on the host.

        Args:
            packed: The table.
            names: The sites, in the order of their numbers.

        Returns:
            The sites that were called.
        """
        whole = self._whole(packed)
        heads = (whole[..., HeadLine.CALLS] > 0).sum(-1).tolist()
        known = zip(names, whole, heads, strict=False)
        return {name: attention_stats(lines[:count].tolist()) for name, lines, count in known if count}

    def reset(self) -> None:
        """Start a new window."""
        for lines in self._lines.values():
            lines.copy_(self._empty)

    def clear(self) -> None:
        """Forget all sites."""
        self._lines.clear()


def most_heads(model: nn.Module) -> int:
    """How many lines a site gets: the most heads that any module names, at least 16 and at most 128; the same on every rank."""
    return min(max(FEWEST_HEADS, *map(heads_of, model.modules())), MOST_HEADS)


def heads_of(module: nn.Module) -> int:
    """The number of heads that a module names as one of its attributes; 0 if it names none."""
    return next(filter(None, (stored_count(module, name) for name in HEAD_COUNTS)), 0)


def _first_known(earlier: Tensor, later: Tensor) -> Tensor:
    return torch.where(torch.isneginf(earlier), later, earlier)


def _last_known(earlier: Tensor, later: Tensor) -> Tensor:
    return torch.where(torch.isneginf(later), earlier, later)
