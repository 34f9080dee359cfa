"""Hooks that are removed from their modules for a time and registered again at their old positions."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import ref

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
    flags: tuple[Any, ...]
    ahead: frozenset[int]
    behind: frozenset[int]

    def comes_after(self, other: int) -> bool:
        """Whether it belongs after another hook, given by its number. Hooks registered since come after it."""
        return other in self.ahead or (other < self.handle.id and other not in self.behind)


class Suspension:
    """Removes hooks from their modules, and registers them again.

    TorchScript, quantisation and export, which read a module's hooks, find none in between. A hook returns as the same object with
    the same number, so that a graph of ``torch.compile`` that was traced with it stays valid, and before the hooks that it preceded
    and those registered since. Other hooks keep their order. Hooks inside compiled modules stay: without them the next call would
    compile again. A copy or a pickle is empty.
    """

    def __init__(self) -> None:
        self._hooks: list[tuple[ref[nn.Module], RemovableHandle]] = []
        self._out: list[_Suspended] = []

    def add(self, module: nn.Module, handle: RemovableHandle) -> None:
        """Add a hook of a module to those that :meth:`suspend` removes."""
        self._hooks.append((ref(module), handle))

    def suspend(self, root: nn.Module) -> None:
        """Remove the hooks, except those inside compiled modules of ``root``. Idempotent."""
        if self._out or not self._hooks:
            return
        compiled = {id(module) for module in inside_compiled(root)}
        for module, handle in self._hooks:
            hooks = handle.hooks_dict_ref()
            if id(module()) in compiled or hooks is None or handle.id not in hooks:  # or removed by others
                continue
            order = list(hooks)
            known = [reference() for reference in handle.extra_dict_ref]
            flags = tuple(options for options in known if options is not None and options.pop(handle.id, False))
            place = order.index(handle.id)
            ahead, behind = frozenset(order[:place]), frozenset(order[place + 1 :])
            self._out.append(_Suspended(handle, hooks.pop(handle.id), flags, ahead, behind))

    def restore(self) -> None:
        """Register the hooks again. Idempotent."""
        out, self._out = self._out, []
        for suspended in out:
            handle = suspended.handle
            hooks = handle.hooks_dict_ref()
            if hooks is None:
                continue
            order = list(hooks)
            ahead = [place for place, other in enumerate(order) if suspended.comes_after(other)]
            later = order[ahead[-1] + 1 if ahead else 0 :]
            hooks[handle.id] = suspended.hook
            for other in later:
                hooks.move_to_end(other)
            for flags in suspended.flags:
                flags[handle.id] = True

    def forget(self) -> None:
        """Forget the hooks: none is registered again."""
        self._hooks, self._out = [], []

    def __reduce__(self) -> tuple[type[Suspension], tuple[()]]:
        return (Suspension, ())
