"""Attention: the logits and probabilities of every head, of some query rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, TypeGuard

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.declare.collector import Collector, Figures, LoggedStatistics
from lightning_hooks.declare.context import Context
from lightning_hooks.declare.functional import CallSites
from lightning_hooks.declare.functional_calls import FunctionalCall
from lightning_hooks.declare.scalars import model_scalars, stat_scalars
from lightning_hooks.declare.warn import loading_state, warn
from lightning_hooks.declare.window import Report
from lightning_hooks.diagnostics.attention.heads import is_half, product_heads, written_out_heads
from lightning_hooks.diagnostics.attention.table import (
    ATTENTION,
    FEWEST_HEADS,
    MOST_HEADS,
    MOST_SITES,
    AttentionReport,
    AttentionTable,
    NextTokens,
    heads_of,
)
from lightning_hooks.plots.canvas import Figure
from lightning_hooks.plots.heat import cell_figure

STATISTICS = ("max_logit", "entropy", "first_token_share", "masked_rows", "nonfinite_rows")
_ATTENDS = ("attn", "attention")
_ROUTES = ("router", "gate", "gating", "expert")


class AttentionCollector(Collector[AttentionReport]):
    """The logits and probabilities of every attention head.

    Args:
        context: Its part of the session.
        state: As for :class:`Collector`.
        expected: Whether the user asks for it by name, so that a model without attention gives a warning.
    """

    prefix: ClassVar[str] = "attention"
    report_type: ClassVar[type[Report]] = AttentionReport
    monitor: ClassVar[str] = "AttentionMonitor"
    report_name: ClassVar[str] = "attention"
    takes: ClassVar[tuple[str, ...]] = ("modules", "every_n_steps", "max_overhead", "logged", "functional")
    ranking: ClassVar[tuple[str, ...]] = ("entropy", "max_logit", "first_token_share", "masked_rows", "nonfinite_rows")
    summary: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "sites": {
            "largest logit": "max_logit", "entropy": "entropy", "first token": "first_token_share", "masked rows": "masked_rows",
            "NaN, inf": "nonfinite_rows",
        },
    }  # fmt: skip

    def __init__(self, context: Context, state: Mapping[str, Any], *, expected: bool = False) -> None:
        super().__init__(context, state)
        self._functional = functional = context.functional
        self._expected = expected and functional is not None
        self._found: dict[str, bool] = {}  # site -> whether its calls are attention that the user selects
        self._sites = CallSites(functional, ATTENTION)
        self._ever: dict[str, None] = {}  # sites with a number in any window
        sites = 0 if functional is None else min(functional.capacity, MOST_SITES)
        heads = min(max(FEWEST_HEADS, *map(heads_of, context.host.model.modules())), MOST_HEADS)  # the same on every rank
        self.table = AttentionTable(sites, heads, context.host.setup.device)
        if functional is not None and "functional" in state:
            with loading_state(context.name):
                functional.restore(state["functional"])
        context.on_call(ATTENTION, self._record, layers=True)
        self._next = NextTokens(functional, context)
        self.set_tables(heads=self.table, next_tokens=self._next)

    @classmethod
    @override
    def applies(cls, model: nn.Module, functional: bool, listed: bool) -> bool:
        return functional and not listed

    def _record(self, call: FunctionalCall) -> None:
        name = call.site.name
        wanted = self._found.get(name)
        if wanted is None:
            wanted = self._found[name] = is_attention(call) and self.context.selects_call(call.site, call.module)
        if wanted:
            self.table.add(self._sites.place(call.site), *heads_of_call(call))

    @override
    def calls_numbered(self, changed: bool) -> None:
        if changed:
            self._sites.renumbered()
            self.table.reset()
            self._next.renumbered()

    @override
    def batch_events(self, sampled: bool, before: bool) -> dict[str, Callable[..., None]]:
        return {"batch_end": self._next.batch_end} if sampled else {}

    @property
    @override
    def unused(self) -> bool:
        return not self._ever

    @property
    @override
    def names(self) -> list[str]:
        return self._sites.names

    @property
    @override
    def n_modules(self) -> int:
        return len(self._ever)

    @override
    def read(self, packed: Mapping[str, Tensor], epoch: int, step: int) -> AttentionReport:
        sites = self.table.read(packed["heads"], self.names)
        sampled_batches, batches = map(int, packed["batches"])
        self._ever.update(dict.fromkeys(sites))
        if self._expected and self.unused and sampled_batches:
            self._expected = False
            warn(
                "AttentionMonitor has seen no attention so far: no call of scaled_dot_product_attention, and of no softmax over "
                f"keys, in {sampled_batches} sampled batches. Check modules= if you set it; leave this monitor out of a model "
                "without attention. This warning is shown once."
            )
        return AttentionReport(epoch, step, sites, sampled_batches, batches, self._next.read(packed["next_tokens"]))

    @override
    def state_dict(self) -> dict[str, Any]:
        return {} if self._functional is None else {"functional": self._functional.state()}

    @override
    def scalars(self, report: AttentionReport) -> dict[str, float]:
        return {
            **stat_scalars(self.prefix, self._ever, report.sites, STATISTICS),
            **model_scalars(self.prefix, report.sites.values(), STATISTICS, _worst),
        }

    @classmethod
    @override
    def picture(cls, reports: Sequence[AttentionReport], stat: str | None) -> Callable[[], Figure] | None:
        return partial(attention_heads, reports[-1], stat or "entropy")

    @override
    def figures(self, reports: Sequence[AttentionReport], written: LoggedStatistics, last: bool) -> Figures:
        shown = [report for report in reports if report.sites]
        return {"entropy of each head": partial(attention_heads, shown[-1])} if shown else {}


def is_attention(call: FunctionalCall) -> bool:
    """Whether a call is attention: of ``scaled_dot_product_attention``, or of a softmax over keys.

    A softmax over keys is one over the last of four dimensions ``(samples, heads, queries, keys)``, or of three
    ``(samples times heads, queries, keys)`` where there are as many queries as keys or the module is named after attention, and not
    after a router.
    """
    arguments = call.arguments
    if call.function == "sdpa":
        return all(_is_plain(arguments.get(name)) for name in ("query", "key"))
    logits = arguments.get("input")
    if not _is_plain(logits) or arguments.get("dim") not in (-1, logits.dim() - 1) or logits.shape[-1] < 2:
        return False
    if logits.dim() >= 4:
        return True
    named = f"{call.site.name} {type(call.module).__name__}".lower()
    attends = logits.shape[-1] == logits.shape[-2] or any(word in named for word in _ATTENDS)
    return attends and not any(word in named for word in _ROUTES)


def heads_of_call(call: FunctionalCall) -> tuple[Tensor, bool]:
    """The numbers of a call's heads, and whether it was in half precision."""
    arguments = call.arguments
    if call.function == "softmax":
        logits = arguments["input"]
        return written_out_heads(logits, _heads_in(logits, call.module)), is_half(logits)
    query, key, mask = arguments["query"], arguments["key"], arguments.get("attn_mask")
    causal, heads = bool(arguments.get("is_causal")), _heads_in(query, call.module)
    return product_heads(query, key, mask, causal, arguments.get("scale"), call.output, heads), is_half(query, call.output)


def _is_plain(values: Any) -> TypeGuard[Tensor]:
    return (
        isinstance(values, Tensor)
        and values.dim() >= 3
        and values.is_floating_point()
        and values.numel() > 0
        and values.layout == torch.strided
    )


def _heads_in(values: Tensor, module: nn.Module) -> int:
    """How many heads lie next to one another in the first of three dimensions; 1 where that is not known."""
    heads = heads_of(module)
    return heads if values.dim() == 3 and heads and values.shape[0] % heads == 0 else 1


def _worst(stat: str, values: Sequence[float], _: float) -> float:
    return min(values) if stat == "entropy" else max(values)


_SCALES = {"entropy": "entropy over its maximum", "first_token_share": "share of the first token"}
_MEANING = {
    "entropy": "0: one key, 1: all keys alike",
    "first_token_share": "1: attention sink",
    "max_logit": "largest logit, scale times q·k",
    "masked_rows": "share of queries that may attend to no key",
    "nonfinite_rows": "share of queries with NaN or infinite values",
}


def attention_heads(report: AttentionReport, stat: str = "entropy") -> Figure:
    """Draw one statistic of every attention head of a window: a row per layer, a column per head.

    Args:
        report: The window's.
        stat: ``entropy``, ``first_token_share``, ``max_logit``, ``masked_rows`` or ``nonfinite_rows``.

    Raises:
        ImportError: If matplotlib is not installed.
        ValueError: If there is no such statistic.
    """
    if stat not in _MEANING:
        raise ValueError(f"stat must be one of {', '.join(_MEANING)}; got {stat!r}.")
    heads = {name: [getattr(head, stat) for head in stats.heads] for name, stats in report.sites.items()}
    return cell_figure(
        f"Attention {stat} by head", f"{report.when}; {_MEANING[stat]}", heads, part="head", scale=_SCALES.get(stat, stat),
        limits=None if stat == "max_logit" else (0.0, 1.0), missing="No attention was seen.",
    )  # fmt: skip
