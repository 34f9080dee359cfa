"""The routers of a mixture of experts and the quantisers with a codebook in a model: which modules they are, and how large."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from torch import Tensor, nn

from lightning_hooks.hooks import ModuleSelector, select_modules
from lightning_hooks.hooks.attributes import stored, stored_count
from lightning_hooks.hooks.selection import named_sites, outwards

_EXPERTS = (
    "num_experts",
    "n_experts",
    "num_local_experts",
    "n_routed_experts",
    "num_routed_experts",
    "moe_num_experts",
    "n_expert",
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
    """A router.

    Attributes:
        name: Of the module.
        module: The module that puts out logits or choices.
        experts: How many there are.
        top_k: How many a token gets.
    """

    name: str
    module: nn.Module
    experts: int
    top_k: int


class CodebookSite(NamedTuple):
    """A quantiser that puts out codes.

    Attributes:
        name: Of the module.
        module: The module that puts out codes.
        size: How many codes there are.
    """

    name: str
    module: nn.Module
    size: int


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
        inside = found and name.startswith(f"{found[-1].name}.")
        if name and not inside and _is_router(name, module, modules):
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


def chosen_codebooks(model: nn.Module, codebooks: ModuleSelector | None) -> list[CodebookSite]:
    """The quantisers that a user names.

    Raises:
        ValueError: If a pattern matches nothing, or a module does not say how many codes there are.
    """
    found = []
    for name, module in [] if codebooks is None else select_modules(model, codebooks):
        size = _known(module, _CODES) or _book(module)
        if not size:
            raise ValueError(
                f"codebooks={codebooks!r} selects {name} ({type(module).__name__}), which does not say how many codes there are. "
                f"Name the module that holds the codebook and returns the codes, or give it an attribute {_CODES[0]}."
            )
        found.append(CodebookSite(name, module, size))
    return found


def _is_router(name: str, module: nn.Module, modules: dict[str, nn.Module]) -> bool:
    """Whether a module's class is called a router, or it is a linear layer called a gate, and it chooses among experts."""
    around = modules.get(outwards(name)[1])
    next_to_experts = around is not None and _has_experts(around)
    if _ROUTER_CLASS.search(type(module).__name__):
        return next_to_experts or bool(_known(module, _EXPERTS))
    return next_to_experts and isinstance(module, nn.Linear) and _GATE_NAME.fullmatch(name.rpartition(".")[2]) is not None


def _has_experts(module: nn.Module) -> bool:
    return any("expert" in name.lower() and "shared" not in name.lower() for name, _ in module.named_children())


def _router(name: str, module: nn.Module, modules: dict[str, nn.Module]) -> RouterSite | None:
    """A router with its sizes; None where it does not say how many experts there are."""
    around: list[Any] = [modules[outer] for outer in outwards(name)[1:3] if outer in modules]
    experts = _known(module, _EXPERTS) or _rows(module)
    if not experts or experts < 2:  # among one there is nothing to choose
        return None
    stated = (module, *around, stored(module, "config"))
    top_k = next((k for k in (_known(one, _TOP_K) for one in stated) if k), 1)
    return RouterSite(name, module, experts, min(top_k, experts))


def _known(holder: Any, names: Sequence[str]) -> int | None:
    """The first of these attributes that is a number above 0."""
    return next(filter(None, (stored_count(holder, name) for name in names)), None)


def _rows(module: nn.Module) -> int | None:
    """How many numbers a linear layer, or the one inside a router, puts out."""
    if isinstance(module, nn.Linear):
        return stored_count(module, "out_features") or None
    inner = [one for one in module.modules() if isinstance(one, nn.Linear)]
    return stored_count(inner[-1], "out_features") or None if inner else next(_first_sizes([stored(module, "weight")]), None)


def _book(module: nn.Module) -> int | None:
    """How many rows a module's codebook has: an embedding, a parameter or a buffer."""
    values = [stored(module, name) for name in _BOOKS]
    values += [stored(value, "weight") for value in values if isinstance(value, nn.Module)]
    values += [stored(one, "weight") for one in module.children() if isinstance(one, nn.Embedding)]
    return next(_first_sizes(values), None)


def _first_sizes(values: Sequence[Any]) -> Iterator[int]:
    return (value.shape[0] for value in values if isinstance(value, Tensor) and value.dim() == 2)
