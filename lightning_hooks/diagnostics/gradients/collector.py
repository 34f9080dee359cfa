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
from lightning_hooks.diagnostics.batches.inputs import BatchTensors
from lightning_hooks.diagnostics.gradients.hooks import (
    FirstLossGraph,
    GradientListener,
    MeasuredStep,
    OutputNodes,
    embedding_weights,
    owners,
)
from lightning_hooks.diagnostics.gradients.tables import GradientTable, ParameterTable
from lightning_hooks.diagnostics.gradients.view import GradientSites
from lightning_hooks.diagnostics.learning.collector import LearningWatch
from lightning_hooks.diagnostics.loss.table import LossWatch, window_of
from lightning_hooks.diagnostics.metrics.use import BATCHES, MetricsWatch, metrics_of
from lightning_hooks.diagnostics.nonfinite.checks import StepChecks
from lightning_hooks.diagnostics.optimizer.watch import OptimizerWatch
from lightning_hooks.diagnostics.ranks import ReplicaWatch, rank_difference
from lightning_hooks.diagnostics.reports import GradientFlowReport
from lightning_hooks.diagnostics.setup.checks import SetupChecks
from lightning_hooks.diagnostics.setup.parameters import ParameterSetup, SetupWatch, with_gradients, with_reasons
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
        self.modules = GradientTable([name for name, _ in self._sites], device, loss_scaled)
        self.parameters = ParameterTable(steps.names, len(steps.optimizer_names), device)
        self._loss = LossWatch(context)
        self._replicas = ReplicaWatch(context)
        self.modules.owners = owners(self._sites, self._steps)
        self.modules.listening = False  # except while the loss's backward runs
        self.histograms = self.modules.histograms = context.new_histograms(self.modules.names, loss_scaled)
        # Gradients are averaged over the ranks that share the data: of the loss minimised, each one's part is that much less.
        self.value_scale = 1.0 / host.setup.data_parallel_size
        self._embeddings = embedding_weights(steps, model)
        self._due: set[int] = set()  # optimizers whose next step is to be measured
        self.due = None if context.early is not None or context.learning is True else self._due
        self._measured: dict[int, MeasuredStep] = {}
        # Guarded separately from the checks: ranks come to their collective together, whatever fails on one of them.
        self._measure = context.guard(self._read_step, "optimizer step (what is measured)")
        self._checks: StepChecks | None = None
        if (early := context.early) is not None:
            self._checks = StepChecks(early, steps.names, host.setup.world_size, context.judge_urgent, device, context.faults)
        self.optimizers = OptimizerWatch(context)
        self._learning, self._runs_again = LearningWatch(context, self._embeddings), context.learning is True
        self._watch = SetupWatch(steps.names, model, host.optimizers, resumed=host.position.global_step > 0)
        self._setups: dict[str, ParameterSetup] = {}
        self._setup_checks = SetupChecks(context)
        metrics = metrics_of(model)
        self._metrics = MetricsWatch(context, metrics) if metrics else None
        self.pause, self.resumes = self._setup_checks.weights.look, self._setup_checks.weights.batches
        with context.loading():
            self._loss.table.load_state_dict(state.get("loss", {}))
            self._loss.table.largest.load(state.get("largest_losses", {}))
            self._watch.load(state.get("setups", {}))
            self._learning.load(state.get("learning", {}))
            self.optimizers.load(state.get("optimizers", {}))
            self._setup_checks.load_state_dict(state.get("checks", {}))
        self._outputs = OutputNodes(None if compiled_regions(model) else context)
        self._look_at_loss = context.guard(OutputNodes.look_at, "the loss's graph")
        for index, (name, module) in enumerate(self._sites):
            context.listen(name, module, GradientListener(context, self.modules, name, index, self._outputs))
        self.set_tables(
            calls=first_calls(self.modules.calls, len(self._sites)),
            arrivals=first_calls(self.modules.order, len(self._sites)),
            seen=HostNumbers(lambda: self._outputs.numbers(self.modules.names), largest),
            flags=HostNumbers(self._flags, flagged),
            loss=self._loss.table,
            setup=self._setup_checks,
            replicas=self._replicas.table,
            modules=self.modules,
            optimizers=self.optimizers.table,
            parameters=self.parameters,
            learning=self._learning.tables,
            **({} if self._metrics is None else {"metrics": HostNumbers(self._metrics.numbers, largest)}),
        )

    @override
    def detach(self) -> None:
        self._outputs.clear()
        self._setup_checks.weights.release()
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
            events["batch_start"] = self._setup_checks.next_batch
        if self._setup_checks.hidden() or self._watch.follows_backward or self.modules.pending is not None:
            events["after_backward"] = self.after_backward
        return events

    @override
    def batch_start(self, batch: BatchTensors) -> None:
        self._setup_checks.batch_start(batch, self.context.gate.in_detail)
        self.modules.clock.set(self.context.batch)
        groups = groups_of(self.context.host.optimizers)
        self._watch.batch_start(groups, self.context.host.model)
        self.optimizers.batch_start(groups)
        self._learning.batch_start(batch)
        if self._metrics is not None:
            self._metrics.batch("training", False, self.context.gate.in_detail)
        self._due.update(range(len(self._steps.optimizer_names)))

    @override
    def before_backward(self, loss: Tensor) -> None:
        self.modules.listening = True
        self._loss.before_backward(loss)
        self._setup_checks.before_backward()
        if self._outputs.of:
            self._look_at_loss(self._outputs, loss, self.context.host.model, self._steps, self._setup_checks.hidden())

    @override
    def after_backward(self) -> None:
        self._watch.after_backward()
        self._setup_checks.after_backward(self._outputs.given)
        self.modules.listening = False  # what torch.autograd.grad computes in between is not the loss's gradient
        self.modules.backward_ends()

    @override
    def batch_end(self, outputs: Any = None) -> None:
        self._loss.batch_end(outputs)
        if self._outputs.open:
            self._outputs.batch_end()
        if self._metrics is not None:
            self._metrics.batch("training", self.context.gate.in_detail, False)

    @override
    def validation_batch(self, batch: Any, index: int) -> None:
        if self._metrics is not None and (index <= BATCHES or not index % BATCHES):
            self._metrics.batch("validation", 0 < index <= BATCHES, index < BATCHES)

    @override
    def validation_end(self) -> None:
        self._loss.validation_end()
        if self._metrics is not None:
            self._metrics.end()

    @override
    def on_gradients(self, step: Step) -> None:
        if step.optimizer in self._due and not (step.again and step.optimizer in self._measured):
            self._measured.pop(step.optimizer, None)
            self._measure(step)
            self._learning.under_way.pop(step.optimizer, None)
            if self._learning.detailed or self._runs_again:
                self._learning.gradients(step)
        elif self._runs_again and not step.again:
            self._learning.under_way.pop(step.optimizer, None)
            self._learning.gradients(step, sampled=False)
        if self._checks is not None:
            self._checks.gradients(step)

    def _read_step(self, step: Step) -> None:
        self._measured[step.optimizer] = MeasuredStep(step, self._embeddings)

    @override
    def on_update(self, step: Step) -> None:
        if self._checks is not None:
            self._checks.stepping(step, self.context.batch)

    @override
    def on_taken(self, step: Step) -> None:
        valid = torch.isfinite(step.norms().sum()) if step.skips_nonfinite else None
        if step.loss_scale is not None:
            self.modules.commit(step.loss_scale, valid, step.optimizer)
        self._watch.step_taken(step, self._steps.optimizer_names[step.optimizer])
        measured = self._measured.pop(step.optimizer, None)
        if step.optimizer in self._learning.under_way:
            self._learning.taken(step, valid, sampled=measured is not None)
        if measured is not None:
            self._due.discard(step.optimizer)
            measured.enter(self.parameters, self.optimizers, step, valid)
            self._replicas.taken(step, measured)

    @override
    def on_skipped(self, step: Step) -> None:
        self.modules.discard(step.optimizer)
        self._measured.pop(step.optimizer, None)
        self._learning.skipped(step)
        if self._checks is not None:
            self._checks.skipped(step)

    @override
    def on_changed(self, kept: EarlierOptimizers) -> None:
        self.parameters.follow(self._steps.names, kept)
        self._replicas.table.grow(len(self._steps.names))
        self.modules.owners = owners(self._sites, self._steps)
        self._measured = {now: self._measured[old] for now, old in enumerate(kept) if old in self._measured}
        due = {now for now, old in enumerate(kept) if old in self._due}
        self._due.clear()
        self._due.update(due)
        self._watch.follow(kept)
        self._setup_checks.weights.follow()
        self.optimizers.follow(kept)
        self._learning.follow()
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
        setups = self._setups
        return [*recording, *(float(setups[name].has_gradient) if name in setups else 0.0 for name in self.parameters.names)]

    @override
    def window_end(self) -> None:
        host = self.context.host
        self._setups = self._watch.window_end(host.optimizers, host.model)
        self._setup_checks.window_end(host.optimizers, self._setups)
        self.optimizers.window_end()
        if self._metrics is not None:
            self._metrics.end()
        self._replicas.window_end()

    @override
    def read(self, packed: Mapping[str, Tensor], epoch: int, step: int) -> GradientFlowReport:
        sampled_batches, batches = map(int, packed["batches"])
        modules, silent = self.modules.read(packed["modules"], self.value_scale)
        parameters, total_norm = self.parameters.read(packed["parameters"])
        calls = sites_in_order(packed["calls"].tolist())
        order = self.modules.called(calls)
        seen = FirstLossGraph.read([int(number) for number in packed["seen"].tolist()], self.modules.names)
        flags = packed["flags"].tolist()
        recording = {name for name, flag in zip(self.modules.names, flags, strict=False) if flag}
        found = dict(zip(self.parameters.names, map(bool, flags[len(self.modules.names) :]), strict=True))
        setups = with_gradients(self._setups, found)
        zeros = [name for name, stats in parameters.items() if stats.zero_fraction == 1]
        self._setups = with_reasons(setups, self.context.host.model, order[: len(calls)], recording, zeros)
        return GradientFlowReport(
            epoch,
            step,
            in_order(modules, order),
            in_order(parameters, parameters_in_order(parameters, order)),
            total_norm,
            silent,
            sampled_batches,
            batches,
            order=self.modules.arrived(sites_in_order(packed["arrivals"].tolist())),
            setups=self._setups,
            ranks_differ=rank_difference(packed["replicas"], self.parameters.names),
            squashed_twice=seen.squashed,
            loss_aligns=seen.aligned,
            loss_sign=seen.sign,
            target_layer=seen.target_layer,
            linear_layers=(seen.first_linear, seen.last_linear, seen.linear_layers) if seen.first_linear else None,
            loss=self._loss.table.read(packed["loss"]),
            model_setup=self._setup_checks.read(packed["setup"], self.context.host.model, modules, {seen.user: seen.elements}),
            optimizers=self.optimizers.read(packed["optimizers"]),
            planned_steps=self.context.host.setup.planned_steps,
            learning=self._learning.read(packed["learning"]),
            largest_losses=self._loss.table.largest.read(window_of(packed["loss"]), epoch, self.context.samples_of),
            metrics={} if self._metrics is None else self._metrics.read(packed["metrics"].tolist()),
        )

    @override
    def reset(self) -> None:
        super().reset()
        self._learning.reset()
        self._loss.table.largest.reset()
        if self._checks is not None:
            self._checks.reset()

    @override
    def state_dict(self) -> dict[str, Any]:
        self._loss.table.close_page()
        return {
            "setups": self._watch.state(),
            "loss": self._loss.table.state_dict(),
            "optimizers": self.optimizers.state(),
            "checks": self._setup_checks.state_dict(),
            "learning": self._learning.state(),
            "largest_losses": self._loss.table.largest.state(),
        }
