"""What trackers and ``callback_metrics`` get of a run: scalars, the table of alerts, histograms, figures, and the verdict."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from operator import attrgetter
from typing import Any

from typing_extensions import override

from lightning_hooks.alerts import kinds_of
from lightning_hooks.declare.host import Host
from lightning_hooks.declare.warn import Once
from lightning_hooks.run_report.training import thinned
from lightning_hooks.session.logged import MOST_PICTURED
from lightning_hooks.session.member import Member
from lightning_hooks.session.terminal import open_alerts, verdict_of
from lightning_hooks.sinks import Notice, Sink
from lightning_hooks.trackers.console import markdown_text
from lightning_hooks.trackers.tracker import Picture

OF_EPOCH = "_epoch"  # what is appended to the tags of an epoch that had several windows
MOST_ALERTS = 10  # alerts in the verdict
VERDICT = "Verdict"  # the tag of the verdict: trackers sort by tag, capitals first
MOST_VERDICTS = 50  # verdicts that are written in a run, next to the last one
# Of the table of alerts in the trackers
ALERT_COLUMNS = (
    *("severity", "kind", "site", "value", "threshold", "epoch", "step", "batch", "probability"),
    "what was seen, the likely cause, what to try",
)
_CELLS = attrgetter("severity", "kind", "where", "value", "threshold", "epoch", "since_step", "batch", "probability")
MOST_SHOWN = 200  # rows of that table at one step


class TrackerSink(Sink):
    """Writes what members report to the trackers of one run, and to what checkpoints and early stopping watch.

    The list of members is the session's, and changes with it.
    """

    def __init__(self, host: Host, members: Sequence[Member]) -> None:
        self._host, self._members = host, members
        self._warn_once = Once()
        self._verdict = ""  # as it was written last
        self._problems: list[list[tuple[str, str]]] = []  # of each verdict that was written

    @override
    def reports(self, members: Sequence[Member], of_epoch: bool = False) -> None:
        """Log the scalars; those of an epoch that had several windows as ``<tag>_epoch``.

        Each tag is written once, by the first member that has it.
        """
        watched: Collection[str] = self._host.metrics.watched_tags()
        if of_epoch:
            watched = {tag.removesuffix(OF_EPOCH) for tag in watched if tag.endswith(OF_EPOCH)}
        end = OF_EPOCH * of_epoch
        for member, scalars in self._scalars(members):
            live, alerted = member.live, (alert.site for alert in member.latest_report.alerts)
            chosen = member.log.chosen(scalars, live.n_modules, alerted, watched, live.not_logged_by_default)
            tagged = [{f"{tag}{end}": value for tag, value in tags.items()} if end else tags for tags in (scalars, chosen)]
            self._host.metrics.write(member.name, *tagged)

    @override
    def alerts(self, notices: Sequence[Notice]) -> None:
        serious = [notice.alert for notice in notices if notice.over is None and notice.alert.severity != "info"]
        if not serious:
            return
        rows: list[tuple[object, ...]] = [
            (*_CELLS(alert), f"{alert.text} {alert.follows}".strip()) for alert in serious[:MOST_SHOWN]
        ]
        if len(serious) > MOST_SHOWN:
            rows.append(("", "", f"… and {len(serious) - MOST_SHOWN} more", None, None, serious[0].epoch, None, None, None, ""))
        self._host.metrics.trackers.table("alerts", ALERT_COLUMNS, rows, self._host.metrics.step)
        self._host.metrics.trackers.save()

    @override
    def window_end(self, members: Sequence[Member]) -> None:
        self.publish(members)
        self.write_verdict()

    @override
    def end(self, end: Mapping[str, Any], headline: str) -> None:
        try:
            if end["how"] == "finished":
                self.publish(self._members, last=True)
        finally:
            self.write_verdict(last=True)

    @staticmethod
    def _scalars(members: Sequence[Member]) -> Iterator[tuple[Member, dict[str, float]]]:
        """The scalars of the latest reports by member, each tag once."""
        written = set[str]()
        for member in (member for member in members if not member.live.unused):
            kind = member.kind.prefix
            peers = [peer for peer in members if peer.kind.prefix == kind]  # for instance on different modules
            scalars = member.live.scalars(member.latest_report)
            if not written.isdisjoint(scalars):
                scalars = {tag: value for tag, value in scalars.items() if tag not in written}
            written.update(scalars)
            if member is peers[-1]:
                scalars.update(_alert_counts(kind, kinds_of(member.kind.report_type), peers))
            yield member, scalars

    def write_verdict(self, last: bool = False) -> None:
        """Write the verdict and the open alerts as text, where these have changed, and when training is over."""
        members = self._members
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
            self._host.metrics.trackers.text(VERDICT, text, self._host.metrics.step)

    def publish(self, members: Sequence[Member], last: bool = False) -> None:
        """Write histograms and figures of windows that have ended; at the ``last`` all figures."""
        trackers, step = self._host.metrics.trackers, self._host.metrics.step
        if not trackers:
            return
        kinds: dict[str, int] = {}
        for member in members:
            prefix = member.kind.prefix
            kinds[prefix] = number = kinds.get(prefix, 0) + 1  # there may be two of a kind
            log, report = member.log, member.report
            if report is None:
                continue
            if not last:
                log.remember(report)
                trackers.histograms({f"{prefix}/{site}/histogram": found for site, found in member.histograms.items()}, step)
            if trackers.shows_pictures and log.due(last):
                folder = f"{prefix}/figures" + f"-{number}" * (number > 1)
                member.history.add(report)
                self._draw(member, folder, last)
        trackers.save()

    def _draw(self, member: Member, folder: str, last: bool) -> None:
        try:
            reports = thinned([*member.history.reports], MOST_PICTURED)
            for name, draw in member.log.fresh(member.live.figures(reports, member.log.written, last)).items():
                self._host.metrics.trackers.picture(f"{folder}/{name}", Picture.of_figure(draw()), self._host.metrics.step)
        except Exception as error:  # noqa: BLE001  a picture's trouble is not the training's
            what = f"The pictures of {member.name} could not be drawn: {type(error).__name__}: {error}. Training goes on."
            self._warn_once(what, about=member.name)


def _alert_counts(prefix: str, kinds: Iterable[str], peers: Sequence[Member]) -> dict[str, float]:
    found = {(alert.kind, alert.site) for peer in peers if peer.report for alert in peer.latest_report.alerts}
    counts = {**dict.fromkeys(kinds, 0), **Counter(kind for kind, _ in found)}
    return {f"{prefix}/alerts/{kind}": float(count) for kind, count in counts.items()}
