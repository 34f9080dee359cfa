"""A run's files: each window's reports and what is known of the run's health, and at the end the health report of them."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timezone
from itertools import islice
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.parameter import is_lazy
from typing_extensions import override

from lightning_hooks.alerts import Alert
from lightning_hooks.declare.host import Host
from lightning_hooks.declare.step import groups_of
from lightning_hooks.declare.warn import info, warn
from lightning_hooks.declare.window import Window
from lightning_hooks.diagnostics.setup.initial import on_host
from lightning_hooks.hooks.selection import named_sites
from lightning_hooks.hooks.tensors import has_values, read_number
from lightning_hooks.replay.capsule import version_of
from lightning_hooks.run_report.health import HEALTH, Health, MonitorScope
from lightning_hooks.run_report.lines import (
    ALERTS,
    ALERTS_VERSION,
    FOLDER,
    MOST_BYTES,
    REPORTS,
    VERSION,
    Memory,
    append,
    line,
    position,
    report_line,
    write_whole,
)
from lightning_hooks.run_report.page import write_health
from lightning_hooks.run_report.recorded import Source
from lightning_hooks.run_report.run import read_run, run_name
from lightning_hooks.session.member import Member
from lightning_hooks.session.sinks import Sinks
from lightning_hooks.session.sources import Sources
from lightning_hooks.session.terminal import command_for, print_closing, verdict_of
from lightning_hooks.sinks import Notice, Sink

MOST_LAYERS = 2000
LONGEST_DETAIL = 90
MOST_METRICS = 32  # of the user's metrics that are kept, the first ones


def open_record(member: Member, host: Host, sinks: Sinks) -> None:
    """Record the reports of a member from now on, in the folder of its settings, if it has one."""
    member.folder = None
    if not host.setup.is_global_zero:
        return
    try:
        member.folder = folder = host.files.folder(member.settings.report_dir or None)
        if folder is not None:
            record = next((sink for sink in sinks if isinstance(sink, RunRecord) and sink.folder == folder), None)
            if record is None:
                sinks.add(record := RunRecord(host, folder))
            record.members.append(member)
    except Exception as error:  # noqa: BLE001  a logger's error is not the training's
        warn(f"There will be no health report: {type(error).__name__}: {error}. Training goes on; report_dir= names a directory.")


class RunRecord(Sink):
    """Writes what members report, and the run's alerts, into ``lightning_hooks/`` in one log directory.

    Where the disk is full, or the directory cannot be written, one warning says so; then nothing more is written and training goes
    on.
    """

    def __init__(self, host: Host, folder: Path) -> None:
        self._host, self.folder = host, folder
        self.file = folder / FOLDER / REPORTS
        self.members: list[Member] = []
        self._fit = _description(host)
        self._started = False  # whether the file has that
        self._written: dict[int, Any] = {}  # id of a member -> the report that was written last
        self._windows = 0
        self._thinned = False  # the last reports were written without their tables
        self._memory = Memory()
        self._began = perf_counter()
        self._broken = False
        self._model_sources: Sources | None = None
        self._sources: dict[str, Source] = {}  # of the sites that had an alert
        self._first: dict[tuple[Any, ...], Alert] = {}  # each alert as it was written first
        self._event: dict[str, Any] = {}  # the last window's, but for what its report says
        self._metrics: Mapping[str, Any] = {}  # the user's, as they were then

    @override
    def epoch_start(self) -> None:
        self._try(self._add_metrics)
        self._began = perf_counter()

    @override
    def alerts(self, notices: Sequence[Notice]) -> None:
        records = (json.dumps(_alert_record(notice)) + "\n" for notice in notices)
        self._try(lambda: append(self.file.with_name(ALERTS), "".join(records)))

    @override
    def window_end(self, members: Sequence[Any]) -> None:
        """Write the reports that were not written yet, and what the epoch took."""
        self._try(self._write)

    def _write(self, last: bool = False) -> None:
        used = [member for member in self.members if not member.live.unused]
        again = last and self._thinned
        reports = [(m, m.report) for m in used if m.report is not None and (again or self._written.get(id(m)) is not m.report)]
        if not reports:
            return
        size = self.file.stat().st_size if self.file.exists() else 0
        self._thinned = not last and self._windows % 2 ** (size // MOST_BYTES) > 0
        self._windows += 1
        self._written.update((id(member), report) for member, report in reports)
        start = self._start()
        lines = [
            report_line(member.kind.prefix, member.selection, report, member.window_end_seconds, self._memory, not self._thinned)
            for member, report in reports
        ]
        loss = Window(member.report for member in self.members).loss
        self._event = {
            **position(reports[-1][1]),
            "seconds": perf_counter() - self._began,
            "bytes": sum(member.table_bytes for member in used),
            **({} if loss is None else {"loss": loss}),
            "lr": learning_rates(self._host.optimizers),
        }
        self._take_metrics()
        self._began = perf_counter()
        health = self._health()
        append(self.file, "".join([*start, *lines, *self._source_lines(health), line("epoch", self._event)]))
        write_whole(self.file.with_name(HEALTH), health.text())

    def _take_metrics(self) -> bool:
        """Take the user's metrics with a new value since the last call, of ``acc_step``, ``acc_epoch`` and ``acc`` the last one."""
        known = {name: value for name, value in self._host.metrics.available.items() if isinstance(value, Tensor)}
        before, self._metrics = self._metrics, known
        names = [name for name in known if not (name.endswith(("_step", "_epoch")) and name.rpartition("_")[0] in known)]
        new = {name: known[name].detach() for name in names[:MOST_METRICS] if known[name] is not before.get(name)}
        new = {name: value.reshape(()).float() for name, value in new.items() if value.numel() == 1 and has_values(value)}
        if new:
            self._event["metrics"] = {**self._event.get("metrics", {}), **dict(zip(new, on_host([*new.values()]), strict=True))}
        return bool(new)

    def _add_metrics(self) -> None:
        """Write the last window's event again with the metrics that were computed after it, as those of an epoch are."""
        if self._take_metrics() and "seconds" in self._event:
            append(self.file, line("epoch", self._event))

    def _health(self) -> Health:
        used = [member for member in self.members if not member.live.unused]
        watched = [MonitorScope(m.kind.prefix, m.selection, self._as_written(m), m.alerting.rules.kinds) for m in used]
        end = next((member.end for member in self.members), None)
        return Health(run_name(self.file), self._fit, verdict_of(self.members), watched, end, self._sources)

    def _as_written(self, member: Member) -> Any:
        """The last report with its alerts as the run's file has them: as they were first, with the cause that they have now."""
        report = member.report
        if report is None:
            return None
        marks = {(member.kind.prefix, member.selection, a.kind, a.site, a.severity, a.since_step): a for a in report.alerts}
        alerts = [dataclasses.replace(self._first.setdefault(mark, a), cause=a.cause) for mark, a in marks.items()]
        return dataclasses.replace(report, alerts=tuple(alerts))

    def _source_lines(self, health: Health) -> Iterator[str]:
        """Look up where the modules of new alerts come from; a line for each."""
        for site in [site for site in health.sites() if site not in self._sources]:
            self._model_sources = self._model_sources or Sources(self._host.model)
            source = self._model_sources.of(site)
            if source is not None:
                self._sources[site] = source
                yield line("source", {"site": site, **dataclasses.asdict(source)})

    def _start(self) -> list[str]:
        if self._started:
            return []
        self._started = True
        kinds = [
            {"monitor": member.kind.prefix, "modules": member.selection, "kinds": member.alerting.rules.kinds}
            for member in self.members
        ]
        return [line("fit", {**self._fit, "watched": kinds})]

    @override
    def end(self, end: Mapping[str, Any], headline: str) -> None:
        """Training is over: write the health report, and print the closing lines."""
        self._try(lambda: self._write(last=True))
        self._try(self._add_metrics)
        self._try(lambda: append(self.file, "".join([*self._start(), line("end", {**end, "ended": _now()})])))
        self._try(self._conclude)
        if self._broken:
            print_closing(self.members)

    def _conclude(self) -> None:
        write_whole(self.file.with_name(HEALTH), self._health().text())
        written = write_health(read_run(self.file))
        trackers = self._host.metrics.trackers
        for path in filter(Path.exists, (*written, self.file, self.file.with_name(ALERTS), self.file.with_name(HEALTH))):
            trackers.file(path, self._host.position.global_step)
        with self._host.console.printing():
            if not print_closing(self.members, str(written[0]), command_for(self.file.parent.parent)):
                info(f"Monitors: {verdict_of(self.members).headline} Health report: {written[0]}")

    def _try(self, write: Callable[[], None]) -> None:
        if self._broken:
            return
        try:
            write()
        except Exception as error:  # noqa: BLE001  an error of the disk is not the training's
            self._broken = True
            warn(
                f"The health report in {self.file.parent} cannot be written: {type(error).__name__}: {error}. Training goes on "
                "without it, and this warning is shown once. report_dir= names another directory; report_dir=None writes nothing."
            )


def _alert_record(notice: Notice) -> dict[str, Any]:
    """A line of the file of alerts: the same fields for every event."""
    alert, over = notice.alert, notice.over
    event, first, last = (
        ("raised", alert.epoch, alert.epoch) if over is None else ("cleared", over.passed_on.epoch, over.last_epoch)
    )
    return {
        "version": ALERTS_VERSION,
        "event": event,
        "monitor": notice.member.kind.prefix,
        **alert.record(),
        "first_epoch": first,
        "last_epoch": last,
    }


def _description(host: Host) -> dict[str, Any]:
    model, known = host.model, host.setup.description
    return {
        "version": VERSION,
        "package": version_of("lightning-hooks"),
        "torch": str(torch.__version__),
        "lightning": version_of("lightning"),
        "started": _now(),
        "model": type(model).__name__,
        "epoch": host.position.epoch,
        "step": host.position.global_step,
        "max_epochs": known.get("max_epochs"),
        "precision": known.get("precision", ""),
        "devices": host.setup.world_size,
        "accelerator": known.get("accelerator", ""),
        "optimizers": ", ".join(type(optimizer).__name__ for optimizer in host.optimizers),
        "parameters": elements(model.parameters()),
        "layers": layers(model),
    }


def elements(parameters: Iterable[nn.Parameter]) -> int:
    """How many elements parameters have, without those that have no shape yet."""
    return sum(parameter.numel() for parameter in parameters if not is_lazy(parameter))


def layers(model: nn.Module) -> dict[str, list[Any]]:
    """The leaves of a model by columns: name, type, what its ``repr`` says of its shape, number of its parameters."""
    leaves = islice(((name, module) for name, module in named_sites(model) if next(module.children(), None) is None), MOST_LAYERS)
    rows = [
        (
            name,
            type(module).__name__,  # extra_repr of a user's own module, or of a parametrised one, is not called
            module.extra_repr()[:LONGEST_DETAIL] if type(module).__module__.startswith("torch.nn.modules.") else "",
            elements(module.parameters()),
        )
        for name, module in leaves
    ]
    return {column: [row[place] for row in rows] for place, column in enumerate(("name", "type", "detail", "parameters"))}


def learning_rates(optimizers: Iterable[Any]) -> dict[str, float]:
    """The learning rate of each parameter group now, by the name that LearningRateMonitor gives it, numbered like the reports.

    A group whose ``lr`` is not one number is left out.
    """
    rates = {
        name if len(groups) == 1 else f"{name}/pg{place}": read_number(group.get("lr"))
        for name, groups in groups_of(optimizers)
        for place, group in enumerate(groups, 1)
    }
    return {name: rate for name, rate in rates.items() if rate is not None}


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
