"""A run's file that may still be written: each time only its new lines are read."""

from __future__ import annotations

import json
import os
import stat
from pathlib import Path

from lightning_hooks.run_report.events import KnownNames, checked
from lightning_hooks.run_report.recorded import Run
from lightning_hooks.run_report.run import RunReader, windows_written

MOST_BYTES = 256_000_000
"""Of a file that is read; the monitors keep theirs below some 8 MB."""
MOST_NUMBERS = 100_000_000
"""Of a run in memory."""
COUNTED_EVERY = 16
MOST_LINE = 64_000_000
UNREADABLE = (TypeError, ValueError, KeyError, OverflowError, RecursionError, AttributeError, IndexError)


class RunFile:
    """Reads a run, and goes on where it was when the file has grown.

    Args:
        path: The file.
        name: What the run is called.
        tables: Whether numbers are kept; without them a list of many runs is small.
    """

    def __init__(self, path: Path, name: str, tables: bool) -> None:
        self.path, self._name, self._tables = path, name, tables
        self._mark: tuple[int, int, int] = (0, 0, 0)  # device, inode, size
        self._modified = 0
        self._begin()

    def _begin(self) -> None:
        self.run = Run(self.path.parent, self._name)
        self._reader = RunReader(self.run, tables=self._tables)
        self._names = KnownNames()
        self._offset = 0
        self._reports = 0

    def update(self) -> bool:
        """Read what is new; whether there was anything.

        Raises:
            OSError: If the file cannot be read.
            ValueError: If it is no plain file, or larger than what is read.
        """
        descriptor = os.open(self.path, os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0))
        with open(descriptor, "rb") as file:  # noqa: PTH123  the descriptor of a link would be that of what it points to
            known = os.fstat(descriptor)
            if not stat.S_ISREG(known.st_mode):
                raise ValueError(f"{self.path.name} is no plain file.")
            if known.st_size > MOST_BYTES:
                raise ValueError(f"{self.path.name} has {known.st_size / 1e6:.0f} MB; up to {MOST_BYTES / 1e6:.0f} MB are read.")
            mark = known.st_dev, known.st_ino, known.st_size
            if mark == self._mark and known.st_mtime_ns == self._modified:
                return False
            if mark[:2] != self._mark[:2] or mark[2] <= self._mark[2]:  # another file in its place, as when it was thinned
                self._begin()
            self._mark, self._modified = mark, known.st_mtime_ns
            if not self._offset:
                self._reader = RunReader(self.run, windows_written(file) if self._tables else 0, self._tables)
            file.seek(self._offset)
            for line in file:
                if not line.endswith(b"\n") or len(line) > MOST_LINE:
                    break  # it is being written
                self._offset += len(line)
                self._take(line)
        return True

    @property
    def updated(self) -> float:
        """When the file was written last, in seconds of the clock."""
        return self._modified / 1e9

    def _take(self, line: bytes) -> None:
        try:
            event = checked(json.loads(line.decode("utf-8", "replace")), self._names)
            self._reader.take(event)
            if self._tables and event["event"] == "report":
                self._count()
        except UNREADABLE:
            self.run.damaged += 1

    def _count(self) -> None:
        """Every so many reports: no more numbers than there is room for."""
        self._reports += 1
        if self._reports % COUNTED_EVERY:
            return
        kept = (tables for record in self.run.monitors for tables in record.columns.values())
        if sum(len(names) * len(stats) for tables in kept for names, stats in tables.values()) > MOST_NUMBERS:
            for record in self.run.monitors:
                record.columns.clear()
            raise ValueError("more numbers than are kept")
