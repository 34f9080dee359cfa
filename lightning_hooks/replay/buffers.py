"""The buffers that a forward pass changes, with their values before it."""

from __future__ import annotations

import itertools
from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy

MOST_BYTES = 1 << 20
"""Bytes of the buffers whose values before the forward pass are kept."""


class ChangedBuffers:
    """Keeps the values of the buffers that a forward pass changes; which these are is known from the first one."""

    def __init__(self) -> None:
        self._changing: list[Tensor] | None = None
        self._before: list[Tensor] = []
        self._known = False  # whether the first forward pass was seen to its end

    def keep(self, model: nn.Module) -> None:
        """A forward pass starts: keep the values."""
        if self._changing is None:
            found = (b for b in model.buffers() if b.layout == torch.strided and not is_lazy(b))
            buffers = sorted(found, key=lambda buffer: buffer.nbytes)
            ends = itertools.accumulate(buffer.nbytes for buffer in buffers)
            self._changing = [buffer for buffer, end in zip(buffers, ends, strict=True) if end <= MOST_BYTES]
            self._before, self._known = [buffer.clone() for buffer in self._changing], False
        elif self._changing:
            torch._foreach_copy_(self._before, self._changing)

    def after_forward(self) -> None:
        """After the first forward pass: keep the values of those buffers only that it changed.

        Their version counters do not say it: batch normalisation changes its statistics without counting.
        """
        if self._changing is not None and not self._known:
            kept = [pair for pair in zip(self._changing, self._before, strict=True) if not torch.equal(*pair)]
            self._changing, self._before, self._known = [b for b, _ in kept], [old for _, old in kept], True

    def pairs(self) -> Iterable[tuple[Tensor, Tensor]]:
        """Each of them, with its value before the last forward pass."""
        return zip(self._changing or (), self._before, strict=True)

    def named(self, model: nn.Module) -> list[tuple[str, Tensor]]:
        """The name of each, with its value before the last forward pass."""
        names = {id(buffer): name for name, buffer in model.named_buffers()}
        return [(names.get(id(buffer), ""), before) for buffer, before in self.pairs()]

    def clear(self) -> None:
        """Let them go."""
        self._changing, self._before = None, []
