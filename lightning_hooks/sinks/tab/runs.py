"""Runs below a log directory: their files, found without ever leaving it, and what is known of each for the pages that ask."""

from __future__ import annotations

import json
import os
import threading
from collections import OrderedDict
from collections.abc import Iterator
from pathlib import Path
from time import monotonic, time
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from lightning_hooks.run_report.recorded import Run
    from lightning_hooks.run_report.run import RunFile


FOLDER, FILE = "lightning_hooks", "reports.jsonl"  # as in run_report.lines, which this does not import: it brings numpy
MOST_RUNS = 2000
MOST_SECONDS = 20.0  # that a search takes at most


def _text(name: str) -> str:
    """A name that any encoding takes."""
    return name.encode("utf-8", "backslashreplace").decode()


PATIENCE = 0.5  # seconds that a request waits for the newest state
PAUSE = 20  # a search of the directories that took a second is made again after so many
MOST_OPEN = 4  # runs whose numbers are kept in memory


class Runs:
    """What is known of all runs. Nothing is read before somebody asks, and whoever asks never waits for the disk for long.

    Args:
        logdir: The log directory; None without. Symbolic links are not followed.
    """

    def __init__(self, logdir: Path | None) -> None:
        self._logdir, self._root = logdir, Path(os.path.realpath(logdir or ""))
        self._notes: list[str] = []  # what the last search left out, a sentence each
        self._lock = threading.Lock()
        self._reading = threading.Lock()  # of one run's numbers at a time
        self._files: dict[str, Path] = {}
        self._lists: dict[str, RunFile] = {}  # of all runs, without numbers
        self._open: OrderedDict[str, RunFile] = OrderedDict()
        self._entries: dict[str, dict[str, Any]] = {}
        self._revision, self._next_search, self._searched = 0, 0.0, False
        self._worker: threading.Thread | None = None  # that brings the state up to date

    def ask(self, patience: float = PATIENCE) -> bool:
        """Have the state brought up to date; wait for it as long as that, and return whether there is any run."""
        with self._lock:
            if self._worker is None or not self._worker.is_alive():
                self._worker = threading.Thread(target=self._work, name="lightning_hooks-tab", daemon=True)
                self._worker.start()
            worker = self._worker
        worker.join(patience)
        return bool(self._files)

    def listing(self, known: int = -1) -> dict[str, Any]:
        """All runs in short; without them if nothing has changed since the revision that is known."""
        self.ask()
        with self._lock:
            head = {"revision": self._revision, "notes": self._notes, "searched": self._searched, "now": time()}
            if known == self._revision:
                return head
            waiting = {"status": "unknown", "state": "reading", "headline": "Being read."}
            return {**head, "runs": [{"id": key, **self._entries.get(key, waiting)} for key in self._files]}

    def run(self, key: str) -> tuple[Run, float]:
        """A run with its numbers, and when its file was written last.

        Raises:
            KeyError: If there is no such run; a key is looked up, and never made a path.
            OSError: If its file cannot be read.
            ValueError: If it holds no run.
        """
        from lightning_hooks.run_report.run import RunFile

        with self._lock:
            path = self._files.get(key)
        if path is None:
            self.ask()
            path = self._files[key]
        if not self._holds(path):
            raise KeyError(key)
        with self._reading:
            file = self._open.pop(key, None) or RunFile(path, key, tables=True)
            self._open[key] = file
            while len(self._open) > MOST_OPEN:
                self._open.popitem(last=False)
            file.update()
            if not file.run.fit and not file.run.monitors:
                raise ValueError("its file holds no run.")
            return file.run, file.updated

    def _work(self) -> None:
        try:
            self._refresh()
        except Exception as error:  # noqa: BLE001  whatever the disk does, the page says so
            self._notes = [f"The log directory could not be searched: {type(error).__name__}."]
        self._searched = True

    def _refresh(self) -> None:
        began = monotonic()
        if began >= self._next_search:
            found: dict[str, Path] = {}
            for key, path in self._runs():
                found[key] = path
                with self._lock:
                    self._files.setdefault(key, path)
            with self._lock:
                self._revision += found != self._files
                self._files = found
                for gone in set(self._entries) - set(found):
                    del self._entries[gone], self._lists[gone]
            self._next_search = monotonic() + max(1.0, PAUSE * (monotonic() - began))
        for key, path in list(self._files.items()):
            entry = self._read(key, path)
            if entry is not None and entry != self._entries.get(key):
                with self._lock:
                    self._entries[key] = entry
                    self._revision += 1

    def _runs(self) -> Iterator[tuple[str, Path]]:
        """The runs: what each is called, which is its key too, and its file."""
        self._notes, found, end = [], 0, monotonic() + MOST_SECONDS
        if self._logdir is None:
            return
        if not self._root.is_dir():
            self._notes.append(f"There is no directory {_text(self._logdir.name or str(self._logdir))}.")
        for folder, folders, files in os.walk(self._root):
            folders.sort()
            if found >= MOST_RUNS or monotonic() > end:
                self._notes.append(f"Only the first {found} runs are listed: the log directory is large.")
                return
            if FILE in files and (file := Path(folder, FILE)).parent.name == FOLDER and self._holds(file):
                found += 1
                yield _text(file.parent.parent.relative_to(self._root).as_posix()), file

    def _holds(self, file: Path) -> bool:
        """Whether a file, with all links resolved, is below the log directory, and no link itself."""
        return not file.is_symlink() and Path(os.path.realpath(file)).is_relative_to(self._root)

    def _read(self, key: str, path: Path) -> dict[str, Any] | None:
        """A run in short; None if it is as before."""
        from lightning_hooks.run_report.data import entry
        from lightning_hooks.run_report.run import RunFile

        file = self._lists.setdefault(key, RunFile(path, key, tables=False))
        if not self._holds(path):
            return _fault("it is not below the log directory.")
        try:
            if not file.update() and key in self._entries:
                return None
            found = entry(file.run, file.updated)
            json.dumps(found, allow_nan=False)  # here, so that a run which cannot be sent keeps no other from it
            return found
        except OSError as error:
            return _fault(error.strerror or type(error).__name__)
        except Exception as error:  # noqa: BLE001  a damaged or hostile file is one line on the page
            return _fault(str(error) if isinstance(error, ValueError) else type(error).__name__)


def _fault(text: str) -> dict[str, Any]:
    return {"status": "unknown", "state": "unreadable", "headline": f"The run's file cannot be read: {text[:200]}"}
