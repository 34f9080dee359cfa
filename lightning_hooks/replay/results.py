"""What running a bad step again has shown, on every rank, and what alerts say of it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch.distributed

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.host import Host
from lightning_hooks.declare.kinds import kind_of
from lightning_hooks.declare.window import Window
from lightning_hooks.diagnostics.nonfinite.bad_step import BadStep
from lightning_hooks.diagnostics.nonfinite.operations import explained, state
from lightning_hooks.diagnostics.reports import GradientFlowReport
from lightning_hooks.hooks.selection import clean_name
from lightning_hooks.replay.blame import Blame
from lightning_hooks.replay.rows import Ring, StepEvidence, samples_of


@dataclass(frozen=True, slots=True)
class RankResult:
    """What a rank found at its first bad step, as ranks exchange it."""

    epoch: int
    batch: int
    step: int
    blame: Blame  # without the trace


class ReplayResults:
    """What is known of the first bad step.

    Attributes:
        own: The evidence of this rank's first bad step, and what running it again has shown; None before.
    """

    def __init__(self, host: Host, ring: Ring) -> None:
        self._host, self._ring = host, ring
        self.own: tuple[StepEvidence, Blame] | None = None
        self._of_ranks: list[RankResult | None] = []

    @property
    def waiting(self) -> bool:
        """Whether this rank has found something that the others do not know."""
        return self.own is not None and not self._of_ranks

    def agree(self) -> None:
        """All ranks come here where one of them is waiting: each learns what the others found."""
        if self._host.setup.world_size > 1:
            own = self._by_rank()
            self._of_ranks = [None] * self._host.setup.world_size
            torch.distributed.all_gather_object(self._of_ranks, own[0][1] if own else None)

    def _by_rank(self) -> list[tuple[int, RankResult]]:
        if self.own is None or self._of_ranks:
            return [(rank, shown) for rank, shown in enumerate(self._of_ranks) if shown is not None]
        evidence, blame = self.own
        return [(0, RankResult(evidence.epoch, evidence.batch, evidence.step, replace(blame, trace=None)))]

    def explained(self, alert: Alert) -> Alert:
        """An alert about a single step with its samples, and with what running that step again has shown."""
        if kind_of(alert.kind).about == "window" or alert.samples:
            return alert
        several, found = self._host.setup.world_size > 1, self._shown(alert)
        if found:
            texts = ((f"On rank {rank}: " if several else "") + shown.blame.text for rank, shown in found)
            known = tuple(sample for _, shown in found for sample in shown.blame.samples)
            return self.dated(replace(alert, message=" ".join((alert.message, *texts)), samples=known))
        entry = None if alert.batch is None else self._ring.of(alert.epoch, alert.batch)
        if entry is None:
            return alert
        if kind_of(alert.kind).about == "nonfinite":
            entry = self._ring.guilty(entry)
        samples = samples_of(entry.rows)
        return replace(alert, samples=tuple(f"rank 0: {sample}" for sample in samples) if several else samples)

    @property
    def bad_step(self) -> BadStep | None:
        """What running the first bad step again has shown, on the first rank that had one; None where nothing has."""
        steps = ((shown.blame.step, shown.batch) for _, shown in self._by_rank())
        return next((replace(step, first=batch == 0) for step, batch in steps if step is not None), None)

    def lead(self, window: Window, lasting: Sequence[Sequence[Alert]]) -> tuple[int, Alert] | None:
        """The alert about the first bad step, where running it again has shown what failed, and a window shows what came of it.

        ``lasting`` are the problems of earlier windows that last, by report.

        Returns:
            The place of the report that it belongs to, and the alert, of which all alerts about values that are not finite are
            consequences; None without one.
        """
        step = self.bad_step
        affected = [
            (place, alert)
            for place, report in enumerate(window.reports)
            for alert in report.alerts
            if kind_of(alert.kind).about == "nonfinite" and alert.severity != "info"
        ]
        known = [(rank, shown) for rank, shown in self._by_rank() if shown.blame.step is not None]
        if step is None or not window.reports:
            return None
        failure = step.failure
        site = clean_name(failure.name) if failure.source == "weights" else failure.place.module
        kind, site = ("nonfinite", site or "training_step") if site or not step.loss else ("loss_nonfinite", "loss")
        holding = [n for n, known in enumerate(lasting) if any((alert.kind, alert.site) == (kind, site) for alert in known)]
        known_here = (
            not affected and explained(step) is not None
            if failure.source == "error"
            else any(holding or self._shown(alert) for _, alert in affected)
        )
        if not known_here:
            return None
        first = window.reports[0]
        place, alert = min(
            affected,
            key=lambda entry: (entry[1].kind != kind, entry[1].site != site),
            default=(0, Alert(kind, site, math.nan, 0.0, first.epoch, first.step, "critical")),
        )
        place = holding[0] if holding else place
        (rank, shown), (title, what, why) = known[0], state(step)
        gradients = window.report(GradientFlowReport)
        at_start = gradients is not None and site in gradients.model_setup.nonfinite_weights
        if at_start and failure.source == "weights" and (alert.kind, alert.site) == (kind, site):
            return place, alert  # its rule knows more
        return place, Alert(
            *(kind, site, alert.value, alert.threshold, alert.epoch, alert.step, "critical", what),
            since_step=shown.step,
            batch=shown.batch if shown.epoch == alert.epoch else None,
            title=title,
            diagnosis=" ".join(filter(None, (what, why, f"It was on rank {rank}." * (self._host.setup.world_size > 1)))),
            advice=kind_of(kind).advice,
            samples=tuple(sample for _, other in known for sample in other.blame.samples),
        )

    def dated(self, alert: Alert) -> Alert:
        """An alert on the loss, or on the module that was first, with the step at which it began, as each step was judged."""
        found = [shown for _, shown in self._shown(alert) if alert.kind == "loss_nonfinite" or shown.blame.module == alert.site]
        return replace(alert, batch=found[0].batch, since_step=found[0].step) if found else alert

    def _shown(self, alert: Alert) -> list[tuple[int, RankResult]]:
        """What running the bad step again has shown of an alert, by rank; empty where it is about an earlier step."""
        if kind_of(alert.kind).about != "nonfinite":
            return []
        last = math.inf if alert.batch is None else alert.batch
        found = [(rank, shown) for rank, shown in self._by_rank() if shown.epoch == alert.epoch and shown.batch <= last]
        if alert.kind == "loss_nonfinite":  # every batch is looked at: in an earlier one the loss was finite
            found = [(rank, shown) for rank, shown in found if shown.batch == alert.batch]
        return [(rank, shown) for rank, shown in found if shown.blame.reproduced] or found[:1]
