"""Clocks that a test of the user's exchanges answer the user's code alone."""

from __future__ import annotations

import ast
import time
from pathlib import Path

import pytest

import lightning_hooks
from lightning_hooks import TrainingMonitor
from tests.support.models import Classifier, loader, mlp, trainer

CLOCKS = ("perf_counter", "monotonic", "time", "process_time", "thread_time")


def test_no_module_reads_a_clock_through_the_module_of_clocks() -> None:
    """What ``from time import`` took stays the clock, whatever ``time`` has under its name later."""
    package = Path(lightning_hooks.__file__).parent
    imported = [
        f"{file.relative_to(package)}:{node.lineno}"
        for file in sorted(package.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8")))
        if isinstance(node, ast.Import) and any(alias.name == "time" for alias in node.names)
    ]
    assert imported == []


@pytest.mark.parametrize("clock", CLOCKS)
def test_no_answer_of_a_clock_is_taken_away(clock: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def answers_taken(*callbacks: TrainingMonitor) -> int:
        taken = 0

        def answer() -> float:
            nonlocal taken
            taken += 1
            return float(taken)

        with monkeypatch.context() as patched:
            run = trainer(callbacks, max_epochs=2)
            patched.setattr(time, clock, answer)
            run.fit(Classifier(mlp()), loader())
        return taken

    own = answers_taken()
    assert answers_taken(TrainingMonitor(summary=False, max_overhead=0.5, every_n_steps=2)) == own
