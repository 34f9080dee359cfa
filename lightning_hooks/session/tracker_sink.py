"""What trackers and ``callback_metrics`` get of a run: scalars, the table of alerts, histograms, figures, and the verdict."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from typing_extensions import override

from lightning_hooks.alerts import Alert, kinds_of
from lightning_hooks.declare.host import Host
from lightning_hooks.declare.warn import Once, warn
from lightning_hooks.session.closing import open_alerts, verdict_of
from lightning_hooks.session.logged import MOST_PICTURED, evenly
from lightning_hooks.session.member import Member
from lightning_hooks.sinks import Notice, Sink
from lightning_hooks.trackers import Trackers
from lightning_hooks.trackers.console import markdown_text
from lightning_hooks.trackers.tracker import Picture

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from lightning_hooks.declare.collector import Figures

OF_EPOCH = "_epoch"
"""What is appended to the tags of an epoch that had several windows."""
MOST_ALERTS = 10
"""Alerts in the verdict."""
VERDICT = "Verdict"
"""The tag of the verdict: trackers sort by tag, capitals first."""
MOST_VERDICTS = 50
"""Verdicts that are written in a run, next to the last one."""
ALERT_COLUMNS = (
    "severity",
    "kind",
    "site",
    "value",
    "threshold",
    "epoch",
    "step",
    "batch",
    "probability",
    "what was seen, the likely cause, what to try",
)
"""Of the table of alerts in the trackers."""
MOST_SHOWN = 200
"""Rows of that table at one step."""
MOST_WAITING = 64
"""Pictures that may wait; above, an epoch's end waits for the oldest."""


class TrackerSink(Sink):
    """Writes what members report to the trackers of one run, and to what checkpoints and early stopping watch.

    The list of members is the session's, and changes with it.
    """

    def __init__(self, host: Host, members: Sequence[Member]) -> None:
        self._host, self._members = host, members
        self._drawing: DrawingThread | None = None
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
            chosen = member.log.chosen(
                scalars,
                member.live.n_modules,
                (alert.site for alert in member.latest_report.alerts),
                watched,
                member.live.not_logged_by_default,
            )
            tagged = [{f"{tag}{end}": value for tag, value in tags.items()} if end else tags for tags in (scalars, chosen)]
            self._host.metrics.write(member.name, *tagged)

    @override
    def alerts(self, notices: Sequence[Notice]) -> None:
        serious = [notice.alert for notice in notices if notice.over is None and notice.alert.severity != "info"]
        if serious:
            _show(self._host.metrics.trackers, serious, self._host.metrics.step)

    @override
    def window_end(self, members: Sequence[Member]) -> None:
        self.publish(members)
        self.write_verdict()

    @override
    def end(self, end: Mapping[str, Any], headline: str) -> None:
        try:
            if end["how"] == "finished":
                self.publish(self._members, last=True)
            self.write_figures(last=True)
        finally:
            self.write_verdict(last=True)

    @staticmethod
    def _scalars(members: Sequence[Member]) -> Iterator[tuple[Member, dict[str, float]]]:
        """The scalars of the latest reports by member, each tag once."""
        written = set[str]()
        for member in (member for member in members if not member.live.unused):
            kind = member.kind.prefix
            peers = [peer for peer in members if peer.kind.prefix == kind]  # for instance on different modules
            report = member.latest_report
            scalars = member.live.scalars(report)
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
                for name, draw in log.fresh(_figures(member, last)).items():
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
            drawing.write(self._host.metrics.trackers, wait=last)
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
        return member.live.figures(evenly(list(member.history.reports), MOST_PICTURED), member.log.written, last)
    except Exception as error:  # noqa: BLE001  an error in a figure is not the training's
        warn(f"The pictures of {member.name} could not be chosen: {type(error).__name__}: {error}.")
        return {}


def _show(trackers: Trackers, alerts: Sequence[Alert], step: int) -> None:
    """Write a table of new alerts to the trackers."""
    rows: list[tuple[object, ...]] = [
        (
            a.severity,
            a.kind,
            a.where,
            a.value,
            a.threshold,
            a.epoch,
            a.since_step,
            a.batch,
            a.probability,
            f"{a.text} {a.follows}".strip(),
        )
        for a in alerts[:MOST_SHOWN]
    ]
    if len(alerts) > MOST_SHOWN:
        rows.append(("", "", f"… and {len(alerts) - MOST_SHOWN} more", None, None, alerts[0].epoch, None, None, None, ""))
    trackers.table("alerts", ALERT_COLUMNS, rows, step)
    trackers.save()


class DrawingThread:
    """Draws pictures one after the other in a thread, and writes them in the order in which they were asked for."""

    def __init__(self) -> None:
        # Here, and not in the thread: a process that is forked meanwhile must not find half an import.
        import matplotlib.backends.backend_agg  # noqa: F401
        import PIL.Image  # noqa: F401

        self._executor = ThreadPoolExecutor(1, thread_name_prefix="lightning_hooks figures")
        self._waiting: deque[tuple[str, int, Future[Picture]]] = deque()
        self._warn_once = Once()

    def ask(self, tag: str, draw: Callable[[], Figure], step: int) -> None:
        """Have a picture drawn; it is written under its tag and step by a later :meth:`write`."""
        self._waiting.append((tag, step, self._executor.submit(lambda: Picture.of_figure(draw()))))

    def write(self, trackers: Trackers, wait: bool = False) -> None:
        """Write what is drawn, the oldest first, on the thread that calls. Without ``wait`` it waits only where too many do."""
        while self._waiting and (wait or self._waiting[0][2].done() or len(self._waiting) > MOST_WAITING):
            tag, step, drawn = self._waiting.popleft()
            try:
                picture = drawn.result()
            except Exception as error:  # noqa: BLE001  a picture's trouble is not the training's
                what = f"The picture {tag} could not be drawn: {type(error).__name__}: {error}. Training goes on."
                self._warn_once(what, about=tag)
            else:
                trackers.picture(tag, picture, step)

    def close(self) -> None:
        """End the thread; what was not drawn yet never is."""
        self._executor.shutdown(wait=True, cancel_futures=True)
        self._waiting.clear()
