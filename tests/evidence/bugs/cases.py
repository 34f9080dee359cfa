"""What the table of bugs is made of: each with the thread that reports it, and healthy programs next to them.

All are learned from: these bugs are published, and rules were mended to find them. The README says what was found before.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from tests.evidence.exam.cases import Built, Case, Expected, Recipe
from tests.evidence.faults.zoo import Build

__all__ = ["CASES", "Bug", "Built", "Expected", "Recipe", "bug", "healthy"]


@dataclass(frozen=True)
class Bug(Case):
    """One bug, or one healthy program.

    Attributes:
        thread: Where it was reported, or where the program is from: ``owner/repository#number``, or an address.
        processes: 0 runs in the process of the table, 1 in one of its own (its loader has workers), 2 as two ranks over gloo.
    """

    thread: str = ""
    processes: int = 0


CASES: dict[str, Bug] = {}


def bug(thread: str, story: str, missed: str = "", processes: int = 0) -> Callable[[Build], Build]:
    """Enter a function ``build(planted=True) -> Built`` among the bugs, under its name."""

    def enter(build: Build) -> Build:
        _enter(Bug(build.__name__, build, "torch", story, False, missed, thread=thread, processes=processes))
        return build

    return enter


def healthy(thread: str, story: str, processes: int = 0) -> Callable[[Build], Build]:
    """Enter a function ``build() -> Built`` among the healthy programs, under its name."""

    def enter(build: Build) -> Build:
        _enter(Bug(build.__name__, build, "torch", story, True, thread=thread, processes=processes))
        return build

    return enter


def _enter(case: Bug) -> None:
    assert case.name not in CASES, f"two cases are called {case.name}"
    CASES[case.name] = case
