"""Runs an example in this process, where Lightning is imported already."""

from __future__ import annotations

import logging
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).parents[2] / "examples"
Run = Callable[..., str]


@pytest.fixture
def run_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Iterator[Run]:
    """Run a script with ``--fast`` in ``tmp_path`` and return what it printed."""
    monkeypatch.chdir(tmp_path)
    levels = {name: logging.getLogger(name).level for name in ("lightning.pytorch", "lightning_hooks")}

    def run(name: str, *arguments: str) -> str:
        monkeypatch.setattr(sys, "argv", [f"{name}.py", "--fast", "--log-dir", "logs", *arguments])
        with pytest.raises(SystemExit) as ended:
            runpy.run_path(str(EXAMPLES / f"{name}.py"), run_name="__main__")
        printed = capsys.readouterr()
        assert ended.value.code == 0
        # The monitors' closing line comes by Lightning's handler, which writes to the stream of the first test that trains.
        loud = [line for line in printed.err.splitlines() if not line.startswith("INFO: ")]
        assert not loud, "the console should be quiet"
        return printed.out

    yield run
    for name, level in levels.items():
        logging.getLogger(name).setLevel(level)
