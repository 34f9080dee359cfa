"""What a collector asks of its member in a session."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Protocol

from torch import nn

from lightning_hooks.alerts import AlertError, RuleBook
from lightning_hooks.declare.collector import Collector
from lightning_hooks.declare.functional import FunctionalCall, FunctionalSite
from lightning_hooks.declare.warn import warn
from lightning_hooks.hooks import DetailGate, Faults, Gate, Meter, Recorder, select_modules
from lightning_hooks.hooks.selection import selects_call
from lightning_hooks.hooks.tensors import UnreadableError
from lightning_hooks.hooks.wrappers import is_transformed, skipping
from lightning_hooks.hosts.host import Host
from lightning_hooks.replay.measure import StepMeasure
from lightning_hooks.session.alerting import Alerting
from lightning_hooks.session.functional_calls import FunctionalCalls
from lightning_hooks.session.logged import MemberLog
from lightning_hooks.session.module_hooks import ModuleHooks
from lightning_hooks.session.optimizer_state import StepObserver
from lightning_hooks.session.overhead import Overhead
from lightning_hooks.session.sampling import Sampling
from lightning_hooks.session.settings import Settings
from lightning_hooks.session.step_probe import StepProbe
from lightning_hooks.statistics.histograms import HistogramTable


class BadStepEvidence(Protocol):
    """What a member asks of the evidence of bad steps."""

    measure: StepMeasure

    @property
    def on(self) -> bool:
        """Whether anything is kept."""

    def keep(self, settings: Settings, written: set[str]) -> None:
        """Keep the evidence of each step, as the first monitor with ``capsule=`` says."""

    def request(self) -> None:
        """Write a capsule at the next optimizer step."""


class Parts(Protocol):
    """What a member needs of the session."""

    host: Host
    probe: StepProbe
    hooks: ModuleHooks
    calls: FunctionalCalls

    @property
    def evidence(self) -> BadStepEvidence:
        """That of the last steps."""

    @property
    def overheads(self) -> list[Overhead]:
        """What each member costs."""

    def judge_urgent(self) -> bool:
        """Apply the urgent rules of all members."""

    def release(self, member: Any) -> None:
        """Remove what a member registered."""


class MemberContext:
    """The :class:`~lightning_hooks.declare.context.Context` of a collector, but for what counts its batches."""

    name: str
    settings: Settings
    session: Parts | None
    collector: Collector[Any] | None
    sampling: Sampling
    details: DetailGate
    alerting: Alerting
    log: MemberLog
    faults: Faults

    @property
    def _session(self) -> Parts:
        assert self.session is not None, "training is over"
        return self.session

    @property
    def host(self) -> Host:
        """The training loop."""
        return self._session.host

    @property
    def steps(self) -> StepProbe:
        """The optimizers."""
        return self._session.probe

    @property
    def gate(self) -> Gate:
        """Whether the batch under way is sampled."""
        return self.sampling.gate

    @property
    def meter(self) -> Meter | None:
        """Where the time of hooks is added up."""
        return None if self.sampling.overhead is None else self.sampling.overhead.meter

    @property
    def book(self) -> RuleBook:
        """The rules in force."""
        return self.alerting.rules

    @property
    def learning(self) -> bool | str:
        """Whether it is measured what of the training learns."""
        return self.settings.learning

    @property
    def measure(self) -> StepMeasure:
        """What some steps gain."""
        return self._session.evidence.measure

    @property
    def live(self) -> Collector[Any]:
        """The collector."""
        assert self.collector is not None, "training has not started"
        return self.collector

    def select(self) -> list[tuple[str, nn.Module]]:
        """Return the (name, module) pairs to observe."""
        return select_modules(self.host.model, self.settings.modules, calls=self.settings.functional)

    def listen(self, name: str, module: nn.Module, recorder: Recorder) -> None:
        """Call ``recorder`` with each output of a module, in sampled batches."""
        safe = skipping(recorder, name, self.faults, when=self.gate, meter=self.meter)
        self._session.hooks.add(self, name, module, safe)

    @property
    def functional(self) -> FunctionalCalls | None:
        """The calls of functions in this run; None under ``torch.compile``, which does not show them."""
        return self._session.calls if self._session.calls.available() else None

    @property
    def records_functional(self) -> bool:
        """Whether the user wants the calls of functions as sites."""
        return self.settings.functional

    def selects_call(self, site: FunctionalSite, module: nn.Module) -> bool:
        """Whether the user selects the calls at a site, which ``module`` makes."""
        return selects_call(self.settings.modules, site.name, site.module, module)

    def on_call(
        self,
        functions: Sequence[str],
        recorder: Callable[[FunctionalCall], None],
        layers: bool = False,
        in_validation: bool = False,
        detailed: bool = True,
    ) -> None:
        """Call ``recorder`` with each call of some functions, by their names, in sampled batches."""
        calls = self.functional
        if calls is not None:

            def record(call: FunctionalCall) -> None:
                if is_transformed():  # a table that is made there would be too
                    raise UnreadableError(call.output)
                recorder(call)

            new = partial(skipping, record, on_fault=self.faults, meter=self.meter, observes=True)
            gate = self.details if detailed else self.gate
            calls.add(self, functions, gate, lambda site: new(site=site), layers, in_validation)

    def _watch_steps(self) -> None:
        """Hand the events of optimizer steps to the collector.

        Raises:
            RuntimeError: If parameters are sharded in a way that does not say how.
        """
        self.host.setup.check_gradients(self.name)

        def safe(name: str) -> Callable[[Any], Any]:
            def call(value: Any) -> None:
                getattr(self.live, name)(value)

            return self.guard(call, f"optimizer step ({name})", self.meter)

        observer = StepObserver(*(safe(f"on_{event}") for event in ("gradients", "clipped", "taken", "skipped", "changed")))
        self.steps.subscribe(self, observer)

    def guard(self, function: Callable[..., Any], site: str, meter: Meter | None = None) -> skipping:
        """Wrap a function so that what it raises is a warning, and it is called no more; an AlertError goes through."""
        return skipping(function, site, self.faults, passes=(AlertError,), meter=meter, observes=True)

    def new_histograms(self, names: Sequence[str], loss_scaled: bool = False) -> HistogramTable | None:
        """Make the table of the histograms that the user asks for; None for none."""
        return self.log.histogram_table(names, self.host, loss_scaled)

    def judge_urgent(self) -> bool:
        """Apply the urgent rules of all members now; return whether the run is to stop."""
        return self._session.judge_urgent()

    @contextmanager
    def loading(self) -> Iterator[None]:
        """Within this block an error warns that this monitor starts afresh: what a checkpoint holds harms no training."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  it may be from any version, or from another callback of the same name
            warn(
                f"{self.name}: its state in the checkpoint cannot be read ({type(error).__name__}: {error}), perhaps "
                "because another version wrote it. It starts afresh; training is not affected."
            )
