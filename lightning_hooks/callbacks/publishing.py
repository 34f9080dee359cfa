"""What else of monitors' reports goes to the trackers: charts, a table of the sites, histograms, pictures."""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.nn.parameter import is_lazy

from lightning_hooks.callbacks.drawing_thread import drawing_thread, write_pictures
from lightning_hooks.callbacks.logged import Logged, LoggedScalars
from lightning_hooks.hooks.selection import clean_name, named_sites
from lightning_hooks.statistics.histograms import Histogram, HistogramTable
from lightning_hooks.trackers import Trackers
from lightning_hooks.trackers.layout import Chart, training_charts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_hooks.callbacks.monitor import Monitor

    Figures = Mapping[str, Callable[[], Figure]]

T = TypeVar("T")
Histograms = bool | str | Sequence[str]
"""Whether sites get histograms, or patterns on the names of those that do."""

MOST_HISTOGRAMS = 128
"""Sites that get a histogram where the user names none."""
MOST_COLOURFUL = 12
"""Sites in the picture of the colourful dimension."""
MOST_PICTURED = 200
"""Epochs in a picture."""
SITE_COLUMNS = ("site", "type", "elements of its parameters", "listened to by")
MOST_SITES = 300
"""Rows of the table of sites."""


class Publishing:
    """What one monitor writes.

    Args:
        logged: As for :class:`~lightning_hooks.callbacks.monitor.Monitor`.
        ranking: The monitor's statistics, what matters most first.
        defaults: Those that ``logged="auto"`` logs; None for all.
        histograms: As for :class:`~lightning_hooks.callbacks.monitor.Monitor`.
        figures: As for :class:`~lightning_hooks.callbacks.monitor.Monitor`.

    Raises:
        ImportError: If figures are asked for and matplotlib is not installed.
        TypeError: If an argument is of a wrong type.
        ValueError: If ``logged`` names a statistic that there is not, ``histograms`` nothing, or ``figures`` is below 0.
    """

    def __init__(
        self,
        logged: Logged = "auto",
        ranking: Sequence[str] = (),
        histograms: Histograms = False,
        figures: bool | int = False,
        *,
        defaults: Sequence[str] | None = None,
    ) -> None:
        self.scalars = LoggedScalars(logged, ranking, defaults)
        patterns = [histograms] if isinstance(histograms, str) else histograms
        if not isinstance(patterns, bool) and not (
            isinstance(patterns, Sequence) and all(isinstance(pattern, str) for pattern in patterns)
        ):
            raise TypeError(f"histograms must be True, False, or glob patterns on the names of sites; got {histograms!r}.")
        if not isinstance(patterns, bool) and not all(patterns or [""]):
            raise ValueError(f"histograms must be True, False, or glob patterns on the names of sites; got {histograms!r}.")
        if not isinstance(figures, int):
            raise TypeError(f"figures must be True, False, or a number of epochs; got {figures!r}.")
        if figures < 0:
            raise ValueError(f"figures must be True, False, or a number of epochs of at least 1; got {figures!r}.")
        if figures and find_spec("matplotlib") is None:
            raise ImportError(f'figures={figures!r} needs matplotlib: pip install "lightning-hooks[plots]".')
        self.histograms: bool | Sequence[str] = patterns
        self.figures = figures
        self.start()

    def start(self) -> None:
        """A fit starts."""
        self.scalars.start()
        self.introduced = False  # whether this fit's charts and sites are written
        self._sites: list[str] = []
        self._seen: deque[tuple[int, dict[str, Any]]] = deque(maxlen=MOST_PICTURED)
        self._drawn: dict[str, int] = {}  # picture -> the epoch it was drawn of last

    def histogram_table(
        self, names: Sequence[str], device: torch.device, who: str, loss_scaled: bool = False
    ) -> HistogramTable | None:
        """Make the table of the histograms that are asked for, or None.

        Args:
            names: All sites.
            device: Where it lives.
            who: Whose they are, for messages.
            loss_scaled: As for :class:`~lightning_hooks.statistics.histograms.HistogramTable`.

        Raises:
            ValueError: If a pattern matches no site.
        """
        if self.histograms is False:
            return None
        sites = list(range(len(names)))
        if self.histograms is not True:
            for pattern in self.histograms:
                if not any(fnmatchcase(name, pattern) for name in names):
                    near = ", ".join(map(repr, difflib.get_close_matches(pattern, names, 3, 0.0)))
                    raise ValueError(
                        f"{who}: histograms={pattern!r} matches none of its {len(names)} sites; the closest are {near}."
                    )
            sites = [site for site in sites if any(fnmatchcase(names[site], pattern) for pattern in self.histograms)]
        elif len(sites) > MOST_HISTOGRAMS:
            step = -(-len(sites) // MOST_HISTOGRAMS)
            sites = sites[::step]
            rank_zero_info(
                f"{who}: of its {len(names)} sites 1 in {step} gets a histogram, {len(sites)} in all. For others, name them: "
                f"histograms=[{names[0]!r}, …] or a pattern."
            )
        return HistogramTable(sites, names, device, loss_scaled)

    def remember(self, epoch: int, histograms: Mapping[str, Histogram]) -> None:
        """Keep the histograms that pictures are made of: of some sites, of the last epochs."""
        if self.figures and histograms:
            self._sites = self._sites or evenly(list(histograms), MOST_COLOURFUL)
            kept = {site: tuple(map(np.asarray, histograms[site])) for site in self._sites if site in histograms}
            self._seen.append((epoch, kept))

    def colourful(self) -> dict[str, Any]:
        """What :func:`lightning_hooks.plots.colourful_dimension` is given."""
        return {
            "histograms": {site: [histograms.get(site) for _, histograms in self._seen] for site in self._sites},
            "epochs": [epoch for epoch, _ in self._seen],
        }

    def due(self, epoch: int, last: bool) -> bool:
        """Whether pictures are drawn now: after epochs 0, 1, 2, 4, 8, …, or after every n-th; and at the end."""
        if last or not self.figures:
            return bool(self.figures)
        if self.figures is True:
            return epoch & (epoch - 1) == 0
        return (epoch + 1) % self.figures == 0

    def fresh(self, figures: Figures, epoch: int) -> dict[str, Callable[[], Figure]]:
        """The pictures that were not drawn of this epoch yet: at the end those of the last epoch may have been."""
        found = {name: draw for name, draw in figures.items() if self._drawn.get(name) != epoch}
        self._drawn.update(dict.fromkeys(found, epoch))
        return found


def publish(trainer: Trainer, pl_module: LightningModule, monitors: Sequence[Monitor[Any]], step: int, last: bool = False) -> None:
    """Write what goes to the trackers beside scalars, after each monitor has made its report of the epoch.

    Args:
        trainer: The trainer.
        pl_module: The model.
        monitors: All of the trainer's, in order.
        step: Where the epoch's end stands on the x axis.
        last: Whether training is over, and all pictures are drawn.
    """
    trackers = monitors[-1].trackers(trainer)
    if not trackers:
        return
    if not last and not any(monitor.publishing.introduced for monitor in monitors):
        _introduce(trackers, pl_module, monitors, step, training_charts(trainer.logged_metrics))
    kinds: dict[str, int] = {}
    for monitor in monitors:
        kinds[monitor.prefix] = number = kinds.get(monitor.prefix, 0) + 1  # two of a kind may stand side by side
        what, report = monitor.publishing, monitor.report
        if report is None:
            continue
        if not last:
            what.remember(report.epoch, monitor.histograms)
            trackers.histograms({f"{monitor.prefix}/{site}/histogram": found for site, found in monitor.histograms.items()}, step)
        if trackers.shows_pictures and what.due(report.epoch, last):
            folder = f"{monitor.prefix}/figures" + f"-{number}" * (number > 1)
            monitor.remember()
            figures = _figures(monitor, last)
            for name, draw in what.fresh(figures, report.epoch).items():
                drawing_thread(trainer).ask(f"{folder}/{name}", draw, step)
    write_pictures(trainer, trackers, last)
    trackers.save()


def _figures(monitor: Monitor[Any], last: bool) -> Figures:
    try:
        return monitor.figures(evenly(list(monitor.history), MOST_PICTURED), last)
    except Exception as error:  # noqa: BLE001  a picture's trouble is not the training's
        rank_zero_warn(f"The pictures of {type(monitor).__name__} could not be chosen: {type(error).__name__}: {error}.")
        return {}


def _introduce(
    trackers: Trackers, pl_module: LightningModule, monitors: Sequence[Monitor[Any]], step: int, training: Mapping[str, Chart]
) -> None:
    layout: dict[str, dict[str, Chart]] = {"Training": dict(training), "Alerts": {}}  # first the user's own, then the problems
    for monitor in monitors:
        monitor.publishing.introduced = True
        for category, charts in monitor.charts().items():
            layout.setdefault(category, {}).update(charts)
    trackers.layout({category: charts for category, charts in layout.items() if charts})
    trackers.table("sites", SITE_COLUMNS, _sites(pl_module, monitors), step)


def _sites(pl_module: LightningModule, monitors: Sequence[Monitor[Any]]) -> list[list[object]]:
    """What is listened to: name, type, own parameters, by which monitors."""
    modules = dict(named_sites(pl_module))
    parameters = {clean_name(name): parameter for name, parameter in pl_module.named_parameters()}
    heard: dict[str, list[str]] = {}
    for monitor in monitors:
        for place in monitor.places:
            heard.setdefault(place, []).append(monitor.prefix)
    rows: list[list[object]] = []
    known = [name for name in heard if name in modules or name in parameters]
    for name in known[:MOST_SITES]:
        if name in modules:
            kind, size = type(modules[name]).__name__, _elements(modules[name].parameters())
        else:
            kind, size = "parameter", _elements([parameters[name]])
        rows.append([name, kind, size, ", ".join(dict.fromkeys(heard[name]))])
    if len(known) > MOST_SITES:
        rows.append([f"… and {len(known) - MOST_SITES} more", "", None, ""])
    return rows


def _elements(parameters: Iterable[torch.nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters if not is_lazy(parameter))


def evenly(items: Sequence[T], most: int) -> list[T]:
    """At most so many of them, spread evenly, the last among them."""
    step = -(-len(items) // most) or 1
    return list(items[::-1][::step][::-1])
