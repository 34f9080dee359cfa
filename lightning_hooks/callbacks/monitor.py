"""A callback that makes a report each epoch: merges it over ranks, judges it, logs it, tells of it."""

from __future__ import annotations

import dataclasses
import difflib
import sys
import time
from abc import abstractmethod
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_warn
from torch import Tensor
from typing_extensions import override

from lightning_hooks.alerts import RULES, Alert, Rule, RuleBook
from lightning_hooks.alerts.rulebook import RuleLike
from lightning_hooks.callbacks.alerting import Alerting, OnAlert, Rules, alert_file, conclude, over_lines
from lightning_hooks.callbacks.closing import Summary, checked_summary, conclude_in_print
from lightning_hooks.callbacks.early import checked, look
from lightning_hooks.callbacks.logged import Logged, watched_tags
from lightning_hooks.callbacks.overhead import PROBES, Overhead, stride_within
from lightning_hooks.callbacks.publishing import Histograms, Publishing, publish
from lightning_hooks.callbacks.recorded import Recorded
from lightning_hooks.callbacks.run_folder import ReportDir
from lightning_hooks.callbacks.trainer import callbacks_of, epoch_step
from lightning_hooks.hooks import Meter, ModuleSelector
from lightning_hooks.hooks.selection import compiled_regions, describe_selector
from lightning_hooks.metrics import PackedTable
from lightning_hooks.reports.windows import Report
from lightning_hooks.statistics.histograms import N_BINS, Histogram, HistogramTable
from lightning_hooks.trackers import show
from lightning_hooks.trackers.layout import Layout, Lines

if TYPE_CHECKING:
    from lightning_hooks.callbacks.publishing import Figures

R = TypeVar("R", bound=Report)

LAYOUT = 3
"""Of the table that a checkpoint in the middle of an epoch holds; one of another layout is passed over."""


class Monitor(Recorded, Generic[R]):
    """Base class of the monitors: what happens to a table at the end of an epoch.

    Args:
        modules: As for :class:`HookedCallback`.
        every_n_steps: As for :class:`HookedCallback`.
        on_alert: What to do with a new alert: ``log`` it (the default), ``warn`` (a Python warning), ``stop`` the fit
            cleanly after this epoch, ``raise`` an :class:`~lightning_hooks.alerts.AlertError`; or a function that is called
            with each. An ``info`` is only ever counted, or handed to the function. An alert that lasts is told once.
        rules: Rules to change, mute or add: ``Dead(threshold=0.8, sites="encoder.*")``, ``"-silent"``, a function from a
            report to alerts, and so on; see :class:`~lightning_hooks.alerts.RuleBook`.
        summary: What is printed at the end of training: True for three lines of all monitors together (the verdict, the open
            alerts, where the report is), ``full`` for tables before them, False for nothing.
        logged: Which statistics are logged: ``auto`` for those of every site in models of up to 8 modules, and in larger ones the
            median and the worst of the model and the sites that had an alert; ``all``, or names of statistics, for these of
            every site. Reports and ``callback_metrics`` always have all.
        max_overhead: The share of the training step's time that all monitors together may cost, such as 0.01: they sample more
            thinly than ``every_n_steps`` where that takes more. None for no limit.
        report_dir: Where the run's reports and its health report are written: ``auto`` for the log directory, if a logger has
            one, another directory, or None for nowhere.
        histograms: Whether loggers get a histogram of each site's values over the epoch: True for up to 128 sites, spread evenly,
            or glob patterns on the names of the sites.
        figures: Whether loggers get pictures, drawn next to training: True after epochs 0, 1, 2, 4, 8, …, n after every nth epoch;
            and at the end. Needs matplotlib.
        check_every_n_steps: Look for what is urgent (values that are not finite, gradients that explode) every n steps within the
            epoch, so that ``stop`` and ``raise`` can act before it ends. None for at its end only.
        progress_bar: Whether the progress bar shows the number of alerts and the share of clipped steps.

    Attributes:
        report: The report of the last finished epoch; None before.
        histograms: Site to (edges, counts) of the last finished epoch, where ``histograms=`` asks for them.
    """

    prefix: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    ranking: ClassVar[tuple[str, ...]] = ()
    """The statistics of a site, what matters most first."""
    logged_by_default: ClassVar[tuple[str, ...] | None] = None
    """Those of them that are logged by default; None for all."""
    thins: ClassVar[bool] = True
    """Whether it does less at a step that is not sampled."""
    report_type: ClassVar[type[Report] | None] = None
    checks_early: ClassVar[bool] = False
    """Whether it can find something that is urgent within an epoch."""
    report: R | None
    _state_key: tuple[str, str] | None  # (selection, key)
    _alert_file: Path | None = None
    histograms: dict[str, Histogram]
    histogram_table: HistogramTable | None = None
    """The histograms under way in a fit."""
    value_scale: float = 1.0
    """What the values that histograms count are multiplied by."""

    def __init__(
        self,
        *,
        modules: ModuleSelector | None = None,
        every_n_steps: int = 10,
        on_alert: OnAlert = "log",
        rules: Rules = (),
        summary: Summary = True,
        logged: Logged = "auto",
        max_overhead: float | None = None,
        report_dir: ReportDir = "auto",
        histograms: Histograms = False,
        figures: bool | int = False,
        check_every_n_steps: int | None = None,
        progress_bar: bool = False,
    ) -> None:
        super().__init__(modules=modules, every_n_steps=every_n_steps, report_dir=report_dir, progress_bar=progress_bar)
        self.check_every_n_steps = check_every_n_steps
        self.early = checked(check_every_n_steps, type(self), self.checks_early)
        if max_overhead is not None and (isinstance(max_overhead, bool) or not isinstance(max_overhead, int | float)):
            raise TypeError(f"max_overhead must be None or a share of the step's time such as 0.01; got {max_overhead!r}.")
        if max_overhead is not None and not 0 < max_overhead <= 1:
            raise ValueError(f"max_overhead must be above 0 and at most 1 (0.01 is one hundredth); got {max_overhead!r}.")
        self.max_overhead = max_overhead
        self.overhead: Overhead | None = None
        self._thinned = True  # nothing to decide before the next epoch
        self._settled = False  # a stride was found
        self.alerting = Alerting(on_alert, RuleBook(self.rules(), rules, self.report_type))
        self.summary = checked_summary(summary)
        self.publishing = Publishing(logged, self.ranking, histograms, figures, defaults=self.logged_by_default)
        self.selection = describe_selector(modules)  # tells two monitors of a kind apart in a checkpoint
        self.report = None
        self._state_key = None
        self.histograms = {}
        self.batches = 0
        self.sampled_batches = 0
        self._judged = False  # this epoch, and not told of yet
        self._restored = False  # from a checkpoint, since the last fit
        self._resumed: dict[str, Any] | None = None  # an epoch that a checkpoint interrupted
        self._world_size = 1
        self._regions: list[str] = []  # compiled modules not yet checked
        self.told_late = False

    # What each monitor says of itself.

    @abstractmethod
    def pack(self) -> Tensor:
        """Return the epoch's table as one vector, of the same length on every rank."""

    @abstractmethod
    def unpack(self, packed: Tensor) -> None:
        """Take up a vector that :meth:`pack` or :meth:`merge_packed` gave, into the empty tables of a new fit."""

    @property
    @abstractmethod
    def places(self) -> list[str]:
        """What the vector's numbers are of, in order."""

    @abstractmethod
    def merge_packed(self, packed: Tensor) -> Tensor:
        """Merge the vectors of all ranks, ``(world, m)`` to ``(m,)``."""

    @abstractmethod
    def read(self, packed: Tensor, epoch: int, step: int) -> R:
        """Make a report, without alerts, of a vector on the host."""

    def rules(self) -> Sequence[RuleLike]:
        """The rules its reports are held against, before what the user says in ``rules=``."""
        return () if self.report_type is None else RULES[self.report_type]

    @abstractmethod
    def scalars(self, report: R) -> dict[str, float]:
        """What is logged of a report, without the alert counts, with tags below ``prefix``."""

    def charts(self) -> Layout:
        """Charts of many curves, where a tracker has them: category to title to chart. Asked once a fit, after the first epoch."""
        return {"Alerts": {"alerts of each kind": Lines((".+/alerts/.+$",))}}

    def figures(self, reports: Sequence[R], last: bool) -> Figures:
        """Pictures of the reports of a fit so far, where a tracker shows some: a name and what draws it.

        Args:
            reports: By epoch; of a long fit not all.
            last: Whether training is over, and what takes longer may be drawn too.
        """
        return {}

    @abstractmethod
    def summary_lines(self, report: R) -> list[str]:
        """What is printed of the last report."""

    @abstractmethod
    def reset(self) -> None:
        """Start a new epoch."""

    # What happens when.

    @override
    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.batches = self.sampled_batches = 0
        self.report = None
        self.histograms = {}
        self.alerting.start(fresh=not self._restored)
        if self.early is not None and not self._restored:
            self.early.epoch_ends()
        self._restored = self._judged = False
        self._world_size = trainer.world_size
        self.told_late = False
        self.publishing.start()
        self._regions = compiled_regions(pl_module)
        self.overhead = Overhead(pl_module.device, not self._regions, self.thins)
        self._thinned = self.max_overhead is None
        self._settled = False
        super().on_train_start(trainer, pl_module)
        self._alert_file = alert_file(trainer, self.report_dir)
        with self.reading_state():
            self._resume(trainer)

    @override
    def on_train_batch_start(self, trainer: Trainer, pl_module: LightningModule, batch: Any, batch_idx: int) -> None:
        if self.overhead is not None:
            if not self._thinned:
                self._thin(trainer)
            self.overhead.batch_starts()
        super().on_train_batch_start(trainer, pl_module, batch, batch_idx)
        self.batches += 1
        self.sampled_batches += self.gate.sampled

    @override
    def on_train_batch_end(self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int) -> None:
        if self._regions and self.gate.sampled:
            self._check_compiled(trainer)
        if self.overhead is not None:
            self.overhead.batch_ends(self.gate.sampled)
        super().on_train_batch_end(trainer, pl_module, outputs, batch, batch_idx)

    @property
    @override
    def meter(self) -> Meter | None:
        return None if self.overhead is None else self.overhead.meter

    def _thin(self, trainer: Trainer) -> None:
        """Choose the stride: once soon after training starts, and again at each epoch's start.

        Within an epoch it stays, so that the sample is an even one of all its batches (but for the two batches of the first
        epoch by which the first stride was found).
        """
        assert self.overhead is not None
        assert self.max_overhead is not None
        if not self._settled and len(self.overhead.sampled) <= PROBES and not self.overhead.epochs:
            return
        everyone = [each.overhead for each in callbacks_of(trainer) if isinstance(each, Monitor) and each.overhead is not None]
        costs = [cost for cost in (overhead.costs() for overhead in everyone) if cost is not None]
        found = stride_within(self.max_overhead, costs, self.every_n_steps) or sys.maxsize if costs else 0
        stride = self.agreed(found)
        if not stride:
            return
        if stride == sys.maxsize and not self._settled:
            rank_zero_warn(
                f"{type(self).__name__}: max_overhead={self.max_overhead} is less than what the monitors do at every step, "
                "whatever the sampling (clip events are counted at every one). It now listens to the first batch of each epoch "
                "only; leave out GradientClipMonitor, or allow more."
            )
        self.stride = stride
        self._settled = self._thinned = True

    def agreed(self, stride: int) -> int:
        """The stride that all ranks take where they must sample alike; 0 while one of them has not found one (0) yet."""
        return stride

    def so_far(self, trainer: Trainer) -> R:
        """A report of the epoch so far, of all ranks, without alerts. It waits for the device."""
        packed, _ = self._split(self._merged().to("cpu"))
        return self.read(packed, trainer.current_epoch, trainer.global_step)

    def urgent(self, report: R) -> tuple[Alert, ...]:
        """What the urgent rules find in a report of the epoch so far."""
        return self.alerting.urgent(report)

    def last_check(self, report: R) -> list[Alert]:
        """What checks within the epoch have found, up to its end."""
        return [] if self.early is None else list(self.early.found.values())

    def look(self, trainer: Trainer) -> bool:
        """Something is wrong that cannot wait: judge it, with all monitors that check; whether the fit is to stop."""
        checking = [
            each for each in callbacks_of(trainer) if isinstance(each, Monitor) and each.early is not None and each.attached
        ]
        return look(trainer, checking, epoch_step(trainer))

    def unheard(self) -> list[str]:
        """The sites that have not been heard yet, read from the device; only asked once, of a compiled model."""
        return []

    def _check_compiled(self, trainer: Trainer) -> None:
        """After the first sampled batch: a region all of whose sites are silent was compiled before the hooks came."""
        regions, self._regions = self._regions, []
        others = [callback for callback in callbacks_of(trainer) if isinstance(callback, Monitor) and callback is not self]
        silent = set(self.unheard()).difference(self.faults.errors)
        late = []
        for region in regions:
            inside = [name for name in self.places if not region or name == region or name.startswith(f"{region}.")]
            if inside and silent.issuperset(inside):
                late += inside
        if late and not any(other.told_late for other in others):
            self.told_late = True
            rank_zero_warn(
                f"{type(self).__name__}: nothing was heard from {', '.join(dict.fromkeys(late))}, which run under torch.compile: "
                "they were compiled before the hooks came, and a compiled graph does not see later hooks. Call "
                "torch.compiler.reset() before trainer.fit()."
            )

    @override
    def skipped(self) -> None:
        self.batches -= 1
        self.sampled_batches -= self.gate.sampled

    @override
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_epoch_end(trainer, pl_module)
        began = time.perf_counter()
        self.tell_faults()
        packed, counts = self._split(self._merged().to("cpu"))  # the one copy to the host in an epoch
        self.histograms = {} if self.histogram_table is None else self.histogram_table.read(counts, self.value_scale)
        report = self.read(packed, trainer.current_epoch, trainer.global_step)
        cost = None if self.overhead is None else self.overhead.share()
        stride = self.stride if self.stride < sys.maxsize else self.batches  # the first batch only
        report = dataclasses.replace(report, overhead=cost, every_n_steps=stride)
        self.report = report = dataclasses.replace(report, alerts=self.alerting.judge(report, self.last_check(report)))
        self.reset()
        if self.overhead is not None:
            self.overhead.epoch_ends()
        self._thinned = self.max_overhead is None
        self.batches = self.sampled_batches = 0
        self._judged = True
        self._log(trainer, report)
        monitors = [callback for callback in callbacks_of(trainer) if isinstance(callback, Monitor)]
        if self is monitors[-1]:  # all have judged: what each found may be the cause of what another did
            judged = [monitor for monitor in monitors if monitor._judged]
            for monitor in judged:
                monitor._judged = False
            try:
                conclude(trainer, judged, self._alert_file, epoch_step(trainer))
            finally:  # also where on_alert="raise" ends the run here
                publish(trainer, pl_module, monitors, epoch_step(trainer))
        self.epoch_end_seconds, self.table_bytes = time.perf_counter() - began, packed.nbytes
        if self is monitors[-1]:
            self.record(trainer, judged)

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        monitors = [callback for callback in callbacks_of(trainer) if isinstance(callback, Monitor)]
        if self is monitors[-1]:
            publish(trainer, pl_module, monitors, epoch_step(trainer), last=True)
        if self.summary == "full" and self.report is not None and trainer.is_global_zero:
            show(["", *self.summary_lines(self.report), *over_lines(self.alerting.window)])
        recorded = self.records
        self.leave_safely(trainer, "finished")
        if self is monitors[-1] and not recorded and trainer.is_global_zero:  # else the recorder prints this, with the path
            conclude_in_print(monitors)

    def subscribe(self, observer: Callable[[Alert], object]) -> None:
        """Call ``observer`` with every new alert, after those that subscribed before and beside what ``on_alert`` says.

        One that raises is told of and harms neither the others nor training. Infos are handed over too; what only follows from
        another alert is not, but named in that one's ``consequences``.
        """
        self.alerting.observers.subscribe(observer)

    def unsubscribe(self, observer: Callable[[Alert], object]) -> None:
        """Call ``observer`` no more.

        Raises:
            ValueError: If it is not subscribed.
        """
        self.alerting.observers.unsubscribe(observer)

    @property
    def on_alert(self) -> OnAlert:
        """What is done with a new alert."""
        return self.alerting.on_alert

    def __getstate__(self) -> dict[str, Any]:
        """Everything but what belongs to the fit under way."""
        return {**super().__getstate__(), "overhead": None}

    @override
    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"alerts": self.alerting.state_dict()}
        if self.early is not None:
            state["early"] = self.early.state_dict()
        if self.batches and self.attached:  # in the middle of an epoch; every rank is asked, so ranks may be merged
            state["epoch"] = {
                "places": self.places,
                "layout": LAYOUT,
                "table": self._merged().to("cpu", copy=True),
                "histograms": [] if self.histogram_table is None else self.histogram_table.names,
                "batches": self.batches,
                "sampled_batches": self.sampled_batches,
            }
        return state

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._restored, self._resumed = False, None
        with self.reading_state():
            self.alerting.load_state_dict(state_dict["alerts"], self.report_type)
            if self.early is not None:
                self.early.load_state_dict(state_dict.get("early", {}))
            self._resumed = state_dict.get("epoch")
            self._restored = True

    @contextmanager
    def reading_state(self) -> Iterator[None]:
        """Within this block an error warns that this monitor starts afresh: what a checkpoint says of it harms no training."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  it may be from any version, or from another callback of the same name
            rank_zero_warn(
                f"{type(self).__name__}: its state in the checkpoint cannot be read ({type(error).__name__}: {error}), perhaps "
                "because another version wrote it. It starts afresh; training is not affected."
            )

    @override
    def check_attached(self) -> None:
        """A rule that is for places of this model must find one."""
        for rule in self.alerting.book.rules:
            if isinstance(rule, Rule) and rule.sites != "*" and not any(map(rule.matches, self.places)):
                plain = str(rule.sites).replace("*", "").strip(".")
                near = difflib.get_close_matches(plain, self.places, n=3, cutoff=0.3) or self.places[:3]
                raise ValueError(
                    f"{type(self).__name__}: the rule {type(rule).__name__}(sites={rule.sites!r}) matches none of the places it is "
                    f"to hold for. Closest names: {', '.join(map(repr, near))}."
                )

    def _merged(self) -> Tensor:
        """The table of all ranks, and the histograms behind it: one collective."""
        table = PackedTable(self._merge_ranks)
        table.update(self.pack() if self.histogram_table is None else torch.cat((self.pack(), self.histogram_table.pack())))
        return table.compute()

    def _merge_ranks(self, packed: Tensor) -> Tensor:
        if self.histogram_table is None:
            return self.merge_packed(packed)
        tables, counts = self._split(packed)
        return torch.cat((self.merge_packed(tables), counts.sum(0)))

    def counted_batches(self, like: Tensor) -> Tensor:
        """How many batches of the epoch were sampled, and how many it has, to be packed: ranks may differ, and rules ask."""
        return torch.tensor((self.sampled_batches, self.batches), dtype=like.dtype).to(like.device, non_blocking=True)

    def _split(self, packed: Tensor) -> tuple[Tensor, Tensor]:
        """Take the table and the histograms' counts apart, along the last dimension."""
        if self.histogram_table is None:
            return packed, packed.new_empty(0)
        size = packed.shape[-1] - self.histogram_table.counts.numel()
        return packed[..., :size], packed[..., size:]

    def _resume(self, trainer: Trainer) -> None:
        state, self._resumed = self._resumed, None
        if state is None:
            return
        self.batches = state["batches"]  # the epoch's clock goes on, whatever becomes of its table
        if state.get("layout") != LAYOUT:
            rank_zero_warn(
                f"{type(self).__name__}: another version of lightning_hooks wrote the checkpoint, in the middle of an epoch. "
                "Statistics of this epoch start from here; later ones are not affected."
            )
        elif state["places"] != self.places:
            then, now = set(state["places"]), set(self.places)
            rank_zero_warn(
                f"{type(self).__name__}: the checkpoint was written in the middle of an epoch with {len(then)} sites, now there "
                f"are {len(now)} ({len(then & now)} in common). Statistics of this epoch start from here; later ones are not "
                "affected. To keep them, resume with the same model and the same modules=."
            )
        else:
            self.sampled_batches = state["sampled_batches"]
            if trainer.is_global_zero:  # the table is that of all ranks together
                self._take_table(state)

    def _take_table(self, state: dict[str, Any]) -> None:
        n_counts = N_BINS * len(state.get("histograms", []))
        table, counts = (state["table"][:-n_counts], state["table"][-n_counts:]) if n_counts else (state["table"], None)
        self.unpack(table)
        if counts is not None and self.histogram_table is not None and self.histogram_table.names == state["histograms"]:
            self.histogram_table.unpack(counts)

    @property
    @override
    def state_key(self) -> str:
        known = self._state_key  # Lightning asks for it at every event of every batch
        if known is None or known[0] != self.selection:
            known = self._state_key = (self.selection, self._generate_state_key(modules=self.selection))
        return known[1]

    def _log(self, trainer: Trainer, report: R) -> None:
        peers = [callback for callback in callbacks_of(trainer) if isinstance(callback, Monitor) and callback.prefix == self.prefix]
        earlier = peers[: peers.index(self)]
        scalars = self.scalars(report)
        for peer in earlier:  # two monitors of a kind, for instance on different modules: each tag is written once
            for tag in peer.scalars(peer.report):
                scalars.pop(tag, None)
        if self is peers[-1]:
            found = {(alert.kind, alert.site) for peer in peers if peer.report for alert in peer.report.alerts}
            counts = dict.fromkeys(self.kinds, 0.0)
            for kind, _ in found:
                counts[kind] = counts.get(kind, 0.0) + 1
            scalars.update({f"{self.prefix}/alerts/{kind}": count for kind, count in counts.items()})
        alerted = (alert.site for alert in report.alerts)
        logged = self.publishing.scalars.chosen(
            scalars, self.prefix, self.n_modules, alerted, watched_tags(trainer), self.not_logged_by_default()
        )
        self.log_scalars(trainer, scalars, logged)

    def not_logged_by_default(self) -> set[str]:
        """Tags that are not logged by default, though their statistic is."""
        return set()

    @property
    def n_modules(self) -> int:
        """How many modules it observes."""
        return len(self.places)
