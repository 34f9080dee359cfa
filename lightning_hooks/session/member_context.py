"""What a member has of its session, made when a run starts."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, Protocol

from lightning_hooks.declare.book import EarlyChecks
from lightning_hooks.declare.collector import Collector
from lightning_hooks.declare.context import Context
from lightning_hooks.declare.host import Host
from lightning_hooks.hooks import Faults
from lightning_hooks.session.evidence import SessionEvidence
from lightning_hooks.session.functional_calls import FunctionalCalls
from lightning_hooks.session.logged import MemberLog
from lightning_hooks.session.module_hooks import ModuleHooks
from lightning_hooks.session.sampling import Sampling
from lightning_hooks.session.settings import Settings
from lightning_hooks.session.step_observers import STEP_EVENTS, StepCalls
from lightning_hooks.session.step_probe import StepProbe


class OpenSession(Protocol):
    """What a member needs of its session."""

    host: Host
    probe: StepProbe
    hooks: ModuleHooks
    calls: FunctionalCalls
    evidence: SessionEvidence

    def judge_urgent(self) -> bool:
        """Apply the urgent rules of all members."""

    def release(self, context: Context) -> None:
        """Remove what was registered for a member."""


def new_context(
    session: OpenSession,
    name: str,
    settings: Settings,
    sampling: Sampling,
    faults: Faults,
    early: EarlyChecks | None,
    log: MemberLog,
) -> Context:
    """What the collector of a member has of a session."""
    return Context(
        name=name,
        host=session.host,
        steps=session.probe.places,
        add_hook=session.hooks.add,
        calls=session.calls,
        measure=session.evidence.measure,
        gate=sampling.gate,
        meter=sampling.meter,
        faults=faults,
        early=early,
        judge_urgent=session.judge_urgent,
        new_histograms=partial(log.histogram_table, session.host),
        samples_of=session.evidence.samples_of,
        modules=settings.modules,
        records_functional=settings.functional,
        learning=settings.learning,
        metrics=settings.metrics or {},
    )


def step_calls(context: Context, collector: Collector[Any]) -> StepCalls:
    """What passes the events of optimizer steps on to a collector."""
    return {
        event: context.guard(getattr(collector, f"on_{event}"), f"optimizer step (on_{event})", context.meter)
        for event in STEP_EVENTS
        if collector.follows(f"on_{event}")
    }


def compiled_before(regions: Sequence[str], collector: Collector[Any], faults: Faults) -> list[str]:
    """The sites in compiled modules all of whose sites are silent: those were compiled before the hooks came.

    Args:
        regions: The names of the compiled modules.
        collector: What observes the sites; it is read from the device.
        faults: The sites whose hook raised, which are silent for another reason.
    """
    silent = set(collector.silent_sites()).difference(faults.errors)
    late = []
    for region in regions:
        inside = [name for name in collector.names if not region or name == region or name.startswith(f"{region}.")]
        if inside and silent.issuperset(inside):
            late += inside
    return late
