"""GradientFlowMonitor: how gradients come back through the model, and what they do to its weights."""

from __future__ import annotations

import dataclasses
import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from typing_extensions import override

from lightning_hooks.alerts import Alert, Exploding, GradientFlowReport
from lightning_hooks.callbacks.early import StepChecks
from lightning_hooks.callbacks.logged import model_scalars, stat_scalars
from lightning_hooks.callbacks.setups import SetupWatch, with_reasons
from lightning_hooks.callbacks.step import Kept, Step
from lightning_hooks.callbacks.step_monitor import StepMonitor, data_parallel_size
from lightning_hooks.callbacks.steps import StepProbe
from lightning_hooks.callbacks.trainer import loss_scale, loss_scaler
from lightning_hooks.hooks import GradientRecorder, OutputRecorder, float_tensors, guarded
from lightning_hooks.hooks.graph import nearest_known, squashed_twice
from lightning_hooks.hooks.selection import clean_name, compiled_regions
from lightning_hooks.reports.alert import GRADIENT_KINDS
from lightning_hooks.reports.setups import ParameterSetup
from lightning_hooks.reports.windows import Report
from lightning_hooks.statistics import (
    GradientTable,
    ParameterTable,
    WeightSample,
    scaled,
)
from lightning_hooks.statistics.gradients import UPDATE_SAMPLE
from lightning_hooks.statistics.initial import starting_at_zero
from lightning_hooks.statistics.loss import N_LOSS_COLUMNS, LossTable, loss_stats
from lightning_hooks.statistics.order import in_order, merge_positions, parameters_in_order, positions, sites_in_order
from lightning_hooks.statistics.row_sample import RowSample
from lightning_hooks.statistics.rows import N_COLUMNS, merge, unheard
from lightning_hooks.statistics.shards import ShardedWeightSample
from lightning_hooks.trackers import Table, some
from lightning_hooks.trackers.layout import Band, Chart, Layout, by_statistic, margins, of_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_hooks.callbacks.publishing import Figures

MODULE_STATS = ("mean", "std", "min", "max", "rms", "norm", "zero_fraction", "nonfinite_fraction")
PARAMETER_STATS = ("norm", "norm_max", "rms", "zero_fraction", "nonfinite_steps", "missing_steps", "update_ratio")

BAND = ("median", "min", "max")

NO_MODULE = "the loss"
"""Where a loss squashes twice what no module squashed."""


class GradientFlowMonitor(StepMonitor[GradientFlowReport]):
    """Logs the gradients at module outputs and of parameters, and finds where they vanish, explode, stop or break.

    At modules: tensor hooks set from a forward hook, so models with in-place operations and any kind of output are fine. Of
    parameters: ``.grad`` at the optimizer step: reduced over ranks, accumulated, unscaled, before clipping; with the ratio of
    update to weight. Steps that a loss scaler skips do not count.

    Each epoch ``callback_metrics`` gets ``gradient_flow/<module>/<stat>`` (mean, std, min, max, rms, norm, zero_fraction,
    nonfinite_fraction), ``gradient_flow/<parameter>/<stat>`` (norm, norm_max, rms, zero_fraction, nonfinite_steps,
    missing_steps, update_ratio), ``gradient_flow/total_norm``, of the whole model ``gradient_flow/model/<stat>_median`` and
    ``…_worst`` (rms of modules, norm and update_ratio of parameters) with ``model/rms_min`` and ``model/rms_max``, and
    ``gradient_flow/alerts/<kind>``. NaN where nothing was measured. Loggers get what ``logged`` says.

    Args:
        modules: Where to listen; None for every leaf that computes something. Parameters are always all listened to.
        every_n_steps: Listen to training batches 0, n, 2n, … of each epoch, and to the first optimizer step at or after
            each; 1 for all.
        on_alert: ``log``, ``warn``, ``stop``, ``raise``, or a function of an Alert.
        max_overhead: The share of the training step's time that all monitors together may cost; None for no limit.
        rules: Rules to change, mute or add; see :class:`~lightning_hooks.alerts.RuleBook`.
        summary: What is printed at the end of training: True for three lines of all monitors together, ``full`` for tables before
            them, False for nothing.
        logged: Which statistics are logged: ``auto`` for a number that does not grow with the model, ``all``, or names of them.
        report_dir: Where the run's reports and its health report are written: ``auto`` for the log directory, if a logger has
            one, another directory, or None for nowhere.
        histograms: Log a histogram of the gradient at each module's output: True for up to 128 modules, or glob patterns.
        figures: Log pictures: True after epochs 0, 1, 2, 4, 8, …, n after every nth, and at the end; needs matplotlib. Of the
            heat maps, which take longest to
            draw, those of the statistics that ``logged`` names, or of the modules' RMS; at the end of training all.
        check_every_n_steps: Look for gradients that are not finite or explode every n optimizer steps, and tell at once; every step
            is looked at on the CPU, before its update. None for at the end of each epoch.
        progress_bar: Whether the progress bar shows the number of alerts.

    Attributes:
        report: The last epoch's :class:`~lightning_hooks.alerts.GradientFlowReport`; None before the first.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import GradientFlowMonitor
        >>> trainer = Trainer(callbacks=[GradientFlowMonitor(on_alert="warn")], logger=False)
    """

    prefix: ClassVar[str] = "gradient_flow"
    report_type: ClassVar[type[Report] | None] = GradientFlowReport
    kinds: ClassVar[tuple[str, ...]] = GRADIENT_KINDS
    ranking: ClassVar[tuple[str, ...]] = (
        *("rms", "update_ratio", "norm", "nonfinite_fraction", "nonfinite_steps", "zero_fraction", "missing_steps", "norm_max"),
        *("std", "mean", "max", "min"),
    )
    logged_by_default: ClassVar[tuple[str, ...] | None] = ("rms", "norm", "update_ratio")
    # Reentrant checkpointing runs forward without gradients and builds the graph when it recomputes. (Hooks on what the
    # other kind recomputes never fire, since no backward goes through it.)
    hears_recomputation: ClassVar[bool] = True
    fit_only: ClassVar[tuple[str, ...]] = (
        "_probe",
        "_modules",
        "_parameters",
        "_outputs",
        "_watch",
        "_checks",
        "_loss",
        "_take_loss",
        "_measure",
        "_look_at_loss",
        "histogram_table",
    )
    checks_early: ClassVar[bool] = True
    _modules: GradientTable
    _parameters: ParameterTable
    _checks: StepChecks | None = None
    _loaded_setups: Mapping[str, Any] = MappingProxyType({})

    @override
    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        sites = self.select(pl_module)
        probe = self.watch_steps(trainer, pl_module)
        device = pl_module.device
        self._modules = GradientTable([name for name, _ in sites], device, loss_scaler(trainer) is not None)
        self._parameters = ParameterTable(probe.names, len(probe.optimizer_names), device)
        self._loss = LossTable(device)
        self._take_loss = guarded(self._loss.add, "the loss", self.faults)
        self._sites = sites
        self._modules.owners = self._owners(probe)
        self._modules.listening = False  # but while the loss's backward runs
        self.histogram_table = self._modules.histograms = self.publishing.histogram_table(
            self._modules.names, device, type(self).__name__, loss_scaler(trainer) is not None
        )
        # Gradients are averaged over the ranks that share the data: of the loss minimised, each one's part is that much less.
        self.value_scale = 1.0 / data_parallel_size(trainer)
        self._tables = _tables(probe, pl_module)
        self._due: set[int] = set()  # optimizers whose next step is to be measured
        self._measured: dict[int, _Measured] = {}
        # Guarded apart from the checks: ranks come to their collective together, whatever fails on one of them.
        self._measure = guarded(self._read_step, "optimizer step (what is measured)", self.faults)
        self._look_at_loss = guarded(self._find_squashed, "the loss's graph", self.faults)
        if self.early is not None:
            rules = [rule for rule in self.alerting.book.rules if isinstance(rule, Exploding)]
            absolute = min((rule.absolute for rule in rules), default=math.inf)  # a rule may be for some places only:
            relative = min((rule.relative for rule in rules), default=math.inf)  # what is found is held against it
            self._checks = StepChecks(
                self.early,
                probe.names,
                (absolute, relative),
                self._world_size,
                partial(self.look, trainer),
                {clean_name(name): p.numel() for name, p in pl_module.named_parameters() if not is_lazy(p)},
                device,
                self.faults,
            )
        named = ((clean_name(name), parameter) for name, parameter in pl_module.named_parameters())
        at_zero = frozenset() if trainer.global_step else starting_at_zero(named)  # else those of the checkpoint
        self._watch, self._optimizer_names = SetupWatch(probe.names, at_zero), probe.optimizer_names
        with self.reading_state():
            self._watch.load(self._loaded_setups)
        self._loaded_setups = {}
        self._setups: dict[str, ParameterSetup] = {}
        self._squashed = ""
        self._outputs = _Outputs() if not compiled_regions(pl_module) else None
        for index, (name, module) in enumerate(sites):
            arrived = guarded(_Arrived(self._modules, index), name, self.faults, when=self.gate, meter=self.meter)
            self.listen(name, module, _GradientListener(arrived, name, index, self._modules, self._outputs))

    def _owners(self, probe: StepProbe) -> list[frozenset[int]] | None:
        """Of each site, the optimizers that hold parameters of it; None where there is but one optimizer."""
        if len(probe.optimizer_names) < 2:
            return None
        holders = probe.holders()
        return [frozenset(held for p in module.parameters() for held in holders.get(id(p), ())) for _, module in self._sites]

    @override
    def released(self) -> None:
        super().released()
        self._checks = None
        outputs, table = self.__dict__.get("_outputs"), self.__dict__.get("_modules")
        if outputs is not None:
            outputs.close()
        if table is not None:
            table.listening = False  # tensor hooks live as long as their graph, which the user may keep

    @override
    def on_before_backward(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        super().on_before_backward(trainer, pl_module, loss)
        self._modules.listening = True
        self._record_loss(trainer, pl_module, loss)
        if self._outputs is not None and self._outputs.of:
            self._look_at_loss(loss)

    def _record_loss(self, trainer: Trainer, pl_module: LightningModule, loss: Tensor) -> None:
        """Take up the loss as ``training_step`` gave it: Lightning divides it by the accumulation, and a loss scaler scales it."""
        if isinstance(loss, Tensor) and loss.is_floating_point():
            scaler = loss_scaler(trainer)
            factor = float(trainer.accumulate_grad_batches) if pl_module.automatic_optimization else 1.0
            self._take_loss(loss, self.batches - 1, factor, None if scaler is None else loss_scale(scaler))

    def _find_squashed(self, loss: Tensor) -> None:
        """In a fit's first batch: whether a loss squashes what is squashed already, and where that was."""
        node = squashed_twice(loss)
        if node is not None and self._outputs is not None:
            self._squashed = nearest_known(node, self._outputs.of) or NO_MODULE

    @override
    def on_after_backward(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_after_backward(trainer, pl_module)
        self._watch.after_backward()
        self._modules.listening = False  # what torch.autograd.grad computes in between is not the loss's gradient
        self._modules.backward_ends()

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        if self.gate.sampled:
            self._modules.clock.set(self.batches - 1)
            self._watch.batch_starts(trainer, pl_module)
            self._due.update(range(self._parameters.totals.shape[0]))

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)
        if self._outputs is not None:
            self._outputs.close()

    @override
    def on_gradients(self, step: Step) -> None:
        if step.optimizer in self._due and not (step.again and step.optimizer in self._measured):
            self._measured.pop(step.optimizer, None)
            self._measure(step)
        if self._checks is not None:
            self._checks.gradients(step)

    def _read_step(self, step: Step) -> None:
        self._measured[step.optimizer] = _Measured(step, self._tables)

    @override
    def on_clipped(self, step: Step) -> None:
        if self._checks is not None:
            self._checks.stepping(step, self.batches - 1)

    @override
    def on_taken(self, step: Step) -> None:
        valid = torch.isfinite(step.norms().sum()) if step.skips_nonfinite else None
        if step.loss_scale is not None:
            self._modules.commit(step.loss_scale, valid, step.optimizer)
        self._watch.step_taken(step, self._optimizer_names[step.optimizer])
        measured = self._measured.pop(step.optimizer, None)
        if measured is not None:
            self._due.discard(step.optimizer)
            measured.enter(self._parameters, step, valid)

    @override
    def on_changed(self, kept: Kept) -> None:
        assert self._probe is not None
        self._optimizer_names = self._probe.optimizer_names
        self._parameters.follow(self._probe.names, kept)
        self._modules.owners = self._owners(self._probe)
        self._measured = {now: self._measured[old] for now, old in enumerate(kept) if old in self._measured}
        self._due = {now for now, old in enumerate(kept) if old in self._due}
        self._watch.follow(kept)
        if self._checks is not None:
            self._checks.follow(kept)

    @override
    def on_skipped(self, step: Step) -> None:
        self._modules.discard(step.optimizer)
        self._measured.pop(step.optimizer, None)
        if self._checks is not None:
            self._checks.skipped(step)

    @override
    def urgent(self, report: GradientFlowReport) -> tuple[Alert, ...]:
        if self._checks is None:
            return ()
        # Of parameters what every step has shown; the table holds the sampled ones only, and not the one under way.
        every = dataclasses.replace(report, parameters=self._checks.parameters())
        return self._checks.dated(super().urgent(every))

    @override
    def last_check(self, report: GradientFlowReport) -> list[Alert]:
        if self.early is not None and self._checks is not None and self._checks.last_look():
            self.early.found.update({(alert.kind, alert.site): alert for alert in self.urgent(report)})
        return super().last_check(report)

    @override
    def agreed(self, stride: int) -> int:
        # Where parameters are sharded a sampled step is a collective: ranks that sampled differently would wait for ever.
        return stride if self._probe is None or self._probe.shards is None else self._probe.shards.agreed(stride)

    @override
    def unheard(self) -> list[str]:
        pending = self._modules.pending
        return unheard(self._modules.names, self._modules.rows, *([] if pending is None else pending.records()))

    @override
    def pack(self) -> Tensor:
        table, parameters = self._modules, self._parameters
        called = positions(table.calls, len(table.names), table.rows)
        arrived = positions(table.order, len(table.names), table.rows)
        places = {name: float(place) for place, name in enumerate((*table.names, NO_MODULE), start=1)}
        reached = [self._setups[name].has_gradient if name in self._setups else 0.0 for name in parameters.names]
        known = torch.tensor([places.get(self._squashed, 0.0), *reached], dtype=table.rows.dtype)
        known = torch.cat((self.counted_batches(table.rows), known.to(table.rows.device, non_blocking=True)))
        return torch.cat((called, arrived, known, self._loss.pack(), table.rows.flatten(), parameters.pack()))

    def _parts(self, packed: Tensor) -> tuple[Tensor, ...]:
        """Order of calls and of arrival, what the host knows, loss, modules, parameters: of one vector or of those of all ranks."""
        n, known, rows = len(self._modules.names), 3 + len(self._parameters.names), self._modules.rows.numel()
        sizes = n, n, known, N_LOSS_COLUMNS, rows
        return torch.split(packed, [*sizes, packed.shape[-1] - sum(sizes)], dim=-1)

    @override
    def unpack(self, packed: Tensor) -> None:
        called, arrived, _, loss, rows, parameters = self._parts(packed)
        self._modules.calls.update(dict.fromkeys(sites_in_order(called)))
        self._modules.order.update(dict.fromkeys(sites_in_order(arrived)))
        self._modules.rows.copy_(rows.view_as(self._modules.rows))
        self._loss.unpack(loss)
        self._parameters.unpack(parameters)

    @property
    @override
    def places(self) -> list[str]:
        return [*self._modules.names, *self._parameters.names]

    @override
    def merge_packed(self, packed: Tensor) -> Tensor:
        called, arrived, known, loss, rows, parameters = self._parts(packed)
        modules = merge(rows.reshape(-1, *self._modules.rows.shape)).flatten()
        orders = merge_positions(called), merge_positions(arrived)
        return torch.cat((*orders, known.amax(0), loss.sum(0), modules, self._parameters.merge_packed(parameters)))

    @override
    def read(self, packed: Tensor, epoch: int, step: int) -> GradientFlowReport:
        called, arrived, known, losses, rows, measured = self._parts(packed)
        modules, silent = self._modules.read(scaled(rows.view(-1, N_COLUMNS), self.value_scale))
        parameters, total_norm = self._parameters.read(measured)
        order = self._modules.called(sites_in_order(called))
        sampled_batches, batches, squashed, *reached = (int(number) for number in known.tolist())
        for name, has_gradient in zip(self._parameters.names, map(bool, reached), strict=True):
            if name in self._setups and self._setups[name].has_gradient != has_gradient:  # on another rank
                self._setups[name] = dataclasses.replace(self._setups[name], has_gradient=has_gradient)
        model = None if self._fit is None else self._fit[1]()
        if model is not None:
            self._setups = with_reasons(self._setups, model)
        return GradientFlowReport(
            epoch,
            step,
            in_order(modules, order),
            in_order(parameters, parameters_in_order(parameters, order)),
            total_norm,
            silent,
            sampled_batches,
            batches,
            order=self._modules.arrived(sites_in_order(arrived)),
            setups=self._setups,
            squashed_twice=["", *self._modules.names, NO_MODULE][squashed],
            loss=loss_stats(losses.tolist(), batches),
        )

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._setups = self._watch.epoch_ends(trainer, pl_module)
        super().on_train_epoch_end(trainer, pl_module)

    @override
    def state_dict(self) -> dict[str, Any]:
        watch = self.__dict__.get("_watch")  # a copy has none
        return {**super().state_dict(), "setups": {} if watch is None else watch.state()}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        with self.reading_state():
            self._loaded_setups = dict(state_dict.get("setups", {}))

    @override
    def reset(self) -> None:
        self._loss.reset()
        self._modules.reset()
        self._parameters.reset()
        if self._checks is not None:
            self._checks.epoch_ends()

    @override
    def scalars(self, report: GradientFlowReport) -> dict[str, float]:
        known = sorted(stats.rms for stats in report.modules.values() if math.isfinite(stats.rms))
        over_modules = (statistics.median(known), known[0], known[-1]) if known else (math.nan,) * 3
        return {
            **stat_scalars(self.prefix, self._modules.names, report.modules, MODULE_STATS),
            **stat_scalars(self.prefix, self._parameters.names, report.parameters, PARAMETER_STATS),
            f"{self.prefix}/total_norm": report.total_norm,
            **{f"{self.prefix}/model/rms_{what}": value for what, value in zip(BAND, over_modules, strict=True)},
            **model_scalars(self.prefix, report.modules.values(), ["rms"]),
            **model_scalars(self.prefix, report.parameters.values(), ["norm", "update_ratio"]),
        }

    @override
    def not_logged_by_default(self) -> set[str]:  # at modules the RMS, of parameters the norm
        tags = {f"{self.prefix}/{name}/norm" for name in self._modules.names}
        return tags | {f"{self.prefix}/{name}/rms" for name in self._parameters.names}

    @property
    @override
    def n_modules(self) -> int:
        return len(self._modules.names)

    @override
    def charts(self) -> Layout:
        written, modules = self.publishing.scalars.statistics, self._modules.names
        if not self.publishing.scalars.of_sites:
            whole: dict[str, Chart] = {
                "RMS of modules: median, smallest and largest": Band(*(f"{self.prefix}/model/rms_{what}" for what in BAND))
            }
            return {"Gradient flow": whole | of_model(self.prefix, ("norm", "update_ratio")), **super().charts()}
        of_modules, of_parameters = (["rms"], ["norm", "update_ratio"]) if not self.publishing.scalars.named else (written, written)
        return {
            "Gradient flow": by_statistic(self.prefix, [stat for stat in MODULE_STATS if stat in of_modules], modules, "modules")
            | by_statistic(
                self.prefix, [stat for stat in PARAMETER_STATS if stat in of_parameters], self._parameters.names, "parameters"
            ),
            **(
                {"Gradient: mean, least and largest value": margins(self.prefix, modules)}
                if {"mean", "min", "max"} <= {*written}
                else {}
            ),
            **super().charts(),
        }

    @override
    def figures(self, reports: Sequence[GradientFlowReport], last: bool) -> Figures:
        from lightning_hooks.plots import colourful_dimension, gradient_flow, heatmap, update_ratios

        now, written = reports[-1], self.publishing.scalars.statistics
        figures: dict[str, Callable[[], Figure]] = {
            "gradient flow": partial(gradient_flow, now),
            "gradient flow of parameters": partial(gradient_flow, now, of="parameters"),
            "update ratios": partial(update_ratios, now),
        }
        for noun, stats, found in (("module", MODULE_STATS, now.modules), ("parameter", PARAMETER_STATS, now.parameters)):
            told = [stat for stat in stats if stat in written and any(getattr(entry, stat) for entry in found.values())]
            each_time = told if last or self.publishing.scalars.named else ["rms"][: noun == "module"]
            for stat in each_time:
                figures[f"{stat} of {noun}s by epoch"] = partial(heatmap, reports, stat, of=noun)
        if self.histogram_table is not None:
            figures["colourful dimension"] = partial(colourful_dimension, **self.publishing.colourful(), value="gradient")
        return figures

    @override
    def summary_lines(self, report: GradientFlowReport) -> list[str]:
        total = len(report.modules) + len(report.silent)
        lines = [
            f"Gradient flow, epoch {report.epoch}: {len(report.modules)} of {total} modules and "
            f"{len(report.parameters)} parameters heard, in {report.sampled_batches} of {report.batches} batches; "
            f"total norm {report.total_norm:.4g}."
        ]
        if report.silent:
            lines.append(f"  No gradient at: {some(report.silent)}")
        ranked = sorted(report.modules.items(), key=lambda item: (math.isnan(item[1].rms), item[1].rms))
        ends = ranked if len(ranked) <= 6 else ranked[:3] + ranked[-3:]
        rows = [(name, s.rms, s.norm, s.zero_fraction, s.nonfinite_fraction) for name, s in ends]
        return [*lines, Table(("module", "rms", "norm", "zeros", "NaN, inf"), rows)]


class _Measured:
    """What was read of one optimizer step before its update.

    Args:
        step: The step.
        tables: The places of parameters of which a batch touches some rows.
    """

    def __init__(self, step: Step, tables: set[int | None]) -> None:
        self.missing = step.missing
        self.weights: WeightSample | ShardedWeightSample | None = None
        if not step.indices:
            return
        zeros = step.zeros()
        norms = step.norms()
        self.parameters = step.parameters
        self.indices = indices = step.index_tensor(norms.device)
        here = norms if len(step.indices) == step.n_parameters else norms[self.indices]
        self.read = (here, zeros, step.sizes(), step.global_step)
        self.rows: dict[int, RowSample] = {}
        if step.shards is not None:
            self.weights = ShardedWeightSample(step.parameters, indices, step.n_parameters, step.shards)
            return
        self.weights = step.reader.sample(step.parameters)
        for place, (index, parameter) in enumerate(zip(step.indices, step.parameters, strict=True)):
            gradient = parameter.grad
            if gradient is None or parameter.numel() <= UPDATE_SAMPLE or parameter.dim() < 2 or parameter.is_complex():
                continue
            by_row = gradient.layout == torch.sparse_coo and gradient.sparse_dim() == 1
            if by_row or (gradient.layout == torch.strided and index in tables):
                self.rows[place] = RowSample(parameter, gradient)

    def enter(self, table: ParameterTable, step: Step, valid: Tensor | None) -> None:
        """The step was taken: enter it, with the updates it made."""
        table.add_missing(self.missing)
        if self.weights is None:
            return
        table.add(step.optimizer, self.indices, *self.read, valid)
        ratios = self.weights.ratios(self.parameters)
        for place, rows in self.rows.items():
            ratios[place] = rows.ratio(self.parameters[place])
        table.add_ratios(self.indices, ratios, valid)


def _tables(probe: StepProbe, pl_module: LightningModule) -> set[int | None]:
    """The places of the weights of embeddings."""
    return {probe.index_of(module.weight) for module in pl_module.modules() if isinstance(module, nn.Embedding | nn.EmbeddingBag)}


class _Outputs:
    """Which node of the autograd graph is which module's output: noted in the fit's first batch, until backward."""

    def __init__(self) -> None:
        self.open = True
        self.of: dict[Any, str] = {}

    def close(self) -> None:
        """The first batch is over."""
        self.open = False
        self.of.clear()


class _GradientListener(OutputRecorder):
    """Forward hook of one site: notes the call, and asks each output tensor for its gradient."""

    def __init__(self, arrived: guarded, name: str, index: int, table: GradientTable, outputs: _Outputs | None) -> None:
        self.hook = arrived
        self.name, self.index = name, index
        self.calls, self.outputs = table.calls, outputs

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.calls.setdefault(self.index)
        tensors = self._ask(output)
        if self.outputs is not None and self.outputs.open:
            self.outputs.of.update((tensor.grad_fn, self.name) for tensor in tensors)

    @override
    def trace(self, number: Tensor, *args: Any) -> None:
        module, inputs, output = args
        self._ask(output)
        super().trace(number, module, inputs, ())  # the call

    def _ask(self, output: Any) -> list[Tensor]:
        # A leaf is a parameter, with a place of its own.
        tensors = [tensor for tensor in float_tensors(output) if tensor.requires_grad and not tensor.is_leaf]
        for tensor in tensors:
            tensor.register_hook(self.hook)  # type: ignore[no-untyped-call]
        return tensors


class _Arrived(GradientRecorder):
    """Tensor hook of one site."""

    def __init__(self, table: GradientTable, index: int) -> None:
        self.table, self.index = table, index

    def __call__(self, gradient: Tensor) -> None:
        self.table.add(self.index, gradient)
