"""Why a hook did not run or got no gradient, and weights that are used and ``forward`` methods that are called without a hook."""

from __future__ import annotations

import sys
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from traceback import walk_stack
from types import FrameType
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

# There is no public name for these; torch's documentation refers users to the first one here.
from torch.utils._python_dispatch import TorchDispatchMode, _get_current_dispatch_mode

from lightning_hooks.hooks.listener import CallStack, in_backward

_TORCH = str(Path(torch.__file__).parent)
_HERE = str(Path(__file__).parent)


_REASONS = {
    "fault": "the debugger's own hook there failed: {}.",
    "compiled": (
        "{} was compiled before the hooks were registered, and a compiled graph does not run later hooks. Call "
        "torch.compiler.reset() first."
    ),
    "opaque": (
        "a part of nn.MultiheadAttention {0!r}, which uses its weight in one fused function and never calls it. Observe {0!r}."
    ),
    "direct": "its forward was called directly at {}; hooks run only when a module is called: module(x), not module.forward(x).",
    "used": "its weight was used directly at {}; hooks run only when the module is called: module(x).",
    "updated": (
        "not called, though its parameters have gradients: its weight was used directly, or it was called as module.forward(x). "
        "Hooks run only when a module is called: module(x)."
    ),
    "parent": "not called, and neither was {!r} around it.",
    "alone": "never called in this step, and no other selected module was. Was another object run, such as a copy of the model?",
    "parameters": "never called in this step: a branch not taken, or an unused layer.",
}
_NOT_USED = "never called in this step: a branch not taken, an unused layer, or a function such as F.relu instead of it."


def why_no_call(**found: object) -> str:
    """Return the reason why the forward hook of a module did not run in a step: the first of these that is given.

    Args:
        **found: ``fault``, the error of the debugger's own hook there; ``compiled``, the compiled module around it in which no hook
            ran; ``opaque``, the nn.MultiheadAttention that it is a part of; ``direct``, where ``.forward`` was called directly,
            ``file:line``; ``used``, where its parameters were used without a call; ``updated``, whether its parameters have
            gradients, and the operations of the step were not observed; ``parent``, the nearest module around it that can be
            called, if it was not called either; ``alone``, whether no selected module was called; ``parameters``, whether it has
            parameters.
    """
    return next((reason.format(found[name]) for name, reason in _REASONS.items() if found.get(name)), _NOT_USED)


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
    """

    calls: int = 0
    gradients: int = 0
    floats: bool = False
    differentiable: bool = False
    grad_enabled: bool = False
    inputs_differentiable: bool = False
    leaf: bool = False
    view: bool = False


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
            seen.view,
            "its output does not reach the loss: it is not used, or detached on the way; or, being a view (as of nn.Linear with a "
            "bias on three dimensions), it was changed in place (as by ReLU(inplace=True)), which drops the hooks on it.",
        ),
        (True, "its output does not reach the loss: it is not used, or detached on the way."),
    )
    return next(reason for holds, reason in reasons if holds)


class Watcher(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Inspects every operation: whether it uses a parameter, or runs in the forward, of a module that is not being called.

    Operations run unchanged. Those of backward and of optimizers are not inspected. ``calls`` are those under way.
    """

    def __init__(self, sites: Sequence[tuple[str, nn.Module]], calls: CallStack[Any]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._calls = calls
        self._modules = {id(module): name for name, module in sites}
        self._codes = {getattr(getattr(type(module), "forward", None), "__code__", None) for _, module in sites}
        self._owners: dict[int, list[str]] = defaultdict(list)
        for name, module in sites:
            for parameter in module.parameters(recurse=False):
                self._owners[id(parameter)].append(name)
        self._kept = [(module, *module.parameters(recurse=False)) for _, module in sites]  # keeps the ids valid
        self._direct: dict[str, str] = {}  # site -> where its forward was called
        self._used: dict[str, str] = {}  # site -> where its parameters were used
        self.inspecting = True
        self.backward = False  # whether a backward pass ran

    def __torch_dispatch__(self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None) -> Any:
        """Inspect the operation, and run it."""
        if in_backward():
            self.backward = True
        elif self.inspecting:
            self._inspect(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))

    def _inspect(self, func: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        if func is torch.ops.aten.detach.default:  # as state_dict does
            return
        start = sys._getframe(2)
        inside: dict[str, str] = {}  # site whose forward is under way -> where it was called
        files: set[str] = set()
        for frame, _ in walk_stack(start):
            file, code = frame.f_code.co_filename, frame.f_code
            if code.co_name == "step" and files <= {file} and isinstance(frame.f_locals.get("self"), Optimizer):
                return  # an update uses weights too; a closure that it runs, from another file, is inspected
            if code.co_name == "__deepcopy__":
                return
            if not file.startswith(_TORCH):
                files.add(file)
            if code in self._codes and code.co_varnames:
                name = self._modules.get(id(frame.f_locals.get(code.co_varnames[0])))
                if name is not None:
                    inside[name] = "" if name in self._calls.sites or name in self._direct else _where(frame.f_back)
        self._direct.update({name: where for name, where in inside.items() if where})
        values = [value for given in (*args, *kwargs.values()) for value in (given if isinstance(given, list | tuple) else [given])]
        for tensor in values:
            owners = self._owners.get(id(tensor), ()) if isinstance(tensor, Tensor) else ()
            if not any(name in self._calls.sites or name in inside for name in owners):
                for name in owners:
                    self._used.setdefault(name, _where(start))

    def of(self, site: str) -> dict[str, str]:
        """What was found of a site, as :func:`~lightning_hooks.debugging.why_no_call` takes it."""
        return {"direct": self._direct.get(site, ""), "used": self._used.get(site, "")}

    def leave(self) -> None:
        """Stop inspecting, and leave the stack of modes once this mode is on top: modes are left in order.

        Do not call it in a backward hook: the engine restores the stack.
        """
        if self.inspecting:
            self.inspecting = False
            self._kept.clear()
            _leaving.append(self)
        while _leaving and _get_current_dispatch_mode() in _leaving:
            top: Any = _get_current_dispatch_mode()
            _leaving.remove(top)
            top.__exit__(None, None, None)


_leaving: list[Any] = []  # stopped watchers that are below another mode on the stack


def _where(frame: FrameType | None) -> str:
    outside = (each for each, _ in walk_stack(frame) if not each.f_code.co_filename.startswith((_TORCH, _HERE)))
    found = next(outside, frame) if frame is not None else None
    return "an unknown place" if found is None else f"{Path(found.f_code.co_filename).name}:{found.f_lineno}"
