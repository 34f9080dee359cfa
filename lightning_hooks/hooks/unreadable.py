"""Calls whose tensors stand for others, which are skipped: of ``torch.func``, of ``torch.jit.trace``, of fake tensors."""

from __future__ import annotations

import torch
from typing_extensions import override

from lightning_hooks.hooks.recorder import Recorder
from lightning_hooks.hooks.tensors import UnreadableError
from lightning_hooks.hooks.wrappers import guarded


def is_transformed() -> bool:
    """Whether what runs now is transformed by ``torch.func``, or traced by ``torch.jit``: what a hook computes would be too."""
    functorch = torch._C._functorch  # neither question has a public name without a detour
    return functorch.peek_interpreter_stack() is not None or torch._C._is_tracing()


class skipping(guarded):  # noqa: N801  as guarded
    """A guard that skips the calls whose tensors cannot be read: ``on_fault`` counts them, and the hook stays enabled."""

    __slots__ = ()

    def skip(self) -> None:
        """A call of this site is not recorded."""
        if isinstance(self.hook, Recorder):
            self.hook.skip()

    @override
    def _failed(self, error: Exception) -> None:
        if not isinstance(error, UnreadableError):
            super()._failed(error)
            return
        self.skip()
        if self.on_fault is not None:
            self.on_fault(self.site, error)
