"""A callback that makes a report each epoch: merges it over ranks, judges it, logs it, tells of it."""

from __future__ import annotations

import dataclasses
import sys
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from typing import Any, ClassVar, Generic, Literal, TypeVar

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch import Tensor
from typing_extensions import override

from lightning_hooks.alerts import Alert, AlertError, AlertWindow
from lightning_hooks.alerts.reports import Report
from lightning_hooks.callbacks.base import HookedCallback
from lightning_hooks.callbacks.overhead import PROBES, Overhead, stride_within
from lightning_hooks.callbacks.publishing import Logged, Publishing, publish, watched_tags
from lightning_hooks.hooks import ModuleSelector
from lightning_hooks.hooks.selection import compiled_regions, describe_selector
from lightning_hooks.metrics import PackedTable
from lightning_hooks.trackers import some
from lightning_hooks.trackers.layout import Layout, Lines

R = TypeVar("R", bound=Report)
OnAlert = Literal["log", "warn", "stop", "raise"] | Callable[[Alert], None]
Rule = Callable[[Any], Iterable[Alert]]

ON_ALERT = ("log", "warn", "stop", "raise")


class Monitor(HookedCallback, Generic[R]):
    """Base class of the monitors: what happens to a table at the end of an epoch.

    Args:
        modules: As for :class:`HookedCallback`.
        every_n_steps: As for :class:`HookedCallback`.
        on_alert: What to do with a new alert: ``log`` it (the default), ``warn`` (a Python warning), ``stop`` the fit
            cleanly after this epoch, ``raise`` an :class:`~lightning_hooks.alerts.AlertError`; or a function that is called
            with each. An ``info`` is only ever logged, or handed to the function. An alert that lasts is told once.
        summary: Print a compact summary at the end of training.
        logged: Which statistics of the sites are logged: ``auto`` for as many, best first, as fit a budget of tags and bytes
            (all of them, but in large models), ``all``, or their names. Reports always have all.
        max_overhead: The share of the training step's time that all monitors together may cost, such as 0.01: they sample more
            thinly than ``every_n_steps`` where that takes more. None for no limit.

    Attributes:
        report: The report of the last finished epoch; None before.
    """

    prefix: ClassVar[str]
    kinds: ClassVar[tuple[str, ...]]
    ranking: ClassVar[tuple[str, ...]] = ()
    """The statistics of a site, what matters most first: what of them is logged is chosen in this order."""
    thins: ClassVar[bool] = True
    """Whether it does less at a step that is not sampled."""
    report: R | None
    _state_key: tuple[str, str] | None  # (selection, key)

    def __init__(
        self,
        *,
        modules: ModuleSelector | None = None,
        every_n_steps: int = 10,
        on_alert: OnAlert = "log",
        summary: bool = True,
        logged: Logged = "auto",
        max_overhead: float | None = None,
    ) -> None:
        super().__init__(modules=modules, every_n_steps=every_n_steps)
        if max_overhead is not None and (isinstance(max_overhead, bool) or not isinstance(max_overhead, int | float)):
            raise TypeError(f"max_overhead must be None or a share of the step's time such as 0.01; got {max_overhead!r}.")
        if max_overhead is not None and not 0 < max_overhead <= 1:
            raise ValueError(f"max_overhead must be above 0 and at most 1 (0.01 is one hundredth); got {max_overhead!r}.")
        self.max_overhead = max_overhead
        self.overhead: Overhead | None = None
        self._thinned = True  # nothing to decide before the next epoch
        self._settled = False  # a stride was found
        if not callable(on_alert) and on_alert not in ON_ALERT:
            raise ValueError(f"on_alert must be one of {', '.join(ON_ALERT)}, or a function of an Alert; got {on_alert!r}.")
        if not isinstance(summary, bool):
            raise TypeError(f"summary must be True or False; got {summary!r}.")
        self.on_alert = on_alert
        self.summary = summary
        self.publishing = Publishing(logged, self.ranking)
        self.selection = describe_selector(modules)  # tells two monitors of a kind apart in a checkpoint
        self.report = None
        self._state_key = None
        self.batches = 0
        self.sampled_batches = 0
        self._window = AlertWindow()
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

    @abstractmethod
    def rules(self) -> Sequence[Rule]:
        """The rules its reports are held against."""

    @abstractmethod
    def scalars(self, report: R) -> dict[str, float]:
        """What is logged of a report, without the alert counts, with tags below ``prefix``."""

    def charts(self) -> Layout:
        """Charts of many curves, where a tracker has them: category to title to chart. Asked once a fit, after the first epoch."""
        return {"Alerts": {self.prefix: Lines((f"{self.prefix}/alerts/.+$",))}}

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
        if not self._restored:
            self._window = AlertWindow()
        self._restored = False
        self._world_size = trainer.world_size
        self.told_late = False
        self.publishing.start()
        self._regions = compiled_regions(pl_module)
        self.overhead = Overhead(pl_module.device, not self._regions, self.thins)
        self._thinned = self.max_overhead is None
        self._settled = False
        super().on_train_start(trainer, pl_module)
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

    @override
    def wrapped(self, hook: Any) -> Any:
        return hook if self.overhead is None else self.overhead.measured(hook)

    def _thin(self, trainer: Trainer) -> None:
        """Choose the stride: once soon after training starts, and again at each epoch's start.

        Within an epoch it stays, so that the sample is an even one of all its batches (but for the two batches of the first
        epoch by which the first stride was found).
        """
        assert self.overhead is not None
        assert self.max_overhead is not None
        if not self._settled and len(self.overhead.sampled) <= PROBES and not self.overhead.epochs:
            return
        everyone = [each.overhead for each in _callbacks(trainer) if isinstance(each, Monitor) and each.overhead is not None]
        costs = [cost for cost in (overhead.costs() for overhead in everyone) if cost is not None]
        if not costs:
            return
        stride = stride_within(self.max_overhead, costs, self.every_n_steps)
        if stride is None and not self._settled:
            rank_zero_warn(
                f"{type(self).__name__}: max_overhead={self.max_overhead} is less than what the monitors do at every step, "
                "whatever the sampling (clip events are counted at every one). It now listens to the first batch of each epoch "
                "only; leave out GradientClipMonitor, or allow more."
            )
        self.stride = stride or sys.maxsize
        self._settled = self._thinned = True

    def unheard(self) -> list[str]:
        """The sites that have not been heard yet, read from the device; only asked once, of a compiled model."""
        return []

    def _check_compiled(self, trainer: Trainer) -> None:
        """After the first sampled batch: a region all of whose sites are silent was compiled before the hooks came."""
        regions, self._regions = self._regions, []
        others = [callback for callback in _callbacks(trainer) if isinstance(callback, Monitor) and callback is not self]
        silent = set(self.unheard())
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
    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.tell_faults()
        packed = self._merged().to("cpu")  # the one copy to the host in an epoch
        report = self.read(packed, trainer.current_epoch, trainer.global_step)
        alerts = tuple(alert for rule in self.rules() for alert in rule(report))
        cost = None if self.overhead is None else self.overhead.share()
        stride = self.stride if self.stride < sys.maxsize else self.batches  # the first batch only
        self.report = report = dataclasses.replace(report, alerts=alerts, overhead=cost, every_n_steps=stride)
        self.reset()
        if self.overhead is not None:
            self.overhead.epoch_ends()
        self._thinned = self.max_overhead is None
        self.batches = self.sampled_batches = 0
        self._log(trainer, report)
        monitors = [callback for callback in _callbacks(trainer) if isinstance(callback, Monitor)]
        if self is monitors[-1]:
            publish(trainer, pl_module, monitors, epoch_step(trainer))
        self._tell(trainer, self._window.news(alerts))

    @override
    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
        if self.summary and self.report is not None and trainer.is_global_zero:
            print("\n".join(["", *self.summary_lines(self.report), *_alert_lines(self.report.alerts)]))  # noqa: T201

    def __getstate__(self) -> dict[str, Any]:
        """Everything but what belongs to the fit under way."""
        return {**super().__getstate__(), "overhead": None}

    @override
    def state_dict(self) -> dict[str, Any]:
        state: dict[str, Any] = {"alerts": self._window.state_dict()}
        if self.batches and self.attached:  # in the middle of an epoch; every rank is asked, so ranks may be merged
            state["epoch"] = {
                "places": self.places,
                "table": self._merged().to("cpu", copy=True),
                "batches": self.batches,
                "sampled_batches": self.sampled_batches,
            }
        return state

    @override
    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self._window.load_state_dict(state_dict["alerts"])
        self._resumed = state_dict.get("epoch")
        self._restored = True

    def _merged(self) -> Tensor:
        """The table of all ranks: one collective."""
        table = PackedTable(self.merge_packed)
        table.update(self.pack())
        return table.compute()

    def _resume(self, trainer: Trainer) -> None:
        state, self._resumed = self._resumed, None
        if state is None:
            return
        self.batches, self.sampled_batches = state["batches"], state["sampled_batches"]
        if state["places"] != self.places:
            then, now = set(state["places"]), set(self.places)
            rank_zero_warn(
                f"{type(self).__name__}: the checkpoint was written in the middle of an epoch with {len(then)} sites, now there "
                f"are {len(now)} ({len(then & now)} in common). Statistics of this epoch start from here; later ones are not "
                "affected. To keep them, resume with the same model and the same modules=."
            )
        elif trainer.is_global_zero:  # the table is that of all ranks together
            self.unpack(state["table"])

    @property
    @override
    def state_key(self) -> str:
        known = self._state_key  # Lightning asks for it at every event of every batch
        if known is None or known[0] != self.selection:
            known = self._state_key = (self.selection, self._generate_state_key(modules=self.selection))
        return known[1]

    def _log(self, trainer: Trainer, report: R) -> None:
        peers = [callback for callback in _callbacks(trainer) if isinstance(callback, Monitor) and callback.prefix == self.prefix]
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
        scalars = self.publishing.chosen(scalars, watched_tags(trainer), type(self).__name__)
        tensors = {tag: torch.scalar_tensor(value) for tag, value in scalars.items()}
        # Straight into the trainer's own dictionaries, where EarlyStopping and ModelCheckpoint look: self.log would warn
        # without sync_dist, cost one collective per key with it, and all ranks hold the same numbers already.
        trainer.callback_metrics.update(tensors)
        trainer.logged_metrics.update(tensors)
        trackers = self.trackers(trainer)
        trackers.scalars(scalars, epoch_step(trainer))
        trackers.save()

    def _tell(self, trainer: Trainer, alerts: list[Alert]) -> None:
        if callable(self.on_alert):
            for alert in alerts:
                try:
                    self.on_alert(alert)
                except Exception as error:  # noqa: BLE001  a subscriber's trouble is not the training's
                    rank_zero_warn(f"on_alert={self.on_alert!r} raised {type(error).__name__}: {error}; training goes on.")
            return
        serious = [alert for alert in alerts if alert.severity != "info"]
        for alert in serious:
            if self.on_alert == "warn":
                rank_zero_warn(str(alert))
            elif self.on_alert in ("log", "stop"):
                rank_zero_info(str(alert))
        if serious and self.on_alert == "stop":
            trainer.should_stop = True
        if serious and self.on_alert == "raise":
            raise AlertError(serious)


def epoch_step(trainer: Trainer) -> int:
    """The step at which Lightning itself logs what is logged at an epoch's end.

    Lightning counts batches that ended in an optimizer step, and steps its count back by one for the epoch's metrics;
    ``global_step`` counts every optimizer and would put our points elsewhere on the axis. The count has no public name.
    """
    stepped = getattr(trainer.fit_loop.epoch_loop, "_batches_that_stepped", trainer.global_step)
    return max(stepped - 1, 0)


def _callbacks(trainer: Trainer) -> list[Any]:
    callbacks: list[Any] = trainer.callbacks  # type: ignore[attr-defined]  # set by one of the trainer's connectors
    return callbacks


def _alert_lines(alerts: Sequence[Alert]) -> list[str]:
    order = {"critical": 0, "warning": 1, "info": 2}
    groups: dict[tuple[str, str], list[Alert]] = {}
    for alert in sorted((alert for alert in alerts if alert.severity != "info"), key=lambda alert: order[alert.severity]):
        groups.setdefault((alert.severity, alert.kind), []).append(alert)
    lines = []
    for group in groups.values():
        lines.append(f"  {group[0]}")
        if len(group) > 1:
            lines.append(f"    The same at {some([alert.site for alert in group[1:]])}.")
    return lines
