"""Which batches one member samples."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence

import torch

from lightning_hooks.declare.warn import warn
from lightning_hooks.hooks import Gate, Meter
from lightning_hooks.session.overhead import PROBES, BatchTime, Overhead, stride_within


class Sampling:
    """The gate of one member, opened every ``stride`` batches, and what its hooks cost.

    Args:
        name: The monitor's, for messages.
        every: ``every_n_steps``.
        budget: ``max_overhead``.
        every_step: Whether it does the same at a step that is not sampled.
    """

    def __init__(self, name: str, every: int, budget: float | None, every_step: bool) -> None:
        self.name, self.every, self.budget, self.every_step = name, every, budget, every_step
        self.stride = every  # what is in force
        self.gate = Gate()
        self.overhead: Overhead | None = None
        self.meter: Meter | None = None  # what its hooks take in the batch under way
        self.decided = True  # the stride of this window
        self._found = False  # a stride was found

    def start(self, device: torch.device, inside: bool) -> None:
        """A run starts.

        Args:
            device: Where training runs.
            inside: Whether time inside the hooks can be measured: not under ``torch.compile``.
        """
        self.overhead = Overhead(device, inside, not self.every_step)
        self.meter = self.overhead.meter
        self.decided, self._found = self.budget is None, False

    def batch_start(self, batch: int) -> bool:
        """A training batch starts, with this index in the window; return whether it is sampled."""
        if self.meter is not None:
            self.meter.seconds = 0.0
        sampled = batch % self.stride == 0
        self.gate.start(sampled)
        return sampled

    def choose(self, everyone: Sequence[Overhead], agreed: Callable[[int], int]) -> None:
        """Choose the stride: once soon after training starts, and again at each window's start.

        Within a window it stays, so that the sample is an even one of all its batches (but for the two batches of the first
        window by which the first stride was found).

        Args:
            everyone: What all members cost.
            agreed: Makes ranks agree on a stride.
        """
        assert self.overhead is not None
        assert self.budget is not None
        if not self._found and len(self.overhead.sampled) <= PROBES and not self.overhead.epochs:
            return
        costs = [cost for cost in (overhead.costs() for overhead in everyone) if cost is not None]
        stride = agreed(stride_within(self.budget, costs, self.every) or sys.maxsize if costs else 0)
        if not stride:
            return
        if stride == sys.maxsize and not self._found:
            warn(
                f"{self.name}: max_overhead={self.budget} is less than what the monitors do at every step, whatever the sampling "
                "(clip events are counted at every one). It now samples the first batch of each epoch only; leave out "
                "GradientClipMonitor, or allow more."
            )
        self.stride = stride
        self._found = self.decided = True

    def batch_end(self, taken: BatchTime | None) -> None:
        """A training batch ends, with these times."""
        if self.overhead is not None and taken is not None:
            self.overhead.batch_ends(self.gate.sampled, taken)
        self.gate.stop()

    def window_end(self, batches: int) -> tuple[float | None, int]:
        """A window ends; return what the member cost, as a share of the batches' time, and the stride that was in force.

        Args:
            batches: The window's.
        """
        cost = None if self.overhead is None else self.overhead.share()
        stride = self.stride if self.stride < sys.maxsize else batches  # the first batch only
        if self.overhead is not None:
            self.overhead.epoch_ends()
        self.decided = self.budget is None
        return cost, stride
