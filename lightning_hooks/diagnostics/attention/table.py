"""Attention of one window: a line for each head of each site, the report that names its numbers, and tokens that are foretold."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.functional import CallTable
from lightning_hooks.declare.functional_calls import FunctionalCall, FunctionalCalls
from lightning_hooks.declare.window import Report
from lightning_hooks.diagnostics.attention.heads import MASKED, Head
from lightning_hooks.diagnostics.loss_inputs.leaks import labels_ahead
from lightning_hooks.hooks.attributes import stored_count
from lightning_hooks.hooks.tensors import in_memory
from lightning_hooks.statistics.columns import SUM, Columns, RowTable


@dataclass(frozen=True, slots=True)
class HeadStats:
    """One head of attention over the query rows that were measured, all ranks pooled.

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

    Of each call at most 64 query rows are measured: all where there are fewer, else evenly spaced ones.

    Attributes:
        calls: How often it was called.
        rows: Query rows that were measured, of each head.
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

    @property
    def masked(self) -> list[tuple[bool, float, str]]:
        """What masks that hide all keys do, the worst first: whether it does harm, a share, and a clause that may state it."""
        found = [
            (self.masked_nonfinite_rows > 0, True, self.masked_rows, ", and their softmax over minus infinity alone is NaN"),
            (self.masked_samples > 0, True, self.masked_samples, "; in {} of the samples none may"),
            (True, False, self.masked_rows, ""),
        ]
        return [(harm, share, text) for holds, harm, share, text in found if holds and self.masked_rows > 0]


def attention_stats(lines: Sequence[Sequence[float]]) -> AttentionStats:
    """Name the numbers of one site, of a line for each head; of at least one head, each with a call."""
    heads = tuple(
        HeadStats(
            max_logit=_known(line[Head.MAX]),
            entropy=_share(line[Head.ENTROPY], line[Head.JUDGED]),
            first_token_share=_share(line[Head.FIRST], line[Head.JUDGED]),
            masked_rows=_share(line[Head.MASKED], line[Head.ROWS]),
            nonfinite_rows=_share(line[Head.NONFINITE], line[Head.ROWS]),
        )
        for line in lines
    )
    return AttentionStats(
        calls=int(max(line[Head.CALLS] for line in lines)),
        rows=int(max(line[Head.ROWS] for line in lines)),
        heads=heads,
        max_logit=_known(max(line[Head.MAX] for line in lines)),
        entropy=_mean([head.entropy for head in heads]),
        first_token_share=_mean([head.first_token_share for head in heads]),
        masked_rows=max(head.masked_rows for head in heads),
        nonfinite_rows=max(head.nonfinite_rows for head in heads),
        masked_nonfinite_rows=max(_share(line[Head.MASKED_NONFINITE], line[Head.ROWS]) for line in lines),
        masked_samples=max(_share(line[Head.MASKED_SAMPLES], line[Head.SAMPLES]) for line in lines),
        begin_max_logit=_known(max(line[Head.BEGIN] for line in lines)),
        end_max_logit=_known(max(line[Head.END] for line in lines)),
        half_precision=any(line[Head.HALF_CALLS] for line in lines),
    )


def _share(part: float, whole: float) -> float:
    return part / whole if whole else math.nan


def _known(logit: float) -> float:
    return math.nan if logit == -math.inf else logit


def _mean(values: Sequence[float]) -> float:
    known = [value for value in values if not math.isnan(value)]
    return sum(known) / len(known) if known else math.nan


@dataclass(frozen=True, slots=True, repr=False)
class AttentionReport(Report):
    """Attention of one window.

    Attributes:
        sites: Site (``blocks.3.attn/sdpa``, ``blocks.3.attn/softmax``) to its statistics, in the order of their first call; only
            sites that were called.
        sampled_batches: Training batches that were sampled, on the rank with the most.
        batches: Training batches of the window, on the rank with the most.
        target_shown: Where the targets of a cross entropy are the tokens that come next, the sites over these tokens, if queries
            may attend to the next token at all of them.
    """

    sites: dict[str, AttentionStats]
    sampled_batches: int = 0
    batches: int = 0
    target_shown: tuple[str, ...] = ()


# Attributes that hold the number of heads of a layer.
HEAD_COUNTS = ("num_heads", "num_attention_heads", "n_head", "n_heads", "nhead", "heads", "n_local_heads")
FEWEST_HEADS = 16  # lines that a site gets at least; as many as any module names heads, where these are more
MOST_HEADS = 128  # heads of a site with a line of their own; where a site has more, the others are left out
MOST_SITES = 256  # sites of attention that are measured: the first ones


class AttentionTable(RowTable):
    """A line for each head of each site; of a call with more heads than there are lines the others are left out."""

    columns = Head

    def __init__(self, sites: int, heads: int, device: torch.device | str = "cpu") -> None:
        super().__init__(sites * heads, device)
        self._lines = self.rows.view(sites, heads, len(Head))

    def add(self, site: int, heads: Tensor, half: bool) -> None:
        """Record one call at a site: what is MEASURED of each head, and whether it was in half precision. No host sync."""
        if site >= len(self._lines):
            return
        found = heads[: self._lines.shape[1]].to(self.rows)
        lines, top = self._lines[site, : len(found)], found[:, Head.MAX]  # a site may be called with several numbers of heads
        lines[:, : Head.MAX] += found[:, : Head.MAX]
        lines[:, Head.MAX] = torch.maximum(lines[:, Head.MAX], top)
        lines[:, Head.CALLS] += 1
        lines[:, Head.HALF_CALLS] += half
        lines[:, Head.BEGIN] = torch.where(torch.isneginf(lines[:, Head.BEGIN]), top, lines[:, Head.BEGIN])
        lines[:, Head.END] = top

    def read(self, packed: Tensor, names: Sequence[str]) -> dict[str, AttentionStats]:
        """The statistics of the sites that were called, of a packed table on the host and the names of all sites in order."""
        lines = packed.view(self._lines.shape)
        called = (lines[..., Head.CALLS] > 0).sum(-1).tolist()
        return {
            name: attention_stats(of_site[:heads].tolist())
            for name, of_site, heads in zip(names, lines, called, strict=False)
            if heads
        }


def heads_of(module: nn.Module) -> int:
    """The number of heads that a module names as one of its attributes; 0 if it names none."""
    return next(filter(None, (stored_count(module, name) for name in HEAD_COUNTS)), 0)


ATTENTION = ("sdpa", "softmax")  # the functions whose calls are attention, or may be
LOSSES = ("cross_entropy", "nll_loss")
SHORTEST = 8  # tokens of a sequence, at least
MOST_KEPT = 4  # tensors of tokens of a batch that are kept until its loss


class NextColumn(Columns):
    """What each number of a row holds."""

    CALLS = SUM  # of an attention from each place to each; of a loss, those with a target for each token
    FOUND = SUM  # calls in which the last query but one may attend to the last key; whose targets are the next tokens
    OF_TOKENS = SUM  # calls of an attention over as many places as there are tokens


class NextTokens(CallTable):
    """Whether attention sees the targets: its calls over tokens, and losses whose targets may be those that come next."""

    columns = NextColumn
    functions: ClassVar[tuple[str, ...]] = (*ATTENTION, *LOSSES)

    def __init__(self, functional: FunctionalCalls | None, context: Context) -> None:
        super().__init__(functional, 0 if functional is None else functional.capacity, context.host.setup.device)
        self._tokens: deque[Tensor] = deque(maxlen=MOST_KEPT)
        context.on_call(("embedding",), self._embedding, layers=True)
        context.on_call(ATTENTION, self._attention, layers=True)
        context.on_call(LOSSES, self._loss)

    def batch_end(self, outputs: Any = None) -> None:
        """A training batch ends: its tokens are let go."""
        self._tokens.clear()

    def _embedding(self, call: FunctionalCall) -> None:
        tokens = call.arguments.get("input")
        if in_memory(tokens) and tokens.dim() == 2 and min(tokens.shape) and max(tokens.shape) >= SHORTEST:
            self._tokens.append(tokens)

    def _attention(self, call: FunctionalCall) -> None:
        index = self.index_of(call)
        if index is None or not self._tokens:
            return
        if call.function == "softmax":
            scores = call.arguments.get("input")
            mask, shape = scores, [*scores.shape[-2:]] if in_memory(scores) and scores.dim() > 2 else []
        else:
            mask, parts = call.arguments.get("attn_mask"), [call.arguments.get(name) for name in ("query", "key")]
            shape = [part.shape[-2] for part in parts if in_memory(part) and part.dim() > 2]
        lengths = {size for tokens in self._tokens for size in tokens.shape}
        if len(shape) == 2 and shape[0] == shape[1] >= SHORTEST:
            self.add_attention(index, mask, bool(call.arguments.get("is_causal")), shape[0] in lengths)

    def add_attention(self, index: int, mask: Tensor | None, causal: bool, of_tokens: bool = True) -> None:
        """Record an attention, over as many places as there are tokens or not. No host sync.

        ``mask`` hides keys from queries, in its last two dimensions: True, or a number above -9000, shows.
        """
        row = self.host_row(index)
        row[NextColumn.CALLS] += 1
        row[NextColumn.OF_TOKENS] += of_tokens
        if mask is None:
            row[NextColumn.FOUND] += not causal
        elif not causal:
            lines = mask.detach()[(0,) * (mask.dim() - 2)] if mask.dim() > 1 else mask.detach()[None]
            shown = lines[-2 if len(lines) > 1 else 0, -1]
            self._count(index, shown if shown.dtype == torch.bool else shown > MASKED)

    def _loss(self, call: FunctionalCall) -> None:
        index, target = self.index_of(call), call.arguments.get("target")
        if index is not None and in_memory(target) and not target.is_floating_point():
            self.add_loss(index, target, [*self._tokens], call.arguments.get("ignore_index", -100))

    def add_loss(self, index: int, target: Tensor, known: list[Tensor], ignored: int) -> None:
        """Record a loss with its labels, of which one is ignored, and the tokens known in its batch. No host sync."""
        for tokens in known:
            samples, length = tokens.shape
            if length >= SHORTEST and target.numel() in (samples * length, samples * (length - 1)):
                self.host_row(index)[NextColumn.CALLS] += 1
                counts, later, same = labels_ahead(tokens.detach(), target.detach(), ignored, 1)
                self._count(index, same & counts.any() & (later[:, 1:] != later[:, :-1]).any())
                return

    def _count(self, index: int, found: Tensor) -> None:
        self.rows[index, NextColumn.FOUND] += found.to(self.rows.device, self.rows.dtype)

    def read(self, packed: Tensor) -> tuple[str, ...]:
        """The attentions that show each token its target, in the order of their calls; none where any hides it."""
        sites, hides, foretells = list[str](), False, False
        for name, (calls, found, of_tokens) in self.named_lines(packed):
            if calls and name.rpartition("/")[2].startswith(LOSSES):
                foretells |= found == calls
            elif calls:
                hides |= found == 0
                sites += [name] * (of_tokens > 0)
        return tuple(sites) if foretells and not hides else ()
