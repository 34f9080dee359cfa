"""What running a bad step again has shown, on every rank, and what alerts say of it."""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import torch.distributed

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.host import Host
from lightning_hooks.declare.kinds import kind_of
from lightning_hooks.diagnostics.causes.facts import BadStep
from lightning_hooks.replay.blame import Blame
from lightning_hooks.replay.ring import Ring, StepEvidence


@dataclass(frozen=True, slots=True)
class RankResult:
    """What a rank found at its first bad step, as ranks exchange it."""

    epoch: int
    batch: int
    step: int
    blame: Blame  # without the trace


class ReplayResults:
    """What is known of the first bad step.

    Args:
        host: The training loop.
        ring: The evidence of the last steps.

    Attributes:
        own: The evidence of this rank's first bad step, and what running it again has shown; None before.
    """

    def __init__(self, host: Host, ring: Ring) -> None:
        self._host, self._ring = host, ring
        self.own: tuple[StepEvidence, Blame] | None = None
        self._of_ranks: list[RankResult | None] = []
        self._open = self._resumed = False

    def open(self, resumed: bool) -> None:
        """Evidence is kept from now on; ``resumed`` if steps were taken before."""
        self._open, self._resumed = True, resumed

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
        """What each rank found; before ranks agree, and with one rank, what this one did."""
        if self.own is None or self._of_ranks:
            return [(rank, shown) for rank, shown in enumerate(self._of_ranks) if shown is not None]
        evidence, blame = self.own
        return [(0, RankResult(evidence.epoch, evidence.batch, evidence.step, dataclasses.replace(blame, trace=None)))]

    def explained(self, alert: Alert) -> Alert:
        """An alert about a single step with its samples, and with what running that step again has shown."""
        if not self._open or kind_of(alert.kind).about == "window" or alert.samples:
            return alert
        several, found = self._host.setup.world_size > 1, self._shown(alert)
        if found:
            text = " ".join((f"On rank {rank}: " if several else "") + shown.blame.text for rank, shown in found)
            known = tuple(sample for _, shown in found for sample in shown.blame.samples)
            return self.dated(dataclasses.replace(alert, diagnosis=text, samples=known))
        entry = None if alert.batch is None else self._ring.of(alert.epoch, alert.batch)
        if entry is None:
            older = self._resumed and alert.batch is not None and not self._ring.of(alert.epoch, max(alert.batch - 1, 0))
            why = "The samples of that batch are not known: the evidence begins again where a run is resumed." if older else ""
            return dataclasses.replace(alert, diagnosis=f"{alert.diagnosis} {why}".strip())
        if kind_of(alert.kind).about == "nonfinite":
            entry = self._ring.guilty(entry, entry.step)
        samples = () if entry.rows is None else entry.rows.samples()
        return dataclasses.replace(alert, samples=tuple(f"rank 0: {sample}" for sample in samples) if several else samples)

    @property
    def bad_step(self) -> BadStep | None:
        """What running the first bad step again has shown, on the first rank that had one; None where nothing has."""
        for _, shown in self._by_rank():
            blame, failure = shown.blame, shown.blame.failure
            if failure is not None:
                code, value = failure.place.code, failure.value
                return BadStep(failure.source, failure.name, value, blame.operation, blame.module, code, blame.samples)
        return None

    def dated(self, alert: Alert) -> Alert:
        """An alert on the loss, or on the module that was first, with the step at which it began, as each step was judged."""
        found = [shown for _, shown in self._shown(alert) if alert.kind == "loss_nonfinite" or shown.blame.module == alert.site]
        return dataclasses.replace(alert, batch=found[0].batch, since_step=found[0].step) if found else alert

    def _shown(self, alert: Alert) -> list[tuple[int, RankResult]]:
        """What running the bad step again has shown of an alert, by rank; empty where it is about an earlier step."""
        if not self._open or kind_of(alert.kind).about != "nonfinite":
            return []
        last = math.inf if alert.batch is None else alert.batch
        found = [(rank, shown) for rank, shown in self._by_rank() if shown.epoch == alert.epoch and shown.batch <= last]
        if alert.kind == "loss_nonfinite":  # every batch is looked at: in an earlier one the loss was finite
            found = [(rank, shown) for rank, shown in found if shown.batch == alert.batch]
        return [(rank, shown) for rank, shown in found if shown.blame.reproduced] or found[:1]
