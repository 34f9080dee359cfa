"""The losses of a window on the device, one value per batch: which are recorded, and how they merge over ranks and windows."""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from lightning_hooks.declare.context import Context
from lightning_hooks.declare.step import loss_scale
from lightning_hooks.diagnostics.loss.report import RECENT, VALIDATIONS, LossReport, LossWindow, ValidationLoss, loss_report
from lightning_hooks.diagnostics.unusual import LargestLosses
from lightning_hooks.statistics.columns import row_dtype
from lightning_hooks.statistics.reduction import Span, Spans, by_columns, largest, paired

PAGE = 64  # losses kept as they are before they enter the table: one operation a batch, and a few more every 64 batches
SLOTS = 4096  # batches of a window whose loss is kept one by one; of those before them, the moments are
NONE = torch.tensor(math.nan)  # the value of no metric
MOST_VALIDATIONS = 16  # validations in a window whose loss is kept, the last ones
_SHAPES = {
    # Ranks add these.
    "moments": (4,),  # of the losses that have left their slot: number, sum, sum of squares, number not finite; each rank counts
    "losses": (2, SLOTS),  # losses, and the ranks that gave them
    "validations": (3, MOST_VALIDATIONS),  # losses, what is watched, and the ranks that gave them; the last one at the end
    # Of these ranks take the largest. The host knows all but the bounds, the same on every rank.
    "bounds": (4,),  # largest and -smallest that have left their slot; -batch and -step of the first that was not finite
    "counts": (6,),  # batches, index of the first in the epoch, earlier losses, earlier validations; start and lowest so far
    "places": (MOST_VALIDATIONS,),  # batches of the window before each validation
    "earlier": (RECENT,),
    "known": (VALIDATIONS, 3),  # of earlier validations: loss, the training loss before them, what is watched
}
"""What a packed table holds, in order. What is not there is 0 where ranks add, and -inf where they take the largest."""
_LENGTHS = [math.prod(shape) for shape in _SHAPES.values()]
N_SUMS, N_RECORDED, N_LOSS_NUMBERS = sum(_LENGTHS[:3]), sum(_LENGTHS[:4]), sum(_LENGTHS)


def _named(packed: Tensor) -> dict[str, Tensor]:
    """The parts of a packed table; views."""
    parts = torch.split(packed, _LENGTHS)
    return {name: part.view(shape) for (name, shape), part in zip(_SHAPES.items(), parts, strict=True)}


class LossTable:
    """Records losses on the device, without waiting for it.

    Batches are numbered in the window, from 0; their losses lie in slots, and ranks add theirs slot by slot.

    Attributes:
        step: The global step before the batch under way.
        optimized: Whether the training loop minimises this loss.
        scaled: Whether a loss scaler skips steps whose gradients are not finite.
        watched: The metric that is watched in validations, as in reports.
        largest: The batches with the largest losses.
    """

    _numbers: Tensor

    def __init__(self, device: torch.device | str = "cpu") -> None:
        self._dtype, self._device = row_dtype(torch.device(device)), device
        self._earlier: tuple[float, ...] = ()
        self._earlier_validations: tuple[ValidationLoss, ...] = ()
        self._course: tuple[float, ...] = (math.nan, math.nan)  # where the loss began, and its lowest level
        self._latest: LossReport | None = None
        self._passes: list[Tensor] = []
        self._page: list[tuple[Tensor, tuple[int, int, int]]] = []  # a loss; its batch in the window, in the epoch, and step
        self._validated_at: list[int] = []  # batches of the window before each validation
        self.largest = LargestLosses()
        self.step, self.optimized, self.scaled, self.watched = 0, True, False, ("", "")
        self.reset()

    def add(self, loss: Tensor, factor: float = 1.0, scale: Tensor | None = None) -> None:
        """Record the loss of a backward pass.

        Args:
            loss: As it goes into backward.
            factor: What it is to be multiplied by, as it was divided for gradient accumulation.
            scale: The loss scale in it.
        """
        value = loss.detach() if loss.dim() == 0 else loss.detach().mean()
        self._passes.append(value * factor if scale is None else value / scale * factor)  # a copy: the loss may be changed in place

    def end_batch(self, number: int, batch: int, returned: Tensor | None = None) -> None:
        """A batch ends, which is ``number`` in the window and ``batch`` in the epoch.

        The loss that ``training_step`` returned goes before that of its backward passes.
        """
        passes, self._passes = self._passes, []
        self._batches, self._first = number + 1, batch - number
        if returned is not None:
            loss = returned.detach().to(self._device, non_blocking=True).mean().clone()
        elif passes:
            loss = passes[0] if len(passes) == 1 else torch.stack(passes).mean()
        else:
            return
        self._page.append((loss, (number, batch, self.step)))
        if len(self._page) == PAGE:
            self.close_page()

    def end_validation(self, loss: Tensor, watched: Tensor = NONE) -> None:
        """A validation ends, with this loss and this value of what is watched."""
        values = [value.detach().to(self._numbers, non_blocking=True).mean() for value in (loss, watched)]
        kept = _named(self._numbers)["validations"]
        kept.copy_(torch.cat((kept[:, 1:], torch.stack((*values, torch.ones_like(values[0])))[:, None]), 1))
        self._validated_at = [*self._validated_at, self._batches][-MOST_VALIDATIONS:]

    def close_page(self) -> None:
        """Take the losses that are kept as they are into the table."""
        if not self._page:
            return
        losses, table = torch.stack([loss for loss, _ in self._page]).to(self._numbers), _named(self._numbers)
        numbers = torch.tensor([places for _, places in self._page], dtype=losses.dtype).T.to(losses.device, non_blocking=True)
        first, unknown = table["bounds"][2:], losses.new_full((1,), -math.inf)
        torch.maximum(first, torch.where(torch.isfinite(losses), unknown, -numbers[1:]).amax(1), out=first)
        slots = numbers[0].long() % SLOTS
        if self._page[-1][1][0] >= SLOTS:
            _leave(table, table["losses"][:, slots])
        table["losses"][:, slots] = torch.stack((losses, torch.ones_like(losses)))
        for _, (_, batch, step) in self._page:
            self.largest.batch_end(batch, step)
        self._page.clear()

    @property
    def spans(self) -> Spans:
        """How packed tables merge, over ranks and over windows."""
        return (LOSS_SPAN,)

    def pack(self) -> Tensor:
        """The table, shape ``(n_loss_numbers,)``."""
        self.close_page()
        counts = self._batches, self._first, len(self._earlier), len(self._earlier_validations), *self._course
        known_validations = [number for one in self._earlier_validations for number in dataclasses.astuple(one)]
        places = _filled(self._validated_at, MOST_VALIDATIONS)
        known = (*counts, *places, *_filled(self._earlier, RECENT), *_filled(known_validations, 3 * VALIDATIONS))
        return torch.cat((self._numbers[:N_RECORDED], torch.tensor(known, dtype=self._dtype).to(self._device, non_blocking=True)))

    def unpack(self, packed: Tensor) -> None:
        """Load what :meth:`pack` or a merge gave into the table of a new run."""
        self._batches, self._first = map(int, _named(packed)["counts"][:2].tolist())
        self._numbers = packed.to(self._numbers, copy=True)

    def state(self) -> dict[str, Any]:
        """Return what every rank of a resumed run needs next to the packed table, in plain types."""
        self.close_page()
        validations = [dataclasses.astuple(one) for one in self._earlier_validations]
        known = {"earlier": list(self._earlier), "validations": validations, "validated_at": list(self._validated_at)}
        return {**known, "course": self._course}

    def load(self, state: Mapping[str, Any]) -> None:
        """Load what :meth:`state` gave."""
        self._earlier = tuple(float(loss) for loss in state.get("earlier", ()))
        self._earlier_validations = tuple(ValidationLoss(*known) for known in state.get("validations", ()))
        self._validated_at = [int(place) for place in state.get("validated_at", ())]
        self._course = tuple(state.get("course", self._course))

    def read(self, packed: Tensor) -> LossReport | None:
        """The report of a packed table on the host; None where no loss was seen."""
        self._latest = loss_report(window_of(packed), self.optimized, self.scaled, self.watched)
        return self._latest

    def reset(self) -> None:
        """Start a new window, behind the one that was read last."""
        if self._latest is not None:
            self._earlier, self._earlier_validations = self._latest.recent, self._latest.validations
            self._course = self._latest.start, self._latest.lowest
        self._numbers = torch.zeros(N_LOSS_NUMBERS, device=self._device, dtype=self._dtype)
        self._numbers[N_SUMS:] = -math.inf
        self._passes, self._page, self._validated_at = [], [], []
        self._batches = self._first = 0


def _filled(numbers: Sequence[float], length: int) -> list[float]:
    return [*[-math.inf] * (length - len(numbers)), *numbers]


def _leave(table: Mapping[str, Tensor], slots: Tensor) -> None:
    """Losses leave their slots: enter them in the moments and bounds of a table.

    Args:
        table: Its parts.
        slots: Sums of the losses over ranks, and the number of ranks, shape ``(2, k)``.
    """
    losses, ranks = slots[0] / slots[1].clamp_min(1), slots[1]
    finite = torch.isfinite(losses) & (ranks > 0)
    value, weight, unknown = torch.where(finite, losses, 0), torch.where(finite, ranks, 0), losses.new_full((1,), -math.inf)
    table["moments"].add_(torch.stack((weight, weight * value, weight * value * value, ranks - weight)).sum(1))
    extremes = torch.where(finite, torch.stack((losses, -losses)), unknown).amax(1)
    torch.maximum(table["bounds"][:2], extremes, out=table["bounds"][:2])


def merge_windows(earlier: Tensor, later: Tensor) -> Tensor:
    """Merge the tables of two windows in a row, on the host."""
    packed = earlier.clone()
    one, other, merged = map(_named, (earlier, later, packed))
    batches, more = (int(table["counts"][0]) for table in (one, other))
    losses = torch.cat((_in_order(one), _in_order(other)), 1)
    merged["counts"][0] = batches + more
    merged["moments"].add_(other["moments"])
    merged["bounds"].copy_(torch.maximum(one["bounds"], other["bounds"]))
    if losses.shape[1] > SLOTS:
        _leave(merged, losses[:, :-SLOTS])
    kept = losses[:, -SLOTS:]
    merged["losses"].zero_()[:, torch.arange(batches + more - kept.shape[1], batches + more) % SLOTS] = kept
    places = torch.cat((one["places"], other["places"] + batches))
    last = torch.argsort((places >= 0).int(), stable=True)[-MOST_VALIDATIONS:]
    merged["places"].copy_(places[last])
    merged["validations"].copy_(torch.cat((one["validations"], other["validations"]), 1)[:, last])
    return packed


def window_of(packed: Tensor) -> LossWindow:
    """What a packed table on the host holds."""
    table = _named(packed.double())
    batches, first, n_earlier, n_known = map(int, table["counts"][:4].tolist())
    losses = _in_order(table)
    before = batches - losses.shape[1]
    ranks, bounds = losses[1].numpy(), table["bounds"].tolist()
    validations = torch.stack((table["places"], *table["validations"])).T.tolist()
    return LossWindow(
        values=np.where(ranks > 0, (losses[0] / losses[1].clamp_min(1)).numpy(), np.nan),
        weights=ranks,
        earlier=table["earlier"][RECENT - n_earlier :].numpy(),
        left_out=(*table["moments"].tolist(), bounds[0], -bounds[1]),
        first_nonfinite=(-bounds[2], -bounds[3]),
        validations=[
            (loss / max(ranks, 1.0), watched / max(ranks, 1.0), max(int(place) - before, 0))
            for place, loss, watched, ranks in validations
            if place >= 0
        ],
        earlier_validations=tuple(ValidationLoss(*known) for known in table["known"][VALIDATIONS - n_known :].tolist()),
        course=tuple(table["counts"][4:].tolist()),
        first=first + before,
    )


def _in_order(table: Mapping[str, Tensor]) -> Tensor:
    """Losses and their ranks by batch, of the last batches of the window."""
    batches = int(table["counts"][0])
    return table["losses"][:, torch.arange(max(0, batches - SLOTS), batches) % SLOTS]


LOSS_SPAN = Span(N_LOSS_NUMBERS, by_columns([(largest, range(N_SUMS, N_LOSS_NUMBERS))]), paired(merge_windows))
"""How packed tables merge, over ranks and over windows."""


_VALIDATION = re.compile(r"(?<![a-z])(e?val|valid|validation|evaluation)(?![a-z])", re.IGNORECASE)


class LossWatch:
    """Records the loss of every batch, and of every validation."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._batch: int | None = None  # whose step is known
        self.table = LossTable(context.host.setup.device)
        self.table.optimized = context.host.setup.automatic_optimization
        self.table.scaled = context.host.loss_scaling.scaler is not None
        self._off = False
        self.validation_end = context.guard(self._validation_end, "the loss of a validation")

    def before_backward(self, loss: Tensor) -> None:
        """Backward starts."""
        context = self._context
        if self._off:
            return
        try:
            if context.batch != self._batch:
                self._batch, self.table.step = context.batch, context.host.position.global_step
            if isinstance(loss, Tensor) and loss.is_floating_point():
                # As training_step returned it: the loop divides it by the accumulation, and a loss scaler scales it.
                scaling, divided = context.host.loss_scaling, context.host.setup.automatic_optimization
                scale = None if scaling.scaler is None else loss_scale(scaling.scaler)
                self.table.add(loss, float(scaling.accumulation) if divided else 1.0, scale)
        except Exception as error:  # noqa: BLE001  guarded here: these two are called in every batch
            self._failed(error)

    def batch_end(self, outputs: Any) -> None:
        """A training batch ends, with what ``training_step`` returned."""
        context = self._context
        if self._off:
            return
        try:
            if context.batch != self._batch:  # without a backward
                self.table.step = context.host.position.global_step
            self._batch = None
            returned = None if context.host.setup.steps_announced else returned_loss(outputs)
            self.table.end_batch(context.batches - 1, context.batch, returned)
        except Exception as error:  # noqa: BLE001
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        self._off = True
        self._context.faults("the loss", error)

    def _validation_end(self) -> None:
        metrics = self._context.host.metrics.available
        name = validation_loss(metrics)
        if name is not None:
            tag, _ = self.table.watched = doubtful(self._context.host.metrics.watched_tags())
            watched = torch.as_tensor(metrics[tag]) if tag in metrics else NONE
            self.table.end_validation(torch.as_tensor(metrics[name]), watched)


def returned_loss(outputs: Any) -> Tensor | None:
    """The loss in what ``training_step`` returned; None where there is none."""
    loss = outputs.get("loss") if isinstance(outputs, Mapping) else outputs
    return loss if isinstance(loss, Tensor) and loss.is_floating_point() else None


def doubtful(watched: Mapping[str, Collection[str]]) -> tuple[str, str]:
    """Of the monitored tags the one whose mode may be wrong most likely, with that mode; empty strings if there is none.

    A loss is to fall. Other metrics mostly are to rise, and ``min`` is the default of those who monitor.
    """
    pairs = [(tag, mode) for tag, modes in watched.items() for mode in modes if mode == "max" or "loss" not in tag.lower()]
    return min(pairs, key=lambda pair: ("loss" in pair[0].lower()) != (pair[1] == "max"), default=("", ""))


def validation_loss(names: Iterable[str]) -> str | None:
    """The metric that is the loss of a validation, by its name, such as ``val_loss``; of several the one with the shortest name."""
    found = (name for name in names if "loss" in name.lower() and _VALIDATION.search(name.replace("_", " ")))
    return min(found, key=lambda name: (len(name), name), default=None)
