"""All of the trainer's loggers as one object."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import cached_property, wraps
from itertools import pairwise
from typing import TYPE_CHECKING, Any, Concatenate, ParamSpec

from lightning_hooks.trackers.adapters import CSVTracker, MLflowTracker, TensorBoardTracker, WandbTracker
from lightning_hooks.trackers.tracker import Histogram, Picture, Tracker, coarsened

if TYPE_CHECKING:
    from matplotlib.figure import Figure

ADAPTERS: tuple[type[Tracker], ...] = (TensorBoardTracker, WandbTracker, MLflowTracker, CSVTracker)


P = ParamSpec("P")


def _of_each(method: Callable[Concatenate[Tracker, P], None]) -> Callable[Concatenate[Trackers, P], None]:
    """A method that calls the one of the same name of each tracker."""

    @wraps(method)
    def call(trackers: Trackers, /, *args: P.args, **kwargs: P.kwargs) -> None:
        trackers._each(method.__name__, *args, **kwargs)

    return call


class Trackers:
    """The trainer's loggers as one object.

    Each is written to by the adapter that suits it. Any logger gets scalars; what a logger cannot show is skipped. The first error
    of a logger is passed to ``on_fault``; it affects neither the others nor training.

    Args:
        loggers: The trainer's loggers, of whichever package; none is fine.
        on_fault: Called once per logger with (its class's name, what it raised).
    """

    def __init__(self, loggers: Iterable[object], on_fault: Callable[[str, Exception], None]) -> None:
        self._loggers = list(loggers)
        self._on_fault = on_fault
        self._reported: set[int] = set()

    def __len__(self) -> int:
        return len(self._loggers)

    @property
    def shows_pictures(self) -> bool:
        """Whether any shows pictures: figures need not be drawn otherwise."""
        return any(tracker.shows_pictures for tracker in self._trackers)

    scalars = _of_each(Tracker.scalars)
    picture = _of_each(Tracker.picture)
    text = _of_each(Tracker.text)
    table = _of_each(Tracker.table)
    embedding = _of_each(Tracker.embedding)
    save = _of_each(Tracker.save)
    file = _of_each(Tracker.file)

    def figure(self, tag: str, figure: Figure, step: int, reduced: bool = True) -> None:
        """Show a matplotlib figure: an image in TensorBoard and W&B, a PNG file in MLflow and with a CSVLogger."""
        if self.shows_pictures:
            self.picture(tag, Picture.of_figure(figure, reduced), step)

    def histograms(self, histograms: Mapping[str, Histogram], step: int) -> None:
        """Show distributions by tag: ``counts[i]`` values between ``edges[i]`` and ``edges[i + 1]``.

        Raises:
            ValueError: If one has not one more edges than counts.
        """
        kept = {tag: _bounded(tag, *histogram) for tag, histogram in histograms.items()}
        filled = {tag: coarsened(*histogram) for tag, histogram in kept.items() if sum(histogram[1]) > 0}
        if filled:
            self._each("histograms", filled, step)

    @property
    def keep_files(self) -> bool:
        """Whether any keeps files with the run (W&B, MLflow)."""
        return any(tracker.keeps_files for tracker in self._trackers)

    def _each(self, method: str, *args: Any, **kwargs: Any) -> None:
        """Call a method of each."""
        for tracker in self._trackers:
            try:
                getattr(tracker, method)(*args, **kwargs)
            except Exception as error:  # noqa: BLE001  an error of a tracker must not end training
                self._fault(tracker.logger, error)

    @cached_property
    def _trackers(self) -> list[Tracker]:
        # On first use: to ask W&B or MLflow for its experiment starts a run there.
        return [self._adapter_of(logger)(logger) for logger in self._loggers]

    def _adapter_of(self, logger: object) -> type[Tracker]:
        try:
            experiment = getattr(logger, "experiment", None)
            if _answers_anything(logger) or _answers_anything(experiment):
                experiment = None  # Lightning's DummyLogger, mocks: what they can do cannot be asked
            return next((known for known in ADAPTERS if known.suits(logger, experiment)), Tracker)
        except Exception as error:  # noqa: BLE001
            self._fault(logger, error)
            return Tracker

    def _fault(self, logger: object, error: Exception) -> None:
        if id(logger) not in self._reported:
            self._reported.add(id(logger))
            cause = error.__cause__  # Lightning takes whatever add_scalar raises for a value that cannot be logged
            self._on_fault(type(logger).__name__, cause if isinstance(cause, Exception) else error)


def _bounded(tag: str, edges: Sequence[float], counts: Sequence[float]) -> Histogram:
    """A histogram without what a tracker cannot place: unbounded bins, uncounted ones."""
    if len(edges) != len(counts) + 1:
        raise ValueError(f"{tag}: edges must be one more than counts; got {len(edges)} edges and {len(counts)} counts.")
    bins = [(*sides, count) for sides, count in zip(pairwise(edges), counts, strict=True) if all(map(math.isfinite, sides))]
    if not bins:
        return (0.0, 0.0), (0.0,)
    return [bins[0][0], *(high for _, high, _ in bins)], [count if math.isfinite(count) else 0.0 for _, _, count in bins]


def _answers_anything(thing: object) -> bool:
    return hasattr(thing, "lightning_hooks_asks_for_what_no_logger_has")
