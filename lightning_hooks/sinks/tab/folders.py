"""The run files below log directories: found without ever leaving these."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterator, Mapping
from pathlib import Path

FOLDER, FILE = "lightning_hooks", "reports.jsonl"  # as in run_report.lines, which this does not import: it brings numpy
MOST_RUNS = 2000
MOST_SECONDS = 20.0
"""That a search takes at most."""


class Search:
    """Searches log directories for run files. Symbolic links are not followed.

    Args:
        roots: What comes before the names of a directory's runs, to the directory.

    Attributes:
        notes: What the last search left out, a sentence each.
    """

    def __init__(self, roots: Mapping[str, Path]) -> None:
        self._roots = {label: (path, Path(os.path.realpath(path))) for label, path in roots.items()}
        self.notes: list[str] = []

    def runs(self) -> Iterator[tuple[str, Path]]:
        """The runs: what each is called, which is its key too, and its file."""
        self.notes, found, end = [], 0, time.monotonic() + MOST_SECONDS
        for label, (given, root) in self._roots.items():
            if not root.is_dir():
                self.notes.append(f"There is no directory {_text(given.name or str(given))}.")
            for folder, folders, files in os.walk(root):
                folders.sort()
                if found >= MOST_RUNS or time.monotonic() > end:
                    self.notes.append(f"Only the first {found} runs are listed: the log directory is large.")
                    return
                if FILE not in files or os.path.basename(folder) != FOLDER:  # noqa: PTH119  of thousands of folders
                    continue
                file = Path(folder, FILE)
                if self.holds(file):
                    found += 1
                    yield _key(label, root, file), file

    def holds(self, file: Path) -> bool:
        """Whether a file, with all links resolved, is below one of the log directories, and no link itself."""
        real = Path(os.path.realpath(file))
        return not file.is_symlink() and any(real.is_relative_to(root) for _, root in self._roots.values())


def _key(label: str, root: Path, file: Path) -> str:
    folder = file.parent.parent
    name = folder.relative_to(root).as_posix()
    name = f"{label}/{name}" if label else name
    text = _text(name)
    return text if text == name else f"{text} {hashlib.blake2s(os.fsencode(name), digest_size=4).hexdigest()}"


def _text(name: str) -> str:
    """A name that any encoding takes."""
    return name.encode("utf-8", "backslashreplace").decode()
