"""A run's files: each window's reports, and at the end the health report of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

import torch
from torch.nn.parameter import is_lazy

from lightning_hooks.declare.warn import info, warn
from lightning_hooks.hosts.host import Host
from lightning_hooks.run_report.budget import MOST_BYTES, thin
from lightning_hooks.run_report.files import write_health
from lightning_hooks.run_report.lines import ALERTS, FOLDER, REPORTS, VERSION, Memory, append, line, position, report_line
from lightning_hooks.run_report.run import MOST_EPOCHS, read_run
from lightning_hooks.session.closing import print_closing, verdict_of
from lightning_hooks.session.described import layers, learning_rates, mean_loss
from lightning_hooks.session.member import Member


class RunRecord:
    """Writes what members report into ``lightning_hooks/`` in one log directory.

    Where the disk is full, or the directory cannot be written, one warning says so; then nothing more is written and training goes
    on.

    Args:
        host: The training loop.
        folder: The log directory.

    Attributes:
        members: Those whose reports it writes.
    """

    def __init__(self, host: Host, folder: Path) -> None:
        self._host = host
        self.file = folder / FOLDER / REPORTS
        self.members: list[Member] = []
        self._fit: dict[str, Any] | None = _description(host)
        self._written: dict[int, Any] = {}  # id of a member -> the report that was written last
        self._most = MOST_BYTES
        self._windows = 0  # in the file, about
        self._memory = Memory()
        self._began = time.perf_counter()
        self._broken = False

    def epoch_start(self) -> None:
        """An epoch starts."""
        self._began = time.perf_counter()

    def write(self) -> None:
        """Write the reports that were not written yet, and what the epoch took."""
        self._try(self._write)

    def _write(self) -> None:
        reports = list(self._new_reports())
        if not reports:
            return
        start = self._start()
        lines = [
            report_line(member.kind.prefix, member.selection, report, member.window_end_seconds, self._memory)
            for member, report in reports
        ]
        event: dict[str, Any] = {**position(reports[-1][1]), "seconds": time.perf_counter() - self._began}
        event["bytes"] = sum(member.table_bytes for member in self.members if not member.live.unused)
        event |= self._of_training()
        self._began = time.perf_counter()
        self._append("".join([*start, *lines, line("epoch", event)]))

    def _append(self, text: str) -> None:
        append(self.file, text)
        self._windows += 1
        many = self._windows > 2 * MOST_EPOCHS
        if thin(self.file, self._most, MOST_EPOCHS if many else None):
            self._most = max(MOST_BYTES, 2 * self.file.stat().st_size)  # what cannot be left out is not tried again and again
            self._windows = MOST_EPOCHS if many else self._windows
            self._memory.forget_names()

    def _of_training(self) -> dict[str, Any]:
        loss = mean_loss(member.report for member in self.members)
        return {**({} if loss is None else {"loss": loss}), "lr": learning_rates(self._host.optimizers)}

    def _new_reports(self) -> Iterator[tuple[Member, Any]]:
        for member in self.members:
            report = member.report
            if report is not None and not member.live.unused and self._written.get(id(member)) is not report:
                self._written[id(member)] = report
                yield member, report

    def _start(self) -> list[str]:
        fit, self._fit = self._fit, None
        return [] if fit is None else [line("fit", fit, self._memory)]

    def close(self, end: Mapping[str, Any]) -> None:
        """Training is over: write the health report, and print the closing lines.

        Args:
            end: From :func:`~lightning_hooks.session.closing.ending`.
        """
        self.write()
        self._try(lambda: append(self.file, "".join([*self._start(), line("end", {**end, "ended": _now()})])))
        self._try(self._conclude)
        if self._broken:
            print_closing(self.members)

    def _conclude(self) -> None:
        run = read_run(self.file)
        written = write_health(run)
        trackers = self._host.trackers
        files = [path for path in [*written, self.file, self.file.with_name(ALERTS)] if path.exists()]
        kept = [trackers.file(path, self._host.position.global_step) for path in files]
        place = self._host.files.place(written[0], kept[0], all(kept))
        with self._host.console.printing():
            if not print_closing(self.members, place):
                info(f"Monitors: {verdict_of(self.members).headline} Health report: {place}")

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


def _description(host: Host) -> dict[str, Any]:
    model, known = host.model, host.setup.description
    return {
        "version": VERSION,
        "package": _version("lightning-hooks"),
        "torch": str(torch.__version__),
        "lightning": _version("lightning"),
        "started": _now(),
        "model": type(model).__name__,
        "epoch": host.position.epoch,
        "step": host.position.global_step,
        "max_epochs": known.get("max_epochs"),
        "precision": known.get("precision", ""),
        "devices": host.setup.world_size,
        "accelerator": known.get("accelerator", ""),
        "optimizers": ", ".join(type(optimizer).__name__ for optimizer in host.optimizers),
        "parameters": sum(parameter.numel() for parameter in model.parameters() if not is_lazy(parameter)),
        "layers": layers(model),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
