"""What a collector has of the session that it is part of."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from torch import nn

from lightning_hooks.declare.alert import AlertError
from lightning_hooks.declare.book import EarlyChecks
from lightning_hooks.declare.functional_calls import CallSubscriber, FunctionalCall, FunctionalCalls, FunctionalSite
from lightning_hooks.declare.host import Host
from lightning_hooks.declare.parameter_places import ParameterPlaces
from lightning_hooks.hooks import Faults, Gate, Meter, ModuleSelector, Recorder, select_modules
from lightning_hooks.hooks.selection import selects_call
from lightning_hooks.hooks.wrappers import skipping
from lightning_hooks.statistics.histograms import HistogramTable

MEASURED_FIRST = (1, 2, 4, 8)  # the first steps that are measured
MEASURED_EVERY = 200  # after them, every so many steps


@dataclass(frozen=True, slots=True)
class MeasuredLoss:
    """The losses around one optimizer step, each of a whole batch with the randomness of its forward pass.

    Attributes:
        step: The number of the step, from 1.
        before: The loss of the step's batch, before it.
        after: The same after it.
        level: Mean loss of the last batches before the step, each when it was new.
        rounding: How far a loss may be off, for the precision that it is computed in.
    """

    step: int
    before: float
    after: float
    level: float
    rounding: float = 0.0


def is_measured(step: int) -> bool:
    """Whether an optimizer step is measured, by its number from 1."""
    return step in MEASURED_FIRST or step % MEASURED_EVERY == 0


class Measure(Protocol):
    """Measures some steps, by running their batches again.

    Attributes:
        why_not: Why steps are not measured; empty where they are.
    """

    why_not: str

    @property
    def measuring(self) -> bool:
        """Whether the step under way is measured."""

    def open(self, receive: Callable[[MeasuredLoss], None]) -> None:
        """Call a function after each step that was measured; where none can be, warn."""


# Sampled batches of a window in which costly statistics are taken too: the first ones, and each sixteenth after them
FIRST_DETAILED, DETAILED_EVERY = 4, 16


@dataclass(eq=False)
class Context:
    """What a collector has of the session that it is part of, for one run.

    Attributes:
        name: The monitor's name, for messages.
        host: The training loop.
        steps: The optimizers and their parameters.
        add_hook: Adds a forward hook, of its owner, the name of its site, the module, and what records each output.
        calls: The calls of functions.
        measure: What some steps gain.
        gate: Whether the batch under way is sampled.
        meter: Where the time of hooks is added up; None for nowhere.
        faults: The sites whose hook raised.
        early: Its part in the checks within a window; None without them.
        judge_urgent: Applies the urgent rules of all monitors now.
        new_histograms: Makes the table of the histograms that the user asks for, of the names of the sites; None for none.
        samples_of: Returns the samples of a training batch, by its epoch and its index, as alerts name them; empty where they are
            not known any more, and with several ranks, which have others.
        modules: The modules that the user selects.
        records_functional: Whether the user wants the calls of functions as sites.
        learning: Whether it is measured what of the training learns: True, False, or ``auto``.
        batch: The training batch under way, from 0 in each epoch.
        batches: Training batches of the window so far, the one under way among them.
        sampled_batches: Those of them that are sampled.
        detailed: Whether costly statistics were taken in the last of these: in the first four of a window, and in each sixteenth.
    """

    name: str
    host: Host
    steps: ParameterPlaces
    add_hook: Callable[[object, str, nn.Module, skipping], None]
    calls: FunctionalCalls
    measure: Measure
    gate: Gate
    meter: Meter | None
    faults: Faults
    early: EarlyChecks | None
    judge_urgent: Callable[[], None]
    new_histograms: Callable[..., HistogramTable | None]
    samples_of: Callable[[int, int], Sequence[int | str]]
    modules: ModuleSelector | None
    records_functional: bool
    learning: bool | str
    batch: int = 0
    batches: int = 0
    sampled_batches: int = 0
    detailed: bool = False

    @property
    def functional(self) -> FunctionalCalls | None:
        """The calls of functions in this run; None under ``torch.compile``, which does not show them."""
        return self.calls if self.calls.available() else None

    def select(self) -> list[tuple[str, nn.Module]]:
        """Return the (name, module) pairs to observe."""
        return select_modules(self.host.model, self.modules, calls=self.records_functional)

    def selects_call(self, site: FunctionalSite, module: nn.Module) -> bool:
        """Whether the user selects the calls at a site, which ``module`` makes."""
        return selects_call(self.modules, site.name, site.module, module)

    def listen(self, name: str, module: nn.Module, recorder: Recorder) -> None:
        """Call ``recorder`` with each output of a module, in sampled batches."""
        self.add_hook(self, name, module, skipping(recorder, name, self.faults, when=self.gate, meter=self.meter))

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
            detailed: Only in the batches in which costly statistics are taken.
        """
        if self.calls.available():
            new = partial(skipping, recorder, on_fault=self.faults, meter=self.meter, observes=True)
            self.calls.add(CallSubscriber(self, frozenset(functions), self.gate, new, layers, in_validation, detailed))

    def guard(self, function: Callable[..., Any], site: str, meter: Meter | None = None) -> skipping:
        """Wrap a function so that what it raises is a warning, and it is called no more; an AlertError goes through."""
        return skipping(function, site, self.faults, passes=(AlertError,), meter=meter, observes=True)

    def close(self) -> None:
        """The run is over: let go of the loop and the model, which what still has this context does not need any more."""
        del self.host, self.steps, self.add_hook, self.calls, self.measure, self.judge_urgent, self.new_histograms, self.samples_of
