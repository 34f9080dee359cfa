"""Hooks that mask the units of selected modules."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor, nn

from lightning_hooks.hooks import Gate, HookManager, ModuleSelector, select_modules
from lightning_hooks.hooks.selection import compiled_around, compiled_regions
from lightning_hooks.pruning.sites import MaskListener, UnitSites


def install_masks(
    model: nn.Module,
    modules: ModuleSelector,
    unit_dim: int | None,
    masks: Mapping[str, Tensor],
    hooks: HookManager,
    gate: Gate,
    training_only: bool,
) -> UnitSites:
    """Hook the selected modules, and apply existing masks.

    Args:
        model: The model.
        modules: The selector.
        unit_dim: The dimension of the units in the outputs; None to infer it.
        masks: Module name to the units that stay, boolean, ``(units,)``.
        hooks: Where to register the hooks.
        gate: While it is open, the hooks measure.
        training_only: Whether to measure only in training mode.

    Returns:
        The sites of the selected modules.

    Raises:
        RuntimeError: If a selected module runs under ``torch.compile``.
        ValueError: If a module with a mask is not selected.
    """
    chosen, regions = select_modules(model, modules), compiled_regions(model)
    compiled = [name for name, _ in chosen if compiled_around(name, regions) is not None]
    if compiled:
        raise RuntimeError(
            f"{compiled[0]!r} runs under torch.compile, and a compiled graph does not run later masks. Train "
            "uncompiled with the pruner; then call apply(model), and compile."
        )
    sites = UnitSites(chosen, model, unit_dim)
    unknown = sorted(set(masks) - {site.name for site in sites.sites})
    if unknown:
        raise ValueError(
            f"There is a mask for {unknown[0]!r}, which modules={modules!r} does not select in {type(model).__name__}. "
            "Continue with the same model and modules as before, or start with a new ActivationPruner."
        )
    for site in sites.sites:
        if site.name in masks:
            if site.units is not None:
                site.kept = masks[site.name]
                site.settle(site.units)
            site.mask(masks[site.name], sites.device)
    with hooks.all_or_nothing():
        for site, (name, module) in zip(sites.sites, chosen, strict=True):
            hooks.register(module, MaskListener(site, gate, training_only), "forward", label=name)
    return sites


def world_size() -> int:
    """Return the number of ranks."""
    distributed = torch.distributed.is_available() and torch.distributed.is_initialized()
    return torch.distributed.get_world_size() if distributed else 1
