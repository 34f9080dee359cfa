"""The report of a profile: times of every layer, in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

from lightning_hooks.declare.plain import PlainReport


@dataclass(frozen=True, slots=True)
class Spread:
    """Statistics of the milliseconds per step, over the measured steps.

    Attributes:
        mean: Mean.
        std: Population standard deviation.
        p50: Median.
        p95: 95th percentile, linearly interpolated.
    """

    mean: float
    std: float
    p50: float
    p95: float


@dataclass(frozen=True, slots=True)
class LayerTimes:
    """Times of one module per step, of all its calls, and the size of its output.

    *Self* time excludes selected modules inside the module; the self times of all modules and the time outside them add up to the
    step. *Total* time is from its call to its return, and in backward that of its part of the graph.

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
        memory_bytes: Growth of the allocated device memory during its forward calls in one step, inner modules included: its output
            and the tensors saved for backward. None on the CPU, and if it was not read.
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
    """Times of training steps, on this rank.

    ``forward_time + backward_time + other_time = step_time``, and ``step_time`` is the self times of all modules plus
    ``outside_forward``, ``outside_backward`` and ``other_time``. On the CPU the times exclude the profiler's own hooks.

    ``to_dict()`` gives plain JSON data, and ``from_dict()`` the report again.

    Attributes:
        epoch: The epoch, from 0.
        step: The trainer's ``global_step`` at its end.
        device: The device of the model, such as ``cpu`` or ``cuda:0``.
        sites: Module name to its times, in model order; only modules that were called.
        silent: Selected modules that were not called in a measured step, or run inside a compiled one.
        step_time: From the batch's start to its end.
        forward_time: Forward; recomputation is not in it.
        backward_time: Backward, recomputation included.
        other_time: The rest: optimizer, other callbacks, logging.
        outside_forward: Forward outside every selected module: the loss, functional code.
        outside_backward: Backward of the same.
        overhead: Mean host milliseconds per step in the profiler's own hooks.
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
