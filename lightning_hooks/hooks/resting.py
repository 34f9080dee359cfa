"""Hooks at rest: out of their modules for a while, and back where they were."""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any
from weakref import ref

from torch.utils.hooks import RemovableHandle


@dataclass(frozen=True, slots=True)
class Resting:
    """A hook that is out of its module's dictionary for a while. Its handle removes it meanwhile as ever.

    Attributes:
        handle: Its handle, which points at ``bed`` while it rests.
        home: The dictionary it is from, as the handle knew it.
        bed: Where it lies.
        ahead: The hooks that stood before it, by their numbers.
        behind: Those that stood behind it.
        newest: Hooks from this number on are newer than its rest.
    """

    handle: RemovableHandle
    home: Any
    bed: OrderedDict[int, Any]
    ahead: frozenset[int]
    behind: frozenset[int]
    newest: int

    @classmethod
    def lay(cls, handle: RemovableHandle) -> Resting | None:
        """Take the hook out of its dictionary; None if it is there no more."""
        home = handle.hooks_dict_ref
        hooks = home()
        if hooks is None or handle.id not in hooks:
            return None
        order = list(hooks)
        place = order.index(handle.id)
        bed = OrderedDict({handle.id: hooks.pop(handle.id)})
        handle.hooks_dict_ref = ref(bed)
        return cls(handle, home, bed, frozenset(order[:place]), frozenset(order[place + 1 :]), RemovableHandle.next_id)

    def wake(self) -> None:
        """Put it back: behind those that stood before it, ahead of the others, whose order stays as it is."""
        number, handle = self.handle.id, self.handle
        handle.hooks_dict_ref = self.home
        hooks = self.home()
        if hooks is None or number not in self.bed:
            return
        order = list(hooks)
        ahead = [place for place, other in enumerate(order) if self._was_ahead(other)]
        behind = (place for place, other in enumerate(order) if other < self.newest)  # of the others
        # Without any that stood before it: one that came meanwhile and was put first stays before those that it was put before.
        later = order[ahead[-1] + 1 if ahead else next(behind, 0) :]
        hooks[number] = self.bed[number]
        for other in later:
            hooks.move_to_end(other)

    def _was_ahead(self, other: int) -> bool:
        # One that was at rest itself stood where torch's numbers say.
        return other in self.ahead or (other < self.handle.id and other not in self.behind)
