"""What a collector asks of the session that it is part of."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any, Protocol

from torch import nn

from lightning_hooks.declare.book import Early
from lightning_hooks.declare.functional import Functional, FunctionalCall, FunctionalSite
from lightning_hooks.declare.measured import MeasuredLoss
from lightning_hooks.declare.rulebook import RuleBook
from lightning_hooks.declare.step import OptimizerSteps
from lightning_hooks.hooks import DetailGate, Faults, Gate, Meter, Recorder, guarded
from lightning_hooks.hosts.host import Host
from lightning_hooks.statistics.histograms import HistogramTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Figures = Mapping[str, Callable[[], Figure]]


class Measure(Protocol):
    """Measures some steps, by running their batches again."""

    why_not: str
    """Why steps are not measured; empty where they are."""

    @property
    def measuring(self) -> bool:
        """Whether the step under way is measured."""

    def open(self, receive: Callable[[MeasuredLoss], None]) -> None:
        """Call a function after each step that was measured; where none can be, warn."""


class SampledBatches(Protocol):
    """Where training is, and whether hooks record there."""

    @property
    def gate(self) -> Gate:
        """Whether the batch under way is sampled."""

    @property
    def details(self) -> DetailGate:
        """Whether costly statistics are taken in this batch: the first sixteen sampled ones of a window, and each sixteenth."""

    @property
    def meter(self) -> Meter | None:
        """Where the time of hooks is added up."""

    @property
    def batches(self) -> int:
        """Training batches of the window so far, the one under way among them."""

    @property
    def batch(self) -> int:
        """The training batch under way, from 0 in each epoch."""

    @property
    def sampled_batches(self) -> int:
        """Those of them that are sampled."""


class FunctionCalls(Protocol):
    """The calls of functions that a collector can have."""

    @property
    def functional(self) -> Functional | None:
        """The calls of functions in this run; None under ``torch.compile``, which does not show them."""

    @property
    def records_functional(self) -> bool:
        """Whether the user wants the calls of functions as sites."""

    def selects_call(self, site: FunctionalSite, module: nn.Module) -> bool:
        """Whether the user selects the calls at a site, which ``module`` makes."""

    def on_call(
        self,
        functions: Sequence[str],
        recorder: Callable[[FunctionalCall], None],
        layers: bool = False,
        in_validation: bool = False,
        detailed: bool = True,
    ) -> None:
        """Call ``recorder`` with each call of some of :data:`lightning_hooks.hooks.functions.FUNCTIONS`, in sampled batches.

        Args:
            functions: By name.
            recorder: What records a call.
            layers: Also the calls that layers such as ``nn.Softmax`` make, whose output is the function's.
            in_validation: Those of the first batch of each validation instead, at sites that are known from training.
            detailed: Only in the batches that ``details`` opens for.
        """


class Context(SampledBatches, FunctionCalls, Protocol):
    """What a collector asks of the session that it is part of."""

    @property
    def name(self) -> str:
        """The monitor's name, for messages."""

    @property
    def host(self) -> Host:
        """The training loop."""

    @property
    def steps(self) -> OptimizerSteps:
        """The optimizers."""

    @property
    def faults(self) -> Faults:
        """The sites whose hook raised."""

    @property
    def book(self) -> RuleBook:
        """The rules in force."""

    @property
    def learning(self) -> bool | str:
        """Whether it is measured what of the training learns: True, False, or ``auto``."""

    @property
    def measure(self) -> Measure:
        """What some steps gain."""

    @property
    def early(self) -> Early | None:
        """Its part in the checks within a window; None without them."""

    def select(self) -> list[tuple[str, nn.Module]]:
        """Return the (name, module) pairs to observe."""

    def listen(self, name: str, module: nn.Module, recorder: Recorder) -> None:
        """Call ``recorder`` with each output of a module, in sampled batches."""

    def guard(self, function: Callable[..., Any], site: str) -> guarded:
        """Wrap a function so that what it raises is a warning, and it is called no more; an AlertError goes through."""

    def new_histograms(self, names: Sequence[str], loss_scaled: bool = False) -> HistogramTable | None:
        """Make the table of the histograms that the user asks for; None for none."""

    def judge_urgent(self) -> bool:
        """Apply the urgent rules of all monitors now; return whether the fit is to stop."""

    def loading(self) -> AbstractContextManager[None]:
        """A block in which an error is a warning that the checkpoint's state cannot be read."""
