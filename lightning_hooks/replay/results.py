"""What running a bad step again has shown, on every rank, and what alerts say of it."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any

import torch.distributed

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.kinds import kind_of
from lightning_hooks.diagnostics.causes.facts import BadStep
from lightning_hooks.hosts.host import Host
from lightning_hooks.replay.blame import Blame
from lightning_hooks.replay.ring import Ring, StepEvidence


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
        self._of_ranks: list[Mapping[str, Any]] = []  # what each rank found
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
            own = None if self.own is None else _record(*self.own)
            self._of_ranks = [{}] * self._host.setup.world_size
            torch.distributed.all_gather_object(self._of_ranks, own)

    def explained(self, alert: Alert) -> Alert:
        """An alert about a single step with its samples, and with what running that step again has shown."""
        if not self._open or kind_of(alert.kind).about == "window" or alert.samples:
            return alert
        several, shown = self._host.setup.world_size > 1, self._shown(alert)
        if shown:
            text = " ".join((f"On rank {rank}: " if several else "") + record["text"] for rank, record in shown)
            known = tuple(sample for _, record in shown for sample in record["samples"])
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
        own = [] if self.own is None else [_record(*self.own)]
        return next(
            (BadStep(**record["step_shown"]) for record in (self._of_ranks or own) if record and record["step_shown"]), None
        )

    def dated(self, alert: Alert) -> Alert:
        """An alert on the loss, or on the module that was first, with the step at which it began, as each step was judged."""
        shown = [record for _, record in self._shown(alert)]
        if alert.kind != "loss_nonfinite":
            shown = [record for record in shown if record["module"] == alert.site]
        return dataclasses.replace(alert, batch=shown[0]["batch"], since_step=shown[0]["step"]) if shown else alert

    def _shown(self, alert: Alert) -> list[tuple[int, Mapping[str, Any]]]:
        """What running the bad step again has shown of an alert, by rank; empty where it is about an earlier step."""
        if not self._open or kind_of(alert.kind).about != "nonfinite":
            return []
        own = [] if self.own is None else [_record(*self.own)]
        last = math.inf if alert.batch is None else alert.batch
        records = [(rank, record) for rank, record in enumerate(self._of_ranks or own) if record]
        records = [(rank, record) for rank, record in records if record["epoch"] == alert.epoch and record["batch"] <= last]
        if alert.kind == "loss_nonfinite":  # every batch is looked at: in an earlier one the loss was finite
            records = [(rank, record) for rank, record in records if record["batch"] == alert.batch]
        return [(rank, record) for rank, record in records if record["reproduced"]] or records[:1]


def _record(evidence: StepEvidence, found: Blame) -> dict[str, Any]:
    """What ranks exchange."""
    failure = found.failure
    shown = None if failure is None else {
        "source": failure.source, "name": failure.name, "value": failure.value, "operation": found.operation,
        "module": failure.place.module, "code": failure.place.code, "samples": found.samples,
    }  # fmt: skip
    return {
        "step_shown": shown,
        "epoch": evidence.epoch,
        "batch": evidence.batch,
        "step": evidence.step,
        "text": found.text,
        "samples": found.samples,
        "module": "" if found.failure is None else found.failure.place.module,
        "reproduced": found.reproduced,
    }
