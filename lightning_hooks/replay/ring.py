"""The evidence of the last steps: their samples, the states of the generators, and whether a micro-batch was bad."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import compress
from operator import attrgetter, not_
from typing import Any

import torch
from torch import Tensor, nn

from lightning_hooks.declare.host import Host
from lightning_hooks.hooks.generators import Generators
from lightning_hooks.hooks.tensors import copied
from lightning_hooks.replay.rows import BatchRows

STEPS = 32  # how many batches keep the states of the generators at their forward pass, of 10 kB each
# What the samples may take in memory, and so may the buffers that are kept. Those of older batches stay while there is room.
MOST_BYTES = 1 << 20
_ENTRY = 400  # what an entry takes besides


@dataclass(slots=True, eq=False)
class StepEvidence:
    """What is known of one training batch."""

    epoch: int
    batch: int  # the index of the training batch in it
    step: int  # the trainer's global_step
    rows: BatchRows | None = None  # its samples; None where they are not known
    generators: Generators | None = None  # the states at its forward pass; None of older batches
    flag: bool | Tensor = False  # whether its loss, or a gradient, was not finite: a bool, or a 0-d tensor on an accelerator
    nbytes: int = _ENTRY  # how much memory it takes, without the states


@dataclass(slots=True)
class BatchUnderWay:
    """The training batch under way, from its start to its end."""

    evidence: StepEvidence
    batch: Any = None  # as training_step was given it
    rest: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})  # its other arguments
    loss: Tensor | None = None  # as it came to backward
    returned: Tensor | None = None  # as it was returned, where that is known
    in_forward: bool = False


class Ring:
    """The evidence of the last batches, the newest last."""

    def __init__(self) -> None:
        self._entries: deque[StepEvidence] = deque()
        self.nbytes = 0

    def add(self, entry: StepEvidence) -> None:
        """Add a batch; the oldest leave where there is no room."""
        entries = self._entries
        entry.nbytes = _ENTRY if entry.rows is None else _ENTRY + entry.rows.nbytes
        entries.append(entry)
        self.nbytes += entry.nbytes
        if len(entries) > STEPS:
            entries[-STEPS - 1].generators = None
        while self.nbytes > MOST_BYTES and len(entries) > 1:
            self.nbytes -= entries.popleft().nbytes

    def of(self, epoch: int, batch: int) -> StepEvidence | None:
        """The batch with this index in an epoch; None if it is not remembered."""
        return next((entry for entry in reversed(self._entries) if (entry.epoch, entry.batch) == (epoch, batch)), None)

    def guilty(self, until: StepEvidence) -> StepEvidence:
        """Of the micro-batches of a step, up to the last one, the first whose flag is up; the last if none is."""
        found = [e for e in self._entries if e.step == until.step and e.epoch == until.epoch and e.batch <= until.batch]
        flags = torch.stack([torch.as_tensor(e.flag) for e in found]).tolist() if found else []  # one wait for all
        return next((entry for entry, bad in zip(found, flags, strict=True) if bad), until)


class ChangedBuffers:
    """Keeps the values of the buffers that a forward pass changes; which these are is known from the first one.

    Attributes:
        known: Whether the first forward pass was seen to its end.
    """

    def __init__(self) -> None:
        self._changing: list[Tensor] | None = None
        self._before: list[Tensor] = []
        self.known = False

    def keep(self, host: Host) -> None:
        """A forward pass of the loop's model starts: keep the values."""
        if self._changing is None:
            self._changing, room = [], MOST_BYTES
            for buffer in sorted(filter(torch.is_tensor, map(copied, host.model.buffers())), key=attrgetter("nbytes")):
                room -= buffer.nbytes
                self._changing += [buffer] * (room >= 0)
            self._before, self.known = [*map(torch.clone, self._changing)], False
        elif self._changing:
            for place, buffer in enumerate(self._changing):
                if buffer.shape != self._before[place].shape:
                    self._before[place] = torch.empty_like(buffer)
            torch._foreach_copy_(self._before, self._changing)

    def after_forward(self) -> None:
        """After the first forward pass: keep the values of those buffers only that it changed.

        Their version counters do not say it: batch normalisation changes its statistics without counting.
        """
        if self._changing is not None:
            differ = [*map(not_, map(torch.equal, self._changing, self._before))]
            self._changing, self._before = [*compress(self._changing, differ)], [*compress(self._before, differ)]
            self.known = True

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
