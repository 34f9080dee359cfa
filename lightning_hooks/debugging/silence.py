"""Why did my hook not fire? What was seen of a site, put into words."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(slots=True)
class Evidence:
    """What is known of one site after a step.

    Attributes:
        calls: Times its forward hook fired.
        fault: The error of the debugger's own hook there.
        alone: Whether no site at all was called.
        gradients: Gradients that came to its output.
        direct: Where ``.forward`` was called directly, ``file:line``; "" if that was not seen.
        used: Where its parameters were used without a call.
        fused: The fused operation that took its parameters.
        attention: The nn.MultiheadAttention that it is a part of.
        compiled: The compiled module that it is in; None for none, "" for the root.
        region_heard: Whether anything inside that module was heard.
        parent: The nearest module around it that can be called.
        parent_called: Whether that one was.
        updated: Whether its parameters have gradients.
        floats: Whether it put out a floating-point tensor.
        differentiable: Whether an output required a gradient.
        grad_enabled: Whether autograd was on at a call.
        inputs_differentiable: Whether an input required a gradient.
        trainable: Whether a parameter of it requires one.
        parameters: Whether it has any.
        leaf: Whether the output that required a gradient was a parameter itself.
        view: Whether the output was a view.
        changed: Whether an output was changed in place afterwards.
        watched: Whether the operations of the step were looked at.
    """

    calls: int = 0
    gradients: int = 0
    fault: str = ""
    alone: bool = False
    direct: str = ""
    used: str = ""
    fused: str = ""
    attention: str = ""
    compiled: str | None = None
    region_heard: bool = True
    parent: str = ""
    parent_called: bool = True
    updated: bool = False
    floats: bool = False
    differentiable: bool = False
    grad_enabled: bool = False
    inputs_differentiable: bool = False
    trainable: bool = False
    parameters: bool = False
    leaf: bool = False
    view: bool = False
    changed: bool = False
    watched: bool = False


def why_no_call(seen: Evidence) -> str:
    """Explain why a forward hook did not fire."""
    if seen.fault:
        return f"the debugger's own hook there failed: {seen.fault}."
    if seen.compiled is not None and not seen.region_heard:
        where = f"{seen.compiled!r}" if seen.compiled else "the model"
        return (
            f"{where} was compiled before the hooks came, and a compiled graph does not see later hooks. Call "
            "torch.compiler.reset() first."
        )
    if seen.attention:
        return (
            f"a part of nn.MultiheadAttention {seen.attention!r}, which uses its weight in one fused function and never calls it. "
            f"Listen to {seen.attention!r}."
        )
    if seen.fused:
        return (
            f"the fused operation {seen.fused} took its weights: the fast path of nn.TransformerEncoderLayer in evaluation without "
            "gradients. Listen to that layer, or call torch.backends.mha.set_fastpath_enabled(False)."
        )
    if seen.direct:
        return (
            f"its forward was called directly at {seen.direct}; hooks run only when a module is called: module(x), not "
            "module.forward(x)."
        )
    if seen.used:
        return f"its weight was used directly at {seen.used}; hooks run only when the module is called: module(x)."
    if not seen.watched and seen.updated:
        return (
            "not called, though its parameters have gradients: its weight was used directly, or its forward was, as "
            "module.forward(x). Hooks run only when a module is called: module(x)."
        )
    if not seen.parent_called:
        return f"not called, and neither was {seen.parent!r} around it."
    if seen.alone:
        return "never called in this step, and no other chosen module was. Was another object run, such as a copy of the model?"
    if seen.parameters:
        return "never called in this step: a branch not taken, or a layer left over."
    return "never called in this step: a branch not taken, a layer left over, or a function such as F.relu used in its place."


def why_no_gradient(seen: Evidence) -> str:
    """Explain why no gradient came to the output of a site that was called."""
    if not seen.floats:
        return "it puts out no floating-point tensor that we can find."
    if not seen.grad_enabled:
        return "it was called without autograd (torch.no_grad or inference_mode)."
    if not seen.differentiable and seen.parameters and not seen.trainable and not seen.inputs_differentiable:
        return "it is frozen, and so is all before it: no parameter of it and none of its inputs requires a gradient."
    if not seen.differentiable and seen.trainable:
        return "its output does not require a gradient although its parameters do: it detaches it, or computes it without autograd."
    if not seen.differentiable:
        return "none of its inputs requires a gradient, so no gradient is computed: all before it is frozen, detached, or data."
    if seen.leaf:
        return "its output is a parameter itself: look at the parameter's gradient."
    if seen.view and seen.changed:
        return (
            "its output is a view (as of nn.Linear with a bias on three dimensions) that was then changed in place (as by "
            "ReLU(inplace=True)), which throws away the hooks on it. Use inplace=False there."
        )
    if seen.view:
        return (
            "its output does not reach the loss: it is not used, or detached on the way; or, being a view, it was changed in "
            "place, which throws away the hooks on it."
        )
    return "its output does not reach the loss: it is not used, or detached on the way."
