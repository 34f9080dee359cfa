"""Checks between the ends of windows: values that are not finite are found, and passed on, within some batches."""

from __future__ import annotations

import dataclasses
import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from operator import attrgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_hooks.declare.alert import Alert
from lightning_hooks.declare.book import EarlyChecks
from lightning_hooks.declare.step import EarlierOptimizers, Step
from lightning_hooks.diagnostics.gradients.tables import ParameterGradientStats
from lightning_hooks.hooks import guarded
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.rows import Column
from lightning_hooks.statistics.tables import HostCopies


@dataclass(frozen=True, slots=True)
class CheckedStep:
    """An optimizer step."""

    step: int  # the trainer's global_step before it
    batch: int  # the index of its training batch in the epoch
    left_out: bool = False  # the optimizer itself leaves out a step whose gradients are not finite (fused, under a loss scaler)


LINES = 32  # steps whose norms are kept on an accelerator before they are sent, where checks are less frequent

Look = Callable[[], None]  # apply the urgent rules


class StepChecks:
    """Checks the norms of the gradients of every optimizer step.

    On the CPU they are on the host already, and each step is looked at before its update. On an accelerator they are kept there,
    sent to the host every ``every`` steps, and looked at when they have come: at the next check at the latest, and under several
    ranks exactly then.

    Several ranks look at the largest norms of any of them: one collective of one number per parameter and step. Gradients at the
    optimizer step are most often the same on every rank, but not under local SGD or ``no_sync``; to look further is a collective,
    which all ranks must come to or none.

    Args:
        early: The monitor's part in the checks.
        names: The parameters that have a place among the norms.
        world_size: How many ranks there are.
        look: What to do when something is wrong.
        device: Where the model is.
        on_fault: As for :class:`~lightning_hooks.hooks.guarded`: where a rank cannot read its norms, it takes part with zeros.
    """

    def __init__(
        self,
        early: EarlyChecks,
        names: Sequence[str],
        world_size: int,
        look: Look,
        device: torch.device | str = "cpu",
        on_fault: Callable[[str, Exception], None] | None = None,
    ) -> None:
        self._norms = guarded(Step.norms, "optimizer step (norms for checks)", on_fault)
        self._early, self._names, self._look = early, names, look
        self._several, self._device = world_size > 1, torch.device(device)
        self._copies = HostCopies(polls=world_size == 1)
        # By parameter: the first step of the window with a gradient that is not finite, and how many there were.
        self._first: dict[int, CheckedStep] = {}
        self._counts: Counter[int] = Counter()
        self._before: dict[int, Tensor] = {}
        self._pages: dict[int, tuple[Tensor, list[CheckedStep]]] = {}
        self._steps = 0
        self._seen: set[int] = set()

    def follow(self, kept: EarlierOptimizers) -> None:
        """There are new parameters, or other optimizers than before."""
        self._send()
        self._take(wait=True)
        self._pages.clear()
        self._before = {now: self._before[old] for now, old in enumerate(kept) if old in self._before}

    def gradients(self, step: Step) -> None:
        """Gradients are ready and not clipped."""
        if self._several and not step.late:  # else the collective has been, when backward ended
            self._before[step.optimizer] = self._of_all_ranks(step)
        elif not self._several and step.indices:
            self._before[step.optimizer] = step.norms()

    def _of_all_ranks(self, step: Step) -> Tensor:
        """The largest norm of each parameter's gradient on any rank; infinite where one is not finite. No host sync."""
        found = self._norms(step)
        found = torch.zeros(step.n_parameters) if found is None else found
        norms = found.to(self._device, row_dtype(self._device), non_blocking=True)
        largest = norms.nan_to_num(nan=math.inf, posinf=math.inf)  # what the maximum of a NaN is depends on the backend
        torch.distributed.all_reduce(largest, torch.distributed.ReduceOp.MAX)
        return largest

    def skipped(self, step: Step) -> None:
        """The optimizer will not step."""
        self._before.pop(step.optimizer, None)

    def stepping(self, step: Step, batch: int) -> None:
        """The optimizer is about to step.

        Args:
            step: Its step.
            batch: The index of its training batch in the epoch.

        Raises:
            AlertError: As :func:`look`.
        """
        norms = self._before.pop(step.optimizer, None)
        if norms is None:
            return
        # Where a rank's loss scaler skips a step, another's may not: none of them counts it.
        checked = CheckedStep(step.global_step, batch, step.skips_nonfinite or (self._several and step.loss_scale is not None))
        self._steps += 1
        if self.on_host(norms):
            self.add(norms.numpy(), checked)
        else:
            page, checked_steps = self._pages.setdefault(step.optimizer, (norms.new_zeros((LINES, len(self._names))), []))
            page[len(checked_steps), : norms.shape[0]].copy_(norms)
            checked_steps.append(checked)
            due = self._steps % self._early.every == 0
            if due:
                self._take(wait=True)
            if due or len(checked_steps) == LINES:
                self._send()
            self._take()
        if self._has_news():
            self._look()

    @staticmethod
    def on_host(norms: Tensor) -> bool:
        """Whether norms can be read now, without waiting."""
        return norms.is_cpu

    def add(self, norms: np.ndarray[Any, Any], checked: CheckedStep) -> None:
        """Record the norms of one step."""
        broken = [] if checked.left_out or math.isfinite(norms.sum()) else np.flatnonzero(~np.isfinite(norms)).tolist()
        for index in broken:
            self._first.setdefault(index, checked)
            self._counts[index] += 1

    def _send(self) -> None:
        for page, checked_steps in self._pages.values():
            if checked_steps:
                self._copies.send(page[: len(checked_steps)], tuple(checked_steps))
                checked_steps.clear()

    def _take(self, wait: bool = False) -> None:
        for lines, checked_steps in self._copies.arrived(wait):
            for norms, checked in zip(lines, checked_steps, strict=True):
                self.add(norms, checked)

    def _has_news(self) -> bool:
        fresh = self._first.keys() - self._seen
        self._seen |= fresh
        return bool(fresh) and "nonfinite" not in self._early.reported

    def last_look(self) -> bool:
        """The window ends: take what is still under way. Return whether something is wrong that was not looked at."""
        self._send()
        self._take(wait=True)
        return self._has_news()

    def parameters(self) -> dict[str, ParameterGradientStats]:
        """What every step says of the parameters that something is wrong with."""
        numbers = dict.fromkeys(("norm", "norm_max", "rms", "zero_fraction"), math.nan)
        unknown: dict[str, Any] = {**numbers, "steps": 0, "missing_steps": 0, "update_ratio": None}
        return {
            self._names[index]: ParameterGradientStats(
                **unknown, nonfinite_steps=self._counts[index], first_nonfinite_step=checked.step
            )
            for index, checked in sorted(self._first.items())
        }

    def dated(self, alerts: Iterable[Alert]) -> tuple[Alert, ...]:
        """Those that are about values that are not finite, each with the step and batch at which it began, where that is known."""
        steps = {checked.batch: checked.step for checked in sorted(self._first.values(), key=attrgetter("step"), reverse=True)}
        firsts = {self._names[index]: checked for index, checked in self._first.items()}
        dated = []
        for alert in (alert for alert in alerts if alert.kind == "nonfinite"):
            if (first := firsts.get(alert.site)) is not None:
                alert = dataclasses.replace(alert, since_step=first.step, batch=first.batch)
            elif alert.batch in steps:  # a module's, known by the batch
                alert = dataclasses.replace(alert, since_step=steps[alert.batch])
            dated.append(alert)
        return tuple(dated)

    def reset(self) -> None:
        """A new window starts."""
        for found in (self._seen, self._first, self._counts):
            found.clear()


class BatchChecks:
    """Looks at how many modules have put out values that are not finite, every so many batches.

    Each rank sees its own batches, so ranks agree by one collective of one number per check.
    """

    def __init__(self, early: EarlyChecks, world_size: int, look: Look) -> None:
        self._early, self._world_size, self._look = early, world_size, look
        self._copies, self._affected = HostCopies(polls=world_size == 1), 0

    def batch_end(self, rows: Tensor, batches: int) -> None:
        """A training batch ends, with the rows of the window so far, ``(n_sites, n_columns)``, and how many batches it has had.

        Raises:
            AlertError: As :func:`look`.
        """
        if batches % self._early.every == 0:
            self._take(wait=True)
            affected = (rows[:, Column.NONFINITE] > 0).sum(0, keepdim=True).to(row_dtype(rows.device))
            if self._world_size > 1:
                torch.distributed.all_reduce(affected, torch.distributed.ReduceOp.MAX)
            self._copies.send(affected)
        self._take()

    def _take(self, wait: bool = False) -> None:
        affected = max((int(counts[0]) for counts, _ in self._copies.arrived(wait)), default=0)
        if affected > self._affected:
            self._affected = affected
            if "nonfinite" not in self._early.reported:
                self._look()

    def reset(self) -> None:
        """A new window: what is still under way is in the report."""
        self._copies.forget()
        self._affected = 0
