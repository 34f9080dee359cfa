"""The routers of a mixture of experts and the quantisers with a codebook: which modules they are, and what they choose."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NamedTuple

from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.declare.collector import Collector, Figures, LoggedStatistics
from lightning_hooks.declare.context import Context
from lightning_hooks.declare.scalars import model_scalars, stat_scalars
from lightning_hooks.declare.window import Report
from lightning_hooks.diagnostics.routers.routing import RouterReport, RoutingTable
from lightning_hooks.hooks import ModuleSelector, select_modules
from lightning_hooks.hooks.attributes import stored, stored_count
from lightning_hooks.hooks.listener import OutputTo
from lightning_hooks.hooks.selection import named_sites, outwards
from lightning_hooks.plots.canvas import Figure
from lightning_hooks.plots.heat import cell_figure
from lightning_hooks.plots.series import as_reports
from lightning_hooks.statistics.rows import never_recorded

_EXPERTS = (
    *("num_experts", "n_experts", "num_local_experts", "n_routed_experts", "num_routed_experts", "moe_num_experts", "n_expert"),
)
_TOP_K = (
    *("top_k", "topk", "num_experts_per_tok", "num_experts_per_token", "num_selected_experts", "top_k_experts"),
    *("moe_top_k", "moe_topk", "k"),
)
_CODES = ("codebook_size", "num_embeddings", "num_codes", "n_embed", "n_embeddings", "n_e", "num_codevectors")
_BOOKS = ("embedding", "embeddings", "codebook", "embed", "codes")

_ROUTER_CLASS = re.compile(r"Router|(TopK|Top\dG|MoE)\w*Gat(e|ing)|^Gat(e|ing)$", re.IGNORECASE)
_GATE_NAME = re.compile(r"gate|gating|router|w_?g|w_gate|gate_network", re.IGNORECASE)


class RouterSite(NamedTuple):
    """A router, or a quantiser that returns codes."""

    name: str
    module: nn.Module  # the module that returns logits, choices or codes
    size: int  # how many experts or codes there are
    top_k: int = 0  # how many a token gets; 0 for codes


def find_routers(model: nn.Module) -> list[RouterSite]:
    """Find the routers of a model by what they are called and hold; nothing runs.

    A router is a module whose class is called one and that knows the number of experts, as those of transformers do
    (``MixtralTopKRouter``, ``Qwen2MoeTopKRouter``, ``OlmoeTopKRouter``, ``DeepseekV3TopkRouter``, …); or a linear layer called
    ``gate`` or ``router`` next to the ``experts`` that it chooses from.

    Returns:
        The routers in the order of ``named_modules()``; empty where there is none.
    """
    modules = dict(named_sites(model))
    found: list[RouterSite] = []
    for name, module in modules.items():
        if name and not (found and name.startswith(f"{found[-1].name}.")) and _is_router(name, module, modules):
            site = _router(name, module, modules)
            if site is not None:
                found.append(site)
    return found


def chosen_routers(model: nn.Module, routers: ModuleSelector | None) -> list[RouterSite]:
    """The routers that a user names, or those that are found.

    Raises:
        ValueError: If a pattern matches nothing, or a module does not say how many experts it chooses from.
    """
    if routers is None:
        return find_routers(model)
    modules = dict(named_sites(model))
    found = []
    for name, module in select_modules(model, routers):
        site = _router(name, module, modules)
        if site is None:
            raise ValueError(
                f"routers={routers!r} selects {name} ({type(module).__name__}), which does not say how many experts there are. "
                f"Name the linear layer that puts out a logit for each expert, or give the module an attribute {_EXPERTS[0]}."
            )
        found.append(site)
    return found


def chosen_codebooks(model: nn.Module, codebooks: ModuleSelector | None) -> list[RouterSite]:
    """The quantisers that a user names.

    Raises:
        ValueError: If a pattern matches nothing, or a module does not say how many codes there are.
    """
    found = []
    for name, module in [] if codebooks is None else select_modules(model, codebooks):
        size = _known(module, _CODES) or _codebook_size(module)
        if not size:
            raise ValueError(
                f"codebooks={codebooks!r} selects {name} ({type(module).__name__}), which does not say how many codes there are. "
                f"Name the module that holds the codebook and returns the codes, or give it an attribute {_CODES[0]}."
            )
        found.append(RouterSite(name, module, size))
    return found


def _is_router(name: str, module: nn.Module, modules: dict[str, nn.Module]) -> bool:
    around = modules.get(outwards(name)[1])
    names = [] if around is None else [child.lower() for child, _ in around.named_children()]
    next_to_experts = any("expert" in child and "shared" not in child for child in names)
    if _ROUTER_CLASS.search(type(module).__name__):
        return next_to_experts or bool(_known(module, _EXPERTS))
    return next_to_experts and isinstance(module, nn.Linear) and _GATE_NAME.fullmatch(name.rpartition(".")[2]) is not None


def _router(name: str, module: nn.Module, modules: dict[str, nn.Module]) -> RouterSite | None:
    around: list[Any] = [modules[outer] for outer in outwards(name)[1:3] if outer in modules]
    experts = _known(module, _EXPERTS) or _outputs_of(module)
    if not experts or experts < 2:  # among one there is nothing to choose
        return None
    stated = (module, *around, stored(module, "config"))
    top_k = next((k for k in (_known(one, _TOP_K) for one in stated) if k), 1)
    return RouterSite(name, module, experts, min(top_k, experts))


def _known(holder: Any, names: Sequence[str]) -> int | None:
    return next(filter(None, (stored_count(holder, name) for name in names)), None)


def _outputs_of(module: nn.Module) -> int | None:
    inner = [one for one in module.modules() if isinstance(one, nn.Linear)]
    return stored_count(inner[-1], "out_features") or None if inner else next(_first_sizes([stored(module, "weight")]), None)


def _codebook_size(module: nn.Module) -> int | None:
    values = [stored(module, name) for name in _BOOKS]
    values += [stored(value, "weight") for value in values if isinstance(value, nn.Module)]
    values += [stored(one, "weight") for one in module.children() if isinstance(one, nn.Embedding)]
    return next(_first_sizes(values), None)


def _first_sizes(values: Sequence[Any]) -> Iterator[int]:
    return (value.shape[0] for value in values if isinstance(value, Tensor) and value.dim() == 2)


ROUTER_STATISTICS = ("balance", "max_load", "dead_fraction", "dropped_fraction")
CODEBOOK_STATISTICS = ("perplexity", "usage", "max_share")


class RouterCollector(Collector[RouterReport]):
    """The choices of every router, and the codes of every quantiser.

    Args:
        context: Its part of the session.
        state: As for :class:`Collector`.
        routers: Which modules are routers; None for those that are found.
        codebooks: Which modules return codes; None for none.

    Raises:
        ValueError: If a pattern matches nothing or a module without a known size, or there is nothing to observe.
    """

    prefix: ClassVar[str] = "routers"
    report_type: ClassVar[type[Report]] = RouterReport
    monitor: ClassVar[str] = "RouterMonitor"
    report_name: ClassVar[str] = "routers"
    takes: ClassVar[tuple[str, ...]] = ("every_n_steps", "max_overhead", "logged", "functional")
    ranking: ClassVar[tuple[str, ...]] = (*ROUTER_STATISTICS, *CODEBOOK_STATISTICS)
    summary: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "routers": {
            "experts": "experts", "top k": "top_k", "balance": "balance", "largest load": "max_load", "dead": "dead_fraction",
            "dropped": "dropped_fraction",
        },
        "codebooks": {"codes": "size", "used": "usage", "perplexity": "perplexity"},
    }  # fmt: skip

    def __init__(
        self,
        context: Context,
        state: Mapping[str, Any],
        *,
        routers: ModuleSelector | None = None,
        codebooks: ModuleSelector | None = None,
    ) -> None:
        super().__init__(context, state)
        model = context.host.model
        chosen, books = chosen_routers(model, routers), chosen_codebooks(model, codebooks)
        if not (chosen or books):
            raise ValueError(
                f"{context.name} found no router in {type(model).__name__}: no module that is called a router and knows the number "
                "of experts, and no linear layer called gate next to experts. Name them: routers='*.gate'."
            )
        sites = [*chosen, *books]
        self.table = RoutingTable([(site.name, site.size, site.top_k) for site in sites], context.host.setup.device)
        self._router_names, self._codebook_names = [site.name for site in chosen], [site.name for site in books]
        for index, site in enumerate(sites):
            context.listen(site.name, site.module, OutputTo(self.table.record, index))
        self.set_tables(routing=self.table)

    @classmethod
    @override
    def applies(cls, model: nn.Module, functional: bool, listed: bool) -> bool:
        return not listed and bool(find_routers(model))

    @property
    @override
    def names(self) -> list[str]:
        return [*self._router_names, *self._codebook_names]

    @override
    def silent_sites(self) -> list[str]:
        return never_recorded(self.names, self.table.rows)

    @override
    def read(self, packed: Mapping[str, Tensor], epoch: int, step: int) -> RouterReport:
        sampled_batches, batches = map(int, packed["batches"])
        routers, codebooks = self.table.read(packed["routing"])
        silent = tuple(name for name in self.names if name not in routers and name not in codebooks)
        return RouterReport(epoch, step, routers, codebooks, silent, sampled_batches, batches)

    @override
    def scalars(self, report: RouterReport) -> dict[str, float]:
        wanted = (
            (self._router_names, report.routers, ROUTER_STATISTICS),
            (self._codebook_names, report.codebooks, CODEBOOK_STATISTICS),
        )
        scalars: dict[str, float] = {}
        for names, found, statistics in wanted:
            scalars |= stat_scalars(self.prefix, names, found, statistics)
            scalars |= model_scalars(self.prefix, found.values(), statistics) if names else {}
        return scalars

    @classmethod
    @override
    def picture(cls, reports: Sequence[RouterReport], stat: str | None) -> Callable[[], Figure] | None:
        return None if stat else partial(expert_load, reports)

    @override
    def figures(self, reports: Sequence[RouterReport], written: LoggedStatistics, last: bool) -> Figures:
        return {"expert load": partial(expert_load, reports)} if any(report.routers for report in reports) else {}


def expert_load(reports: RouterReport | Sequence[RouterReport]) -> Figure:
    """Draw the share of the tokens' choices that each expert got in the last window: a row per router, a column per expert.

    Args:
        reports: One or several; any order.

    Raises:
        ImportError: If matplotlib is not installed.
        TypeError: If ``reports`` are not RouterReports.
        ValueError: If there is none.
    """
    last = as_reports(reports, RouterReport, "RouterMonitor")[-1]
    loads = {name: stats.load for name, stats in last.routers.items()}
    most = max((max(load) for load in loads.values()), default=0.0) or 1.0
    return cell_figure(
        "Load of experts", last.when, loads, part="expert", scale="share of choices", limits=(0.0, most),
        missing="There was no router.",
    )  # fmt: skip
