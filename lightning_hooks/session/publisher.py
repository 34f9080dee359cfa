"""What the members of a session write to the trackers at a window's end."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from lightning_hooks.alerts.defaults import kinds_of
from lightning_hooks.declare.warn import warn
from lightning_hooks.hooks.selection import clean_name, named_sites
from lightning_hooks.hosts.host import Host
from lightning_hooks.session.closing import open_alerts, verdict_of
from lightning_hooks.session.drawing_thread import DrawingThread
from lightning_hooks.session.member import Member
from lightning_hooks.session.publishing import MOST_PICTURED, evenly
from lightning_hooks.trackers import Trackers
from lightning_hooks.trackers.console import markdown_text
from lightning_hooks.trackers.tracker import Chart, Lines, training_charts

if TYPE_CHECKING:
    from lightning_hooks.declare.collector import Figures

SITE_COLUMNS = ("site", "type", "elements of its parameters", "observed by")
OF_EPOCH = "_epoch"
"""What is appended to the tags of an epoch that had several windows."""
MOST_SITES = 300
"""Rows of the table of sites."""
MOST_ALERTS = 10
"""Alerts in the verdict."""
VERDICT = "Verdict"
"""The tag of the verdict: trackers sort by tag, capitals first."""
MOST_VERDICTS = 50
"""Verdicts that are written in a run, next to the last one."""


class Publisher:
    """Writes what members report to the trackers of one run.

    Args:
        host: The training loop.
    """

    def __init__(self, host: Host) -> None:
        self._host = host
        self._drawing: DrawingThread | None = None
        self._verdict = ""  # as it was written last
        self._problems: list[list[tuple[str, str]]] = []  # of each verdict that was written

    def log(self, members: Sequence[Member]) -> None:
        """Log the scalars of the window's reports. Each tag is written once, by the first member that has it."""
        watched = self._host.metrics.watched_tags()
        for member, scalars in self._scalars(members):
            self._host.metrics.write(member.name, scalars, self._chosen(member, scalars, watched))

    def log_epoch(self, members: Sequence[Member]) -> None:
        """Log the scalars of reports of whole epochs, which had several windows, as ``<tag>_epoch``."""
        watched = {tag.removesuffix(OF_EPOCH) for tag in self._host.metrics.watched_tags() if tag.endswith(OF_EPOCH)}
        for member, scalars in self._scalars(members):
            chosen = self._chosen(member, scalars, watched)
            of_epoch = ({f"{tag}{OF_EPOCH}": value for tag, value in tags.items()} for tags in (scalars, chosen))
            self._host.metrics.write(member.name, *of_epoch)

    @staticmethod
    def _scalars(members: Sequence[Member]) -> Iterator[tuple[Member, dict[str, float]]]:
        """The scalars of the latest reports by member, each tag once."""
        written = set[str]()
        for member in (member for member in members if not member.live.unused):
            kind = member.kind.prefix
            peers = [peer for peer in members if peer.kind.prefix == kind]  # for instance on different modules
            report = member.latest_report
            scalars = {tag: value for tag, value in member.live.scalars(report).items() if tag not in written}
            written.update(scalars)
            if member is peers[-1]:
                scalars.update(_alert_counts(kind, kinds_of(member.kind.report_type), peers))
            yield member, scalars

    @staticmethod
    def _chosen(member: Member, scalars: Mapping[str, float], watched: Collection[str]) -> dict[str, float]:
        """Those of the scalars that loggers get."""
        return member.publishing.scalars.chosen(
            scalars,
            member.kind.prefix,
            member.live.n_modules,
            (alert.site for alert in member.latest_report.alerts),
            watched,
            member.live.not_logged_by_default(),
        )

    def write_verdict(self, members: Sequence[Member], last: bool = False) -> None:
        """Write the verdict and the open alerts as text, where these have changed and at the end.

        Args:
            members: All of them.
            last: Whether training is over.
        """
        alerts = open_alerts(members)
        lines = [f"**{markdown_text(verdict_of(members).headline)}**", ""]
        for alert in alerts[:MOST_ALERTS]:
            what, *more = (line.strip() for line in str(alert).splitlines())
            lines.append("  \n  ".join([f"- {markdown_text(what)}", *map(markdown_text, more)]))  # two blanks: a new line
        lines += [f"- … and {len(alerts) - MOST_ALERTS} more"] if len(alerts) > MOST_ALERTS else []
        text = "\n".join(lines)
        problems: list[tuple[str, str]] = [(alert.severity, alert.name) for alert in alerts]
        if text != self._verdict if last else [problems] != self._problems[-1:] and len(self._problems) < MOST_VERDICTS:
            self._problems.append(problems)
            self._verdict = text
            self._host.trackers.text(VERDICT, text, self._host.metrics.step)

    def publish(self, members: Sequence[Member], last: bool = False) -> None:
        """Write charts, the table of sites, histograms and figures, after each member has made its report.

        Args:
            members: All of them, in order.
            last: Whether training is over, and all figures are drawn.
        """
        trackers, step = self._host.trackers, self._host.metrics.step
        if not trackers:
            return
        if not last and not any(member.publishing.introduced for member in members):
            _introduce(trackers, self._host, members)
        kinds: dict[str, int] = {}
        for member in members:
            prefix = member.kind.prefix
            kinds[prefix] = number = kinds.get(prefix, 0) + 1  # there may be two of a kind
            publishing, report = member.publishing, member.report
            if report is None:
                continue
            if not last:
                publishing.remember(report, member.histograms)
                trackers.histograms({f"{prefix}/{site}/histogram": found for site, found in member.histograms.items()}, step)
            if trackers.shows_pictures and publishing.due(last):
                folder = f"{prefix}/figures" + f"-{number}" * (number > 1)
                member.history.add(report)
                for name, draw in publishing.fresh(_figures(member, last)).items():
                    self._drawing = self._drawing or DrawingThread()
                    self._drawing.ask(f"{folder}/{name}", draw, step)
        self.write_figures(last)
        trackers.save()

    def write_figures(self, last: bool = False) -> None:
        """Write the figures that are drawn; at the end all of them, and the thread ends."""
        drawing = self._drawing
        if drawing is None:
            return
        try:
            drawing.write(self._host.trackers, wait=last)
        finally:
            if last:
                self._drawing = None
                drawing.close()


def _alert_counts(prefix: str, kinds: Iterable[str], peers: Sequence[Member]) -> dict[str, float]:
    counts = dict.fromkeys(kinds, 0.0)
    for kind, _ in {(alert.kind, alert.site) for peer in peers if peer.report for alert in peer.latest_report.alerts}:
        counts[kind] = counts.get(kind, 0.0) + 1
    return {f"{prefix}/alerts/{kind}": count for kind, count in counts.items()}


def _figures(member: Member, last: bool) -> Figures:
    try:
        figures = dict(member.live.figures(evenly(list(member.history.reports), MOST_PICTURED), member.publishing.written, last))
        if member.live.histograms is not None:
            from lightning_hooks.plots import colourful_dimension

            of = member.kind.histogram_of
            figures["colourful dimension"] = partial(colourful_dimension, **member.publishing.colourful(), value=of)
    except Exception as error:  # noqa: BLE001  an error in a figure is not the training's
        warn(f"The pictures of {member.name} could not be chosen: {type(error).__name__}: {error}.")
        return {}
    return figures


def _introduce(trackers: Trackers, host: Host, members: Sequence[Member]) -> None:
    layout: dict[str, dict[str, Chart]] = {
        "Training": dict(training_charts(host.metrics.logged)),
        "Alerts": {},
    }  # the user's own first
    for member in members:
        member.publishing.introduced = True
        every = {**member.live.charts(member.publishing.written), "Alerts": {"alerts of each kind": Lines((".+/alerts/.+$",))}}
        for category, charts in every.items():
            layout.setdefault(category, {}).update(charts)
    trackers.layout({category: charts for category, charts in layout.items() if charts})
    trackers.table("sites", SITE_COLUMNS, _sites(host.model, members), host.metrics.step)


def _sites(model: nn.Module, members: Sequence[Member]) -> list[list[object]]:
    """What is observed: name, type, own parameters, by which members."""
    modules = dict(named_sites(model))
    parameters = {clean_name(name): parameter for name, parameter in model.named_parameters()}
    observers: dict[str, list[str]] = {}
    for member in members:
        for name in member.live.names:
            observers.setdefault(name, []).append(member.kind.prefix)
    rows: list[list[object]] = []
    known = [name for name in observers if name in modules or name in parameters]
    for name in known[:MOST_SITES]:
        if name in modules:
            kind, size = type(modules[name]).__name__, _elements(modules[name].parameters())
        else:
            kind, size = "parameter", _elements([parameters[name]])
        rows.append([name, kind, size, ", ".join(dict.fromkeys(observers[name]))])
    if len(known) > MOST_SITES:
        rows.append([f"… and {len(known) - MOST_SITES} more", "", None, ""])
    return rows


def _elements(parameters: Iterable[torch.nn.Parameter]) -> int:
    return sum(parameter.numel() for parameter in parameters if not is_lazy(parameter))
