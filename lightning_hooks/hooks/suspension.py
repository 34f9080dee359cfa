"""Hooks that leave their modules for a while and come back to where they were."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any
from weakref import ref

from torch import nn
from torch.utils.hooks import RemovableHandle

from lightning_hooks.hooks.selection import inside_compiled


@dataclass(frozen=True, slots=True)
class _Suspended:
    """A hook that is out of its module.

    Attributes:
        handle: Its handle.
        hook: The hook.
        flags: Of PyTorch's dictionaries of options (``with_kwargs``, ``always_call``) those that name it.
        ahead: The hooks that stood ahead of it.
        behind: Those that stood behind it.
    """

    handle: RemovableHandle
    hook: Any
    flags: tuple[Any, ...]
    ahead: frozenset[int]
    behind: frozenset[int]

    def comes_after(self, other: int) -> bool:
        """Whether it belongs behind another hook, by its number. What was registered meanwhile belongs behind it."""
        return other in self.ahead or (other < self.handle.id and other not in self.behind)


class Suspension:
    """Takes hooks out of their modules, and puts them back.

    What reads a module's hooks (TorchScript, quantisation, export) finds none meanwhile. A hook comes back as the same object under
    the same number, so that a graph of ``torch.compile`` that was traced with it stays valid, ahead of the hooks that it stood
    ahead of and of those that were registered meanwhile. The hooks of others stay where they are. Hooks inside compiled modules
    stay in place: without them the next call would compile anew. A copy or a pickle is empty.
    """

    def __init__(self) -> None:
        self._hooks: list[tuple[ref[nn.Module], RemovableHandle]] = []
        self._out: list[_Suspended] = []

    def add(self, module: nn.Module, handle: RemovableHandle) -> None:
        """Suspend this hook of a module from now on with the others."""
        self._hooks.append((ref(module), handle))

    def suspend(self, root: nn.Module) -> None:
        """Take the hooks out, but for those inside compiled modules of ``root``. Harmless when they are out."""
        if self._out or not self._hooks:
            return
        compiled = {id(module) for module in inside_compiled(root)}
        for module, handle in self._hooks:
            if id(module()) not in compiled:
                self._take_out(handle)

    def restore(self) -> None:
        """Put the hooks back. Harmless when they are in place."""
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
        """None of the hooks comes back."""
        self._hooks, self._out = [], []

    def _take_out(self, handle: RemovableHandle) -> None:
        hooks = handle.hooks_dict_ref()
        if hooks is None or handle.id not in hooks:  # removed by others
            return
        order = list(hooks)
        known = [reference() for reference in handle.extra_dict_ref]
        flags = tuple(options for options in known if options is not None and options.pop(handle.id, False))
        place = order.index(handle.id)
        ahead, behind = frozenset(order[:place]), frozenset(order[place + 1 :])
        self._out.append(_Suspended(handle, hooks.pop(handle.id), flags, ahead, behind))

    def __reduce__(self) -> tuple[type[Suspension], tuple[()]]:
        return (Suspension, ())
