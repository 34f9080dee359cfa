"""One whole fit, with the times at which its steps started."""

from __future__ import annotations

import contextlib
import gc
import io
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import lightning.pytorch as pl
import numpy as np
import torch
from lightning.pytorch import Callback

from tests.benchmarks.workloads import Task, Workload, batches

LOW = 0.25
"""The quantile of repeated times that is reported: other work on the machine only ever adds to a time."""


@dataclass(frozen=True)
class FitTimes:
    """Seconds of one fit: before its first step, of each step, and from the start of the last step on."""

    start: float
    steps: Sequence[float]
    end: float


class Stamps(Callback):
    """Notes the time at which each step starts. The first callback, and it does nothing else."""

    def __init__(self, clock: Callable[[], Any]) -> None:
        self.clock = clock
        self.marks: list[Any] = [clock()]

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.marks.append(self.clock())


def _event() -> Any:
    event = torch.cuda.Event(enable_timing=True)
    event.record()
    return event


def clock_of(workload: Workload, wall: bool = False) -> Callable[[], Any]:
    """CPU time of the process, or wall time; of a GPU the events on its stream."""
    return _event if workload.cuda else time.perf_counter if wall else time.process_time


def fit(
    workload: Workload,
    make: Callable[[], Sequence[Any]],
    steps: int,
    clock: Callable[[], Any] = time.process_time,
    clip: float | None = 1.0,
) -> FitTimes:
    """A fit of so many steps, and one that is not counted among them: its end is the fit's.

    The model, its data and the callbacks are made again for each fit, from the same seed. Garbage is collected before and left out
    of collections during the fit, which are as in any training.
    """
    torch.manual_seed(0)
    task, data, callbacks = Task(workload.build()), batches(workload.batch, workload.batch_size, steps + 1), list(make())
    if workload.compiled:  # a graph is made for the hooks that are there
        torch.compiler.reset()
    with _garbage_apart(), contextlib.redirect_stdout(io.StringIO()):
        stamps = Stamps(clock)
        trainer = pl.Trainer(
            max_epochs=1,
            accelerator="gpu" if workload.cuda else "cpu",
            devices=1,
            precision=workload.precision,
            logger=False,
            enable_checkpointing=False,
            enable_progress_bar=False,
            enable_model_summary=False,
            gradient_clip_val=clip,
            callbacks=[stamps, *callbacks],
        )
        trainer.fit(task, data)
        stamps.marks.append(clock())
    start, *between, end = _differences(stamps.marks)
    return FitTimes(start, between, end)


def _differences(marks: Sequence[Any]) -> list[float]:
    if not isinstance(marks[0], float):  # events of a GPU
        torch.cuda.synchronize()
        return [begin.elapsed_time(end) / 1e3 for begin, end in pairwise(marks)]
    return [end - begin for begin, end in pairwise(marks)]


@contextlib.contextmanager
def _garbage_apart() -> Iterator[None]:
    gc.collect()
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def by_place(fits: Sequence[FitTimes]) -> FitTimes:
    """The low quartile of several equal fits at each place: of their starts, of each step, of their ends."""
    places = np.quantile(np.array([[times.start, *times.steps, times.end] for times in fits]), LOW, axis=0).tolist()
    return FitTimes(places[0], places[1:-1], places[-1])
