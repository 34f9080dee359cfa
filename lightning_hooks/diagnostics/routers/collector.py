"""What routers of experts and quantisers with a codebook choose."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar

from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.declare.collector import Collector, Written
from lightning_hooks.declare.context import Context
from lightning_hooks.declare.scalars import model_scalars, stat_scalars
from lightning_hooks.diagnostics.reports import Report
from lightning_hooks.diagnostics.routers.report import RouterReport
from lightning_hooks.diagnostics.routers.routing import RoutingTable, codes_of, routing_of
from lightning_hooks.diagnostics.routers.sites import chosen_codebooks, chosen_routers
from lightning_hooks.hooks import ModuleSelector, OutputRecorder
from lightning_hooks.hooks.tensors import tensors_in
from lightning_hooks.trackers import Table, some
from lightning_hooks.trackers.layout import Layout, by_statistic, of_model

if TYPE_CHECKING:
    from lightning_hooks.declare.collector import Figures

OF_ROUTERS = ("balance", "max_load", "dead_fraction", "entropy", "margin", "overflow_fraction", "dropped_fraction")
OF_CODEBOOKS = ("perplexity", "usage", "max_share")


class RouterCollector(Collector[RouterReport]):
    """The choices of every router, and the codes of every quantiser.

    Args:
        context: Its part of the session.
        state: As for :class:`Collector`.
        routers: Which modules are routers; None for those that are found.
        codebooks: Which modules return codes; None for none.
        capacity_factor: What an expert's even share of a call is multiplied by; choices beyond overflow.

    Raises:
        ValueError: If a pattern matches nothing or a module without a known size, or there is nothing to observe.
    """

    prefix: ClassVar[str] = "routers"
    report_type: ClassVar[type[Report] | None] = RouterReport
    ranking: ClassVar[tuple[str, ...]] = (*OF_ROUTERS, *OF_CODEBOOKS)

    def __init__(
        self,
        context: Context,
        state: Mapping[str, Any],
        *,
        routers: ModuleSelector | None = None,
        codebooks: ModuleSelector | None = None,
        capacity_factor: float = 1.25,
    ) -> None:
        super().__init__(context, state)
        model = context.host.model
        self._routers = chosen_routers(model, routers)
        self._codebooks = chosen_codebooks(model, codebooks)
        if not (self._routers or self._codebooks):
            raise ValueError(
                f"{context.name} found no router in {type(model).__name__}: no module that is called a router and knows the number "
                "of experts, and no linear layer called gate next to experts. Name them: routers='*.gate'."
            )
        sizes = [(site.experts, site.top_k) for site in self._routers]
        self.table = RoutingTable(sizes, [site.size for site in self._codebooks], capacity_factor, context.host.setup.device)
        for index, (name, module, *_) in enumerate(self._routers):
            context.listen(name, module, _RouterRecorder(self.table, index, *sizes[index]))
        for index, (name, module, _) in enumerate(self._codebooks):
            context.listen(name, module, _CodeRecorder(self.table, index))
        self.set_tables(routing=self.table)

    @property
    @override
    def names(self) -> list[str]:
        return [site.name for site in self._routers] + [site.name for site in self._codebooks]

    @override
    def silent_sites(self) -> list[str]:
        return [name for name, calls in zip(self.names, self.table.calls.tolist(), strict=True) if not calls]

    @override
    def read(self, packed: Mapping[str, Tensor], epoch: int, step: int) -> RouterReport:
        sampled_batches, batches = map(int, packed["batches"])
        routers, codebooks = self.table.read(packed["routing"])
        known = zip(self.names, (*routers, *codebooks), strict=True)
        return RouterReport(
            epoch,
            step,
            {site.name: stats for site, stats in zip(self._routers, routers, strict=True) if stats is not None},
            {site.name: stats for site, stats in zip(self._codebooks, codebooks, strict=True) if stats is not None},
            tuple(name for name, stats in known if stats is None),
            sampled_batches,
            batches,
        )

    @override
    def scalars(self, report: RouterReport) -> dict[str, float]:
        routers, codebooks = ([site.name for site in sites] for sites in (self._routers, self._codebooks))
        of_model = model_scalars(self.prefix, report.routers.values(), OF_ROUTERS) if routers else {}
        return {
            **stat_scalars(self.prefix, routers, report.routers, OF_ROUTERS),
            **stat_scalars(self.prefix, codebooks, report.codebooks, OF_CODEBOOKS),
            **of_model,
            **(model_scalars(self.prefix, report.codebooks.values(), OF_CODEBOOKS) if codebooks else {}),
        }

    @override
    def charts(self, written: Written) -> Layout:
        of_sites = by_statistic(self.prefix, written.statistics) if written.of_sites else None
        return {"Routers": of_model(self.prefix, OF_ROUTERS) if of_sites is None else of_sites}

    @override
    def figures(self, reports: Sequence[RouterReport], written: Written, last: bool) -> Figures:
        from lightning_hooks.plots import expert_load

        return {"expert load": partial(expert_load, reports)} if any(report.routers for report in reports) else {}

    @override
    def summary_lines(self, report: RouterReport) -> list[str]:
        lines = [
            f"Routers, epoch {report.epoch}: {len(report.routers)} routers and {len(report.codebooks)} codebooks recorded, in "
            f"{report.sampled_batches} of {report.batches} batches."
        ]
        if report.silent:
            lines.append(f"  Silent: {some(report.silent)}")
        least = sorted(report.routers.items(), key=lambda item: item[1].balance)[:5]
        rows = [
            (
                name,
                s.experts,
                s.top_k,
                s.balance,
                s.max_load,
                s.dead_fraction,
                _or_nan(s.entropy),
                _or_nan(s.margin),
                s.dropped_fraction,
            )
            for name, s in least
        ]
        if rows:
            header = ("router", "experts", "top k", "balance", "largest load", "dead", "entropy", "margin", "dropped")
            lines.append(Table(header, rows))
        books = [(name, s.size, s.usage, s.perplexity) for name, s in report.codebooks.items()]
        return [*lines, Table(("codebook", "codes", "used", "perplexity"), books)] if books else lines


def _or_nan(value: float | None) -> float:
    return math.nan if value is None else value


class _RouterRecorder(OutputRecorder):
    """Forward hook of one router."""

    def __init__(self, table: RoutingTable, index: int, experts: int, top_k: int) -> None:
        self.table, self.index, self.experts, self.top_k = table, index, experts, top_k

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        routing = routing_of(list(tensors_in(output)), self.experts, self.top_k)
        if routing is not None:
            self.table.add(self.index, routing)


class _CodeRecorder(OutputRecorder):
    """Forward hook of one quantiser."""

    def __init__(self, table: RoutingTable, index: int) -> None:
        self.table, self.index = table, index

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        codes = codes_of(list(tensors_in(output)))
        if codes is not None:
            self.table.add_codes(self.index, codes)
