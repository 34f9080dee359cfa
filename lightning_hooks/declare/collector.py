"""A collector: what a monitor measures, separate from when."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Generic, TypeVar

from torch import Tensor, nn

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.context import Context
from lightning_hooks.declare.step import EarlierOptimizers, Step
from lightning_hooks.declare.window import Report
from lightning_hooks.statistics.histograms import Histogram, HistogramTable
from lightning_hooks.statistics.reduction import added, largest
from lightning_hooks.statistics.tables import HostNumbers, PackedTable, Tables

if TYPE_CHECKING:
    from matplotlib.figure import Figure

Figures = Mapping[str, "Callable[[], Figure]"]

R = TypeVar("R", bound=Report)


@dataclass(frozen=True, slots=True)
class LoggedStatistics:
    """Which statistics of sites are logged.

    Attributes:
        statistics: Their names, best first.
        named: Whether the user named them.
    """

    statistics: tuple[str, ...]
    named: bool


class WindowTables(ABC, Generic[R]):
    """The tables of one window on the device, and how they are read.

    Attributes:
        value_scale: What the values that histograms count are multiplied by.
        histograms: The histograms of the window under way.
        tables: Everything of the window under way.
        context: The part of the session.
    """

    value_scale: float = 1.0
    histograms: HistogramTable | None = None
    tables: Tables
    context: Context

    @property
    @abstractmethod
    def names(self) -> list[str]:
        """What the tables' numbers are of, in order."""

    @property
    def n_modules(self) -> int:
        """How many modules are observed."""
        return len(self.names)

    @property
    def unused(self) -> bool:
        """Whether nothing that it measures was seen in this run so far: nothing of it is shown then."""
        return False

    def set_tables(self, **tables: PackedTable) -> None:
        """Set the window's tables, by name; behind them come the numbers of batches, and the histograms where there are some."""
        context = self.context
        batches = HostNumbers(lambda: (context.sampled_batches, context.batches), largest, added)
        histograms = {} if self.histograms is None else {"histograms": self.histograms}
        self.tables = Tables(context.host.setup.device, **tables, batches=batches, **histograms)

    def merge_windows(self, earlier: Tensor, later: Tensor) -> Tensor:
        """Merge the packed tables of two windows in a row; ``later`` alone where parameters or optimizers are others since."""
        return self.tables.merge_windows(earlier, later)

    def read_histograms(self, packed: Tensor) -> dict[str, Histogram]:
        """The histograms by site, of the packed tables on the host."""
        known = self.histograms
        return {} if known is None else known.read(self.tables.split(packed)["histograms"], self.value_scale)

    @abstractmethod
    def read(self, packed: Mapping[str, Tensor], epoch: int, step: int) -> R:
        """Make a report, without alerts, of the packed tables on the host, by name."""

    def reset(self) -> None:
        """Start a new window."""
        self.tables.reset()

    def silent_sites(self) -> list[str]:
        """The sites that never ran, read from the device; asked once, of a compiled model."""
        return []


class ReportView(ABC, Generic[R]):
    """How a report is shown: its scalars and figures.

    Attributes:
        prefix: First part of its tags.
        ranking: The statistics of a site, what matters most first.
        logged_by_default: Those of them that are logged by default; None for all.
        summary: The tables that ``summary="full"`` prints, each with the titles of its columns and their statistics.
    """

    prefix: ClassVar[str]
    report_type: ClassVar[type[Report]]
    ranking: ClassVar[tuple[str, ...]] = ()
    logged_by_default: ClassVar[tuple[str, ...] | None] = None
    summary: ClassVar[Mapping[str, Mapping[str, str]]] = {}

    @abstractmethod
    def scalars(self, report: R) -> dict[str, float]:
        """The values of a report by tag, without the alert counts."""

    def not_logged_by_default(self) -> set[str]:
        """Tags that are not logged by default, though their statistic is."""
        return set()

    def figures(self, reports: Sequence[R], written: LoggedStatistics, last: bool) -> Figures:
        """Figures of the reports of a run so far: a name and the function that draws it.

        Args:
            reports: By epoch; of a long run not all.
            written: Which statistics are logged.
            last: Whether training is over, and figures that take longer may be drawn too.
        """
        return {}

    @classmethod
    def picture(cls, reports: Sequence[R], stat: str | None) -> Callable[[], Figure] | None:  # noqa: ARG003  for those that override it
        """The function that draws what suits reports best, or a statistic of them; None for a heat map.

        Args:
            reports: In the order of windows.
            stat: The statistic that the user asks for; None if any will do.
        """
        return None


BATCH_EVENTS = ("batch_start", "before_backward", "after_backward", "batch_end")  # the events of each training batch


VALIDATION, EPOCH_END = "in validation", "at the end of the epoch"  # the moments at which training pauses


class Events:
    """What happens in a training, each a method that does nothing unless it is overridden.

    Attributes:
        due: The optimizers whose gradients it takes at their next step; None for those of all at each step. Changed in place.
        pause: Called with the moment at which training pauses, before others come to it, and without one when it has gone on.
        resumes: Batches after a pause at whose start it is called.
    """

    due: Collection[int] | None = None
    pause: Callable[..., Any] | None = None
    resumes = 1

    def follows(self, event: str) -> bool:
        """Whether the method of one of these events does something."""
        return event in vars(self) or getattr(type(self), event) is not getattr(Events, event)

    def batch_events(self, sampled: bool, before: bool) -> dict[str, Callable[..., None]]:
        """Return what it does at the events of a training batch, each by the name of its method.

        Args:
            sampled: Whether the batch is sampled.
            before: Whether the one before was.
        """
        return {event: getattr(self, event) for event in BATCH_EVENTS if self.follows(event)}

    # Batches and windows.

    def batch_start(self, batch: Sequence[tuple[str, Tensor]]) -> None:
        """A training batch starts, with these tensors, each with the place where it is."""

    def before_backward(self, loss: Tensor) -> None:
        """Backward starts."""

    def after_backward(self) -> None:
        """Backward is done."""

    def batch_end(self, outputs: Any = None) -> None:
        """A training batch ends; with what ``training_step`` returned."""

    def validation_batch(self, batch: Any, index: int) -> None:
        """A validation batch starts."""

    def validation_end(self) -> None:
        """A validation ends, and its metrics are known."""

    def calls_numbered(self, changed: bool) -> None:
        """Ranks have numbered the sites of functional calls alike: make room for those that other ranks called.

        Args:
            changed: Whether earlier sites have other numbers now, and what was recorded of them does not count.
        """

    def window_end(self) -> None:
        """The window ends: note what only this rank knows."""

    def detach(self) -> None:
        """Hooks are removed. May be called twice."""

    # Optimizer steps.

    def on_gradients(self, step: Step) -> None:
        """Gradients are ready and not clipped."""

    def on_update(self, step: Step) -> None:
        """The update starts: gradients are as it sees them."""

    def on_taken(self, step: Step) -> None:
        """The optimizer has stepped."""

    def on_skipped(self, step: Step) -> None:
        """A loss scaler did not let the optimizer step."""

    def on_changed(self, kept: EarlierOptimizers) -> None:
        """There are new parameters, at the end of the names, or other optimizers than before."""


class Collector(Events, WindowTables[R], ReportView[R]):
    """What one monitor measures in one training run.

    The session calls its events; a collector never asks when. It is made when training starts, and what it registers through
    ``context`` is removed with it.

    Args:
        context: Its part of the session.
        state: What :meth:`state_dict` returned in an earlier run.

    Attributes:
        monitor: The name of the monitor that measures it alone.
        report_name: What a monitor of several collectors calls its report.
        takes: The arguments of monitors that it takes, next to those that all take.
        every_step: Whether it does the same at a step that is not sampled.
        checks_early: Whether it can find something urgent within a window.
        records_recomputation: Whether hooks also run when activation checkpointing recomputes a layer during backward.
        watches_steps: Whether it takes the events of optimizer steps.
        reads_norms: Whether it reads ``before`` and ``after`` of each optimizer step.
    """

    monitor: ClassVar[str] = ""
    report_name: ClassVar[str] = ""
    takes: ClassVar[tuple[str, ...]] = ()
    every_step: ClassVar[bool] = False
    checks_early: ClassVar[bool] = False
    records_recomputation: ClassVar[bool] = False
    watches_steps: ClassVar[bool] = False
    reads_norms: ClassVar[bool] = False

    def __init__(self, context: Context, state: Mapping[str, Any]) -> None:
        self.context = context

    @classmethod
    def applies(cls, model: nn.Module, functional: bool, listed: bool) -> bool:  # noqa: ARG003  for those that override it
        """Whether it has something to measure in a training that others observe too.

        Args:
            model: The model.
            functional: Whether the user wants the calls of functions as sites.
            listed: Whether its own monitor observes the training separately.
        """
        return True

    def agreed(self, stride: int) -> int:
        """The stride that all ranks take where they must sample alike; 0 while one of them has not found one (0) yet."""
        return stride

    def urgent_report(self, report: R) -> R:
        """The report of an unfinished window, as the urgent rules read it."""
        return report

    def dated(self, alerts: tuple[Alert, ...]) -> tuple[Alert, ...]:
        """Alerts found within a window, each with the step and batch at which it began, as far as that is known."""
        return alerts

    @property
    def unchecked(self) -> bool:
        """Whether, at the window's end, something is wrong that no check has looked at yet."""
        return False

    def state_dict(self) -> dict[str, Any]:
        """Return what a resumed run needs next to the table, in plain types and tensors."""
        return {}

    def lasting_state(self) -> dict[str, Any]:
        """That part of :meth:`state_dict` which the next run of the same monitor starts from, without a checkpoint too."""
        return {}
