"""Whether attention sees the targets: tokens that are foretold, and queries that may attend to them."""

from __future__ import annotations

from collections import deque
from typing import ClassVar

import torch
from torch import Tensor

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.functional import CallTable, Functional, FunctionalCall
from lightning_hooks.diagnostics.attention.heads import MASKED
from lightning_hooks.hooks.tensors import in_memory
from lightning_hooks.statistics.columns import SUM, Columns

ATTENTION = ("sdpa", "softmax")
LOSSES = ("cross_entropy", "nll_loss")
SHORTEST = 8
"""Tokens of a sequence, at least."""
MOST_KEPT = 4
"""Tensors of tokens of a batch that are kept until its loss."""


class NextColumn(Columns):
    """What each number of a row holds."""

    CALLS = SUM  # of an attention from each place to each; of a loss, those with a target for each token
    FOUND = SUM  # calls in which the last query but one may attend to the last key; whose targets are the next tokens
    OF_TOKENS = SUM  # calls of an attention over as many places as there are tokens


class NextTokens(CallTable):
    """The calls of attention over tokens, and of losses whose targets may be the tokens that come next.

    Args:
        functional: The calls of the run; None where they are not seen.
        context: Of the collector.
    """

    columns: ClassVar[type[Columns]] = NextColumn
    functions: ClassVar[tuple[str, ...]] = (*ATTENTION, *LOSSES)

    def __init__(self, functional: Functional | None, context: Context) -> None:
        super().__init__(functional, 0 if functional is None else functional.capacity, context.host.setup.device)
        self._tokens: deque[Tensor] = deque(maxlen=MOST_KEPT)
        context.on_call(("embedding",), self._embedding, layers=True)
        context.on_call(ATTENTION, self._attention, layers=True)
        context.on_call(LOSSES, self._loss)

    def batch_end(self) -> None:
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
        """Record an attention. No host sync.

        Args:
            index: Of its row.
            mask: What hides keys from queries, of queries and keys in its last dimensions; True, or a number above -9000, shows.
            causal: Whether what comes later is hidden.
            of_tokens: Whether it is over as many places as there are tokens.
        """
        row = self.host_row(index)
        row[NextColumn.CALLS] += 1
        row[NextColumn.OF_TOKENS] += of_tokens
        if causal:
            return
        if mask is None:
            row[NextColumn.FOUND] += 1
            return
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
            if length < SHORTEST or target.numel() not in (samples * length, samples * (length - 1)):
                continue
            self.host_row(index)[NextColumn.CALLS] += 1
            labels, later = target.detach().reshape(samples, -1)[:, : length - 1], tokens.detach()[:, 1:].to(target.device)
            counts = labels != ignored
            same = ((labels == later) | ~counts).all() & counts.any() & (later[:, 1:] != later[:, :-1]).any()
            self._count(index, same)
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


__all__ = ["NextTokens"]
