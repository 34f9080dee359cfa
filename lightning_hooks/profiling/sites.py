"""Selection of the modules to time."""

from __future__ import annotations

from torch import nn

from lightning_hooks.hooks.selection import (
    ModuleSelector,
    can_be_called,
    clean_name,
    compiled_around,
    compiled_regions,
    select_modules,
)


def profiled_modules(root: nn.Module, modules: ModuleSelector | None = None) -> list[tuple[str, nn.Module | None]]:
    """Select the modules of ``root`` to time.

    None selects every module that can be called, since every module takes time and the total of a block is of interest too. A
    compiled module consists of fused kernels: a module that ``torch.compile(module)`` returned is timed as a whole, without hooks
    inside compiled code.

    Args:
        root: The model; it is not selected itself.
        modules: The selector.

    Returns:
        (name, module to hook) pairs; None in place of the module where it runs inside compiled code.

    Raises:
        ValueError: If ``modules`` matches nothing.
        TypeError: If it is of a wrong type.
    """
    chosen = select_modules(root, _every_module if modules is None else modules)
    wrappers = {clean_name(name): module for name, module in root.named_modules() if "_orig_mod" in module._modules}
    compiled = compiled_regions(root)
    found: list[tuple[str, nn.Module | None]] = []
    for name, module in chosen:
        region = compiled_around(name, compiled)
        found.append((name, module if region is None else wrappers.get(name) if region == name else None))
    return found


def _every_module(_name: str, module: nn.Module) -> bool:
    return can_be_called(module)
