"""What every layer puts out."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.declare.collector import Collector, Figures, LoggedStatistics
from lightning_hooks.declare.context import Context
from lightning_hooks.declare.scalars import model_scalars, stat_scalars
from lightning_hooks.declare.warn import loading_state
from lightning_hooks.declare.window import Report
from lightning_hooks.diagnostics.batches.first_layer import FirstLayerTable
from lightning_hooks.diagnostics.batches.inputs import BatchTensors, InputTable, ScaleTable
from lightning_hooks.diagnostics.features.outputs import FunctionalFeatures, OutputParts
from lightning_hooks.diagnostics.features.table import FeatureTable
from lightning_hooks.diagnostics.nonfinite.checks import BatchChecks
from lightning_hooks.diagnostics.reports import FeatureReport
from lightning_hooks.diagnostics.residual_stream.table import BlockRecorder, ResidualTable, blocks_around
from lightning_hooks.diagnostics.setup.initial import initial_scales, roles, shared_modules
from lightning_hooks.hooks import OutputRecorder
from lightning_hooks.hooks.parameters import of_libraries
from lightning_hooks.hooks.selection import clean_name
from lightning_hooks.plots.canvas import Figure
from lightning_hooks.plots.heat import heatmap
from lightning_hooks.statistics.reduction import flagged, largest
from lightning_hooks.statistics.rows import never_recorded
from lightning_hooks.statistics.tables import HostNumbers, ReportedTable, first_calls, in_order, sites_in_order

LOGGED = ("mean", "std", "min", "max", "rms", "zero_fraction", "nonfinite_fraction")
VALIDATION_BATCHES = 4  # validation batches of an epoch whose inputs are compared with those of training: the first ones
STEADY = 0.01  # standard deviation over root mean square up to which a rule may call an output constant


class FeatureCollector(Collector[FeatureReport]):
    """The statistics of every module's output, and of what the model is fed."""

    prefix: ClassVar[str] = "features"
    report_type: ClassVar[type[Report]] = FeatureReport
    monitor: ClassVar[str] = "FeatureStatsMonitor"
    report_name: ClassVar[str] = "features"
    takes: ClassVar[tuple[str, ...]] = (
        *("modules", "every_n_steps", "max_overhead", "histograms", "check_every_n_steps", "logged", "functional"),
    )
    ranking: ClassVar[tuple[str, ...]] = (
        *("rms", "std", "dead_fraction", "saturated_fraction", "nonfinite_fraction", "zero_fraction"),
        *("mean", "max", "min"),
    )
    logged_by_default: ClassVar[tuple[str, ...] | None] = (
        *("mean", "std", "rms", "zero_fraction", "dead_fraction", "saturated_fraction", "nonfinite_fraction"),
    )
    summary: ClassVar[Mapping[str, Mapping[str, str]]] = {
        "sites": {
            "mean": "mean", "std": "std", "zeros": "zero_fraction", "dead": "dead_fraction", "saturated": "saturated_fraction",
            "NaN, inf": "nonfinite_fraction",
        },
    }  # fmt: skip
    checks_early: ClassVar[bool] = True

    def __init__(self, context: Context, state: Mapping[str, Any]) -> None:
        super().__init__(context, state)
        host = context.host
        sites = context.select()
        functional = context.functional if context.records_functional else None
        self._sees_validation = functional is not None  # a compiled graph is guarded by the hooks of its modules
        self.table = FeatureTable(sites, host.model, host.setup.device, 0 if functional is None else functional.capacity)
        self.histograms = self.table.histograms = context.new_histograms(self.table.names)
        self._checks = None
        if context.early is not None:
            self._checks = BatchChecks(context.early, host.setup.world_size, context.judge_urgent)
            self._check_batch = context.guard(self._checks.batch_end, "the check within the epoch")
        self._inputs = InputTable(self.table.clock, host.setup.device)
        self._outputs, scales = OutputParts(functional, context, sites), ScaleTable(context, sites)
        self._first_layer = FirstLayerTable(context, sites, self.table.clock)
        own: dict[str, ReportedTable] = {"inputs": self._inputs, "first_layer": self._first_layer, "scales": scales}
        self._reported = own | self._outputs.tables
        blocks = blocks_around(host.model, sites)
        if blocks:
            self._reported["residual"] = residual = ResidualTable(blocks, host.setup.device, self.table.clock)
            for index, (name, block) in enumerate(blocks):
                context.listen(name, block, BlockRecorder(residual.add, index))
        self._train_input = context.guard(self._inputs.train, "the batch")
        self._validation_input = context.guard(self._inputs.validate, "the batch")
        self._gains, self._rms = initial_scales([] if host.position.global_step else sites)
        self._roles = roles(sites)
        self._shared = {clean_name(name): tuple(map(clean_name, others)) for name, others in shared_modules(host.model).items()}
        self._functional = None if functional is None else FunctionalFeatures(functional, context, self.table)
        with loading_state(context.name):
            if host.position.global_step:  # those of the weights that training started from
                self._gains, self._rms = dict(state.get("initial_gains", {})), dict(state.get("initial_rms", {}))
            if self._functional is not None and "functional" in state:
                self._functional.load_state_dict(state["functional"])
        for index, (name, module) in enumerate(sites):
            line = scales.lines_of.get(name)
            context.listen(name, module, _FeatureRecorder(self.table, self._outputs, self._first_layer, index, scales, line))
        self.table.reserved = self.table.capacity if host.setup.world_size > 1 else None
        self.set_tables(
            rectifiers=HostNumbers(lambda: [len(self.table.rectifiers)], largest),
            unmeasured=HostNumbers(
                lambda: [float(self.table.named.get(line) in self.table.unmeasured) for line in range(len(self.table.rows))],
                flagged,
                load=lambda flags: self.table.unmeasured.update(self._named(flags)),
                size=lambda: len(self.table.rows),
            ),
            order=first_calls(self.table.order, len(self.table.rows)),
            **self._reported,
            features=self.table,
        )

    @override
    def batch_events(self, sampled: bool, before: bool) -> dict[str, Callable[..., None]]:
        if sampled:
            return {"batch_start": self.batch_start, "batch_end": self.batch_end}
        return {} if self._checks is None else {"batch_end": self._check}

    @override
    def batch_start(self, batch: BatchTensors) -> None:
        self.table.clock.set(self.context.batch)
        self._train_input(batch, compare=self.context.sampled_batches == 1)
        self._outputs.compares = self._first_layer.waits = self.context.detailed
        if self.context.detailed:
            self._outputs.batch_start(batch)

    @override
    def batch_end(self, outputs: Any = None) -> None:
        self.table.order.take()
        if self._outputs.compares:
            self._outputs.batch_end()
        self._check()

    def _check(self, outputs: Any = None) -> None:
        if self._checks is not None:
            self._check_batch(self.table.rows, self.context.batches)

    @override
    def validation_batch(self, batch: Any, index: int) -> None:
        if index < VALIDATION_BATCHES:
            self._validation_input(batch)
        if self._sees_validation:
            self._first_layer.validation_batch(index)

    @override
    def validation_end(self) -> None:
        self._first_layer.stop()

    @override
    def detach(self) -> None:
        self._first_layer.stop()

    @override
    def silent_sites(self) -> list[str]:
        n = self.table.n_modules
        return never_recorded(self.names[:n], self.table.rows[:n])

    @property
    @override
    def names(self) -> list[str]:
        return self.table.names

    @property
    @override
    def n_modules(self) -> int:
        return self.table.n_modules

    @override
    def calls_numbered(self, changed: bool) -> None:
        if changed:
            self._outputs.renumbered()
        if self._functional is not None:
            self._functional.numbered(changed)

    def _named(self, flags: Iterable[float]) -> set[str]:
        return {self.table.named[line] for line, found in enumerate(flags) if found and line in self.table.named}

    @override
    def merge_windows(self, earlier: Tensor, later: Tensor) -> Tensor:
        parts = self.tables.split(earlier)  # there may be more rectifiers, with more units, by the later window
        size = len(parts["features"]) + len(later) - len(earlier)
        parts["features"] = self.table.widened(parts["features"], size, int(parts["rectifiers"]))
        return super().merge_windows(torch.cat([*parts.values()]), later)

    @override
    def read(self, packed: Mapping[str, Tensor], epoch: int, step: int) -> FeatureReport:
        sampled_batches, batches = map(int, packed["batches"])
        unmeasured = self._named(packed["unmeasured"].tolist())
        sites, silent = self.table.read(packed["features"])
        order = self.table.called(sites_in_order(packed["order"].tolist()))
        fields: dict[str, Any] = {}
        for name, table in self._reported.items():
            fields |= table.read(packed[name])
        still = [name for name, stats in sites.items() if stats.std <= STEADY * stats.rms]
        return FeatureReport(
            epoch,
            step,
            in_order(sites, order),
            silent,
            sampled_batches,
            batches,
            order=order,
            initial_gains=dict(self._gains),
            initial_rms=dict(self._rms),
            initial_roles=dict(self._roles),
            shared=dict(self._shared),
            unmeasured=tuple(name for name in silent if name in unmeasured),
            of_libraries=tuple(of_libraries(self.context.host.model, still)),
            functions={} if self._functional is None else self._functional.functions,
            **fields,
        )

    @override
    def reset(self) -> None:
        super().reset()
        if self._checks is not None:
            self._checks.reset()

    @override
    def state_dict(self) -> dict[str, Any]:
        functional = {} if self._functional is None else {"functional": self._functional.state_dict()}
        return self.lasting_state() | functional

    @override
    def lasting_state(self) -> dict[str, Any]:
        return {"initial_gains": dict(self._gains), "initial_rms": dict(self._rms)}

    @override
    def scalars(self, report: FeatureReport) -> dict[str, float]:
        some: dict[str, Collection[int]] = {"dead_fraction": self.table.rectifiers, "saturated_fraction": self.table.saturation}
        scalars = stat_scalars(self.prefix, self.names, report.sites, LOGGED)
        for stat, indices in some.items():
            scalars |= stat_scalars(self.prefix, [self.table.named[index] for index in indices], report.sites, [stat])
        logged = [stat for stat in self.logged_by_default or () if some.get(stat, True)]
        return scalars | model_scalars(self.prefix, report.sites.values(), logged)

    @override
    def not_logged_by_default(self) -> set[str]:
        return {f"{self.prefix}/model/mean_worst"}  # a mean is no fault, however large

    @classmethod
    @override
    def picture(cls, reports: Sequence[FeatureReport], stat: str | None) -> Callable[[], Figure] | None:
        rectifiers = any(stats.dead_fraction is not None for report in reports for stats in report.sites.values())
        return None if stat else partial(heatmap, reports, "dead_fraction" if rectifiers else "std")

    @override
    def figures(self, reports: Sequence[FeatureReport], written: LoggedStatistics, last: bool) -> Figures:
        figures: dict[str, Callable[[], Figure]] = {
            f"{stat} by epoch": partial(heatmap, reports, stat)
            for stat in (written.statistics if last or written.named else ["rms"])
            if stat != "dead_fraction" and any(getattr(stats, stat) for stats in reports[-1].sites.values())
        }
        if self.table.rectifiers:
            figures["dead units"] = partial(heatmap, reports, "dead_fraction")
        return figures


class _FeatureRecorder(OutputRecorder):
    """Forward hook of one site; ``line`` is that of the layer among the scales, if it is one whose inputs are looked at."""

    def __init__(
        self, table: FeatureTable, outputs: OutputParts, first: FirstLayerTable, index: int, scales: ScaleTable, line: int | None
    ) -> None:
        self.table, self.outputs, self.first, self.index = table, outputs, first, index
        self.scales, self.line = scales, line
        self.reads_input = table.reads_input(index)

    @override
    def skip(self) -> None:
        self.table.unmeasured.add(self.table.named[self.index])

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.table.add(self.index, args, output)
        outputs = self.outputs
        if outputs.compares and not torch.compiler.is_compiling():
            outputs.representations.take(self.index, output)
            if self.index in outputs.precisions.calls:
                outputs.precisions.take(self.index, output)
            if args and issubclass(type(args[0]), Tensor) and not args[0].requires_grad:
                if outputs.copies is not None:
                    outputs.copies.given(self.index, args)
                if self.first.waits and module is not None:  # of a compiled graph only some modules hand on their input
                    self.first.given(self.index, args[0])
        if self.line is not None and module is not None:  # a compiled graph calls without the module
            self.scales.take(self.line, args)
