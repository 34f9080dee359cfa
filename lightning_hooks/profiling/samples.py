"""The report of the times of many steps."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from lightning_hooks.profiling.calls import ROOT, CallTree, Phase, phase_of, place_of
from lightning_hooks.profiling.clock import StepTimes
from lightning_hooks.profiling.report import LayerTimes, ProfileReport, Spread
from lightning_hooks.profiling.tracer import Tally, TracedStep

LIMIT = 512
"""The number of steps kept of an epoch. At this number every second one is dropped, and half as many are measured from then on."""

_SITE_PHASES = {"forward": Phase.FORWARD, "backward": Phase.BACKWARD, "recompute": Phase.RECOMPUTE}


class Samples:
    """The measured steps of one epoch.

    Args:
        names: The names of the sites.
        device: The device of the model.
    """

    def __init__(self, names: list[str], device: str) -> None:
        self.names = names
        self.device = device
        self.memory: dict[int, int] = {}  # site -> bytes; kept from epoch to epoch
        self.stride = 1
        self._turn = 0
        self._waiting: list[TracedStep] = []
        self._times: list[StepTimes] = []
        self._steps: list[TracedStep] = []

    def wants(self) -> bool:
        """Return whether to measure the next step."""
        wanted = self._turn % self.stride == 0
        self._turn += 1
        return wanted

    def add_step(self, step: TracedStep) -> None:
        """Add a traced step; its times may follow later."""
        if step.reads_memory:
            self.memory = {site: tally.memory_bytes for site, tally in step.tallies.items()}
        self._waiting.append(step)

    def add_times(self, times: list[StepTimes]) -> None:
        """Add the times of the oldest steps without any."""
        for found in times:
            step = self._waiting.pop(0)
            if step.counts:
                self._steps.append(step)
                self._times.append(found)
        if len(self._times) >= LIMIT:
            self._times, self._steps = self._times[::2], self._steps[::2]
            self.stride *= 2

    def reset(self) -> None:
        """Start a new epoch."""
        self._waiting, self._times, self._steps = [], [], []
        self.stride, self._turn = 1, 0

    def report(self, tree: CallTree, epoch: int, step: int, batches: int) -> ProfileReport:
        """Return the report of the added steps, which must all have their times."""
        accounts = sorted({account for times in self._times for account in times.accounts})
        column = {account: index for index, account in enumerate(accounts)}
        table = np.zeros((len(self._times), len(accounts)))
        for row, times in enumerate(self._times):
            for account, milliseconds in times.accounts.items():
                table[row, column[account]] = milliseconds

        def spread(wanted: list[int]) -> Spread:
            return _spread(table[:, [column[account] for account in wanted]].sum(1))

        def outside(phase: Phase) -> list[int]:
            return [a for a in accounts if place_of(a) == ROOT and phase_of(a) is phase]

        def during(*phases: Phase) -> list[int]:
            return [a for a in accounts if phase_of(a) in phases]

        step_time = spread(accounts)
        inside = {account: tree.sites_at(place_of(account)) for account in accounts}
        tallies = self._tallies()
        sites: dict[str, LayerTimes] = {}
        for site, name in enumerate(self.names):
            if site not in tallies:
                continue
            own = [a for a in accounts if tree.sites[place_of(a)] == site]
            total = [a for a in accounts if site in inside[a]]
            spreads = {
                f"{kind}_{scope}": spread([a for a in chosen if phase_of(a) is phase])
                for kind, phase in _SITE_PHASES.items()
                for scope, chosen in (("self", own), ("total", total))
            }
            self_time, total_time = spread(own), spread(total)
            tally = tallies[site]
            sites[name] = LayerTimes(
                calls=tally.calls / len(self._steps),
                recomputed_calls=tally.recomputed / len(self._steps),
                self_time=self_time,
                total_time=total_time,
                share=self_time.mean / step_time.mean,
                total_share=total_time.mean / step_time.mean,
                output_bytes=tally.output_bytes / len(self._steps),
                memory_bytes=self.memory.get(site),
                **spreads,
            )
        return ProfileReport(
            epoch=epoch,
            step=step,
            device=self.device,
            sites=sites,
            silent=tuple(name for name in self.names if name not in sites),
            step_time=step_time,
            forward_time=spread(during(Phase.FORWARD)),
            backward_time=spread(during(Phase.BACKWARD, Phase.RECOMPUTE)),
            other_time=spread(during(Phase.OTHER)),
            outside_forward=spread(outside(Phase.FORWARD)),
            outside_backward=spread(outside(Phase.BACKWARD) + outside(Phase.RECOMPUTE)),
            overhead=float(np.mean([times.overhead for times in self._times])) if self._times else math.nan,
            measured_steps=len(self._times),
            batches=batches,
        )

    def _tallies(self) -> dict[int, Tally]:
        found: dict[int, Tally] = {}
        for step in self._steps:
            for site, tally in step.tallies.items():
                total = found.setdefault(site, Tally())
                total.calls += tally.calls
                total.recomputed += tally.recomputed
                total.output_bytes += tally.output_bytes
        return found


def _spread(values: NDArray[np.float64]) -> Spread:
    if not values.size:
        return Spread(math.nan, math.nan, math.nan, math.nan)
    p50, p95 = np.percentile(values, (50, 95))
    return Spread(float(values.mean()), float(values.std()), float(p50), float(p95))
