"""The user's torchmetrics, updated with what modules put out."""

from __future__ import annotations

import copy
import math
from collections import deque
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from typing_extensions import override

from lightning_hooks.declare.collector import Collector
from lightning_hooks.declare.context import Context
from lightning_hooks.declare.warn import warn_of_faults
from lightning_hooks.declare.window import Report
from lightning_hooks.diagnostics.features.collector import FeatureCollector
from lightning_hooks.hooks import Faults, select_modules
from lightning_hooks.hooks.checks import brief
from lightning_hooks.hooks.generators import GeneratorWatch
from lightning_hooks.hooks.listener import OutputTo
from lightning_hooks.hooks.selection import is_metric
from lightning_hooks.hooks.tensors import plain_values, tensors_in
from lightning_hooks.statistics.reduction import all_ranks, all_reduce
from lightning_hooks.trackers.console import Table

Sites = tuple[tuple[str, nn.Module], ...]
# The states of a metric. Of several ranks the largest counts, so that all of them wait for each other in ``compute``, or none.
UPDATED, NOT_UPDATED, FAILED = 0.0, 1.0, 2.0


@dataclass(frozen=True, slots=True)
class MetricValue:
    """What a metric computed; ``value`` is NaN where a rank had no output for it, and once it has raised."""

    value: float


@dataclass(frozen=True, slots=True, repr=False)
class MetricReport(Report):
    """The user's metrics of modules in one window; of an epoch with several windows each has its own.

    Attributes:
        metrics: ``<module>/<metric>`` to its value.
        sampled_batches: Training batches that were sampled, on the rank with the most.
        batches: Training batches of the window, on the rank with the most.
    """

    metrics: dict[str, MetricValue] = field(default_factory=dict)
    sampled_batches: int = 0
    batches: int = 0


def check_metrics(metrics: Any) -> None:
    """Raise if ``metrics`` is neither None nor a mapping from modules, or pairs of them, to metrics, or is empty."""
    expected = (
        "metrics must map modules (a name, glob pattern or type), or pairs of them, to torchmetrics metrics, such as "
        "{'encoder.*': MeanMetric(), ('student.h', 'teacher.h'): CosineSimilarity()}"
    )
    if not isinstance(metrics, Mapping | None):
        raise TypeError(f"{expected}; got {brief(metrics)}.")
    if metrics is not None and not metrics:
        raise ValueError(f"{expected}; got {metrics!r}, which names nothing.")
    for key, metric in (metrics or {}).items():
        entries = key if isinstance(key, tuple) and len(key) == 2 else (key,)
        if not all((isinstance(e, str) and e) or (isinstance(e, type) and issubclass(e, nn.Module)) for e in entries):
            raise TypeError(f"{expected}; got the key {brief(key)}.")
        if not isinstance(metric, nn.Module) or not is_metric(metric):
            raise TypeError(f"{expected}; got {brief(metric)} for {brief(key)}.")


class ModuleMetric:
    """A copy of a metric, for one module, or for two whose outputs it compares: ``sites``, with their names."""

    def __init__(self, sites: Sites, metric: Any, device: torch.device) -> None:
        self.site, self.name, self.state = "-".join(name for name, _ in sites), type(metric).__name__, NOT_UPDATED
        self.metric = copy.deepcopy(metric).to(device)
        self.metric.reset()
        self.names = list(self.each())
        self.waiting: list[deque[Tensor]] = [deque() for _ in sites]

    def each(self) -> dict[str, Any]:
        """The metric by its name, or those of a MetricCollection."""
        return dict(self.metric.items()) if isinstance(self.metric, nn.ModuleDict) else {self.name: self.metric}

    def take(self, place: int, tensor: Tensor) -> None:
        """Take an output of one of the modules; the metric is updated once there is one of each."""
        self.waiting[place].append(tensor)
        if all(self.waiting):
            self.metric.update(*[outputs.popleft() for outputs in self.waiting])
            self.state = UPDATED

    def compute(self) -> dict[str, float]:
        """Return what the metric gives, by name."""
        values: dict[str, Any] = {}
        for name, metric in self.each().items():
            found = metric.compute()
            values |= {f"{name}_{key}": value for key, value in found.items()} if isinstance(found, Mapping) else {name: found}
        return {name: float(value) for name, value in values.items()}


class MetricCollector(Collector[MetricReport]):
    """The user's metrics of what modules put out, in sampled batches.

    Each gets a copy, so that it alters no output, and what a later module does in place alters none of its states. Random number
    generators are as they were after each call of a metric. One that raises is disabled, on all ranks.
    """

    prefix: ClassVar[str] = "metrics"
    report_type: ClassVar[type[Report]] = MetricReport
    monitor: ClassVar[str] = FeatureCollector.monitor
    report_name: ClassVar[str] = "metrics"
    drawn: ClassVar[str] = "value"
    takes: ClassVar[tuple[str, ...]] = ("modules", "metrics", "every_n_steps", "max_overhead", "logged")

    def __init__(self, context: Context, state: Mapping[str, Any]) -> None:
        super().__init__(context, state)
        self._device = context.host.setup.device
        self._generators, self._faults = GeneratorWatch(self._device), Faults()
        self._metrics: list[ModuleMetric] = []
        self._values: dict[str, MetricValue] = {}
        tags = set[str]()
        for sites, metric in ((sites, m) for key, m in context.metrics.items() for sites in _matched(context.host.model, key)):
            self._metrics.append(found := ModuleMetric(sites, metric, self._device))
            for tag in (f"{found.site}/{name}" for name in found.names):
                if tag in tags or tag.rpartition("/")[2] in FeatureCollector.ranking:
                    raise ValueError(
                        f"{context.name}: metrics would log a second value as features/{tag}. Give it another name, in a "
                        "collection: MetricCollection({'my_name': …})."
                    )
                tags.add(tag)
            for place, (name, module) in enumerate(sites):
                context.listen(name, module, OutputTo(partial(self._take, found), place))
        self.set_tables()

    def _take(self, metric: ModuleMetric, place: int, output: Any) -> None:
        tensor = next(tensors_in(output), None)
        if tensor is not None and metric.state != FAILED:
            self._call(metric, partial(metric.take, place, plain_values(tensor).clone()))

    def _call(self, metric: ModuleMetric, function: Callable[[], Any]) -> Any:
        states = self._generators.read()
        try:
            return function()
        except Exception as error:  # noqa: BLE001  training goes on
            self._fail(metric, error)
            return None
        finally:
            self._generators.restore(states)

    def _fail(self, metric: ModuleMetric, error: Exception) -> None:
        metric.state = FAILED
        self._faults(f"{metric.site}/{metric.name}", error)

    @property
    @override
    def names(self) -> list[str]:
        return [f"{metric.site}/{metric.name}" for metric in self._metrics]

    @override
    def batch_events(self, sampled: bool, before: bool) -> dict[str, Callable[..., None]]:
        return {"batch_end": self.batch_end} if sampled else {}

    @override
    def batch_end(self, outputs: Any = None) -> None:
        for waiting in (waiting for metric in self._metrics for waiting in metric.waiting):
            waiting.clear()
        if self._faults.unreported:
            warn_of_faults(self.context.name, self._faults, "the metric", "")

    @override
    def window_end(self) -> None:
        states = torch.tensor([metric.state for metric in self._metrics], device=self._device)
        if all_ranks() is not None:
            all_reduce(states, "max")
        for metric, state in zip(self._metrics, states.tolist(), strict=True):
            if state == FAILED != metric.state:
                self._fail(metric, RuntimeError("it raised on another rank"))
            values = (self._call(metric, metric.compute) if state == UPDATED else None) or {}
            if metric.state != FAILED:
                metric.state = NOT_UPDATED
                self._call(metric, metric.metric.reset)
            metric.names = list(values) or metric.names
            self._values |= {f"{metric.site}/{name}": MetricValue(values.get(name, math.nan)) for name in metric.names}

    @override
    def read(self, packed: Mapping[str, Tensor], epoch: int, step: int) -> MetricReport:
        return MetricReport(epoch, step, dict(self._values), *map(int, packed["batches"]))

    @override
    def reset(self) -> None:
        super().reset()
        self._values.clear()
        self.batch_end()

    @override
    def scalars(self, report: MetricReport) -> dict[str, float]:
        return {f"{FeatureCollector.prefix}/{tag}": found.value for tag, found in report.metrics.items()}

    @override
    def summary_lines(self, report: MetricReport) -> list[str]:
        return [f"Metrics of modules, epoch {report.epoch}:", Table.of("metric", {"value": "value"}, report.metrics.items())]


def _matched(model: nn.Module, key: Any) -> list[Sites]:
    of_each = [select_modules(model, entry, argument="metrics") for entry in (key if isinstance(key, tuple) else (key,))]
    counts = [len(found) for found in of_each]
    if len(set(counts)) > 1:
        raise ValueError(
            f"metrics={key!r} matches {counts[0]} and {counts[1]} modules of {type(model).__name__}, which are taken in pairs, in "
            "order. Give two patterns that match as many modules."
        )
    return list(zip(*of_each, strict=True))
