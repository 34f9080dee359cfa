"""The reason why a hook did not run, and why no gradient came to a module's output."""

from __future__ import annotations

from dataclasses import dataclass


def why_no_call(
    *,
    fault: str = "",
    compiled: str | None = None,
    opaque: str = "",
    fused: str = "",
    direct: str = "",
    used: str = "",
    updated: bool = False,
    parent: str = "",
    alone: bool = False,
    parameters: bool = False,
) -> str:
    """Return the reason why the forward hook of a module did not run in a step: the first of these that holds.

    Args:
        fault: The error of the debugger's own hook there.
        compiled: The compiled module around it in which no hook ran, "" for the root; None for none.
        opaque: The nn.MultiheadAttention that it is a part of.
        fused: The fused operation that took its parameters.
        direct: Where ``.forward`` was called directly, ``file:line``.
        used: Where its parameters were used without a call.
        updated: Whether its parameters have gradients, and the operations of the step were not observed.
        parent: The nearest module around it that can be called, if it was not called either.
        alone: Whether no selected module was called.
        parameters: Whether it has parameters.
    """
    around = repr(compiled) if compiled else "the model"
    reasons = (
        (fault, f"the debugger's own hook there failed: {fault}."),
        (
            compiled is not None,
            f"{around} was compiled before the hooks were registered, and a compiled graph does not run later hooks. Call "
            "torch.compiler.reset() first.",
        ),
        (
            opaque,
            f"a part of nn.MultiheadAttention {opaque!r}, which uses its weight in one fused function and never calls it. "
            f"Observe {opaque!r}.",
        ),
        (
            fused,
            f"the fused operation {fused} used its weights: the fast path of nn.TransformerEncoderLayer in evaluation without "
            "gradients. Observe that layer, or call torch.backends.mha.set_fastpath_enabled(False).",
        ),
        (
            direct,
            f"its forward was called directly at {direct}; hooks run only when a module is called: module(x), not "
            "module.forward(x).",
        ),
        (used, f"its weight was used directly at {used}; hooks run only when the module is called: module(x)."),
        (
            updated,
            "not called, though its parameters have gradients: its weight was used directly, or it was called as "
            "module.forward(x). Hooks run only when a module is called: module(x).",
        ),
        (parent, f"not called, and neither was {parent!r} around it."),
        (
            alone,
            "never called in this step, and no other selected module was. Was another object run, such as a copy of the model?",
        ),
        (parameters, "never called in this step: a branch not taken, or an unused layer."),
        (True, "never called in this step: a branch not taken, an unused layer, or a function such as F.relu instead of it."),
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
        view: Whether the output was a view.
        changed: Whether an output was changed in place afterwards.
    """

    calls: int = 0
    gradients: int = 0
    floats: bool = False
    differentiable: bool = False
    grad_enabled: bool = False
    inputs_differentiable: bool = False
    leaf: bool = False
    view: bool = False
    changed: bool = False


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
            seen.view and seen.changed,
            "its output is a view (as of nn.Linear with a bias on three dimensions) that was then changed in place (as by "
            "ReLU(inplace=True)), which drops the hooks on it. Use inplace=False there.",
        ),
        (
            seen.view,
            "its output does not reach the loss: it is not used, or detached on the way; or, being a view, it was changed in "
            "place, which drops the hooks on it.",
        ),
        (True, "its output does not reach the loss: it is not used, or detached on the way."),
    )
    return next(reason for holds, reason in reasons if holds)
