"""What a profile says: times of every layer, in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_hooks.reports.plain import PlainReport


@dataclass(frozen=True, slots=True)
class Spread:
    """Milliseconds in a step, over the measured steps.

    Attributes:
        mean: Their mean.
        std: Their standard deviation, of the steps measured (divided by their number).
        p50: Their median.
        p95: Their 95th percentile, interpolated linearly.
    """

    mean: float
    std: float
    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """One module's times in a step, all its calls together, and what it puts out.

    *Self* is time in the module and in no chosen module inside it; self times of all modules and the time outside them add up to
    the step. *Total* is from its call to its return, and in backward the same for its part of the graph.

    Attributes:
        calls: Forward calls in a step, mean.
        recomputed_calls: Calls in a step by activation checkpointing during backward, mean.
        self_time: Forward, backward and recomputation together, without inner modules.
        total_time: The same with inner modules.
        forward_self: In forward, without inner modules.
        forward_total: In forward, with inner modules.
        backward_self: In backward, without inner modules and recomputation.
        backward_total: In backward, with inner modules, without recomputation.
        recompute_self: In recomputation, without inner modules.
        recompute_total: In recomputation, with inner modules.
        share: Mean self time over the step's mean, 0 to 1.
        total_share: Mean total time over the step's mean, 0 to 1.
        output_bytes: Bytes of the tensors it returned in a step, mean.
        memory_bytes: By how much the device memory allocated grew over its forward calls of one step, inner modules included:
            its output and what it keeps for backward. None on the CPU, and where it was not read.
    """

    calls: float
    recomputed_calls: float
    self_time: Spread
    total_time: Spread
    forward_self: Spread
    forward_total: Spread
    backward_self: Spread
    backward_total: Spread
    recompute_self: Spread
    recompute_total: Spread
    share: float
    total_share: float
    output_bytes: float
    memory_bytes: int | None


@dataclass(frozen=True, slots=True)
class ProfileReport(PlainReport):
    """Where the time of training steps went, on this rank.

    ``forward_time + backward_time + other_time = step_time``, and ``step_time`` is the self times of all modules plus
    ``outside_forward``, ``outside_backward`` and ``other_time``. On the CPU the clock stands still in the profiler's own hooks.

    ``to_dict()`` gives plain JSON data, and ``from_dict()`` the report again.

    Attributes:
        epoch: The epoch, from 0.
        step: The trainer's ``global_step`` at its end.
        device: Where the model was: ``cpu``, ``cuda:0``.
        sites: Module name to its times, in model order; only modules that were called.
        silent: Chosen modules that were not called in a measured step, or run inside a compiled one.
        step_time: From the batch's start to its end.
        forward_time: Forward; recomputation is not in it.
        backward_time: Backward, recomputation included.
        other_time: The rest: optimizer, other callbacks, logging.
        outside_forward: Forward outside every chosen module: the loss, functional code.
        outside_backward: Backward of the same.
        overhead: Host milliseconds in a step that the profiler's own hooks took, mean.
        measured_steps: Training batches measured.
        batches: Training batches of the epoch.
    """

    epoch: int
    step: int
    device: str
    sites: dict[str, LayerTimes]
    silent: tuple[str, ...]
    step_time: Spread
    forward_time: Spread
    backward_time: Spread
    other_time: Spread
    outside_forward: Spread
    outside_backward: Spread
    overhead: float
    measured_steps: int
    batches: int
