"""A run's files, written by all monitors of a trainer together: each epoch's reports, and at the end what they say."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary, ref

import torch
from lightning.pytorch import LightningModule, Trainer
from lightning.pytorch.utilities import rank_zero_info, rank_zero_warn
from torch.nn.parameter import is_lazy

from lightning_hooks.callbacks.beside_bar import beside_bar
from lightning_hooks.callbacks.closing import conclude_in_print
from lightning_hooks.callbacks.described import layers, learning_rates, mean_loss
from lightning_hooks.callbacks.run_folder import run_folder, temporary_folder
from lightning_hooks.run_report.budget import MOST_BYTES, thin
from lightning_hooks.run_report.files import write_health
from lightning_hooks.run_report.lines import ALERTS, FOLDER, REPORTS, VERSION, Memory, append, line, report_line
from lightning_hooks.run_report.run import read_run
from lightning_hooks.run_report.verdict import judge

if TYPE_CHECKING:
    from lightning_hooks.callbacks.recorded import Recorded

LONGEST_ERROR = 500

_OPEN: WeakKeyDictionary[Trainer, dict[Path, Recorder]] = WeakKeyDictionary()


class Recorder:
    """Writes what the monitors of one fit say into ``lightning_hooks/`` in a log directory.

    A disk that is full, or a directory that cannot be written, is told once; then nothing more is written and training goes on.

    Args:
        folder: The log directory.
        fit: What the ``fit`` event says.
    """

    def __init__(self, folder: Path, fit: dict[str, Any]) -> None:
        self.file = folder / FOLDER / REPORTS
        self._fit: dict[str, Any] | None = fit
        self._trainer: Callable[[], Trainer | None] = lambda: None
        self._present: list[Recorded] = []
        self._members: list[Recorded] = []  # all that joined
        self._recorded: dict[int, int] = {}  # id of a monitor -> the epoch that was written last
        self._most = MOST_BYTES
        self._memories: dict[int, Memory] = {}  # id of a monitor -> what its lines hold
        self._began = time.perf_counter()
        self._broken = False

    @classmethod
    def join(cls, monitor: Recorded, trainer: Trainer, pl_module: LightningModule) -> Recorder | None:
        """Return the recorder of the fit that starts, made by the first monitor that joins; None if nothing is to be written."""
        if not trainer.is_global_zero:
            return None
        try:
            folder = run_folder(trainer, monitor.report_dir)
            if folder is None:
                return None
            opened = _OPEN.setdefault(trainer, {})
            recorder = opened.get(folder)
            if recorder is None or any(present is monitor for present in recorder._present):  # what an earlier fit may have left
                recorder = opened[folder] = cls(folder, _description(trainer, pl_module))
                recorder._trainer = ref(trainer)
        except Exception as error:  # noqa: BLE001  a logger's trouble is not the training's
            rank_zero_warn(f"There will be no health report: {type(error).__name__}: {error}. Training goes on.")
            return None
        recorder._present.append(monitor)
        recorder._members.append(monitor)
        return recorder

    def epoch_starts(self, monitor: Recorded) -> None:
        """An epoch starts, by the first monitor's clock."""
        if self._present and self._present[0] is monitor:
            self._began = time.perf_counter()

    def write(self, monitors: Sequence[Recorded]) -> None:
        """Write the reports of monitors that were not written yet, and what the epoch took."""
        self._try(lambda: self._write(monitors))

    def _write(self, monitors: Sequence[Recorded]) -> None:
        lines = self._lines(monitors)
        if not lines:
            return
        event: dict[str, Any] = {"epoch": max(self._recorded.values()), "seconds": time.perf_counter() - self._began}
        event["bytes"] = sum(monitor.table_bytes for monitor in monitors)
        event |= self._of_training(monitors)
        self._began = time.perf_counter()
        self._append("".join([*self._start(), *lines, line("epoch", event)]))

    def _append(self, text: str) -> None:
        append(self.file, text)
        if thin(self.file, self._most):
            self._most = max(MOST_BYTES, 2 * self.file.stat().st_size)  # what cannot be left out is not tried again and again
            for memory in self._memories.values():
                memory.forget_names()

    def _of_training(self, monitors: Sequence[Recorded]) -> dict[str, Any]:
        trainer = self._trainer()
        loss = mean_loss(monitor.report for monitor in monitors)
        found: dict[str, Any] = {} if loss is None else {"loss": loss}
        return found if trainer is None else {**found, "lr": learning_rates(trainer)}

    def _lines(self, monitors: Sequence[Recorded]) -> list[str]:
        lines = []
        for monitor in monitors:
            report = monitor.report
            if report is not None and self._recorded.get(id(monitor)) != report.epoch:
                self._recorded[id(monitor)] = report.epoch
                memory = self._memories.setdefault(id(monitor), Memory())
                lines.append(report_line(monitor.prefix, monitor.selection, report, monitor.epoch_end_seconds, memory))
        return lines

    def _start(self) -> list[str]:
        fit, self._fit = self._fit, None
        return [] if fit is None else [line("fit", fit)]

    def leave(self, monitor: Recorded, trainer: Trainer, how: str, error: BaseException | None = None) -> None:
        """Training is over for a monitor; with the last one the run is over and its report is written.

        Args:
            monitor: Which.
            trainer: The trainer.
            how: ``finished``, ``exception``, ``interrupted`` or ``stopped``.
            error: What ended training.
        """
        if not any(present is monitor for present in self._present):
            return
        self.write([monitor])
        self._present = [present for present in self._present if present is not monitor]
        if self._present:
            return
        opened = _OPEN.get(trainer, {})
        for folder in [folder for folder, recorder in opened.items() if recorder is self]:
            del opened[folder]
        end = {"how": how, "epoch": trainer.current_epoch, "step": trainer.global_step, "ended": _now()}
        if error is not None:
            end["error"] = f"{type(error).__name__}: {error}"[:LONGEST_ERROR]
            if how == "exception":
                end |= {"error_type": type(error).__name__, "error_text": str(error)[:LONGEST_ERROR]}
        self._try(lambda: append(self.file, "".join([*self._start(), line("end", end)])))
        self._try(lambda: self._conclude(monitor, trainer))
        if self._broken:
            conclude_in_print(self._members)

    def _conclude(self, monitor: Recorded, trainer: Trainer) -> None:
        run = read_run(self.file)
        written = write_health(run)
        trackers = monitor.trackers(trainer)
        kept = [
            trackers.file(path, trainer.global_step) for path in [*written, self.file, self.file.with_name(ALERTS)] if path.exists()
        ]
        temporary = temporary_folder(trainer)
        place = str(written[0])
        if temporary is not None and self.file.is_relative_to(temporary.path):
            if all(kept):
                place = f"{written[0].name} is among {kept[0][0]}."
            else:
                temporary.keep()
        headline = judge(run).headline
        with beside_bar(trainer):
            if not conclude_in_print(self._members, headline, place):
                rank_zero_info(f"Health report: {headline} {place}")

    def _try(self, write: Callable[[], None]) -> None:
        if self._broken:
            return
        try:
            write()
        except Exception as error:  # noqa: BLE001  a disk's trouble is not the training's
            self._broken = True
            rank_zero_warn(
                f"The health report in {self.file.parent} cannot be written: {type(error).__name__}: {error}. Training goes on "
                "without it, and this is said once. report_dir= names another directory; report_dir=None writes nothing."
            )


def _description(trainer: Trainer, pl_module: LightningModule) -> dict[str, Any]:
    return {
        "version": VERSION,
        "package": _version("lightning-hooks"),
        "torch": str(torch.__version__),
        "lightning": _version("lightning"),
        "started": _now(),
        "model": type(pl_module).__name__,
        "epoch": trainer.current_epoch,
        "step": trainer.global_step,
        "max_epochs": trainer.max_epochs,
        "precision": str(trainer.precision),
        "devices": trainer.world_size,
        "accelerator": type(trainer.accelerator).__name__,
        "optimizers": ", ".join(type(optimizer).__name__ for optimizer in trainer.optimizers),
        "parameters": sum(parameter.numel() for parameter in pl_module.parameters() if not is_lazy(parameter)),
        "layers": layers(pl_module),
    }


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return "unknown"


def _now() -> str:
    return datetime.now(timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")
