"""The table of attention: a line for each head of each site, of one size on every rank."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from lightning_hooks.diagnostics.attention.heads import Head
from lightning_hooks.diagnostics.attention.report import N_LINE, AttentionStats, HeadLine, attention_stats
from lightning_hooks.hooks.attributes import stored_count
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.reduction import Span, Spans, added, largest, paired
from lightning_hooks.statistics.rows import lasting

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
