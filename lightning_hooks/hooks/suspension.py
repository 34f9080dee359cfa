"""Hooks that are removed from their modules for a time and registered again at their old positions."""

from __future__ import annotations

import sys
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from lightning_hooks.hooks.selection import inside_compiled


@dataclass(frozen=True, slots=True)
class _Suspended:
    """A removed hook.

    Attributes:
        handle: Its handle.
        hook: The hook.
        flags: PyTorch's dictionaries of options (``with_kwargs``, ``always_call``) that contain it.
        ahead: The hooks before it.
        behind: The hooks after it.
    """

    handle: RemovableHandle
    hook: Any
    flags: Sequence[Any]
    ahead: Sequence[int]
    behind: Sequence[int]

    def comes_after(self, other: int) -> bool:
        """Whether it belongs after another hook, given by its number. Hooks registered since come after it."""
        return other in self.ahead or (other < self.handle.id and other not in self.behind)


class Suspension:
    """Removes hooks from their modules, and registers them again.

    TorchScript, quantisation and export, which read a module's hooks, find none in between. A hook returns as the same object with
    the same number, so that a graph of ``torch.compile`` that was traced with it stays valid, and before the hooks that it preceded
    and those registered since. Other hooks keep their order. Hooks inside compiled modules stay: without them the next call would
    compile again. A copy or a pickle is empty.

    Attributes:
        suspended: Whether the hooks are removed now.
    """

    def __init__(self) -> None:
        self.suspended = False
        self._resting = self._compiles = False
        self._handler: Any = None  # of torch.compile's callbacks, once it is asked for them
        self._hooks: list[RemovableHandle] = []
        self._out: list[_Suspended] = []
        self._compiled: Collection[int] = ()

    def add(self, handle: RemovableHandle) -> None:
        """Add a hook of a module to those that :meth:`suspend` removes."""
        self._hooks.append(handle)

    def suspend(self, root: nn.Module | None = None) -> None:
        """Remove the hooks, except those inside compiled modules. Idempotent.

        Args:
            root: The model, in which is looked which modules are compiled; None where that was done before.
        """
        self._resting = False
        if self.suspended:
            return
        self.suspended = True
        if root is not None:
            self._compiled = {id(held) for module in inside_compiled(root) for held in vars(module).values()}
        for handle in self._hooks:
            hooks = handle.hooks_dict_ref()
            if hooks is None or id(hooks) in self._compiled or handle.id not in hooks:  # or removed by others
                continue
            flags = []
            for reference in handle.extra_dict_ref:
                options = reference()
                if options and options.pop(handle.id, False):
                    flags.append(options)
            order = [*hooks]
            place = order.index(handle.id)
            self._out.append(_Suspended(handle, hooks.pop(handle.id), flags, order[:place], order[place + 1 :]))

    def rest(self) -> None:
        """Remove the hooks in a batch in which none records, as long as nothing is compiled: what is has to find them in place."""
        if self._handler is None:
            # Whoever compiles, or steps an optimizer of torch's, has imported it; its callbacks have no public name.
            self._handler = getattr(sys.modules.get("torch._dynamo"), "callback_handler", None)
            if self._handler is None:
                return
            self._handler.register_start_callback(self._compile_starts)
        if not self._compiles and not self.suspended:
            self.suspend()
            self._resting = True

    def _compile_starts(self, *_: Any) -> None:
        self._compiles = True
        if self._resting:
            self.restore()

    def restore(self) -> None:
        """Register the hooks again. Idempotent."""
        self._resting = False
        out, self._out, self.suspended = self._out, [], False
        for suspended in out:
            handle = suspended.handle
            hooks = handle.hooks_dict_ref()
            if hooks is None:
                continue
            later: list[int] = []
            for other in hooks:
                later = [] if suspended.comes_after(other) else [*later, other]
            hooks[handle.id] = suspended.hook
            for other in later:
                hooks.move_to_end(other)
            for flags in suspended.flags:
                flags[handle.id] = True

    def forget(self) -> None:
        """Forget the hooks: none is registered again."""
        self._hooks, self._out, self.suspended = [], [], False
        handler, self._handler = self._handler, None
        if handler is not None:
            handler.remove_start_callback(self._compile_starts)

    def __reduce__(self) -> tuple[type[Suspension], tuple[()]]:
        return (Suspension, ())
