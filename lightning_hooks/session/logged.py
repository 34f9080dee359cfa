"""What of a monitor is logged: which of its numbers, and which histograms and figures, and when."""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any

from lightning_hooks.declare.collector import Figures, LoggedStatistics, ReportView
from lightning_hooks.declare.host import Host
from lightning_hooks.session.settings import Logged, Settings
from lightning_hooks.statistics.histograms import HistogramTable

# Up to so many modules, the values of every site are logged by default; of larger models, values of the whole model
SMALL_MODEL = 8
MOST_SITE_TAGS = 45  # tags of sites that a monitor logs by default in a small model
MOST_ALERTED_TAGS = 21  # tags of sites that had an alert, which a monitor logs by default in a larger model
FAULTS = re.compile(r"_(fraction|rows|steps)(_median|_worst)?$")  # shares and counts of what is wrong, 0 in health
MOST_PICTURED = 200  # windows in a figure


class MemberLog:
    """What one member writes to the trackers in a fit: which of its scalars, and which histograms and figures.

    Raises:
        TypeError: If ``logged`` is neither text nor a sequence of texts.
        ValueError: If it names a statistic that does not exist.
    """

    def __init__(self, name: str, settings: Settings, kind: type[ReportView[Any]]) -> None:
        self._name, self._kind = name, kind
        wanted = _wanted(settings.logged, kind.ranking)
        self._named = wanted is not None
        chosen = wanted if wanted is not None else kind.ranking if kind.logged_by_default is None else kind.logged_by_default
        self._wanted = tuple(stat for stat in kind.ranking if stat in chosen)
        patterns = settings.histograms
        self.histograms: bool | Sequence[str] = [patterns] if isinstance(patterns, str) else patterns
        self.figures = settings.figures
        self.written = LoggedStatistics(self._wanted, self._named)
        """For figures; after the first epoch its statistics are those that some site has."""
        self._tags: tuple[str, ...] = ()  # of the last window, and what they are of
        self._of_sites: dict[str, list[str]] = {}
        self._alerts, self._of_model, self._others = list[str](), list[str](), list[str]()
        self._found: tuple[str, ...] = ()  # the statistics that some site has
        self._alerted: set[str] = set()  # sites that had an alert
        self._risen: set[str] = set()  # tags of alerts and of the whole model that were above 0 so far
        self._number = -1  # of the window: the epoch, or how many there were where windows are shorter
        self._drawn: dict[str, int] = {}  # picture -> the window it was drawn of last

    def chosen(
        self,
        scalars: Mapping[str, float],
        n_modules: int,
        alerted: Iterable[str] = (),
        watched: Collection[str] = (),
        not_by_default: Callable[[], Collection[str]] = tuple,
    ) -> dict[str, float]:
        """Return those of the scalars that are logged.

        A tag that was logged once is logged for the rest of the fit.

        Args:
            scalars: All, by tag: ``<prefix>/<site>/<stat>`` of sites, ``<prefix>/model/…`` of the whole model,
                ``<prefix>/alerts/<kind>``, others. Of large models, shares and counts of faults are logged from the first that is
                not 0.
            n_modules: How many modules the monitor observes.
            alerted: The sites that have an alert now.
            watched: Tags that are logged in any case.
            not_by_default: Returns tags that ``auto`` does not log, though their statistic is one of the defaults.
        """
        tags = tuple(scalars)
        if tags != self._tags:
            self._group(tags, not_by_default())
        sites, alerts, of_model, others = self._of_sites, self._alerts, self._of_model, self._others
        chosen = {tag for tag in watched if tag in scalars}
        self._risen.update(tag for tag in (*alerts, *of_model, *others) if scalars[tag] > 0)
        chosen.update(tag for tag in alerts if tag in self._risen)
        of_sites = self._named or (n_modules <= SMALL_MODEL and sum(map(len, sites.values())) <= MOST_SITE_TAGS)
        self.written = LoggedStatistics(self._found, self._named)
        if of_sites:
            chosen.update(others, *sites.values())
        else:
            # No card is flat at 0 for a whole run: a fault is logged from the first time on.
            chosen.update(tag for tag in (*of_model, *others) if tag in self._risen or FAULTS.search(tag) is None)
            left = MOST_ALERTED_TAGS - sum(len(sites.get(site, ())) for site in self._alerted)
            for site in dict.fromkeys(alerted):
                if site in sites and site not in self._alerted and len(sites[site]) <= left:
                    self._alerted.add(site)
                    left -= len(sites[site])
            chosen.update(tag for site in self._alerted for tag in sites.get(site, ()))
        return {tag: value for tag, value in scalars.items() if tag in chosen}

    def _group(self, tags: tuple[str, ...], not_by_default: Collection[str]) -> None:
        """The tags are others than those of the window before: see what they are of."""
        prefix, sites = f"{self._kind.prefix}/", dict[str, list[str]]()
        self._alerts, self._of_model, self._others = [], [], []
        found = set[str]()
        for tag in tags:
            name, _, stat = tag.removeprefix(prefix).rpartition("/")
            if name == "alerts":
                self._alerts.append(tag)
            elif name == "model":
                self._of_model += [] if tag in not_by_default else [tag]
            elif stat not in self._kind.ranking or not tag.startswith(prefix):
                self._others += [] if tag in not_by_default and not self._named else [tag]
            elif stat in self._wanted and (self._named or tag not in not_by_default):
                sites.setdefault(name, []).append(tag)
                found.add(stat)
        self._tags, self._of_sites = tags, sites
        self._found = tuple(stat for stat in self._wanted if stat in found)

    def histogram_table(self, host: Host, names: Sequence[str]) -> HistogramTable | None:
        """Make the table of the histograms that are asked for at some sites; None for none.

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
        return HistogramTable(sites, names, host.setup.device)

    def remember(self, report: Any) -> None:
        """A window has ended, of which pictures may be drawn."""
        self._number = report.epoch if report.unit == "epoch" else self._number + 1

    def due(self, last: bool) -> bool:
        """Whether pictures are drawn now: after windows 0, 1, 2, 4, 8, …, or after every n-th; and at the end."""
        number = self._number
        if last or not self.figures:
            return bool(self.figures)
        return number & (number - 1) == 0 if self.figures is True else (number + 1) % self.figures == 0

    def fresh(self, figures: Figures) -> Figures:
        """The pictures that were not drawn of this window yet: at the end those of the last window may have been."""
        found = {name: draw for name, draw in figures.items() if self._drawn.get(name) != self._number}
        self._drawn.update(dict.fromkeys(found, self._number))
        return found


def statistics_by_ranking(logged: Logged, rankings: Sequence[Sequence[str]]) -> list[Logged]:
    """Return what of ``logged`` is in each of several rankings.

    Raises:
        TypeError: As :class:`MemberLog`.
        ValueError: If it names a statistic that is in none.
    """
    wanted = _wanted(logged, tuple(dict.fromkeys(statistic for ranking in rankings for statistic in ranking)))
    if wanted is None or logged == "all":
        return [logged for _ in rankings]
    return [[statistic for statistic in wanted if statistic in ranking] for ranking in rankings]


def _wanted(logged: Logged, ranking: Sequence[str]) -> Sequence[str] | None:
    if logged == "auto" or logged == "all":
        return None if logged == "auto" else ranking
    wanted = [logged] if isinstance(logged, str) else logged
    if not isinstance(wanted, Sequence) or not all(isinstance(statistic, str) for statistic in wanted):
        raise TypeError(f"logged must be 'auto', 'all', or names of statistics; got {logged!r}.")
    unknown = [statistic for statistic in wanted if statistic not in ranking]
    if unknown:
        raise ValueError(f"logged must be 'auto', 'all', or some of {', '.join(sorted(ranking))}; got {logged!r}.")
    return wanted
