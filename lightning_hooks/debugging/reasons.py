"""Why a hook did not run or got no gradient."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass

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


@dataclass(slots=True)
class Evidence:
    """Observations of one site in a step.

    Attributes:
        calls: Number of runs of its forward hook.
        gradients: Number of gradients at its output.
        floats: Whether it returned a floating-point tensor.
        differentiable: Whether an output required a gradient.
        grad_enabled: Whether autograd was on at a call.
        inputs_differentiable: Whether an input required a gradient.
        leaf: Whether the output that required a gradient was itself a parameter.
    """

    calls: int = 0
    gradients: int = 0
    floats: bool = False
    differentiable: bool = False
    grad_enabled: bool = False
    inputs_differentiable: bool = False
    leaf: bool = False


def why_no_gradient(seen: Evidence, parameters: bool = False, trainable: bool = False) -> str:
    """Return the reason why a site that was called has no gradient at its output: the first that holds.

    It depends on whether the site has parameters, and whether one of them is trainable.
    """
    constant = not seen.differentiable
    reasons = (
        (not seen.floats, "its output holds no floating-point tensor."),
        (not seen.grad_enabled, "it was called without autograd (torch.no_grad or inference_mode)."),
        (
            constant and parameters and not trainable and not seen.inputs_differentiable,
            "it is frozen, and so are the layers before it: none of its parameters and inputs requires a gradient.",
        ),
        (
            constant and trainable,
            "its output does not require a gradient although its parameters do: it detaches it, or computes it without autograd.",
        ),
        (
            constant,
            "none of its inputs requires a gradient, so no gradient is computed: frozen or detached layers before it, or data.",
        ),
        (seen.leaf, "its output is a parameter: see the gradient of that parameter."),
        (
            True,
            "its output does not reach the loss: it is not used, or detached on the way; or, being a view (as of nn.Linear with a "
            "bias on three dimensions), it was changed in place (as by ReLU(inplace=True)), which drops the hooks on it.",
        ),
    )
    return next(reason for holds, reason in reasons if holds)
