"""How gradients come back through the model, and what they do to its weights."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor
from typing_extensions import override

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.context import Context
from lightning_hooks.declare.step import EarlierOptimizers, Step, groups_of
from lightning_hooks.declare.warn import loading_state
from lightning_hooks.diagnostics.batches.inputs import BatchTensors
from lightning_hooks.diagnostics.gradients.hooks import FirstLossGraph, GradientListener, OutputNodes, owners
from lightning_hooks.diagnostics.gradients.sampled_steps import SampledSteps
from lightning_hooks.diagnostics.gradients.tables import GradientTable
from lightning_hooks.diagnostics.gradients.view import GradientSites
from lightning_hooks.diagnostics.loss.table import LossWatch, window_of
from lightning_hooks.diagnostics.metrics.use import BATCHES, MetricsWatch
from lightning_hooks.diagnostics.nonfinite.checks import StepChecks
from lightning_hooks.diagnostics.ranks import rank_difference
from lightning_hooks.diagnostics.reports import GradientFlowReport
from lightning_hooks.diagnostics.setup.checks import SetupChecks
from lightning_hooks.hooks.selection import compiled_regions
from lightning_hooks.statistics.reduction import flagged, largest
from lightning_hooks.statistics.tables import HostNumbers, first_calls, in_order, parameters_in_order, sites_in_order


class GradientCollector(GradientSites):
    """The gradients at module outputs and of parameters, updates of weights, optimizers, the loss, how parameters are set up."""

    monitor: ClassVar[str] = "GradientFlowMonitor"
    report_name: ClassVar[str] = "gradients"
    takes: ClassVar[tuple[str, ...]] = (
        *("modules", "every_n_steps", "max_overhead", "histograms", "check_every_n_steps", "logged"),
        *("capsule", "max_capsule_mb", "keep_batches", "learning"),
    )
    records_recomputation: ClassVar[bool] = True  # reentrant checkpointing builds the graph when it recomputes
    watches_steps: ClassVar[bool] = True
    checks_early: ClassVar[bool] = True

    def __init__(self, context: Context, state: Mapping[str, Any]) -> None:
        super().__init__(context, state)
        host, steps = context.host, context.steps
        model, device, loss_scaled = host.model, host.setup.device, host.loss_scaling.scaler is not None
        self._steps, self._sites = steps, context.select()
        self._known = {}
        self.modules = GradientTable([name for name, _ in self._sites], device, loss_scaled)
        self._loss, self._sampled = LossWatch(context), SampledSteps(context)
        self.parameters = self._sampled.parameters
        self.modules.owners = owners(self._sites, self._steps)
        self.modules.listening = False  # except while the loss's backward runs
        if not loss_scaled:  # scaled gradients are unscaled at the step, when their values are gone
            self.histograms = self.modules.histograms = context.new_histograms(self.modules.names)
        # Gradients are averaged over the ranks that share the data: of the loss minimised, each one's part is that much less.
        self.value_scale = 1.0 / host.setup.data_parallel_size
        self.due = None if context.early is not None or context.learning is True else self._sampled.due
        self._checks: StepChecks | None = None
        if (early := context.early) is not None:
            self._checks = StepChecks(early, steps.names, host.setup.world_size, context.judge_urgent, device, context.faults)
        self._setup = SetupChecks(context)
        self._metrics = MetricsWatch(context)
        self.pause, self.resumes = self._setup.weights.look, self._setup.weights.batches
        self._lasting: dict[str, Any] = {
            "loss": self._loss.table,
            "largest_losses": self._loss.table.largest,
            "setups": self._setup.parameters,
            "learning": self._sampled.learning,
            "optimizers": self._sampled.optimizers,
            "checks": self._setup,
        }
        with loading_state(context.name):
            for name, part in self._lasting.items():
                part.load(state.get(name, {}))
        self._outputs = OutputNodes(None if compiled_regions(model) else context)
        for index, (name, module) in enumerate(self._sites):
            context.listen(name, module, GradientListener(context, self.modules, name, index, self._outputs))
        self.set_tables(
            calls=first_calls(self.modules.calls, len(self._sites)),
            arrivals=first_calls(self.modules.order, len(self._sites)),
            seen=HostNumbers(lambda: self._outputs.numbers(self.modules.names), largest, size=FirstLossGraph._fields.__len__),
            flags=HostNumbers(self._flags, flagged, size=lambda: len(self.names)),
            loss=self._loss.table,
            setup=self._setup,
            replicas=self._sampled.replicas,
            modules=self.modules,
            optimizers=self._sampled.optimizers.table,
            parameters=self.parameters,
            learning=self._sampled.learning.tables,
            metrics=HostNumbers(self._metrics.numbers, largest),
        )

    @override
    def detach(self) -> None:
        self._outputs.clear()
        self._setup.weights.release()
        self.modules.listening = False  # tensor hooks live as long as their graph, which the user may keep

    @override
    def follows(self, event: str) -> bool:
        return super().follows(event) and (event != "on_update" or self._checks is not None)

    @override
    def batch_events(self, sampled: bool, before: bool) -> dict[str, Callable[..., None]]:
        if sampled:
            return super().batch_events(sampled, before)
        events: dict[str, Callable[..., None]] = {"before_backward": self._loss.before_backward, "batch_end": self._loss.batch_end}
        if before:
            events["batch_start"] = self._setup.next_batch
        if self._setup.follows_backward() or self.modules.pending is not None:
            events["after_backward"] = self.after_backward
        return events

    @override
    def batch_start(self, batch: BatchTensors) -> None:
        self.modules.clock.set(self.context.batch)
        groups = groups_of(self.context.host.optimizers)
        self._setup.batch_start(batch, groups, self.context.gate.in_detail)
        self._sampled.optimizers.batch_start(groups)
        self._sampled.learning.batch_start(batch)
        if self._metrics.of:
            self._metrics.batch("training", False, self.context.gate.in_detail)
        self._sampled.due.update(range(len(self._steps.optimizer_names)))

    @override
    def before_backward(self, loss: Tensor) -> None:
        self.modules.listening = True
        self._loss.before_backward(loss)
        self._setup.modes.before_backward()
        if self._outputs.of:
            self._outputs.look_at(loss, self.context.host.model, self._steps, self._setup.hidden())

    @override
    def after_backward(self) -> None:
        self._setup.after_backward(self._outputs.given)
        self.modules.listening = False  # what torch.autograd.grad computes in between is not the loss's gradient
        self.modules.backward_ends()

    @override
    def batch_end(self, outputs: Any = None) -> None:
        self._loss.batch_end(outputs)
        if self._outputs.open:
            self._outputs.batch_end()
        if self._metrics.of:
            self._metrics.batch("training", self.context.gate.in_detail, False)

    @override
    def validation_batch(self, batch: Any, index: int) -> None:
        if self._metrics.of and (index <= BATCHES or not index % BATCHES):
            self._metrics.batch("validation", 0 < index <= BATCHES, index < BATCHES)

    @override
    def validation_end(self) -> None:
        self._loss.validation_end()
        self._metrics.end()

    @override
    def on_gradients(self, step: Step) -> None:
        if step.optimizer in self._sampled.due or self._sampled.runs_again:
            self._sampled.gradients(step)
        if self._checks is not None:
            self._checks.gradients(step)

    @override
    def on_update(self, step: Step) -> None:
        if self._checks is not None:
            self._checks.stepping(step, self.context.batch)

    @override
    def on_taken(self, step: Step) -> None:
        valid = torch.isfinite(step.norms().sum()) if step.skips_nonfinite else None
        if step.loss_scale is not None:
            self.modules.commit(step.loss_scale, valid, step.optimizer)
        self._setup.parameters.step_taken(step, self._steps.optimizer_names[step.optimizer])
        if self._sampled.under_way or self._sampled.learning.under_way:
            self._sampled.taken(step, valid)

    @override
    def on_skipped(self, step: Step) -> None:
        self.modules.discard(step.optimizer)
        self._sampled.skipped(step)
        if self._checks is not None:
            self._checks.skipped(step)

    @override
    def on_changed(self, kept: EarlierOptimizers) -> None:
        self.modules.owners = owners(self._sites, self._steps)
        self._sampled.follow(kept)
        self._setup.follow(kept)
        if self._checks is not None:
            self._checks.follow(kept)

    @override
    def urgent_report(self, report: GradientFlowReport) -> GradientFlowReport:
        # Of parameters what every step has shown; the table holds the sampled ones only, and not the one under way.
        return report if self._checks is None else dataclasses.replace(report, parameters=self._checks.parameters())

    @override
    def dated(self, alerts: tuple[Alert, ...]) -> tuple[Alert, ...]:
        return () if self._checks is None else self._checks.dated(alerts)

    @property
    @override
    def unchecked(self) -> bool:
        return self._checks is not None and self._checks.last_look()

    @override
    def agreed(self, stride: int) -> int:
        shards = self._steps.shards  # where there are some, a sampled step is a collective: all ranks must come to it
        return stride if shards is None else shards.agreed(stride)

    def _flags(self) -> list[float]:
        """1 for each module whose output required a gradient, and for each parameter that had one."""
        recording = [float(index in self.modules.recording) for index in range(len(self.modules.names))]
        return [*recording, *self._setup.parameters.flags()]

    @override
    def window_end(self) -> None:
        self._setup.window_end(self.context.host.optimizers)
        self._sampled.optimizers.window_end()
        self._metrics.end()
        self._sampled.window_end()

    @override
    def read(self, packed: Mapping[str, Tensor], epoch: int, step: int) -> GradientFlowReport:
        sampled_batches, batches = map(int, packed["batches"])
        modules, silent = self.modules.read(packed["modules"], self.value_scale)
        parameters, total_norm = self.parameters.read(packed["parameters"])
        calls = sites_in_order(packed["calls"].tolist())
        order = self.modules.in_order(calls)
        seen = FirstLossGraph.read([int(number) for number in packed["seen"].tolist()], self.modules.names)
        flags = packed["flags"].tolist()
        recording = {name for name, flag in zip(self.modules.names, flags, strict=False) if flag}
        zeros = [name for name, stats in parameters.items() if stats.zero_fraction == 1]
        setups = self._setup.parameters
        setups.merge(flags[len(self.modules.names) :], self.context.host.model, order[: len(calls)], recording, zeros)
        return GradientFlowReport(
            epoch,
            step,
            in_order(modules, order),
            in_order(parameters, parameters_in_order(parameters, order)),
            total_norm,
            silent,
            sampled_batches,
            batches,
            order=self.modules.in_order(sites_in_order(packed["arrivals"].tolist(), backward=True), backward=True),
            setups=setups.setups,
            ranks_differ=rank_difference(packed["replicas"], self.parameters.names),
            squashed_twice=seen.squashed_twice,
            loss_aligns=seen.loss_aligns,
            loss_sign=seen.loss_sign,
            linear_layers=(seen.first_linear, seen.last_linear, seen.n_linear) if seen.first_linear else None,
            target_layer=seen.target_layer,
            viewed=seen.viewed,
            loss=self._loss.table.read(packed["loss"]),
            model_setup=self._setup.read(packed["setup"], self.context.host.model, modules, {seen.user: seen.elements}),
            optimizers=self._sampled.optimizers.read(packed["optimizers"]),
            planned_steps=self.context.host.setup.planned_steps,
            learning=self._sampled.learning.read(packed["learning"]),
            largest_losses=self._loss.table.largest.of_window(window_of(packed["loss"]), epoch, self.context.samples_of),
            metrics=self._metrics.read(packed["metrics"].tolist()),
        )

    @override
    def reset(self) -> None:
        super().reset()
        self._sampled.learning.reset()
        self._loss.table.largest.reset()
        if self._checks is not None:
            self._checks.reset()

    @override
    def state_dict(self) -> dict[str, Any]:
        return {name: part.state() for name, part in self._lasting.items()}
