"""Which of a monitor's numbers are logged."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from lightning_hooks.declare.collector import Written
from lightning_hooks.session.settings import Logged

SMALL_MODEL = 8
"""Up to so many modules, the values of every site are logged by default; of larger models, values of the whole model."""
MOST_SITE_TAGS = 45
"""Tags of sites that a monitor logs by default in a small model."""
MOST_ALERTED_TAGS = 21
"""Tags of sites that had an alert, which a monitor logs by default in a larger model."""
FAULTS = re.compile(r"_(fraction|rows|steps)(_median|_worst)?$")
"""Shares and counts of what is wrong, 0 in health."""


class LoggedScalars:
    """Which scalars one monitor logs.

    Args:
        logged: ``auto`` for a number of tags that does not grow with the model, ``all``, or the names of statistics.
        ranking: The monitor's statistics of a site, what matters most first.
        defaults: Those of them that ``auto`` logs; None for all.

    Raises:
        TypeError: If ``logged`` is neither text nor a sequence of texts.
        ValueError: If it names a statistic that does not exist.
    """

    def __init__(self, logged: Logged, ranking: Sequence[str], defaults: Collection[str] | None = None) -> None:
        self.ranking = tuple(ranking)
        self.logged = logged
        wanted = _wanted(logged, self.ranking)
        self.named = wanted is not None
        """Whether the user named the statistics (or ``all``)."""
        chosen = wanted if wanted is not None else self.ranking if defaults is None else defaults
        self._wanted = tuple(stat for stat in self.ranking if stat in chosen)
        self.start()

    def start(self) -> None:
        """A fit starts."""
        self._kinds: set[str] = set()  # tags of alerts that were raised so far
        self._sites: set[str] = set()  # that had an alert
        self._risen: set[str] = set()  # tags of faults that were above 0 so far
        self.statistics = self._wanted
        """The statistics of a site that are logged where sites are, best first; after the first epoch, those that some site has."""
        self.of_sites = self.named
        """Whether the statistics of every site are logged, rather than those of the whole model."""

    @property
    def written(self) -> Written:
        """The same for collectors, which make charts and figures."""
        return Written(self.statistics, self.of_sites, self.named)

    def chosen(
        self,
        scalars: Mapping[str, float],
        prefix: str,
        n_modules: int,
        alerted: Iterable[str] = (),
        watched: Collection[str] = (),
        not_by_default: Collection[str] = (),
    ) -> dict[str, float]:
        """Return those of the scalars that are logged.

        A tag that was logged once is logged for the rest of the fit.

        Args:
            scalars: All, by tag: ``<prefix>/<site>/<stat>`` of sites, ``<prefix>/model/…`` of the whole model,
                ``<prefix>/alerts/<kind>``, others. Of large models, shares and counts of faults are logged from the first that is
                not 0.
            prefix: The monitor's.
            n_modules: How many modules the monitor observes.
            alerted: The sites that have an alert now.
            watched: Tags that are logged in any case.
            not_by_default: Tags that ``auto`` does not log, though their statistic is one of the defaults.
        """
        sites: dict[str, list[str]] = {}
        chosen = {tag for tag in watched if tag in scalars}
        of_model: list[str] = []
        others: list[str] = []
        for tag, value in scalars.items():
            name, _, stat = tag.removeprefix(f"{prefix}/").rpartition("/")
            if name == "alerts":
                if value > 0:
                    self._kinds.add(tag)
            elif name == "model":
                of_model += [] if tag in not_by_default else [tag]
            elif stat not in self.ranking or not tag.startswith(f"{prefix}/"):
                others += [] if tag in not_by_default and not self.named else [tag]
            elif stat in self._wanted and (self.named or tag not in not_by_default):
                sites.setdefault(name, []).append(tag)
        found = {tag.rpartition("/")[2] for tags in sites.values() for tag in tags}
        self.statistics = tuple(stat for stat in self._wanted if stat in found)
        all_sites = [tag for tags in sites.values() for tag in tags]
        self.of_sites = self.named or (n_modules <= SMALL_MODEL and len(all_sites) <= MOST_SITE_TAGS)
        if self.of_sites:
            chosen.update((*all_sites, *others))
        else:
            chosen.update(tag for tag in (*of_model, *others) if self._is_seen(tag, scalars[tag]))
            left = MOST_ALERTED_TAGS - sum(len(sites.get(site, ())) for site in self._sites)
            for site in dict.fromkeys(alerted):
                if site in sites and site not in self._sites and len(sites[site]) <= left:
                    self._sites.add(site)
                    left -= len(sites[site])
            chosen.update(tag for site in self._sites for tag in sites.get(site, ()))
        chosen |= self._kinds
        return {tag: value for tag, value in scalars.items() if tag in chosen}

    def _is_seen(self, tag: str, value: float) -> bool:
        """Whether a tag is no fault's, or one that was above 0 so far: no card is flat at 0 for a whole run."""
        if value > 0:
            self._risen.add(tag)
        return tag in self._risen or FAULTS.search(tag) is None


def of_each(logged: Logged, *rankings: Sequence[str]) -> list[Logged]:
    """What of ``logged`` each of several monitors knows.

    Raises:
        TypeError: As :class:`LoggedScalars`.
        ValueError: If it names a statistic that none has.
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
