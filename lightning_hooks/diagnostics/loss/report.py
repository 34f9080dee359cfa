"""The loss over a window: its numbers, and the last of its values."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

RECENT = 256  # losses that a report holds one by one: those of the last training batches, of earlier windows too
VALIDATIONS = 8  # validations whose loss a report holds, those of earlier windows too
FEWEST = 16  # losses that there must be to say how far they have fallen
LOSS_STATS = ("mean", "std", "min", "max", "last", "nonfinite_steps")  # what is logged as `loss/<stat>`


@dataclass(frozen=True, slots=True)
class ValidationLoss:
    """The loss of one validation.

    Attributes:
        loss: The metric that the user logs, such as ``val_loss``; the mean over ranks.
        training: The mean loss of the training batches before it, of the last 256 at most.
        watched: The value of the metric that ``LossReport.watched`` names; NaN if there is none.
    """

    loss: float
    training: float
    watched: float = math.nan


@dataclass(frozen=True, slots=True)
class LossReport:
    """The loss of a window's training batches, as ``training_step`` gave it; one value per batch, the mean over ranks.

    Under manual optimisation it is the loss that ``training_step`` returns; where it returns none, and where a batch has several
    backward passes, the mean over those. Statistics are over finite values, NaN where there were none.

    Attributes:
        count: Batches with a finite loss.
        mean: Their mean.
        std: Their population standard deviation.
        min: The smallest.
        max: The largest.
        last: The last finite one.
        nonfinite_steps: Batches whose loss was NaN or infinite, on any rank.
        first_nonfinite_batch: The first of them, as index of the batch in the epoch; None if there were none.
        first_nonfinite_step: The global step before it.
        recent: The losses of the last 256 batches, oldest first, those of earlier windows too.
        validations: The losses of the last 8 validations, oldest first.
        start: Where the training's loss began: the median of its first 8 values; NaN before.
        lowest: The lowest level so far: the smallest median of 32 values in a row; NaN before.
        spike: The batches of this window whose loss was farthest above that of the batches before them.
        optimized: Whether the training loop minimises this loss. Under manual optimisation it may be anything, as in a GAN.
        scaled: Whether a loss scaler skips steps whose gradients are not finite.
        watched: The metric that early stopping, a checkpoint or a scheduler monitors, and its mode (``min`` or ``max``); two empty
            strings if there is none. Of several, the one whose mode may be wrong most likely.
    """

    count: int
    mean: float
    std: float
    min: float
    max: float
    last: float
    nonfinite_steps: int = 0
    first_nonfinite_batch: int | None = None
    first_nonfinite_step: int | None = None
    recent: tuple[float, ...] = field(default=(), repr=False)
    validations: tuple[ValidationLoss, ...] = ()
    start: float = math.nan
    lowest: float = math.nan
    spike: LossSpike | None = None
    optimized: bool = True
    scaled: bool = False
    watched: tuple[str, str] = ("", "")

    @property
    def latest(self) -> float:
        """Mean of the last quarter of ``recent``; NaN where there are none."""
        last = self.recent[-max(len(self.recent) // 4, 1) :]
        return sum(last) / len(last) if last else math.nan

    @property
    def began(self) -> float:
        """The first loss, before any step, where that is known, if it is lower than ``start``: steps may have raised that."""
        return min(self.recent[0] if 0 < len(self.recent) < RECENT else math.inf, self.start)

    @property
    def finite(self) -> list[float]:
        """Those of ``recent`` that are finite."""
        return [value for value in self.recent if math.isfinite(value)]

    def change(self, least: int = FEWEST) -> tuple[float, float] | None:
        """The change of the mean from the second to the last quarter of ``recent``, and two standard errors of it, as shares.

        Args:
            least: How many losses there must be.

        Returns:
            Both over the mean of the second quarter; None where there are too few losses, or that is 0.
        """
        quarter = len(self.recent) // 4
        if len(self.recent) < least or quarter < 2:
            return None
        before, last = np.array(self.recent[quarter : 2 * quarter]), np.array(self.recent[-quarter:])
        level = abs(float(before.mean()))
        error = math.hypot(before.std(ddof=1), last.std(ddof=1)) / math.sqrt(quarter)
        return (float(last.mean() - before.mean()) / level, 2 * error / level) if level > 0 else None


NO_LOSS = LossReport(0, *(math.nan,) * 5, optimized=False)  # that of no batch


def loss_scalars(report: LossReport | None) -> dict[str, float]:
    """The values of a report by tag."""
    return {f"loss/{stat}": math.nan if report is None else float(getattr(report, stat)) for stat in LOSS_STATS}


def falls(report: LossReport | None, share: float) -> bool:
    """Whether the median of the last quarter of the losses is below so large a share of those at the start; no if not known."""
    if report is None or not report.optimized or report.nonfinite_steps or len(report.recent) < FEWEST:
        return False
    last = float(np.nanmedian(report.recent[-(len(report.recent) // 4) :]))
    return min(report.recent[0], report.began) > 0 and last < share * report.began


@dataclass(frozen=True, slots=True)
class LossWindow:
    """What a table holds of a window, on the host."""

    values: Values  # the loss of each batch of the window, of a long one the last; NaN where there was none
    weights: Values  # the number of ranks that gave it; 0 where there was none
    earlier: Values  # the losses of the batches before the window
    # Of the batches of a long window before those: number, sum, sum of squares, number not finite (each rank counts), bounds.
    left_out: tuple[float, ...]
    first_nonfinite: tuple[float, float]  # batch and step of the first loss that was not finite; infinite if there was none
    # Of each validation in the window its loss, what is watched, and how many of the values were before it
    validations: list[tuple[float, float, int]]
    earlier_validations: tuple[ValidationLoss, ...]  # those before the window
    course: tuple[float, ...]  # start and lowest before the window
    first: int  # the index in the epoch of the first of the values


def loss_report(
    window: LossWindow, optimized: bool = True, scaled: bool = False, watched: tuple[str, str] = ("", "")
) -> LossReport | None:
    """Name the numbers of a window; None where no loss was seen."""
    there = window.weights > 0
    finite = there & np.isfinite(window.values)
    count, total, squares, nonfinite, largest, smallest = window.left_out
    if not (there.any() or count or nonfinite):
        return None
    ranks = max(1.0, float(window.weights.max(initial=0.0)))
    values, weights = window.values[finite], window.weights[finite]
    number = count + float(weights.sum())
    mean = (total + float(weights @ values)) / number if number else math.nan
    spread = squares - 2 * mean * total + mean * mean * count + float(weights @ (values - mean) ** 2) if number else math.nan
    batch, step = (None if math.isinf(first) else int(first) for first in window.first_nonfinite)
    known = np.concatenate((window.earlier, window.values[there]))
    begun, lowest = window.course
    sound = known[np.isfinite(known)]
    return LossReport(
        count=len(values) + round(count / ranks),
        mean=mean,
        std=math.sqrt(max(spread, 0.0) / number) if number else math.nan,
        min=min(smallest, float(values.min(initial=math.inf))) if number else math.nan,
        max=max(largest, float(values.max(initial=-math.inf))) if number else math.nan,
        last=float(values[-1]) if len(values) else math.nan,
        nonfinite_steps=int((there & ~finite).sum()) + math.ceil(nonfinite / ranks),
        first_nonfinite_batch=batch,
        first_nonfinite_step=step,
        recent=tuple(known[-RECENT:].tolist()),
        validations=(*window.earlier_validations, *_validations(window))[-VALIDATIONS:],
        start=float(np.median(sound[:FIRST])) if math.isnan(begun) and len(sound) >= FIRST else begun,
        lowest=float(np.fmin(lowest, lowest_level(sound))),
        spike=largest_spike(window, finite) if optimized else None,
        optimized=optimized,
        scaled=scaled,
        watched=watched,
    )


def _validations(window: LossWindow) -> list[ValidationLoss]:
    """The validations of the window, each with the training loss before it."""
    found = []
    for loss, watched, place in window.validations:
        known = np.concatenate((window.earlier, window.values[:place]))
        known = known[np.isfinite(known)][-RECENT:]
        found.append(ValidationLoss(loss, float(known.mean()) if len(known) else math.nan, watched))
    return found


Values = npt.NDArray[np.float64]

FIRST = 8  # losses whose median is where a training began
BLOCK = 32  # losses in a row whose median is a level
BEFORE = 128  # losses before a batch that it is compared with, as OLMo-core does
FEWEST_BEFORE = 64  # so many there must be, likewise
LASTING = 3  # batches in a row at which the loss must be too large


@dataclass(frozen=True, slots=True)
class LossSpike:
    """The batches in a row whose loss was farthest above that of the 128 batches before them.

    Attributes:
        batch: The first of them, as index of the batch in the epoch; of a window before this one if it is negative.
        loss: The smallest of their losses.
        mean: The mean loss of the batches before.
        sigmas: Standard deviations of these between the two.
        ratio: The same distance, over that from the mean to the largest loss of the batches before.
        before: How many batches before were compared with.
    """

    batch: int
    loss: float
    mean: float
    sigmas: float
    ratio: float
    before: int


def lowest_level(losses: Values) -> float:
    """The lowest median of losses in a row; NaN where there are too few."""
    if len(losses) < BLOCK:
        return math.nan
    blocks = np.lib.stride_tricks.sliding_window_view(losses, BLOCK)[:: -(BLOCK // 4)]
    return float(np.median(blocks, axis=1).min())


def largest_spike(window: LossWindow, finite: npt.NDArray[np.bool_]) -> LossSpike | None:
    """The batches in a row that are farthest above those before them, of those with a batch of the window; None for too few.

    ``finite`` says which batches of the window have a finite loss.
    """
    earlier = window.earlier[np.isfinite(window.earlier)]
    losses = np.concatenate((earlier, window.values[finite]))
    first = max(FEWEST_BEFORE, len(earlier) - LASTING + 1)
    if len(losses) < first + LASTING:
        return None
    runs = np.lib.stride_tricks.sliding_window_view(losses, LASTING).min(1)[first:]
    padded = np.concatenate((np.full(BEFORE, np.nan), losses))  # of those before the first there are none
    before = np.lib.stride_tricks.sliding_window_view(padded, BEFORE)[first : first + len(runs)]
    mean, std, top = np.nanmean(before, 1), np.nanstd(before, 1), np.nanmax(before, 1)
    with np.errstate(divide="ignore", invalid="ignore"):
        ratios, sigmas = (runs - mean) / (top - mean), (runs - mean) / std
    ratios = np.where(runs > mean, ratios, -np.inf)
    place = int(np.argmax(ratios))
    if not ratios[place] > 0:
        return None
    numbers, ahead = window.first + np.flatnonzero(finite), first + place - len(earlier)
    batch = int(numbers[ahead]) if ahead >= 0 else int(numbers[0]) + ahead if len(numbers) else -1
    found = float(runs[place]), float(mean[place]), float(sigmas[place]), float(ratios[place])
    return LossSpike(batch, *found, before=min(BEFORE, first + place))
