"""Why a hook did not run."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from torch import nn

from lightning_hooks.hooks.selection import OPAQUE, compiled_around, outwards


def why_no_call(
    name: str,
    modules: Mapping[str, nn.Module],
    called: Collection[str],
    selected: Collection[str],
    regions: Collection[str],
    fault: str | None = None,
) -> str:
    """Return the reason why the forward hook of a module did not run in a step: the first that holds.

    Args:
        name: The module's name.
        modules: The modules of the model, by name.
        called: The names of the selected modules that were called.
        selected: The names of the selected modules.
        regions: The names of compiled modules.
        fault: The error of the debugger's own hook there.
    """
    region = compiled_around(name, regions)
    compiled = region is not None and all(compiled_around(other, [region]) is None for other in called)
    around = [outer for outer in outwards(name)[1:-1] if outer in modules]
    opaque = next((outer for outer in around if isinstance(modules[outer], OPAQUE)), None)
    parent = next((outer for outer in around if not isinstance(modules[outer], nn.ModuleList | nn.ModuleDict)), None)
    reasons = (
        (fault is not None, f"the debugger's own hook there failed: {fault}."),
        (
            compiled,
            f"{repr(region) if region else 'the model'} was compiled before the hooks were registered, and a compiled graph does "
            "not run later hooks. Call torch.compiler.reset() first.",
        ),
        (
            opaque is not None,
            f"a part of nn.MultiheadAttention {opaque!r}, which uses its weight in one fused function and never calls it. Observe "
            f"{opaque!r}.",
        ),
        (
            name in modules and any(parameter.grad is not None for parameter in modules[name].parameters()),
            "not called, though its parameters have gradients: its weight was used directly, or it was called as "
            "module.forward(x). Hooks run only when a module is called: module(x).",
        ),
        (parent in selected and parent not in called, f"not called, and neither was {parent!r} around it."),
        (
            not called,
            "never called in this step, and no other selected module was. Was another object run, such as a copy of the model?",
        ),
        (
            True,
            "never called in this step: a branch not taken, an unused layer, or a function such as F.relu, or module.forward(x), "
            "instead of it.",
        ),
    )
    return next(reason for holds, reason in reasons if holds)
