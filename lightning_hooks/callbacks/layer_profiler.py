"""LayerProfiler: the time of each layer in training steps."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal

from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.callbacks.base import HookedCallback
from lightning_hooks.hooks import ModuleSelector, guarded
from lightning_hooks.hooks.checks import check_bools, check_count
from lightning_hooks.hosts.lightning_api import log_step
from lightning_hooks.profiling import LayerTimes, ProfileReport, ProfileSession
from lightning_hooks.profiling.clock import FORWARD
from lightning_hooks.profiling.report import COLUMNS, summary_lines, table_rows
from lightning_hooks.profiling.tracer import StepTracer, profiled_modules
from lightning_hooks.trackers import show

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
        every_n_steps: Measure training batches 0, n, 2n, … of each epoch; 1 for all. At most 512 of an epoch are kept.
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
        self,
        *,
        modules: ModuleSelector | None = None,
        every_n_steps: int = 10,
        warmup_steps: int = 3,
        summary: bool = True,
    ) -> None:
        super().__init__(modules=modules, every_n_steps=every_n_steps)
        check_bools(summary=summary)
        self.warmup_steps = check_count("warmup_steps", warmup_steps, least=0)
        self.summary = summary
        self.report: ProfileReport | None = None
        self.batches = 0

    @staticmethod
    def profile(
        model: nn.Module,
        step: Callable[[], object],
        *,
        steps: int = 20,
        warmup_steps: int = 3,
        modules: ModuleSelector | None = None,
    ) -> ProfileReport:
        """Profile a model without Lightning.

        Args:
            model: The model, on the CPU or a CUDA device.
            step: A function that runs one training step: forward, backward, optimizer.
            steps: Number of steps to measure, at least 1.
            warmup_steps: Number of steps before them, at least 0.
            modules: The modules; None for every module of the model.

        Returns:
            The report. Use :class:`~lightning_hooks.profiling.ProfileSession` in your own loop.

        Raises:
            TypeError: If an argument is of a wrong type.
            ValueError: If a number is too small, or ``modules`` matches nothing.
            RuntimeError: If the model is neither on the CPU nor on a CUDA device.

        Example:
            >>> import torch
            >>> from lightning_hooks import LayerProfiler
            >>> model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.ReLU())
            >>> report = LayerProfiler.profile(model, lambda: model(torch.randn(4, 8)).sum().backward(), steps=5)
            >>> report.measured_steps, list(report.sites)
            (5, ['0', '1'])
        """
        if not callable(step):
            raise TypeError(f"step must be a function that runs one training step; got {step!r}.")
        check_count("steps", steps, least=1)
        with ProfileSession(model, modules=modules, warmup_steps=warmup_steps) as session:
            for _ in range(warmup_steps + steps):
                with session.step():
                    step()
        return session.report()

    @override
    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        sites = profiled_modules(pl_module, self.modules)
        self._tracer = StepTracer([name for name, _ in sites], pl_module.device, self.warmup_steps, self.faults)
        self._first = self.batches = 0  # the batch of this epoch that is measured first; the batches of this epoch
        self.report = None
        self._tracer.hook(((site, name, module) for site, (name, module) in enumerate(sites)), self.listen)

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
        self.gate.start(self._tracer.begin_step(FORWARD, due=batch_idx % self.every_n_steps == self._first))

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
        self._tracer.samples.reset()
        self.batches = self._first = 0
        self._log(trainer, self.report)

    def _log(self, trainer: Trainer, report: ProfileReport) -> None:
        self.log_scalars(trainer, self.scalars(report))
        trackers, step = self.trackers(trainer), log_step(trainer)
        trackers.table(f"{self.prefix}/layers", COLUMNS, table_rows(report), step)
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
