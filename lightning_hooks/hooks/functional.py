"""Calls of functions such as ``scaled_dot_product_attention``, which no module hook sees.

A torch function mode sees every call that is made in its thread while it is in force, and forward hooks know which module makes it.
Both are in place in sampled batches only, so that other batches cost nothing.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from lightning_hooks.hooks.listener import Listener
from lightning_hooks.hooks.selection import can_be_called, named_sites

MOST_CALLS = 8
"""Calls of one function in one module's forward that are distinguished; those of a longer loop count for the last of them."""

_ATTENTION = ("query", "key", "value", "attn_mask", "dropout_p", "is_causal", "scale", "enable_gqa")
_LOSS = ("input", "target", "weight", "size_average", "ignore_index", "reduce", "reduction", "label_smoothing")
_BETWEEN_NUMBERS = ("input", "target", "size_average", "reduce", "reduction")

# Function -> its name, and the names of its positional arguments.
_FUNCTIONS: dict[Callable[..., Any], tuple[str, tuple[str, ...]]] = {
    F.scaled_dot_product_attention: ("sdpa", _ATTENTION),
    F.softmax: ("softmax", ("input", "dim")),
    torch.softmax: ("softmax", ("input", "dim")),
    Tensor.softmax: ("softmax", ("input", "dim")),
    F.log_softmax: ("log_softmax", ("input", "dim")),
    torch.log_softmax: ("log_softmax", ("input", "dim")),
    Tensor.log_softmax: ("log_softmax", ("input", "dim")),
    F.relu: ("relu", ("input", "inplace")),
    F.gelu: ("gelu", ("input",)),
    F.silu: ("silu", ("input", "inplace")),
    F.layer_norm: ("layer_norm", ("input", "normalized_shape", "weight", "bias", "eps")),
    torch.layer_norm: ("layer_norm", ("input", "normalized_shape", "weight", "bias", "eps")),
    F.rms_norm: ("rms_norm", ("input", "normalized_shape", "weight", "eps")),
    torch.rms_norm: ("rms_norm", ("input", "normalized_shape", "weight", "eps")),
    F.dropout: ("dropout", ("input", "p", "training", "inplace")),
    torch.dropout: ("dropout", ("input", "p", "train")),
    F.cross_entropy: ("cross_entropy", _LOSS),
    F.nll_loss: ("nll_loss", _LOSS[:-1]),
    F.mse_loss: ("mse_loss", _BETWEEN_NUMBERS),
    F.l1_loss: ("l1_loss", _BETWEEN_NUMBERS),
    F.smooth_l1_loss: ("smooth_l1_loss", _BETWEEN_NUMBERS),
    F.huber_loss: ("huber_loss", ("input", "target", "reduction")),
    F.binary_cross_entropy: ("binary_cross_entropy", ("input", "target", "weight", "size_average", "reduce", "reduction")),
    F.binary_cross_entropy_with_logits: ("bce_with_logits", ("input", "target", "weight", "size_average", "reduce", "reduction")),
    F.kl_div: ("kl_div", (*_BETWEEN_NUMBERS, "log_target")),
    F.embedding: ("embedding", ("input", "weight", "padding_idx")),
}
for _name in ("relu", "sigmoid", "tanh"):
    for _owner in (torch, Tensor):
        _FUNCTIONS[getattr(_owner, _name)] = (_name, ("input",))
        _FUNCTIONS[getattr(_owner, f"{_name}_")] = (_name, ("input", "inplace"))

FUNCTIONS = tuple(dict.fromkeys(name for name, _ in _FUNCTIONS.values()))
"""The names of the functions whose calls are seen."""

BINARY = ("binary_cross_entropy", "bce_with_logits")
"""Those of them that compare probabilities, or their logits, with targets from 0 to 1."""
REGRESSION = ("mse_loss", "l1_loss", "smooth_l1_loss", "huber_loss")
"""Those of them that are losses between numbers."""
DIVERGENCE = "kl_div"
"""That of them that compares logarithms of probabilities with probabilities."""
UNMEASURED = ("dropout", "log_softmax", "cross_entropy", "nll_loss", DIVERGENCE, *BINARY, *REGRESSION)
"""Those of them whose outputs have no statistics: dropout returns what it was given, but for what it leaves out, and what a loss is
given is another site's output."""

_LOSSES = (
    *(nn.CrossEntropyLoss, nn.NLLLoss, nn.BCELoss, nn.BCEWithLogitsLoss, nn.KLDivLoss),
    *(nn.MSELoss, nn.L1Loss, nn.SmoothL1Loss, nn.HuberLoss),
)

# Layers of torch.nn that call one of them: the call is theirs, not of the module around them.
_CALLING_LAYERS: tuple[type[nn.Module], ...] = (
    *(nn.ReLU, nn.GELU, nn.SiLU, nn.Sigmoid, nn.Tanh, nn.Softmax, nn.Softmax2d, nn.LogSoftmax),
    *(nn.LayerNorm, nn.RMSNorm, nn.Dropout, nn.Embedding, nn.MultiheadAttention, *_LOSSES),
)

# Modules that take a fused path in eval mode, which they leave while a mode is in force: results would differ in the last digits.
FUSED: tuple[type[nn.Module], ...] = (nn.MultiheadAttention, nn.TransformerEncoderLayer, nn.TransformerEncoder)


@dataclass(frozen=True, slots=True)
class FunctionCall:
    """One call of a function.

    Attributes:
        name: ``blocks.3.attn/sdpa``, ``relu_1``: of the calling module, the function, and which of its calls in one forward.
        function: One of :data:`FUNCTIONS`.
        caller: The calling module's name; empty for the model itself.
        module: The calling module.
        arguments: By name; those that were given.
        output: What the function returned.
    """

    name: str
    function: str
    caller: str
    module: nn.Module
    arguments: Mapping[str, Any]
    output: Any


@dataclass(slots=True)
class _Frame:
    """A module whose forward runs."""

    name: str
    module: nn.Module
    calls: Counter[str] = field(default_factory=Counter)


class FunctionMode(TorchFunctionMode):
    """Hands the calls of some functions to a recorder, each with the module that makes it.

    Args:
        root: The model.
        record: Called with each call, without gradients and outside of the mode and of autocast.
        wanted: Whether calls of a function, by its name, are to be recorded now.
    """

    def __init__(self, root: nn.Module, record: Callable[[FunctionCall], None], wanted: Callable[[str], bool]) -> None:
        super().__init__()
        self._record, self._wanted = record, wanted
        self._bottom = _Frame("", root)
        self._stack = [self._bottom]
        self._callers = [(name, module) for name, module in named_sites(root) if name and may_call(module)]
        self._handles: list[RemovableHandle] = []
        self._running = False
        self._above: int | None = None  # modes above this one where it is suspended

    @property
    def callers(self) -> list[nn.Module]:
        """The modules that may call functions."""
        return [module for _, module in self._callers]

    def start(self) -> None:
        """A sampled batch starts."""
        self.stop()
        self._running = True
        self._bottom.calls.clear()
        for name, module in self._callers:
            self._handles.append(module.register_forward_pre_hook(_Enter(self, name)))
            self._handles.append(module.register_forward_hook(_Leave(self)))
        insert_mode(self, 0)

    def stop(self) -> None:
        """The batch is over. Harmless when it was over before."""
        if self._running and self._above is None:
            remove_mode(self)
        self._running, self._above = False, None
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self.forget_callers()

    def close(self) -> None:
        """Let the model go."""
        self._callers.clear()
        self._bottom = _Frame("", nn.Identity())
        self._stack = [self._bottom]

    def forget_callers(self) -> None:
        """No module's forward runs: recomputation in backward is broken off where it has what it needs."""
        del self._stack[1:]

    def enter_module(self, name: str, module: nn.Module) -> None:
        """A module's forward starts."""
        self._stack.append(_Frame(name, module))
        if not module.training and isinstance(module, FUSED) and self._above is None:
            self._above = remove_mode(self)

    def leave_module(self, module: nn.Module) -> None:
        """A module's forward ends; with it those that it called and that raised."""
        while len(self._stack) > 1 and self._stack.pop().module is not module:
            pass
        if self._above is not None and not any(_is_fused(frame.module) for frame in self._stack[1:]):
            above, self._above = self._above, None
            insert_mode(self, above)

    @override
    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        if torch.compiler.is_compiling():  # a function of the user's own: its graph stays as it is
            return function(*args, **(kwargs or {}))
        known = _FUNCTIONS.get(function)
        if known is None:
            if function is F.multi_head_attention_forward:
                with self._inside_multi_head_attention():
                    return function(*args, **(kwargs or {}))
            return function(*args, **(kwargs or {}))
        output = function(*args, **(kwargs or {}))
        self._seen(known, args, kwargs or {}, output)
        return output

    def _seen(self, known: tuple[str, tuple[str, ...]], args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        function, names = known
        frame = self._stack[-1]
        number = min(frame.calls[function], MOST_CALLS - 1)
        frame.calls[function] += 1
        if not self._wanted(function):
            return
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        prefix = f"{frame.name}/" if frame.name else ""
        name = f"{prefix}{function}_{number}" if number else f"{prefix}{function}"
        call = FunctionCall(name, function, frame.name, frame.module, arguments, output)
        device = output.device.type if isinstance(output, Tensor) else "cpu"
        with torch.no_grad(), torch.autocast(device, enabled=False):
            self._record(call)

    @contextmanager
    def _inside_multi_head_attention(self) -> Iterator[None]:
        """Within ``multi_head_attention_forward``, which is called outside of the mode: see what it calls in its own module."""
        originals = {name: getattr(F, name) for name in ("scaled_dot_product_attention", "softmax")}

        def seeing(original: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                output = original(*args, **kwargs)
                self._seen(_FUNCTIONS[original], args, kwargs, output)
                return output

            return call

        for name, original in originals.items():
            setattr(F, name, seeing(original))
        try:
            yield
        finally:
            for name, original in originals.items():
                setattr(F, name, original)


class _Enter(Listener):
    """Forward pre-hook of a module that may call functions."""

    __slots__ = ("mode", "name")

    def __init__(self, mode: FunctionMode, name: str) -> None:
        self.mode, self.name = mode, name

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        if not torch.compiler.is_compiling():
            self.mode.enter_module(self.name, module)


class _Leave(Listener):
    """Forward hook of a module that may call functions."""

    __slots__ = ("mode",)

    def __init__(self, mode: FunctionMode) -> None:
        self.mode = mode

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not torch.compiler.is_compiling():
            self.mode.leave_module(module)


def may_call(module: nn.Module) -> bool:
    """Whether a module's forward may call one of the functions: layers of torch.nn mostly do not."""
    if isinstance(module, _CALLING_LAYERS):
        return True
    own = not type(module).__module__.startswith("torch.nn.") or any(True for _ in module.children())
    return own and can_be_called(module)


def is_calling_layer(module: nn.Module) -> bool:
    """Whether a module is a layer of torch.nn whose own output is what the function that it calls returns."""
    return isinstance(module, _CALLING_LAYERS) and not isinstance(module, (nn.MultiheadAttention, *_LOSSES))


def _is_fused(module: nn.Module) -> bool:
    return isinstance(module, FUSED) and not module.training


def remove_mode(mode: TorchFunctionMode) -> int:
    """Take a mode from the stack of modes, wherever in it it is; return how many are above it."""
    above = _popped(mode)
    for other in reversed(above):
        _push(other)
    return len(above)


def insert_mode(mode: TorchFunctionMode, below: int) -> None:
    """Put a mode onto the stack of modes, with so many above it."""
    above = [_pop() for _ in range(min(below, _depth()))]
    for other in (mode, *reversed(above)):
        _push(other)


def _popped(mode: TorchFunctionMode) -> list[TorchFunctionMode]:
    """Take a mode and those above it from the stack; return these, top first."""
    above: list[TorchFunctionMode] = []
    while _depth() and (top := _pop()) is not mode:
        above.append(top)
    return above


# A mode has to leave before those that were entered after it, which has no public name.


def _push(mode: TorchFunctionMode) -> None:
    torch.overrides._push_mode(mode)  # type: ignore[no-untyped-call]


def _pop() -> TorchFunctionMode:
    return torch.overrides._pop_mode()  # type: ignore[no-untyped-call, no-any-return]


def _depth() -> int:
    return torch._C._len_torch_function_stack()
