"""What the evidence of bad steps costs: µs a step inside its own code on the CPU, and the time to write a capsule.

``python -m tests.benchmarks.evidence``
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from unittest.mock import patch

import torch
from torch import Tensor, nn

from lightning_hooks import GradientFlowMonitor, TrainingMonitor
from lightning_hooks.declare.step import Step
from lightning_hooks.replay.capsule import CapsuleWriter
from lightning_hooks.replay.watch import StepWatch
from tests.benchmarks.fits import fit
from tests.benchmarks.workloads import WORKLOADS

EVENTS = ("batch_start", "forward", "before_backward", "after_backward", "gradients")


def each_step(name: str, make: Any, steps: int = 40) -> tuple[float, float, float]:
    """The median µs in all events of a step, of it the reading of norms that nobody else read, and the ms of a step."""
    taken: dict[str, list[float]] = {event: [] for event in (*EVENTS, "norms")}

    def timed(event: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            begin = time.thread_time()
            try:
                return function(*args, **kwargs)
            finally:
                taken[event].append(time.thread_time() - begin)

        return call

    judge = StepWatch.gradients

    def judged(self: StepWatch, step: Step) -> None:
        begin = time.thread_time()
        step.norms()
        taken["norms"].append(time.thread_time() - begin)
        timed("gradients", judge)(self, step)

    with ExitStack() as stack:
        for event in EVENTS:
            own = judged if event == "gradients" else timed(event, getattr(StepWatch, event))
            stack.enter_context(patch.object(StepWatch, event, own))
        times = fit(WORKLOADS[name], lambda: [make()], steps)
    print(", ".join(f"{event} {1e6 * statistics.median(times):.1f}" for event, times in taken.items()))
    whole = 1e6 * sum(statistics.median(taken[event]) for event in EVENTS)
    return whole, 1e6 * statistics.median(taken["norms"]), 1e3 * statistics.median(times.steps)


def capsule_seconds(folder: Path) -> float:
    """Seconds to write the capsule of a model with 10 million parameters and AdamW."""
    import lightning.pytorch as pl
    from torch.utils.data import DataLoader, TensorDataset

    class Task(pl.LightningModule):
        def __init__(self) -> None:
            super().__init__()
            self.net = nn.Sequential(*(nn.Linear(1600, 1600) for _ in range(4)))

        def training_step(self, batch: Any, batch_idx: int) -> Tensor:
            return self.net(batch[0]).square().mean()

        def configure_optimizers(self) -> Any:
            return torch.optim.AdamW(self.parameters())

    x = torch.rand(64, 1600)
    x[-1, 0] = torch.nan
    seconds: list[float] = []
    write = CapsuleWriter.write

    def timed(*args: Any, **kwargs: Any) -> Any:
        begin = time.perf_counter()
        try:
            return write(*args, **kwargs)
        finally:
            seconds.append(time.perf_counter() - begin)

    with patch.object(CapsuleWriter, "write", timed):
        monitor = GradientFlowMonitor(summary=False, capsule=folder)
        silent = {"logger": False, "enable_progress_bar": False, "enable_model_summary": False, "enable_checkpointing": False}
        pl.Trainer(max_epochs=1, accelerator="cpu", callbacks=[monitor], **silent).fit(Task(), DataLoader(TensorDataset(x), 16))
    return seconds[0]


if __name__ == "__main__":
    torch.set_num_threads(1)
    for name in sys.argv[1:] or ("digits", "resnet", "transformer"):
        for make in (TrainingMonitor, GradientFlowMonitor):
            own, norms, step = each_step(name, lambda make=make: make(summary=False, report_dir=None))
            print(f"{name}, {make.__name__}: {own:.1f} µs a step of {step:.2f} ms, and {norms:.1f} µs for norms")
    with tempfile.TemporaryDirectory() as folder:
        print(f"capsule of 10 million parameters with AdamW: {capsule_seconds(Path(folder)):.2f} s")
        print(f"{sum(file.stat().st_size for file in Path(folder).rglob('*') if file.is_file()) / 1e6:.0f} MB")
