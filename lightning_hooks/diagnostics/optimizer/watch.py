"""What each optimizer does: its learning rates and settings, and its second moments."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.host import Scheduled
from lightning_hooks.declare.rule import grouped
from lightning_hooks.declare.step import EarlierOptimizers, OptimizerGroups, Step, groups_of
from lightning_hooks.diagnostics.optimizer.table import GroupSettings, OptimizerStats, OptimizerTable, ScheduleStats, second_moments
from lightning_hooks.hooks.attributes import stored
from lightning_hooks.hooks.tensors import as_number, read_number

LOW = 1e-4  # share of its peak below which a learning rate counts as low

HALF = (torch.float16, torch.bfloat16)


@dataclass(slots=True)
class _Rate:
    peak: float | None = None
    low_since: int | None = None  # the global step at which it was first seen to be low, and has been since

    def see(self, rate: float | None, step: int) -> None:
        """Record the rate at a step."""
        if rate is None:
            return
        self.peak = rate if self.peak is None else max(self.peak, rate)
        if not rate < LOW * self.peak:
            self.low_since = None
        elif self.low_since is None:
            self.low_since = step


class OptimizerWatch:
    """Follows the optimizers of a fit."""

    def __init__(self, context: Context) -> None:
        self._context, self._host = context, context.host
        self._names = context.steps.optimizer_names
        self.table = OptimizerTable(len(self._names), context.host.setup.device)
        self._rates: dict[tuple[int, int], _Rate] = {}  # of each parameter group, by the places of its optimizer and its own
        self._settings: list[tuple[GroupSettings, ...]] = []
        self._schedules: dict[int, list[ScheduleStats]] = {}  # by the place of their optimizer
        self._read_moments = context.guard(second_moments, "an optimizer's second moments")

    def batch_start(self, optimizers: OptimizerGroups) -> None:
        """A sampled batch starts: note the rates in force."""
        step = self._host.position.global_step
        for place, (_, groups) in enumerate(optimizers):
            for number, group in enumerate(groups):
                self._rates.setdefault((place, number), _Rate()).see(as_number(group.get("lr")), step)

    def updated(self, step: Step, parameters: Sequence[Tensor], updates: Tensor, valid: Tensor | None) -> None:
        """A measured step was taken."""
        if self._context.detailed:
            moments = self._read_moments(self._host.optimizers[step.optimizer], {*map(id, parameters)})
            if moments is not None:
                self.table.add(step.optimizer, moments, updates, valid)

    def rounding(self, step: Step, parameters: Sequence[Tensor]) -> list[int]:
        """The places of the parameters into which an update is written with few digits, so that it can be lost in rounding.

        Those in half precision under torch's own optimizers: others may keep precise copies, add up what is lost, or round at
        random.
        """
        places = []
        for place, parameter in enumerate(parameters):
            if parameter.dtype in HALF:
                places.append(place)
        if not places:
            return []
        optimizer = self._host.optimizers[step.optimizer]
        if not type(optimizer).__module__.startswith("torch.optim"):
            return []
        groups = [group for group in optimizer.param_groups if as_number(group.get("lr")) == 0.0]
        still = {id(parameter) for group in groups for parameter in group["params"]}
        dense = [place for place in places if getattr(parameters[place].grad, "layout", None) == torch.strided]
        return [place for place in dense if id(parameters[place]) not in still]

    def follow(self, kept: EarlierOptimizers) -> None:
        """There are other optimizers than before."""
        if kept == [*range(len(kept))] and len(kept) == len(self.table.rows):
            return
        self.table.follow(kept)
        self._rates = {}  # those were others' schedules
        self._names = self._context.steps.optimizer_names

    def window_end(self) -> None:
        """A window ends: read settings, from lists on the host."""
        groups: dict[int, list[GroupSettings]] = {}
        step = self._host.position.global_step
        for place, (_, of_optimizer) in enumerate(groups_of(self._host.optimizers)):
            for number, group in enumerate(of_optimizer):
                rate = self._rates.setdefault((place, number), _Rate())
                settings = settings_of(group)
                rate.see(settings.lr, step)
                low = 0 if rate.low_since is None else step - rate.low_since
                groups.setdefault(place, []).append(dataclasses.replace(settings, lr_peak=rate.peak, low_steps=low))
        self._settings = [tuple(groups.get(place, ())) for place in range(len(self._names))]
        places = {id(optimizer): place for place, optimizer in enumerate(self._host.optimizers)}
        self._schedules = grouped(
            (places.get(id(stored(one.scheduler, "optimizer")), -1), stats)
            for one in self._host.schedulers
            for stats in schedules_of(one)
            if one.every == 1 and stats.length
        )

    def read(self, packed: Tensor) -> dict[str, OptimizerStats]:
        """Name the numbers of a packed table, next to the settings at the window's end."""
        return {
            name: OptimizerStats(
                tuple(math.nan if group.lr is None else group.lr for group in groups),
                stale,
                groups,
                tuple(self._schedules.get(place, ())),
            )
            for place, (name, groups, stale) in enumerate(zip(self._names, self._settings, self.table.read(packed), strict=False))
        }

    def state(self) -> dict[str, Any]:
        """What a resumed fit goes on from, in plain types."""
        return {"rates": [(*place, rate.peak, rate.low_since) for place, rate in self._rates.items()]}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the :meth:`state` of an earlier run."""
        self._rates = {(place, number): _Rate(peak, low) for place, number, peak, low in state.get("rates", ())}


def settings_of(group: Mapping[str, Any]) -> GroupSettings:
    """The settings of a group. Between windows a device may be waited for."""
    betas = group.get("betas")
    known = [read_number(beta) for beta in betas] if isinstance(betas, tuple | list) else []
    made_for = [rate for rate in map(read_number, (group.get("initial_lr"), group.get("max_lr"))) if rate is not None]
    return GroupSettings(
        lr=read_number(group.get("lr")),
        lr_initial=max(made_for, default=None),
        eps=read_number(group.get("eps")),
        betas=tuple(beta for beta in known if beta is not None),
        momentum=read_number(group.get("momentum")),
        weight_decay=read_number(group.get("weight_decay")),
        lr_decay=read_number(group.get("lr_decay")),
        maximize=group.get("maximize") is True,
    )


def schedules_of(scheduled: Scheduled) -> list[ScheduleStats]:
    """What a scheduler says of itself; of one after another, what each says."""
    inner, found = stored(scheduled.scheduler, "_schedulers"), []
    for scheduler in inner if isinstance(inner, list) else [scheduled.scheduler]:
        lengths = ((name, stored(scheduler, name)) for name in ("T_max", "total_steps", "total_iters"))
        argument, length = next(((name, length) for name, length in lengths if isinstance(length, int)), ("", 0))
        taken = stored(scheduler, "last_epoch")
        taken = taken if isinstance(taken, int) and scheduled.every == 1 else 0
        found.append(ScheduleStats(type(scheduler).__name__, argument, length, argument == "T_max", taken, scheduled.by_epoch))
    return found
