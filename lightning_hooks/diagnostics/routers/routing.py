"""What routers and codebooks choose in a window: how often each expert and each code."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import FORWARD
from lightning_hooks.declare.window import Moment, Report
from lightning_hooks.hooks.tensors import tensors_in
from lightning_hooks.statistics.columns import SUM, Columns, RowTable


class RouterColumn(Columns):
    """What each number of a row holds; of a codebook only CALLS. How often each expert, or code, was chosen follows."""

    CALLS = SUM
    TOKENS = SUM
    CHOICES = SUM  # experts that were to be chosen: tokens times top_k
    DROPPED = SUM  # those that no expert got


CHOSEN = len(RouterColumn)  # where the counts of the choices begin in a row


@dataclass(frozen=True, slots=True)
class RouterStats:
    """What a router chose in one window.

    A choice is one expert for one token: ``tokens * top_k`` in all.

    Attributes:
        calls: How often the router ran.
        tokens: Tokens that it routed, padding among them.
        experts: Number of experts.
        top_k: Experts that each token gets.
        load: Each expert's share of the choices, in [0, 1]; they add up to 1, and are all 0 where nothing was chosen.
        dead_fraction: Share of the experts that no token got, in [0, 1].
        max_load: The largest load times the number of experts: 1 where all are alike, ``experts / top_k`` at most.
        balance: Entropy of the load over its maximum, the logarithm of the number of experts, in [0, 1]: 1 where all are alike.
        dropped_fraction: Share of the choices that no expert got, as the router's output says, in [0, 1].
    """

    calls: int
    tokens: int
    experts: int
    top_k: int
    load: tuple[float, ...]
    dead_fraction: float
    max_load: float
    balance: float
    dropped_fraction: float

    @property
    def effective(self) -> float:
        """The effective number of experts: the exponential of the entropy of the load."""
        return float(self.experts**self.balance)


@dataclass(frozen=True, slots=True)
class CodebookStats:
    """Which codes a quantiser chose in one window.

    Attributes:
        calls: How often it ran.
        codes: Codes that it chose, each occurrence counted.
        size: Number of codes in the book.
        usage: Share of the codes that were chosen at all, in [0, 1].
        perplexity: The exponential of the entropy of the codes' shares: how many codes, chosen alike, would be as varied; from 1 to
            ``size``.
        max_share: The most frequent code's share of ``codes``.
    """

    calls: int
    codes: int
    size: int
    usage: float
    perplexity: float
    max_share: float


def choices_of(tensors: Sequence[Tensor], experts: int, top_k: int) -> tuple[Tensor, bool] | None:
    """Find the choices among the tensors that a router returns in one call.

    Numbers of experts are integers with ``top_k`` of them in the last dimension. Where there are none, other integers say which
    expert gets which token; where there are none either, the largest logits are the choices: the last floating-point tensor with
    ``experts`` numbers in the last dimension.

    Returns:
        The numbers of the experts chosen, ``(tokens, top_k)``, and False; or which expert gets which token, 0 or 1,
        ``(tokens, experts)``, and True. None where there is nothing.
    """
    wide = [x for x in tensors if x.dim() > 1 and x.shape[-1] == experts]
    floats = [x for x in wide if x.is_floating_point()]
    integers = [x for x in tensors if x.dim() and _is_integer(x)]
    chosen = next((x for x in integers if x.dim() > 1 and x.shape[-1] == top_k), None)
    if chosen is None and top_k == 1 and floats:
        chosen = next((x for x in integers if x.numel() * experts == floats[0].numel()), None)
    dispatched = next((x for x in wide if _is_integer(x)), None)
    if chosen is not None:
        return chosen.reshape(-1, top_k), False
    if dispatched is not None:
        return dispatched.reshape(-1, experts), True
    return (floats[-1].detach().reshape(-1, experts).topk(top_k, -1).indices, False) if floats else None


def _is_integer(x: Tensor) -> bool:
    return not (x.is_floating_point() or x.is_complex() or x.is_quantized or x.dtype == torch.bool)


class RoutingTable(RowTable):
    """A row for each router and codebook, given by name, number of experts or codes, and how many a token gets: 0 of codes.

    Nothing waits for the device.
    """

    columns = RouterColumn

    def __init__(self, sites: Sequence[tuple[str, int, int]], device: torch.device | str = "cpu") -> None:
        self._sites, self.more = tuple(sites), max(size for _, size, _ in sites)
        super().__init__(len(sites), device)

    def record(self, index: int, output: Any) -> None:
        """Record what the router or the quantiser of a row returns, if its choices are in it: codes are its first integers."""
        tensors, (_, size, top_k) = list(tensors_in(output)), self._sites[index]
        row = self.rows[index]
        if top_k:
            found = choices_of(tensors, size, top_k)
            if found is None:
                return
            given, dispatched = found
            load = given.sum(0).to(row) if dispatched else _counts(given.reshape(-1), size, row)
            row[RouterColumn.TOKENS] += len(given)
            row[RouterColumn.CHOICES] += len(given) * top_k
            row[RouterColumn.DROPPED] += len(given) * top_k - load.sum()
        else:
            codes = next((x for x in tensors if x.dim() and _is_integer(x)), None)
            if codes is None:
                return
            load = _counts(codes.reshape(-1), size, row)
        row[RouterColumn.CALLS] += 1
        row[CHOSEN : CHOSEN + size] += load

    def read(self, packed: Tensor) -> tuple[dict[str, RouterStats], dict[str, CodebookStats]]:
        """Name the numbers of a packed table on the host: of the routers and of the codebooks that ran."""
        lines = zip(self._sites, self.lines(packed), strict=True)
        ran = [(name, top_k, row[: CHOSEN + size]) for (name, size, top_k), row in lines if row[RouterColumn.CALLS]]
        routers = {name: router_stats(row, top_k) for name, top_k, row in ran if top_k}
        return routers, {name: codebook_stats(row) for name, top_k, row in ran if not top_k}


def _counts(numbers: Tensor, size: int, like: Tensor) -> Tensor:
    numbers = numbers.to(like.device, torch.int64)
    known = torch.where((numbers >= 0) & (numbers < size), numbers, size)
    return like.new_zeros(size + 1).scatter_add_(0, known, like.new_ones(()).expand(known.shape))[:size]


def router_stats(row: Sequence[float], top_k: int) -> RouterStats:
    """Name the numbers of the row of a router that ran."""
    counts = row[CHOSEN:]
    experts, kept = len(counts), sum(counts)
    shares = tuple(count / kept if kept else 0.0 for count in counts)
    return RouterStats(
        calls=int(row[RouterColumn.CALLS]),
        tokens=int(row[RouterColumn.TOKENS]),
        experts=experts,
        top_k=top_k,
        load=shares,
        dead_fraction=shares.count(0.0) / experts,
        max_load=max(shares) * experts,
        balance=_entropy(shares) / math.log(experts),
        dropped_fraction=row[RouterColumn.DROPPED] / (row[RouterColumn.CHOICES] or 1.0),
    )


def codebook_stats(row: Sequence[float]) -> CodebookStats:
    """Name the numbers of the row of a codebook whose quantiser ran."""
    counts = row[CHOSEN:]
    size, codes = len(counts), sum(counts)
    shares = [count / codes if codes else 0.0 for count in counts]
    return CodebookStats(
        calls=int(row[RouterColumn.CALLS]),
        codes=int(codes),
        size=size,
        usage=(size - shares.count(0.0)) / size,
        perplexity=math.exp(_entropy(shares)),
        max_share=max(shares),
    )


def _entropy(shares: Sequence[float]) -> float:
    return max(0.0, -sum(share * math.log(share) for share in shares if share))


@dataclass(frozen=True, slots=True, repr=False)
class RouterReport(Report):
    """Routers and codebooks of one window.

    Attributes:
        routers: Name of each router that ran to what it chose, in model order.
        codebooks: Name of each quantiser that ran to the codes it chose, in model order.
        silent: Routers and quantisers that never ran in a sampled batch, on any rank, or returned neither logits nor choices.
        sampled_batches: Training batches that were sampled, on the rank with the most.
        batches: Training batches of the window, on the rank with the most.
    """

    routers: dict[str, RouterStats]
    codebooks: dict[str, CodebookStats] = field(default_factory=dict)
    silent: tuple[str, ...] = ()
    sampled_batches: int = 0
    batches: int = 0

    @override
    def moment_of(self, alert: Alert) -> Moment:
        return FORWARD, None, 1
