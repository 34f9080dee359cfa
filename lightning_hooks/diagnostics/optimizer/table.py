"""What optimizers do: their settings, and, as rows, how many of Adam's second moments are stale.

Second moments are read on a sample of the elements, without a host sync.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from lightning_hooks.hooks.tensors import all_values
from lightning_hooks.statistics.columns import SUM, Columns, RowTable, row_dtype
from lightning_hooks.statistics.weight_sample import joined, strides_of


@dataclass(frozen=True, slots=True)
class GroupSettings:
    """The settings of one parameter group at the end of a window. None for what the optimizer does not have.

    Attributes:
        lr: Its learning rate.
        lr_peak: The largest since training started, as it was at the start of sampled batches and at the ends of windows.
        lr_initial: What its scheduler starts from (``initial_lr``), or the largest rate of its cycle (``max_lr``).
        low_steps: Optimizer steps since its rate fell below 1e-4 of that peak; 0 where it is not below.
        eps: What is added to the denominator.
        betas: The decay rates of the moments.
        momentum: Momentum.
        weight_decay: Weight decay.
        lr_decay: What Adagrad's rate falls by: at step ``n`` it is the rate over ``1 + n * lr_decay``.
        maximize: Whether it climbs the loss instead of descending.
    """

    lr: float | None = None
    lr_peak: float | None = None
    lr_initial: float | None = None
    low_steps: int = 0
    eps: float | None = None
    betas: tuple[float, ...] = ()
    momentum: float | None = None
    weight_decay: float | None = None
    lr_decay: float | None = None
    maximize: bool = False


@dataclass(frozen=True, slots=True)
class ScheduleStats:
    """How long a learning rate scheduler is made for, and how often it is stepped.

    Attributes:
        name: Its class.
        argument: The argument that says how long: ``T_max``, ``total_steps`` or ``total_iters``; empty for none.
        length: Its value; 0 for none.
        repeats: Whether the rate rises again after that, as a cosine's does.
        taken: How often it has been stepped; 0 where that is not known.
        by_epoch: Whether the loop steps it once per epoch.
    """

    name: str
    argument: str
    length: int
    repeats: bool
    taken: int
    by_epoch: bool


@dataclass(frozen=True, slots=True)
class OptimizerStats:
    """What an optimizer did in a window, at measured steps, and how it is set.

    Attributes:
        lr: The learning rate of each parameter group at the window's end; NaN where it is not known.
        stale_fraction: Share of the second moments, corrected for their bias, below eps² where the gradient is not 0, in [0, 1]:
            there eps decides the step. None for an optimizer that keeps none as torch's Adam, AdamW, NAdam and RAdam do.
        groups: The settings of each parameter group.
        schedules: Its learning rate schedulers that say how long they are made for.
    """

    lr: tuple[float, ...] = ()
    stale_fraction: float | None = None
    groups: tuple[GroupSettings, ...] = ()
    schedules: tuple[ScheduleStats, ...] = ()

    def largest(self, setting: str) -> float:
        """The largest value of a setting in its parameter groups; 0 where none has it."""
        return max((getattr(group, setting) or 0.0 for group in self.groups), default=0.0)

    @property
    def rated(self) -> list[GroupSettings]:
        """The groups whose learning rate is known."""
        return [group for group in self.groups if group.lr is not None]


class OptimizerColumn(Columns):
    """What each number of an optimizer's row holds, over steps; only their quotient is read."""

    STALE = SUM  # second moments below eps squared, of elements with a gradient
    WITH_GRADIENT = SUM  # elements with a gradient, where there are second moments


class OptimizerTable(RowTable):
    """A row for each optimizer."""

    columns = OptimizerColumn
    alike_on_ranks = True

    def add(self, optimizer: int, moments: Tensor, updates: Tensor, valid: Tensor | None = None) -> None:
        """Record a measured step. No host sync; a step in which the norm of an update is not finite does not count.

        ``moments`` are what :func:`~.second_moments` read; ``valid`` is False if the optimizer itself skipped the step after all.
        """
        counted = torch.isfinite(updates).all()
        self.rows[optimizer] += torch.where(counted if valid is None else counted & valid, moments.to(self.rows), 0)

    def read(self, packed: Tensor) -> list[float | None]:
        """The ``stale_fraction`` of each optimizer, on the host; None where it was not measured."""
        return [stale / with_gradient if with_gradient else None for stale, with_gradient in self.lines(packed)]


_KNOWN = (torch.optim.Adam, torch.optim.AdamW, torch.optim.NAdam, torch.optim.RAdam, torch.optim.Adamax)


def second_moments(optimizer: Any, updated: Collection[int]) -> Tensor | None:
    """How many of the second moments of an optimizer are stale, just after its update.

    Args:
        optimizer: Torch's Adam, AdamW, NAdam or RAdam, a subclass of one; of others nothing is read.
        updated: The ids of the parameters that it updated.

    Returns:
        Shape ``(2,)``, in the row's dtype: the second moments below eps² where the gradient is not 0, and all where it is not 0.
        None if it keeps none.
    """
    parts = [part for group in optimizer.param_groups if (part := _read_group(optimizer, group, updated)) is not None]
    if not parts:
        return None
    sums, *lists = zip(*parts, strict=True)
    found, (sizes, counts) = torch.cat(sums, dim=1), [tuple(chain(*each)) for each in lists]
    return found @ _whole(sizes, counts, found.dtype).to(found.device, non_blocking=True)


@functools.lru_cache(maxsize=64)
def _whole(sizes: tuple[int, ...], counts: tuple[int, ...], dtype: torch.dtype) -> Tensor:
    """How many elements of a parameter each element of its sample stands for."""
    return torch.tensor([size / max(count, 1) for size, count in zip(sizes, counts, strict=True)], dtype=dtype)


def _read_group(optimizer: Any, group: Mapping[str, Any], updated: Collection[int]) -> tuple[Tensor, list[int], list[int]] | None:
    """Of each parameter its stale elements and all those with a gradient, ``(2, n)``; sizes and counts."""
    betas, eps = group.get("betas"), group.get("eps")
    if (
        not isinstance(optimizer, _KNOWN)
        or not isinstance(betas, tuple | list)
        or len(betas) < 2
        or not isinstance(eps, float | int)
    ):
        return None  # what others keep by these names may be something else: Prodigy's holds gradients times its own scale
    found = []
    for parameter in group["params"]:
        state = optimizer.state.get(parameter) if id(parameter) in updated else None
        if not isinstance(state, Mapping):
            continue
        gradient, moment, step = parameter.grad, state.get("exp_avg_sq", state.get("exp_inf")), state.get("step")
        if (
            step is not None
            and gradient is not None
            and gradient.layout == torch.strided
            and isinstance(moment, Tensor)
            and (moment.is_floating_point() or moment.is_complex())
            and moment.device == parameter.device
            and moment.shape == parameter.shape
        ):
            found.append((parameter, gradient, moment, step))
    parameters, gradients, moments, steps = zip(*found, strict=True) if found else ((), (), (), ())
    n, values = len(found), all_values([*parameters, *gradients, *moments], real=True)
    each = zip(values[:n], values[n : 2 * n], values[2 * n :], steps, strict=True)
    # Of an empty parameter there is nothing to read, nor of one that was freed.
    kept = [(p, g, v, step) for p, g, v, step in each if p.numel() and g.numel() and v.numel()]
    if not kept:
        return None
    parameters, gradients, moments, steps = zip(*kept, strict=True)
    strides = strides_of(tuple([p.shape for p in parameters]))
    v, counts = _sampled(moments, strides)
    g, _ = _sampled(gradients, strides)
    if group.get("maximize"):
        g = -g
    if group.get("weight_decay") and not (isinstance(optimizer, torch.optim.AdamW) or group.get("decoupled_weight_decay")):
        g = g + group["weight_decay"] * _sampled(parameters, strides)[0]  # of the weight after the update, which is near enough
    adamax = isinstance(optimizer, torch.optim.Adamax)  # it keeps the largest gradient, to which it has added eps
    root = v - eps if adamax else (v / _corrections(betas[1], steps, counts, v)).sqrt_()
    had = g != 0
    flags = torch.stack(((root < eps) & had, had)).to(g.dtype)
    sizes = [*map(Tensor.numel, parameters)]
    if sizes == counts:  # all elements are there, and stand for themselves
        sizes = counts = [sum(sizes)]
    # Norms of order 1, of all tensors in one call, count flags.
    numbers = torch.stack(torch._foreach_norm([part for row in flags for part in torch.split(row, counts)], 1))
    return numbers.to(row_dtype(v.device)).view(2, -1), sizes, counts


def _sampled(tensors: Sequence[Tensor], strides: Sequence[int]) -> tuple[Tensor, list[int]]:
    """The samples of real tensors, one after the other, in float32 at least, and how many values are of each."""
    flat = [values.reshape(-1)[::stride] for values, stride in zip(tensors, strides, strict=True)]
    return joined(flat), [*map(Tensor.numel, flat)]


def _corrections(beta: float | Tensor, steps: Sequence[Any], counts: Sequence[int], like: Tensor) -> Tensor | float:
    """Adam's bias correction ``1 - beta2 ** step``: a number where it is the same for all, else one for each element."""
    on_host: list[Any] = [step for step in steps if not isinstance(step, Tensor) or step.is_cpu]
    if not isinstance(beta, Tensor) and len(on_host) == len(steps):
        known: set[float] = set()
        for step in on_host:
            value: Any = step.tolist() if isinstance(step, Tensor) else step  # read from its memory, without an operation
            known.add(float(value))
        if len(known) == 1:
            return max(1.0 - math.pow(beta, known.pop()), math.ulp(0.0))
    # Steps that live on the device, as fused and capturable optimizers keep them, stay there.
    each = torch.stack([torch.as_tensor(step, dtype=torch.float32).reshape(()) for step in steps])
    each = each.to(like.device, row_dtype(like.device), non_blocking=True)
    decay = beta.to(each, non_blocking=True) if isinstance(beta, Tensor) else beta
    correction = 1.0 - decay**each
    times = torch.tensor(counts).to(like.device, non_blocking=True)
    return torch.repeat_interleave(correction.to(like.dtype), times, output_size=sum(counts))
