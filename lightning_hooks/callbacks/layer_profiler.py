"""LayerProfiler: the time of each layer in training steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor
from typing_extensions import override

from lightning_hooks.callbacks.base import HookedCallback
from lightning_hooks.hooks import ModuleSelector, guarded
from lightning_hooks.hooks.checks import check_bools, check_choice, check_count
from lightning_hooks.hosts.lightning_api import log_step
from lightning_hooks.profiling import LayerTimes, ProfileReport
from lightning_hooks.profiling.tracer import StepTracer, profiled_modules
from lightning_hooks.trackers import show
from lightning_hooks.trackers.console import Table, some

SITE_STATS: dict[str, Callable[[LayerTimes], float]] = {
    "self_ms": lambda times: times.self_time.mean,
    "total_ms": lambda times: times.total_time.mean,
    "forward_ms": lambda times: times.forward_self.mean,
    "backward_ms": lambda times: times.backward_self.mean,
    "share": lambda times: times.share,
}
STEP_STATS: dict[str, Callable[[ProfileReport], float]] = {
    "step_ms": lambda report: report.step_time.mean,
    "forward_ms": lambda report: report.forward_time.mean,
    "backward_ms": lambda report: report.backward_time.mean,
    "other_ms": lambda report: report.other_time.mean,
    "outside_ms": lambda report: report.outside_forward.mean + report.outside_backward.mean,
    "overhead_ms": lambda report: report.overhead,
}
NUMBERS: dict[str, Callable[[LayerTimes], object]] = {
    "calls": lambda times: times.calls,
    "forward ms": lambda times: times.forward_self.mean,
    "recompute ms": lambda times: times.recompute_self.mean,
    "backward ms": lambda times: times.backward_self.mean,
    "self ms": lambda times: times.self_time.mean,
    "std": lambda times: times.self_time.std,
    "p95": lambda times: times.self_time.p95,
    "share": lambda times: times.share,
    "total ms": lambda times: times.total_time.mean,
    "output MB": lambda times: times.output_bytes / 1e6,
    "memory MB": lambda times: None if times.memory_bytes is None else times.memory_bytes / 1e6,
}
COLUMNS = ("module", *NUMBERS)
_IF_ANY = ("recompute ms", "memory MB")  # columns that the terminal shows only if they have values
ORDERS = ("self", "total", "model")


class LayerProfiler(HookedCallback):
    """Measures the time of every layer in training steps: forward and backward, self and total.

    Forward time is from a module's call to its return. Backward time is that of the autograd nodes of its forward, so in-place
    operations, several calls, frozen layers and outputs of any structure are supported; forward passes that activation
    checkpointing repeats in backward are reported as recomputation. *Self* time excludes inner modules, *total* time includes them:
    self times and the time outside all modules add up to the step.

    Training is unchanged. On the CPU the profiler's own time is excluded; on a CUDA device it records events and reads them with
    one host sync at the end of an epoch. Each rank measures itself; the times of rank 0 are logged.

    Logged each epoch: ``profile/<module>/<stat>`` with stat one of self_ms, total_ms, forward_ms, backward_ms (both self; the
    recomputed forward is in self_ms) and share, means per step; ``profile/step_ms``, ``forward_ms``, ``backward_ms``,
    ``other_ms`` (optimizer, callbacks, logging), ``outside_ms`` (forward and backward outside all modules) and ``overhead_ms``;
    and a table. NaN where nothing was measured.

    Args:
        modules: The modules to time; None for every module of the model, containers and dropout included.
        every_n_steps: Measure training batches 0, n, 2n, … of each epoch; 1 for all. At most 512 of an epoch are measured.
        warmup_steps: Number of first training batches of a fit that are not measured, at least 0. In the epoch in which the warm-up
            ends, the first batch after it and every n-th from there are measured.
        summary: Whether to print the table at the end of training.

    Attributes:
        report: The last epoch's :class:`~lightning_hooks.profiling.ProfileReport`; None before the first.

    Raises:
        TypeError: If an argument is of a wrong type.
        ValueError: If a number is too small, or, at train start, if ``modules`` matches nothing.
        RuntimeError: At train start, if the model is neither on the CPU nor on a CUDA device.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import LayerProfiler
        >>> trainer = Trainer(callbacks=[LayerProfiler(every_n_steps=5)], logger=False)
    """

    prefix: ClassVar[str] = "profile"
    records_recomputation: ClassVar[bool] = True
    fit_only: ClassVar[tuple[str, ...]] = ("_tracer",)

    def __init__(
        self, *, modules: ModuleSelector | None = None, every_n_steps: int = 10, warmup_steps: int = 3, summary: bool = True
    ) -> None:
        super().__init__(modules=modules, every_n_steps=every_n_steps)
        check_bools(summary=summary)
        self.warmup_steps, self.summary = check_count("warmup_steps", warmup_steps, least=0), summary
        self.report: ProfileReport | None = None
        self.batches = 0

    @override
    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._tracer = StepTracer(profiled_modules(pl_module, self.modules), pl_module.device, self.warmup_steps, self.faults)
        self._first = self.batches = 0  # the batch of this epoch that is measured first; the batches of this epoch
        self.report = None
        self._tracer.hook(self.listen)

    @override
    def released(self) -> None:
        tracer: StepTracer | None = self.__dict__.get("_tracer")
        if tracer is not None:
            tracer.tracing = False  # hooks of nodes exist as long as their graph, which the user may keep

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        self.batches += 1
        if self._tracer.steps == self.warmup_steps:
            self._first = batch_idx % self.every_n_steps
        self.gate.start(self._tracer.begin_step(due=batch_idx % self.every_n_steps == self._first))

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        super().on_before_backward(trainer, pl_module, loss)
        if self._tracer.tracing:
            guarded(self._tracer.before_backward, "the loss", self.faults)(loss)

    @override
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_after_backward(trainer, pl_module)
        self._tracer.after_backward()

    @override
    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Any) -> None:
        self._tracer.after_backward()  # a manual loop may call loss.backward() without an event

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._tracer.tracing:
            self._tracer.end_step()
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    @override
    def skipped(self) -> None:
        self.batches -= 1
        self._tracer.tracing = False

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        self.warn_of_faults()
        self.report = self._tracer.report(trainer.current_epoch, trainer.global_step, self.batches)
        self._tracer.measured.clear()
        self.batches = self._first = 0
        self.log_scalars(trainer, self.scalars(self.report))
        trackers = self.trackers(trainer)
        trackers.table(f"{self.prefix}/layers", COLUMNS, table_rows(self.report), log_step(trainer))
        trackers.save()

    def scalars(self, report: ProfileReport) -> dict[str, float]:
        """Return the logged values of a report by tag."""
        sites = {
            f"{self.prefix}/{name}/{stat}": value(report.sites[name]) if name in report.sites else math.nan
            for name in (*report.sites, *report.silent)
            for stat, value in SITE_STATS.items()
        }
        return sites | {f"{self.prefix}/{stat}": value(report) for stat, value in STEP_STATS.items()}

    @staticmethod
    def table(report: ProfileReport, *, top: int | None = None, sort: Literal["self", "total", "model"] = "self") -> str:
        """Return a report as a table for the terminal.

        Args:
            report: The report.
            top: The number of modules; None for all.
            sort: By ``self`` or ``total`` time, largest first, or in the order of the ``model``.

        Raises:
            ValueError: If ``sort`` is none of these.
        """
        return "\n".join(summary_lines(report, top, sort))

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        if self.summary and self.report is not None and trainer.is_global_zero:
            show(["", *summary_lines(self.report, 20)])


def summary_lines(report: ProfileReport, top: int | None = None, sort: str = "self") -> list[str]:
    """Return a report as lines for the terminal."""
    if not report.measured_steps:
        return [
            f"Profile, epoch {report.epoch}: nothing was measured in its {report.batches} batches, which were warm-up. Lower "
            "warmup_steps, or train longer."
        ]
    step = report.step_time
    lines = [
        f"Profile, epoch {report.epoch}, on {report.device}: {report.measured_steps} of {report.batches} batches measured. "
        f"A step took {step.mean:.4g} ms (std {step.std:.3g}, p95 {step.p95:.4g}): forward {report.forward_time.mean:.4g}, "
        f"backward {report.backward_time.mean:.4g}, other {report.other_time.mean:.4g}; the profiler {report.overhead:.3g} ms more."
    ]
    rows = table_rows(report, sort)
    shown = [at for at, column in enumerate(COLUMNS) if column not in _IF_ANY or any(row[at] for row in rows)]
    lines.append(Table([COLUMNS[at] for at in shown], [[row[at] for at in shown] for row in rows[:top]]))
    if top is not None and len(rows) > top:
        lines.append(f"  and {len(rows) - top} more.")
    outside = report.outside_forward.mean, report.outside_backward.mean
    lines.append(f"  Outside these modules: forward {outside[0]:.4g} ms, backward {outside[1]:.4g} ms.")
    if report.silent:
        lines.append(f"  Not called, or inside compiled code: {some(report.silent)}")
    return lines


def table_rows(report: ProfileReport, sort: str = "self") -> list[tuple[object, ...]]:
    """Return a report as rows for ``COLUMNS``."""
    check_choice("sort", sort, ORDERS)
    found = list(report.sites.items())
    if sort != "model":
        found.sort(key=lambda item: -getattr(item[1], f"{sort}_time").mean)
    return [(name, *(number(times) for number in NUMBERS.values())) for name, times in found]
