"""Hooks at rest: out of their modules for a while, and back where they were."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from torch.utils.hooks import RemovableHandle


@dataclass(frozen=True, slots=True)
class Resting:
    """A hook that is out of its dictionary for a while."""

    handle: RemovableHandle
    hook: Callable[..., Any]
    ahead: frozenset[int]  # later ones, by their number, that had been put before it all the same

    @classmethod
    def lay(cls, handle: RemovableHandle) -> Resting | None:
        """Take the hook out of its dictionary; None if it is there no more."""
        hooks = handle.hooks_dict_ref()
        if hooks is None or handle.id not in hooks:
            return None
        ahead: frozenset[int] = frozenset()
        if len(hooks) > 1:
            order = list(hooks)
            ahead = frozenset(number for number in order[: order.index(handle.id)] if number > handle.id)
        return cls(handle, hooks.pop(handle.id), ahead)

    def wake(self) -> None:
        """Put it back. Torch numbers hooks as they come, so those with a later number go behind it."""
        hooks = self.handle.hooks_dict_ref()
        if hooks is None:
            return
        later = [number for number in hooks if number > self.handle.id and number not in self.ahead] if hooks else ()
        hooks[self.handle.id] = self.hook
        for number in later:
            hooks.move_to_end(number)
