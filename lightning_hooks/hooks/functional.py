"""Calls of functions such as ``scaled_dot_product_attention``, which no module hook sees.

A torch-function mode sees every call that is made in its thread while it is on the stack of modes. In sampled batches it is there
in the forwards of modules that may call such a function, and in the loop's call of ``training_step``: it is put on top when they
start and taken away when they end, also where they raise. Backward, with the recomputation of activation checkpointing, the
optimizer and the loader never run under it, and other batches cost nothing.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode
from torch.utils.hooks import RemovableHandle
from typing_extensions import override

from lightning_hooks.hooks.functions import FUSED, KNOWN, is_fused, may_call, modules_with_compiled_calls
from lightning_hooks.hooks.listener import Listener
from lightning_hooks.hooks.modes import Show, insert_mode, lowest_place, remove_mode, shown
from lightning_hooks.hooks.selection import named_sites

# Calls of one function in one module's forward that are distinguished; those of a longer loop count for the last of them.
MOST_CALLS = 8


# What multi_head_attention_forward calls outside of the mode that sees its own call.
_INSIDE: dict[str, Callable[..., Any]] = {"scaled_dot_product_attention": F.scaled_dot_product_attention, "softmax": F.softmax}


@dataclass(slots=True)
class _Frame:
    """A forward, or a call of ``training_step``, that is under way.

    Attributes:
        name: The module's name; empty for the model itself.
        module: The module.
        sees: Whether the mode is on the stack of modes in it, outside of the modules that it calls.
        fused: Whether it, or a module around it, takes a fused path, which it would leave under a mode.
        below: How many modes are below the mode there.
        calls: How often each function was called.
    """

    name: str
    module: nn.Module
    sees: bool
    fused: bool
    below: int
    calls: Counter[str] = field(default_factory=Counter)


class _Mode(TorchFunctionMode):
    """Passes each call on unchanged, and shows those of the functions above when they have returned."""

    def __init__(self, show: Show) -> None:
        super().__init__()
        self._show = show

    @override
    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        shows = not torch.compiler.is_compiling()  # else a function of the user's own: its graph stays as it is
        if shows and function is F.multi_head_attention_forward:
            with shown(_INSIDE, self._show):
                return function(*args, **kwargs)
        output = function(*args, **kwargs)
        if shows and function in KNOWN:
            self._show(function, args, kwargs, output)
        return output


class CallObserver:
    """Hands the calls of some functions to a recorder, each with the module that makes it.

    Calls are seen in the thread that starts a batch.

    Args:
        root: The model.
        record: Called with each call, without gradients and outside of the mode and of autocast: with its name, such as
            ``blocks.3.attn/sdpa`` or ``relu_1`` (of the calling module, the function, and which of its calls in one forward), the
            function, the calling module's name and that module, the arguments by name, and the output. It must not raise.
        wanted: Whether calls of a function, by its name, are to be recorded now.

    Attributes:
        callers: The modules that may call functions, by name.
        compiled: Those of them that call a function under ``torch.compile``, with an empty name for the model's own steps. They are
            passed over: the function would be compiled once with the mode and once without.
        seen: Whether the mode that sees calls is on the stack of modes.
        left: The forward hook by which each of them says that it is over.
    """

    def __init__(self, root: nn.Module, record: Callable[..., None], wanted: Callable[[str], bool]) -> None:
        self._root, self._record, self._wanted = root, record, wanted
        self._mode, self.left = _Mode(self._shown), _Leave(self)
        self.callers = {name: module for name, module in named_sites(root) if name and may_call(module)}
        self.compiled = modules_with_compiled_calls({"": root, **self.callers})
        self._hooks: dict[tuple[str, bool], _ForwardHooks] = {}
        self._plans: dict[frozenset[str] | None, tuple[set[str], list[_ForwardHooks]]] = {}
        self._seen: set[str] = set()  # the modules whose calls are seen in this batch, an empty name for the model's own
        self._hooked: list[_ForwardHooks] = []
        self._frames: list[_Frame] = []
        self._seen_in: frozenset[str] | None = frozenset()
        self._thread, self.seen = 0, False

    def start(self, seen_in: Collection[str] | None = None) -> None:
        """A batch starts.

        Args:
            seen_in: The names of the modules whose calls are seen, an empty one for the model's own; None for all.
        """
        self.stop()
        self._thread, self._seen_in = threading.get_ident(), None if seen_in is None else frozenset(seen_in)
        if self._seen_in not in self._plans:
            self._plans = {self._seen_in: self._plan()}  # of the last batch: most are like it
        self._seen, self._hooked = self._plans[self._seen_in]
        for hooks in self._hooked:
            hooks.put()

    def _plan(self) -> tuple[set[str], list[_ForwardHooks]]:
        """The modules whose calls are seen in this batch, and the hooks that are in place."""
        found = []
        known = {"", *self.callers}
        seen = (known if self._seen_in is None else known & self._seen_in).difference(self.compiled)
        for name, module in self.callers.items():
            outer = name.rpartition(".")[0]
            while outer not in known:
                outer = outer.rpartition(".")[0]
            # A module whose calls are not seen takes the mode away, where the module around it has put it there.
            if name in seen or outer in seen:
                key = name, name in seen
                if key not in self._hooks:
                    self._hooks[key] = _ForwardHooks(self, module, *key)
                found.append(self._hooks[key])
        return seen, found

    def stop(self) -> None:
        """The batch is over. Harmless when it was over before."""
        if self.seen:
            self._switch(False)
        self._thread = 0
        self._frames.clear()
        for hooks in self._hooked:
            hooks.take_out()
        self._hooked = []

    def close(self) -> None:
        """Let the model go."""
        self.callers.clear()
        self._plans.clear()
        self._hooks.clear()
        self._root = nn.Identity()

    @contextmanager
    def step(self) -> Iterator[None]:
        """Within this block the loop calls ``training_step``: the model's own calls are seen."""
        self.enter("", self._root, "" in self._seen)
        try:
            yield
        finally:
            self.leave(self._root)

    def begin_step(self) -> None:
        """The loop's own code starts, which ends with the batch: the model's own calls are seen, as in :meth:`step`.

        The mode lies below those of others, which are entered before it and may leave before it.
        """
        self.enter("", self._root, "" in self._seen, lowest_place())

    def pause(self) -> None:
        """Backward or the optimizer starts, within ``training_step`` perhaps: no call is seen before the next forward is over."""
        if self.seen and threading.get_ident() == self._thread:
            self._switch(False)

    def enter(self, name: str, module: nn.Module, sees: bool, below: int | None = None) -> None:
        """A module's forward starts.

        Args:
            name: The module's name.
            module: The module.
            sees: Whether its calls are seen.
            below: How many modes are below the mode there; None for all that are on the stack now.
        """
        if threading.get_ident() != self._thread or torch._C._current_graph_task_id() != -1:
            return  # not in the thread of the batch, or a recomputation in backward
        if below is None:
            below = torch._C._len_torch_function_stack() - self.seen
        fused = bool(self._frames and self._frames[-1].fused) or (isinstance(module, FUSED) and is_fused(module))
        sees = sees and not fused
        self._frames.append(_Frame(name, module, sees, fused, below))
        if sees is not self.seen:
            self._switch(sees)

    def leave(self, module: nn.Module) -> None:
        """A module's forward has returned or raised."""
        frames = self._frames
        follows = threading.get_ident() == self._thread and torch._C._current_graph_task_id() == -1
        for place in range(len(frames) - 1, -1, -1) if follows else ():
            if frames[place].module is module:
                del frames[place:]
                sees = bool(frames) and frames[-1].sees
                if sees is not self.seen:
                    self._switch(sees)
                return

    def _switch(self, on: bool) -> None:
        """Put the mode onto the stack of modes, at its place in the frame under way, or take it away."""
        self.seen = on
        if on:
            insert_mode(self._mode, self._frames[-1].below)
        else:
            remove_mode(self._mode)

    def _shown(self, called: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any], output: Any) -> None:
        if not self._frames:
            return
        function, names = KNOWN[called]
        frame = self._frames[-1]
        number = min(frame.calls[function], MOST_CALLS - 1)
        frame.calls[function] += 1
        if not self._wanted(function):
            return
        prefix = f"{frame.name}/" if frame.name else ""
        name = f"{prefix}{function}_{number}" if number else f"{prefix}{function}"
        arguments = {**dict(zip(names, args, strict=False)), **kwargs}
        kind = output.device.type if isinstance(output, Tensor) else "cpu"
        if kind == "meta":  # there are no values
            return
        full_precision = torch.autocast(kind, enabled=False) if torch.is_autocast_enabled(kind) else nullcontext()
        with torch.no_grad(), full_precision:
            self._record(name, function, frame.name, frame.module, arguments, output)


class _Leave(Listener):
    """Forward hook of a module that may call functions, which is called also when the forward raises."""

    def __init__(self, calls: CallObserver) -> None:
        self.calls = calls

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        if not torch.compiler.is_compiling():
            self.calls.leave(module)


class _ForwardHooks(Listener):
    """The hooks around the forward of one module: this is the one before it.

    They return under the same numbers as before, which a compiled graph that goes through the module is guarded by.

    Args:
        calls: Whom they notify.
        module: The module.
        name: Its name.
        sees: Whether its calls are seen.
    """

    def __init__(self, calls: CallObserver, module: nn.Module, name: str, sees: bool) -> None:
        self._calls, self._module, self._name, self._sees = calls, module, name, sees
        self._handles: tuple[RemovableHandle, RemovableHandle] | None = None

    def __call__(self, module: nn.Module, args: tuple[Any, ...]) -> None:
        """The forward starts."""
        if not torch.compiler.is_compiling():
            self._calls.enter(self._name, module, self._sees)

    def put(self) -> None:
        """Put them behind the hooks that are there."""
        module = self._module
        if self._handles is None:
            after = module.register_forward_hook(self._calls.left, always_call=True)
            self._handles = module.register_forward_pre_hook(self), after
            return
        before, after = self._handles  # torch has no public way to register a hook again under its number
        module._forward_pre_hooks[before.id] = self
        module._forward_hooks[after.id] = self._calls.left
        module._forward_hooks_always_called[after.id] = True

    def take_out(self) -> None:
        """Remove them."""
        for handle in self._handles or ():
            handle.remove()
