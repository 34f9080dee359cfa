"""FeatureStatsMonitor: what every layer puts out."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

import torch
from lightning.pytorch import LightningModule, Trainer
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.alerts import AlertError, FeatureReport
from lightning_hooks.callbacks.early import BatchChecks
from lightning_hooks.callbacks.logged import model_scalars, stat_scalars
from lightning_hooks.callbacks.monitor import Monitor
from lightning_hooks.hooks import OutputRecorder, guarded
from lightning_hooks.hooks.selection import clean_name
from lightning_hooks.reports.alert import FEATURE_KINDS
from lightning_hooks.reports.windows import Report
from lightning_hooks.statistics import FeatureTable
from lightning_hooks.statistics.initial import initial_gains, roles, shared_modules
from lightning_hooks.statistics.inputs import InputTable
from lightning_hooks.statistics.order import in_order, merge_positions, positions, sites_in_order
from lightning_hooks.statistics.rows import unheard
from lightning_hooks.trackers import Table, some
from lightning_hooks.trackers.layout import Layout, by_statistic, of_model

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_hooks.callbacks.publishing import Figures

LOGGED = ("mean", "std", "min", "max", "rms", "zero_fraction", "nonfinite_fraction")


VALIDATION_BATCHES = 4
"""Validation batches of an epoch that are listened to, the first ones, to be held against training."""


class FeatureStatsMonitor(Monitor[FeatureReport]):
    """Logs exact epoch statistics of what modules put out, and finds dead, saturated, constant and non-finite layers.

    Statistics pool every value of the sampled batches, of all calls and all ranks: they are those of the concatenated data, not
    means of batch means. A unit of a rectifier counts as dead if it fired in no sampled batch of the epoch, on any rank.

    Each epoch ``callback_metrics`` gets ``features/<module>/<stat>`` with stat one of mean, std, min, max, rms, zero_fraction,
    nonfinite_fraction, and where they apply dead_fraction and saturated_fraction (NaN while a module is silent);
    ``features/model/<stat>_median`` and ``features/model/<stat>_worst``, over all modules; and ``features/alerts/<kind>``, the
    number of alerts. Loggers get what ``logged`` says.

    Args:
        modules: Where to listen; None for every leaf that computes something.
        every_n_steps: Listen to training batches 0, n, 2n, … of each epoch; 1 for all.
        on_alert: ``log``, ``warn``, ``stop``, ``raise``, or a function of an Alert.
        max_overhead: The share of the training step's time that all monitors together may cost; None for no limit.
        rules: Rules to change, mute or add; see :class:`~lightning_hooks.alerts.RuleBook`.
        summary: What is printed at the end of training: True for three lines of all monitors together, ``full`` for tables before
            them, False for nothing.
        logged: Which statistics are logged: ``auto`` for a number that does not grow with the model, ``all``, or names of them.
        report_dir: Where the run's reports and its health report are written: ``auto`` for the log directory, if a logger has
            one, another directory, or None for nowhere.
        histograms: Log a histogram of each module's output: True for up to 128 modules, or glob patterns on their names.
        figures: Log pictures: True after epochs 0, 1, 2, 4, 8, …, n after every nth, and at the end; needs matplotlib. Of the
            heat maps, which take longest to
            draw, those of the statistics that ``logged`` names, or of the RMS; at the end of training all.
        check_every_n_steps: Look for values that are not finite every n batches, among those listened to so far, and tell at once.
            None for at the end of each epoch.
        progress_bar: Whether the progress bar shows the number of alerts.

    Attributes:
        report: The last epoch's :class:`~lightning_hooks.alerts.FeatureReport`; None before the first.

    Example:
        >>> from lightning.pytorch import Trainer
        >>> from lightning_hooks import FeatureStatsMonitor
        >>> trainer = Trainer(callbacks=[FeatureStatsMonitor(modules="encoder.*", every_n_steps=1)], logger=False)
    """

    prefix: ClassVar[str] = "features"
    report_type: ClassVar[type[Report] | None] = FeatureReport
    kinds: ClassVar[tuple[str, ...]] = FEATURE_KINDS
    ranking: ClassVar[tuple[str, ...]] = (
        *("rms", "std", "dead_fraction", "saturated_fraction", "nonfinite_fraction", "zero_fraction"),
        *("mean", "max", "min"),
    )
    logged_by_default: ClassVar[tuple[str, ...] | None] = (
        *("mean", "std", "rms", "zero_fraction", "dead_fraction", "saturated_fraction", "nonfinite_fraction"),
    )
    fit_only: ClassVar[tuple[str, ...]] = (
        "_table",
        "_checks",
        "_check",
        "_inputs",
        "_train_input",
        "_validation_input",
        "histogram_table",
    )
    checks_early: ClassVar[bool] = True
    _table: FeatureTable
    _inputs: InputTable
    _checks: BatchChecks | None = None
    _check: guarded | None = None
    _gains: Mapping[str, float] = MappingProxyType({})  # of the weights that training started from

    @override
    def attach(self, trainer: Trainer, pl_module: LightningModule) -> None:
        sites = self.select(pl_module)
        self._table = FeatureTable(sites, pl_module, pl_module.device)
        self.histogram_table = self._table.histograms = self.publishing.histogram_table(
            self._table.names, pl_module.device, type(self).__name__
        )
        if self.early is not None:
            self._checks = BatchChecks(self.early, self._world_size, partial(self.look, trainer))
            self._check = guarded(self._checks.batch_ends, "the check within the epoch", self.faults, passes=(AlertError,))
        self._inputs = InputTable(self._table.clock, pl_module.device)
        self._train_input = guarded(self._inputs.train, "the batch", self.faults)
        self._validation_input = guarded(self._inputs.validate, "the batch", self.faults)
        if not trainer.global_step:  # else those of the checkpoint that training goes on from
            self._gains = initial_gains(sites)
        self._roles = roles(sites)
        self._shared = {clean_name(name): tuple(map(clean_name, others)) for name, others in shared_modules(pl_module).items()}
        for index, (name, module) in enumerate(sites):
            self.listen(name, module, _OutputListener(self._table, index))

    @override
    def released(self) -> None:
        self._checks = self._check = None

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._check is not None:
            self._check(self._table.rows, self.batches)
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        if self.gate.sampled:
            self._table.clock.set(self.batches - 1)
            self._train_input(batch, compare=self.sampled_batches == 1)

    @override
    def on_validation_batch_start(
        self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        super().on_validation_batch_start(trainer, pl_module, batch, batch_idx, dataloader_idx)
        if self.attached and not dataloader_idx and batch_idx < VALIDATION_BATCHES:
            self._validation_input(batch)

    @override
    def unheard(self) -> list[str]:
        return unheard(self._table.names, self._table.rows)

    @override
    def pack(self) -> Tensor:
        features = self._table.pack(self._table.capacity if self._world_size > 1 else None)
        order = positions(self._table.order, len(self._table.names), features)
        unmeasured = self._table.unmeasured
        without = torch.tensor([float(name in unmeasured) for name in self._table.names], dtype=features.dtype)
        without = without.to(features.device, non_blocking=True)
        return torch.cat((self.counted_batches(features), order, without, self._inputs.pack(), features))

    @override
    def unpack(self, packed: Tensor) -> None:
        _, order, without, inputs, features = self._parts(packed)
        self._table.order = dict.fromkeys(sites_in_order(order))
        self._table.unmeasured.update(self._named(without))
        self._inputs.unpack(inputs)
        self._table.unpack(features)

    def _parts(self, packed: Tensor) -> tuple[Tensor, ...]:
        """Numbers of batches, order of calls, sites without numbers, inputs, features: of one vector or of those of all ranks."""
        sizes = 2, len(self._table.names), len(self._table.names), self._inputs.length
        return torch.split(packed, [*sizes, packed.shape[-1] - sum(sizes)], dim=-1)

    def _named(self, without: Tensor) -> set[str]:
        """The sites that were called and put out no number."""
        return {name for name, found in zip(self._table.names, without.tolist(), strict=True) if found}

    @property
    @override
    def places(self) -> list[str]:
        return self._table.names

    @override
    def merge_packed(self, packed: Tensor) -> Tensor:
        batches, order, without, inputs, features = self._parts(packed)
        known = batches.amax(0), merge_positions(order), without.amax(0)
        return torch.cat((*known, self._inputs.merge_packed(inputs), self._table.merge_packed(features)))

    @override
    def read(self, packed: Tensor, epoch: int, step: int) -> FeatureReport:
        batches, calls, without, rows, features = self._parts(packed)
        unmeasured = self._named(without)
        inputs, same = self._inputs.read(rows)
        sites, silent = self._table.read(features)
        order = self._table.called(sites_in_order(calls))
        return FeatureReport(
            epoch,
            step,
            in_order(sites, order),
            silent,
            int(batches[0]),
            int(batches[1]),
            order=order,
            inputs=inputs,
            input_place=self._inputs.place,
            same_samples=same,
            initial_gains=dict(self._gains),
            initial_roles=dict(self._roles),
            shared=dict(self._shared),
            unmeasured=tuple(name for name in silent if name in unmeasured),
        )

    @override
    def state_dict(self) -> dict[str, Any]:
        return {**super().state_dict(), "initial_gains": dict(self._gains)}

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        super().load_state_dict(state_dict)
        with self.reading_state():
            self._gains = dict(state_dict.get("initial_gains", {}))

    @override
    def reset(self) -> None:
        self._table.reset()
        if self._checks is not None:
            self._checks.epoch_ends()
        self._inputs.reset()

    @override
    def scalars(self, report: FeatureReport) -> dict[str, float]:
        names, found = self._table.names, report.sites
        return {
            **stat_scalars(self.prefix, names, found, LOGGED),
            **stat_scalars(self.prefix, [names[index] for index in self._table.rectifiers], found, ["dead_fraction"]),
            **stat_scalars(self.prefix, [names[index] for index in self._table.saturation], found, ["saturated_fraction"]),
            **model_scalars(self.prefix, found.values(), self._model_statistics()),
        }

    def _model_statistics(self) -> list[str]:
        absent = {"dead_fraction": not self._table.rectifiers, "saturated_fraction": not self._table.saturation}
        return [stat for stat in self.logged_by_default or () if not absent.get(stat)]

    @override
    def charts(self) -> Layout:
        return {
            "Features": by_statistic(self.prefix, self.publishing.scalars.statistics)
            if self.publishing.scalars.of_sites
            else of_model(self.prefix, self._model_statistics()),
            **super().charts(),
        }

    @override
    def figures(self, reports: Sequence[FeatureReport], last: bool) -> Figures:
        from lightning_hooks.plots import colourful_dimension, dead_units, heatmap

        written = self.publishing.scalars
        figures: dict[str, Callable[[], Figure]] = {
            f"{stat} by epoch": partial(heatmap, reports, stat)
            for stat in (written.statistics if last or written.named else ["rms"])
            if stat != "dead_fraction" and any(getattr(stats, stat) for stats in reports[-1].sites.values())
        }
        if self._table.rectifiers:
            figures["dead units"] = partial(dead_units, reports)
        if self.histogram_table is not None:
            figures["colourful dimension"] = partial(colourful_dimension, **self.publishing.colourful())
        return figures

    @override
    def summary_lines(self, report: FeatureReport) -> list[str]:
        total = len(report.sites) + len(report.silent)
        lines = [
            f"Feature statistics, epoch {report.epoch}: {len(report.sites)} of {total} modules heard, in "
            f"{report.sampled_batches} of {report.batches} batches."
        ]
        if report.silent:
            lines.append(f"  Silent: {some(report.silent)}")
        spread = statistics.median([s.std for s in report.sites.values() if s.std > 0] or [1.0])
        worst = sorted(report.sites.items(), key=lambda item: (-_illness(item[1]), -_unusual(item[1].std, spread)))[:5]
        header = ("module", "mean", "std", "zeros", "dead", "saturated", "NaN, inf")
        rows = [
            (name, s.mean, s.std, s.zero_fraction, s.dead_fraction, s.saturated_fraction, s.nonfinite_fraction) for name, s in worst
        ]
        return [*lines, Table(header, rows)]


class _OutputListener(OutputRecorder):
    """Forward hook of one site."""

    def __init__(self, table: FeatureTable, index: int) -> None:
        self.table, self.index = table, index
        self.reads_input = table.reads_input(index)

    def __call__(self, module: nn.Module, args: tuple[Any, ...], output: Any) -> None:
        self.table.add(self.index, args, output)


def _unusual(std: float, median: float) -> float:
    """How many times larger or smaller than the median of all modules, as a logarithm."""
    return abs(math.log(std / median)) if 0 < std < math.inf else 0.0


def _illness(stats: Any) -> float:
    """For the order of the summary: the share of a module that is ill."""
    return float(max(10 * stats.nonfinite_fraction, stats.dead_fraction or 0.0, stats.saturated_fraction or 0.0))
