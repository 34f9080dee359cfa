"""What one member writes to the trackers: which scalars, histograms and figures, and when."""

from __future__ import annotations

import difflib
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from lightning_hooks.declare.collector import ReportView, Written
from lightning_hooks.declare.warn import info
from lightning_hooks.hosts.host import Host
from lightning_hooks.session.logged import LoggedScalars
from lightning_hooks.session.settings import Settings
from lightning_hooks.statistics.histograms import Histogram, HistogramTable

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    Figures = Mapping[str, Callable[[], Figure]]

T = TypeVar("T")

MOST_HISTOGRAMS = 128
"""Sites that get a histogram where the user names none."""
MOST_COLOURFUL = 12
"""Sites in the figure of the colourful dimension."""
MOST_PICTURED = 200
"""Windows in a figure."""


class Publishing:
    """What one member writes to the trackers.

    Args:
        name: The monitor's, for messages.
        settings: Its arguments.
        kind: The class of its collector.

    Raises:
        TypeError: If ``logged`` is neither text nor a sequence of texts.
        ValueError: If ``logged`` names a statistic that does not exist.
    """

    def __init__(self, name: str, settings: Settings, kind: type[ReportView[Any]]) -> None:
        self._name = name
        self.scalars = LoggedScalars(settings.logged, kind.ranking, kind.logged_by_default)
        patterns = settings.histograms
        self.histograms: bool | Sequence[str] = [patterns] if isinstance(patterns, str) else patterns
        self.figures = settings.figures
        self.start()

    @property
    def written(self) -> Written:
        """Which statistics are logged, for the collector's charts and figures."""
        return self.scalars.written

    def start(self) -> None:
        """A fit starts."""
        self.scalars.start()
        self.introduced = False  # whether this fit's charts and sites are written
        self._sites: list[str] = []
        self._seen: deque[tuple[int, dict[str, Any]]] = deque(maxlen=MOST_PICTURED)
        self._number = -1  # of the window: the epoch, or how many there were where windows are shorter
        self._unit = "epoch"
        self._drawn: dict[str, int] = {}  # picture -> the window it was drawn of last

    def histogram_table(self, names: Sequence[str], host: Host, loss_scaled: bool = False) -> HistogramTable | None:
        """Make the table of the histograms that are asked for; None for none.

        Args:
            names: All sites.
            host: The training loop.
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
                        f"{self._name}: histograms={pattern!r} matches none of its {len(names)} sites; the closest are {near}."
                    )
            sites = [site for site in sites if any(fnmatchcase(names[site], pattern) for pattern in self.histograms)]
        elif len(sites) > MOST_HISTOGRAMS:
            step = -(-len(sites) // MOST_HISTOGRAMS)
            sites = sites[::step]
            info(
                f"{self._name}: of its {len(names)} sites 1 in {step} gets a histogram, {len(sites)} in all. For others, name "
                f"them: histograms=[{names[0]!r}, …] or a pattern."
            )
        return HistogramTable(sites, names, host.setup.device, loss_scaled)

    def remember(self, report: Any, histograms: Mapping[str, Histogram]) -> None:
        """A window has ended: keep the histograms that pictures are made of, of some sites, of the last windows."""
        self._number = report.epoch if report.unit == "epoch" else self._number + 1
        self._unit = report.unit
        if self.figures and histograms:
            self._sites = self._sites or evenly(list(histograms), MOST_COLOURFUL)
            kept = {site: tuple(map(np.asarray, histograms[site])) for site in self._sites if site in histograms}
            self._seen.append((report.at, kept))

    def colourful(self) -> dict[str, Any]:
        """What :func:`lightning_hooks.plots.colourful_dimension` is given."""
        return {
            "histograms": {site: [histograms.get(site) for _, histograms in self._seen] for site in self._sites},
            "epochs": [at for at, _ in self._seen],
            "unit": self._unit,
        }

    def due(self, last: bool) -> bool:
        """Whether pictures are drawn now: after windows 0, 1, 2, 4, 8, …, or after every n-th; and at the end."""
        number = self._number
        if last or not self.figures:
            return bool(self.figures)
        if self.figures is True:
            return number & (number - 1) == 0
        return (number + 1) % self.figures == 0

    def fresh(self, figures: Figures) -> dict[str, Callable[[], Figure]]:
        """The pictures that were not drawn of this window yet: at the end those of the last window may have been."""
        found = {name: draw for name, draw in figures.items() if self._drawn.get(name) != self._number}
        self._drawn.update(dict.fromkeys(found, self._number))
        return found


def evenly(items: Sequence[T], most: int) -> list[T]:
    """At most this many, spread evenly, the last among them."""
    step = -(-len(items) // most) or 1
    return list(items[::-1][::step][::-1])
