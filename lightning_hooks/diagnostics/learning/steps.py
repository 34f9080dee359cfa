"""What measured steps gain, against what was predicted, and the loss of the best answer that ignores the inputs."""

from __future__ import annotations

import math
import statistics
from collections import deque
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import huber_loss, smooth_l1_loss

from lightning_hooks.declare.context import MeasuredLoss
from lightning_hooks.declare.functional import CallTable
from lightning_hooks.declare.functional_calls import FunctionalCall
from lightning_hooks.hooks.functions import BINARY, REGRESSION
from lightning_hooks.hooks.tensors import addresses_of, number
from lightning_hooks.statistics.columns import MAXIMUM, SUM, Columns
from lightning_hooks.statistics.reduction import added, latest
from lightning_hooks.statistics.tables import HostNumbers

CLASSES = ("cross_entropy", "nll_loss")
SEEN = (*CLASSES, *BINARY, *REGRESSION)  # the losses whose best constant answer follows from their targets
MOST_CLASSES = 256  # labels of more classes than this are not counted
FEWEST_TARGETS = 8  # samples that a batch of targets needs whose spread is read
FEWEST_LABELS = 4  # labels for each class that occurs, that the entropy of labels needs
MOST = 1024  # numbers of a target that are read, of each sample; of longer ones so many, evenly spaced
HUBER_STEPS = 8  # Newton steps from the median to where the Huber loss is smallest


class ConstantColumn(Columns):
    """What each number holds. The counts of ``MOST_CLASSES`` labels follow."""

    LOSS = SUM  # of calls, times their weight
    CONSTANT = SUM  # loss of the best constant, likewise; where labels are counted, the label smoothing
    WEIGHT = SUM  # labels, or calls
    UNDEFINED = SUM  # calls whose best constant does not follow
    KIND = MAXIMUM  # place of the loss in SEEN, from 1
    OTHER = MAXIMUM  # 1 where another loss is called too


class ConstantTable(CallTable):
    """The losses of a window and what their targets say, all of them in one row. No host sync."""

    columns = ConstantColumn
    functions: ClassVar[tuple[str, ...]] = SEEN
    more: int = MOST_CLASSES

    def __init__(self, device: torch.device | str = "cpu") -> None:
        super().__init__(None, 1, device)
        self._site = ""

    def record(self, call: FunctionalCall) -> None:
        """Record a call of a loss."""
        given, target, loss = call.arguments["input"], call.arguments["target"], call.output
        if 0 in addresses_of((given, target, loss), anywhere=True) or not target.numel():
            return
        self._site, column, row = self._site or call.site.name, ConstantColumn, self.host_row(0)
        row[column.KIND] = max(row[column.KIND], SEEN.index(call.function) + 1)
        row[column.OTHER] = max(row[column.OTHER], call.site.name != self._site)
        found = None
        if _is_mean(call.arguments):
            mean = loss.detach()
            found = self._found(call, given.detach(), target.detach(), mean.mean() if mean.dim() else mean)
        if found is None:
            row[column.UNDEFINED] += 1
        elif self.rows.is_cpu:  # numpy takes a tenth of the time
            self.rows.numpy()[0, : column.UNDEFINED] += found.to(self.rows).numpy()
        else:
            self.rows[0, : column.UNDEFINED] += found.to(self.rows)

    def _found(self, call: FunctionalCall, given: Tensor, target: Tensor, loss: Tensor) -> Tensor | None:
        argument, weight = call.arguments.get, call.arguments.get("weight")
        if call.function in CLASSES:
            return self._of_classes(given, target, loss, weight, argument("ignore_index", -100), argument("label_smoothing") or 0.0)
        if (
            weight is not None
            or argument("pos_weight") is not None
            or target.requires_grad
            or len(target) < FEWEST_TARGETS
            or not target.is_floating_point()
            or given.shape != target.shape
        ):
            return None
        samples = target.reshape(len(target), -1)
        samples = samples[:, :: -(-samples.shape[1] // MOST)].to(self.rows.dtype)
        if call.function == "mse_loss":
            constant = samples.var(0).mean()  # unbiased, as the best constant is not made for this batch
        elif call.function == "l1_loss":
            constant = (samples - samples.median(0).values).abs().mean()
        elif call.function in REGRESSION:
            constant = _huber(samples, argument("delta", 1.0), argument("beta"))
        else:
            mean = samples.mean(0).clamp(0, 1)
            constant = -(torch.xlogy(mean, mean) + torch.xlogy(1 - mean, 1 - mean)).mean()
        return torch.stack((loss.to(constant), constant, torch.ones_like(constant)))

    def _of_classes(
        self, given: Tensor, target: Tensor, loss: Tensor, weight: Tensor | None, ignored: int, smoothing: float
    ) -> Tensor | None:
        """The loss and the label smoothing, times the number of labels; and that number.

        A label counts as much as its class weighs, so that together they count as many as there are.
        """
        classes = given.shape[1] if given.dim() > 1 else len(given)
        if classes > MOST_CLASSES or target.is_floating_point() or (weight is not None and smoothing):
            return None
        labels = target.reshape(-1)
        if labels.is_cpu and loss.is_cpu and self.rows.is_cpu:
            of_classes = labels.numpy()
            of_classes = of_classes[(of_classes >= 0) & (of_classes < classes) & (of_classes != ignored)]
            count, each = len(of_classes), None
            if weight is not None:
                each = weight.detach().double().numpy()[of_classes]
                each *= count / max(each.sum(), math.ulp(0.0))
            self.rows.numpy()[0, len(ConstantColumn) :] += np.bincount(of_classes, each, MOST_CLASSES)
            return torch.tensor((number(loss) * count if count else 0.0, smoothing * count, count), dtype=self.rows.dtype)
        counts = ((labels >= 0) & (labels < classes) & (labels != ignored)).to(self.rows.dtype)
        places, total = labels.clamp(0, classes - 1).to(torch.int64), counts.sum()
        if weight is not None:
            counts = counts * weight.detach().to(counts)[places]
            counts = counts * (total / counts.sum().clamp_min(torch.finfo(counts.dtype).tiny))
        self.rows[0, len(ConstantColumn) :].index_add_(0, places, counts)
        return torch.stack((torch.where(total > 0, loss.to(total), 0) * total, smoothing * total, total))

    def read(self, packed: Tensor) -> tuple[float | None, float | None, str]:
        """The loss over that of the best constant answer, and the latter; or why it is not known."""
        ((loss, constant, weight, undefined, kind, other, *counts),) = self.lines(packed)
        if not kind:
            return None, None, "no loss was seen whose best constant answer follows from its targets"
        if other:
            return None, None, "there are several losses"
        if undefined or not weight:
            return None, None, "the best constant answer does not follow from what the loss is given"
        if SEEN[int(kind) - 1] in CLASSES:
            counts = [count for count in counts if count]
            if weight < FEWEST_LABELS * len(counts):
                return None, None, "too few labels were seen for their entropy"
            smoothing = constant / weight
            shares = [(1 - smoothing) * count / weight + smoothing / len(counts) for count in counts]
            entropy = -sum(share * math.log(share) for share in shares)
            constant = weight * (entropy + (len(counts) - 1) / (2 * weight))  # Miller 1955
        return (loss / constant, constant / weight, "") if constant > 0 else (None, None, "all targets are the same")


def _is_mean(arguments: Mapping[str, Any]) -> bool:
    """Whether the loss is a mean over targets, by weights perhaps."""
    named = arguments.get("reduction", "mean") in ("mean", "none")
    return named and arguments.get("reduce") is not False and arguments.get("size_average") is not False


def _huber(samples: Tensor, delta: float, beta: float | None) -> Tensor:
    """The Huber loss of the best constant for each column; with ``beta`` the smooth L1 loss, which has the same one."""
    limit = delta if beta is None else max(beta, torch.finfo(samples.dtype).tiny)
    best = samples.median(0).values
    for _ in range(HUBER_STEPS):
        away = samples - best
        best = best + away.clamp(-limit, limit).sum(0) / (away.abs() <= limit).sum(0).clamp_min(1)
    constant = best.expand_as(samples)
    return huber_loss(constant, samples, delta=delta) if beta is None else smooth_l1_loss(constant, samples, beta=beta)


RECENT = 16  # measured steps that are kept, the last ones
FEWEST_STEPS = 4  # so many there must be for `progress`
SURROGATE = 1.2
"""Median step ratio above which gradients are not those of the loss: along a step a loss hardly falls faster than at its start."""
UNSURE = 0.2  # share of the predicted gain above which its standard error makes what is divided by it unknown
WIDTH = 3  # gain, predicted gain, the error of both


class MeasuredSteps:
    """The last measured steps of a run, and the gains so far."""

    def __init__(self) -> None:
        self._recent: deque[tuple[float, ...]] = deque(maxlen=RECENT)
        self._count, self._step, self._gains = 0, 0, 0.0
        self._levels = [0.0, 0.0]  # of the loss on new batches, when the first step was measured and the last one

    @property
    def table(self) -> HostNumbers:
        """The numbers to be packed: of the ranks, then of each step that is kept."""
        return HostNumbers(self._numbers, added, latest)

    def add(self, measured: MeasuredLoss, predicted: float, error: float) -> None:
        """Record a measured step, with the gain that was predicted and the standard error of that."""
        gain = measured.before - measured.after
        if not all(map(math.isfinite, (gain, predicted, error, measured.level))):
            return
        self._recent.append((gain, predicted, error + measured.rounding))
        self._gains += gain * (measured.step - self._step)  # a measured step stands for those since the one before
        self._levels = [self._levels[0] if self._count else measured.level, measured.level]
        self._count, self._step = self._count + 1, measured.step

    def _numbers(self) -> list[float]:
        recent = [*self._recent]
        recent += [(math.nan,) * WIDTH] * (RECENT - len(recent))
        return [1.0, float(self._count), self._gains, *self._levels, *(number for step in recent for number in step)]

    def state(self) -> dict[str, Any]:
        """What a resumed run goes on from, in plain types."""
        return {"recent": [*self._recent], "so_far": (self._count, self._step, self._gains, *self._levels)}

    def load(self, state: Mapping[str, Any]) -> None:
        """Restore the :meth:`state` of an earlier run."""
        if state:
            self._recent.extend(tuple(step[:WIDTH]) for step in state["recent"])
            self._count, self._step, self._gains, *self._levels = state["so_far"]


def read_steps(numbers: Sequence[float], why_not: str) -> tuple[dict[str, Any], dict[str, str]]:
    """Name the numbers of all ranks, added; ``why_not`` says why steps are not measured.

    Returns:
        Fields of the report, and for those that are None the reason.
    """
    _ranks, count, gains, first, last, *rest = [number / max(numbers[0], 1.0) for number in numbers]
    steps = [rest[place : place + WIDTH] for place in range(0, len(rest), WIDTH)]
    steps = [step for step in steps if not math.isnan(step[0])]
    waits = why_not or "no step was measured yet" * (not steps)
    if waits:
        return {"reruns": round(count)}, dict.fromkeys(("gain", "step_ratio", "progress"), waits)
    reasons: dict[str, str] = {}
    ratios = [gain / predicted for gain, predicted, error in steps if predicted > 0 and error <= UNSURE * predicted]
    ratio = statistics.median(ratios) if ratios else None
    if ratio is None:
        reasons["step_ratio"] = f"the error of each predicted gain is above {UNSURE:.0%} of it, or it is not positive"
    elif ratio > SURROGATE and len(ratios) >= FEWEST_STEPS:
        reasons["step_ratio"] = "steps gain more than gradients predict, as where these are straight-through or surrogate"
        ratio = None
    progress = (first - last) / gains if gains > 0 and len(steps) >= FEWEST_STEPS else None
    if progress is None:
        few = f"it needs {FEWEST_STEPS} measured steps"
        reasons["progress"] = few if len(steps) < FEWEST_STEPS else "measured steps do not gain on their own batches"
    fields = {
        "gain": statistics.fmean(step[0] for step in steps),
        "step_ratio": ratio,
        "progress": progress,
        "reruns": round(count),
    }
    return fields, reasons
