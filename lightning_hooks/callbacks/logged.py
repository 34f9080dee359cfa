"""Which of a monitor's numbers are logged."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from operator import attrgetter
from typing import Any

from lightning.pytorch import Trainer
from lightning.pytorch.utilities import rank_zero_info

from lightning_hooks.callbacks.trainer import callbacks_of
from lightning_hooks.trackers.budget import MAX_BYTES, MAX_TAGS, Choice, choose

Logged = str | Sequence[str]
"""``auto``, ``all``, or the statistics to log."""


class LoggedScalars:
    """Which scalars one monitor logs: the same in every epoch of a fit.

    Args:
        logged: ``auto`` for as many statistics as fit a budget of tags and bytes, ``all``, or the names of statistics.
        ranking: The monitor's statistics, what matters most first.

    Raises:
        TypeError: If ``logged`` is neither text nor a sequence of texts.
        ValueError: If it names a statistic that there is not.
    """

    def __init__(self, logged: Logged, ranking: Sequence[str]) -> None:
        self.ranking = tuple(ranking)
        self.logged = logged
        self._wanted = _wanted(logged, self.ranking)
        self._choice: Choice | None = None

    def start(self) -> None:
        """A fit starts."""
        self._choice = None

    def chosen(self, scalars: Mapping[str, float], watched: Collection[str], who: str) -> dict[str, float]:
        """Return those of the scalars that are logged.

        Args:
            scalars: All.
            watched: Tags that are logged in any case.
            who: Whose they are, for the message that tells once what is left out.
        """
        if self._choice is None:
            self._choice = choose(scalars, self.ranking, self._wanted, watched)
            if self.logged == "auto" and (self._choice.left_out or self._choice.every > 1):
                rank_zero_info(_left_out(self._choice, len(scalars), who))
        return {tag: value for tag, value in scalars.items() if tag in self._choice.tags}

    @property
    def named(self) -> bool:
        """Whether the user said which, rather than leave it to the budget."""
        return self.logged != "auto"

    @property
    def statistics(self) -> tuple[str, ...]:
        """The ranked statistics that are logged, best first; none before the first epoch's end."""
        return self._choice.statistics if self._choice else ()


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


def _left_out(choice: Choice, n_tags: int, who: str) -> str:
    sites = f" of every {choice.every}th site" if choice.every > 1 else ""
    return (
        f"{who}: all of its {n_tags} numbers an epoch would take {choice.wanted_bytes / 1000:.0f} kB of logs each time; within its "
        f"budget ({MAX_TAGS} tags, {MAX_BYTES // 1000} kB) it logs {', '.join(choice.statistics)}{sites}. Left out: "
        f"{', '.join(choice.left_out)}; they are in its report all the same. To log them too, say logged='all', or name what you "
        f"want, as in logged={choice.statistics[:1] + choice.left_out[:1]!r}."
    )


def watched_tags(trainer: Trainer) -> set[str]:
    """What EarlyStopping, ModelCheckpoint, a scheduler or another callback watches, by name."""
    watchers = [*callbacks_of(trainer), *trainer.lr_scheduler_configs]
    return {watcher.monitor for watcher in watchers if isinstance(getattr(watcher, "monitor", None), str)}


def stat_scalars(prefix: str, names: Iterable[str], found: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, float]:
    """Name statistics as ``prefix/<name>/<stat>``; NaN where there are none.

    Args:
        prefix: The monitor's.
        names: The sites, in order.
        found: Site to its statistics, where there are some.
        wanted: Which statistics.
    """
    scalars: dict[str, float] = {}
    if not wanted:
        return scalars
    read = attrgetter(*wanted) if len(wanted) > 1 else lambda stats: (getattr(stats, wanted[0]),)
    nothing = (math.nan,) * len(wanted)
    for name in names:
        stats = found.get(name)
        for stat, value in zip(wanted, nothing if stats is None else read(stats), strict=True):
            scalars[f"{prefix}/{name}/{stat}"] = math.nan if value is None else float(value)
    return scalars
