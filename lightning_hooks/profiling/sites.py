"""Which modules are timed."""

from __future__ import annotations

from torch import nn

from lightning_hooks.hooks.selection import (
    ModuleSelector,
    can_be_called,
    clean_name,
    compiled_regions,
    select_modules,
)


def profiled_modules(root: nn.Module, modules: ModuleSelector | None = None) -> list[tuple[str, nn.Module | None]]:
    """Choose the modules of ``root`` to time.

    None chooses every module that can be called: a profile must not leave out what takes time, and a block's total is of as much
    interest as a leaf's. Inside a compiled module there are no layers any more, only fused kernels: a module that
    ``torch.compile(module)`` returned is timed as a whole, and hooks stay out of compiled code.

    Args:
        root: The model; it is not chosen itself.
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
        if not any(not region or name == region or name.startswith(f"{region}.") for region in compiled):
            found.append((name, module))
            continue
        inside = any(not region or name.startswith(f"{region}.") for region in compiled)
        found.append((name, None if inside else wrappers.get(name)))
    return found


def _every_module(_name: str, module: nn.Module) -> bool:
    return can_be_called(module)
