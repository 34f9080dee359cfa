"""A member of a session: one collector, with its sampling, rules, reports and what is published of them."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any, Protocol

from torch import Tensor

from lightning_hooks.alerts import RULES, Alert, RuleBook
from lightning_hooks.declare.book import EarlyChecks
from lightning_hooks.declare.collector import Collector
from lightning_hooks.declare.context import Context
from lightning_hooks.declare.functional_calls import FunctionalCalls
from lightning_hooks.declare.host import Host
from lightning_hooks.declare.warn import loading_state, warn_of_faults, warn_of_tracing
from lightning_hooks.hooks import Faults
from lightning_hooks.hooks.listener import IN_GRAPHS
from lightning_hooks.hooks.selection import compiled_regions, describe_selector
from lightning_hooks.replay.capsule import CapsuleWriter
from lightning_hooks.replay.measure import StepMeasure
from lightning_hooks.replay.watch import StepWatch
from lightning_hooks.session.alerting import Alerting, check_sites
from lightning_hooks.session.logged import MemberLog
from lightning_hooks.session.module_hooks import ModuleHooks
from lightning_hooks.session.sampling import Sampling
from lightning_hooks.session.settings import Settings
from lightning_hooks.session.step_probe import STEP_EVENTS, StepProbe
from lightning_hooks.session.windows import History, MergedWindows, load_window, merged, save_window, window_length
from lightning_hooks.statistics.histograms import Histogram

NewCollector = Callable[[Context, Mapping[str, Any]], Collector[Any]]


class OpenSession(Protocol):
    """What a member needs of its session."""

    host: Host
    probe: StepProbe
    hooks: ModuleHooks
    calls: FunctionalCalls
    evidence: StepWatch
    measure: StepMeasure

    def judge_urgent(self) -> None:
        """Apply the urgent rules of all members."""

    def release(self, context: Context) -> None:
        """Remove what was registered for a member."""


class Member:
    """One collector in a session. Outside of a run it keeps the settings, the last reports and what a checkpoint holds.

    Args:
        name: The monitor's class, for messages.
        kind: The class of its collector.
        settings: The monitor's arguments.
        new: Makes the collector when training starts; None for the class.

    Attributes:
        report: The report of the last finished window; None before.
        epoch_report: That of the last finished epoch, where windows are shorter and none has ended since; else None.
        histograms: Site to (edges, counts) of the last finished window, where they are asked for.
        session: The session under way; None outside of a run.
        end: How the run ended; None before.
        collector: Of the run under way, or of the last one.
    """

    def __init__(self, name: str, kind: type[Collector[Any]], settings: Settings, new: NewCollector | None = None) -> None:
        self.name, self.kind, self.settings = name, kind, settings
        self._new = kind if new is None else new
        settings.check_early(name, kind.checks_early)
        self.alerting = Alerting(settings.functions, RuleBook(RULES.get(kind.report_type, ()), settings.rules, kind.report_type))
        self.log = MemberLog(name, settings, kind)
        self.sampling = Sampling(name, 1 if kind.every_step else settings.every_n_steps, settings.max_overhead, kind.every_step)
        self.selection = describe_selector(settings.modules)  # distinguishes two monitors of a kind in a checkpoint
        self.history = History(name, kind)
        self.end: dict[str, Any] | None = None
        self.windows = MergedWindows()
        self.report: Any = None
        self.epoch_report: Any = None
        self.histograms: dict[str, Histogram] = {}
        self.session: OpenSession | None = None
        self._context: Context | None = None
        self.collector: Collector[Any] | None = None
        self.faults = Faults()
        self.window_end_seconds, self.table_bytes = float("nan"), 0
        self.folder: Path | None = None  # of the run's files
        self._loaded: dict[str, Any] = {}  # what a checkpoint holds for the next run
        self._capsules: set[str] = set()  # the kinds that the run has written
        self.unchecked_regions: list[str] = []  # compiled modules, until the first sampled batch is over

    @property
    def context(self) -> Context:
        """What its collector has of the session under way."""
        assert self._context is not None, "training is over"
        return self._context

    @property
    def live(self) -> Collector[Any]:
        """The collector."""
        assert self.collector is not None, "training has not started"
        return self.collector

    def attach(self, session: OpenSession) -> None:
        """A run starts: make the collector, which registers its hooks."""
        self.detach()
        self.session, host = session, session.host
        self.faults = Faults()
        self.report = self.epoch_report = None
        self.histograms = {}
        self.history.reports.clear()
        self.end = None
        self.windows = MergedWindows(window_length(self.settings.report_every_n_steps, host.setup.batches_per_epoch))
        self.alerting.start(fresh=not self._loaded)
        self.log = MemberLog(self.name, self.settings, self.kind)
        self.unchecked_regions = compiled_regions(host.model)
        self.sampling.start(host.setup.device, not self.unchecked_regions)
        lasting = {} if self.collector is None else self.collector.lasting_state()
        state, self._loaded = {**lasting, **self._loaded}, {}
        self._capsules = set(state.get("capsules", ()))
        settings = self.settings
        if settings.capsule is not None and not session.evidence.on:  # as the first monitor says that has one
            writer = CapsuleWriter(settings.capsule, settings.max_capsule_mb, settings.report_dir, self._capsules)
            session.evidence.open(writer, settings.keep_batches)
        self._context = context = Context(
            name=self.name,
            host=host,
            steps=session.probe.places,
            add_hook=session.hooks.add,
            calls=session.calls,
            measure=session.measure,
            gate=self.sampling.gate,
            meter=self.sampling.meter,
            faults=self.faults,
            early=self.early,
            judge_urgent=session.judge_urgent,
            new_histograms=partial(self.log.histogram_table, host),
            samples_of=session.evidence.samples_of,
            modules=settings.modules,
            records_functional=settings.functional,
            learning=settings.learning,
        )
        if self.kind.watches_steps:
            host.setup.check_gradients(self.name)
            session.probe.subscribe(context, {})  # its parameters are numbered from here on
        self.collector = collector = self._new(context, state)
        if self.kind.watches_steps:
            calls = {
                event: context.guard(getattr(collector, f"on_{event}"), f"optimizer step (on_{event})", context.meter)
                for event in STEP_EVENTS
                if collector.follows(f"on_{event}")
            }
            session.probe.subscribe(context, calls, self.faults if collector.reads_norms else None, collector.due)
        check_sites(self.name, self.alerting.rules, collector.names)
        with loading_state(self.name):
            if "epoch" in state:
                context.batches, context.sampled_batches = load_window(
                    self.name, collector, self.windows, state["epoch"], host.setup.is_global_zero
                )
        if self.unchecked_regions and not IN_GRAPHS and session.hooks.of(context):
            warn_of_tracing()

    def detach(self) -> None:
        """The run is over, or never started. Harmless when it was over before."""
        session, self.session = self.session, None
        context, self._context = self._context, None
        self.sampling.gate.stop()
        if session is not None and context is not None:
            session.release(context)
        if self.collector is not None:
            self.collector.detach()
        if context is not None:
            context.close()

    def check_compiled(self) -> None:
        """The first sampled batch is over: warn of modules that were compiled before the hooks came.

        All sites in them are silent, but for a fault.
        """
        silent, late = set(self.live.silent_sites()).difference(self.faults.errors), list[str]()
        for region in self.unchecked_regions:
            inside = [name for name in self.live.names if not region or name == region or name.startswith(f"{region}.")]
            late += inside if silent.issuperset(inside) else []
        self.unchecked_regions = []
        if late and self.session is not None:
            self.session.hooks.warn_of_compiled(self.name, late)

    def skip_batch(self) -> None:
        """A batch started and was skipped with the rest of its epoch."""
        if self.sampling.gate.running:
            self.context.batches -= 1
            self.context.sampled_batches -= self.sampling.gate.sampled or self.sampling.every_step
        self.sampling.gate.stop()

    # The end of a window.

    @property
    def latest_report(self) -> Any:
        """The report of the last finished window, or of the epoch that ended with it; None before."""
        return self.report if self.epoch_report is None else self.epoch_report

    @property
    def early(self) -> EarlyChecks | None:
        """Its part in the checks within a window; None without them."""
        every = self.settings.check_every_n_steps
        return None if every is None else EarlyChecks(every, self.alerting.book.reported)

    @property
    def has_reported(self) -> bool:
        """Whether a window of the run has ended; not of a collector for which the model has nothing to measure."""
        return self.alerting.book.windows > 0 and not getattr(self.collector, "unused", False)

    def finish_window(self, merged_table: Tensor, epoch_ends: bool) -> None:
        """Make the window's report of its table of all ranks, with what the member's own rules find."""
        began, collector = perf_counter(), self.live
        warn_of_faults(self.name, self.faults)
        packed = merged_table.to("cpu")  # the one copy to the host
        self.histograms = collector.read_histograms(packed)
        cost, stride = self.sampling.window_end(self.context.batches)
        index = None if self.windows.length is None else self.windows.index

        def read(table: Tensor) -> Any:
            return dataclasses.replace(self.so_far(table), overhead=cost, every_n_steps=stride, window=index)

        whole = report = read(packed)
        if index is not None:
            waited_for = self.windows.add(collector, packed, self.context.batches, epoch_ends)
            whole = None if waited_for is None else read(waited_for)
        early = self.alerting.book.early  # what checks within the window have found
        if self.early is not None and collector.unchecked:
            early.update({(alert.kind, alert.site): alert for alert in self.urgent(report)})
        alerts = self.alerting.judge(report, whole, early.values())
        self.report, self.epoch_report = dataclasses.replace(report, alerts=alerts), None
        collector.reset()
        self.context.batches = self.context.sampled_batches = 0
        self.window_end_seconds, self.table_bytes = perf_counter() - began, packed.nbytes

    def enter(self, report: Any, others: Iterable[Alert] = ()) -> list[Alert]:
        """Take a window's report, whose alerts are in order of cause, and enter it into the alert book; return those to pass on.

        Args:
            report: The report.
            others: The alerts of other monitors in this window.
        """
        self.report, book = report, self.alerting.book
        loss = getattr(report, "loss", None)
        book.unit = report.unit
        return book.new_alerts(report.alerts, report.at, math.nan if loss is None else loss.mean, others)

    def finish_epoch(self) -> bool:
        """Merge the epoch's windows into its report, where there are several; return whether there are."""
        several = self.windows.index > 1
        if several and self.windows.epoch is not None:
            last, whole = self.report, self.so_far(self.windows.epoch)
            known = {"overhead": last.overhead, "every_n_steps": last.every_n_steps}
            self.epoch_report = dataclasses.replace(whole, **known, alerts=tuple(self.alerting.book.of_epoch.values()))
        self.windows.index, self.windows.epoch = 0, None
        self.alerting.book.of_epoch.clear()
        return several

    def so_far(self, packed: Tensor) -> Any:
        """A report of packed tables of all ranks, without alerts. It waits for the device."""
        at = self.context.host.position
        return self.live.read(self.live.tables.split(packed.to("cpu")), at.epoch, at.global_step)

    def urgent(self, report: Any) -> tuple[Alert, ...]:
        """What the urgent rules find in a report of the window so far."""
        return self.live.dated(self.alerting.urgent(self.live.urgent_report(report)))

    # Checkpoints.

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs. Ranks may be merged: every rank is asked."""
        state: dict[str, Any] = {"alerts": self.alerting.state_dict(), "capsules": sorted(self._capsules)}
        if self.collector is not None:
            state |= self.collector.state_dict()
        if self.session is not None and (self.context.batches or self.windows.index):  # in the middle of an epoch
            state["epoch"] = save_window(self.context, self.live, merged([self.live])[0][0], self.windows)
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Restore the state of an earlier run, for the next one."""
        self._loaded = {}
        with loading_state(self.name):
            self.alerting.load_state_dict(state["alerts"], self.kind.report_type)
            self._loaded = dict(state)

    def __getstate__(self) -> dict[str, Any]:
        """Everything but what belongs to the run under way."""
        sampling = Sampling(self.name, self.sampling.every, self.sampling.budget, self.sampling.every_step)
        return {**vars(self), "session": None, "_context": None, "collector": None, "sampling": sampling}
