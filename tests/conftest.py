"""Tests run next to each other: one thread each, or they wait for one another."""

from __future__ import annotations

import math
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import _get_current_dispatch_mode

torch.set_num_threads(1)

if find_spec("hypothesis"):  # which a machine that runs `make gpu` may lack
    import hypothesis

    # A busy machine may be slow at any example; how long one takes is no property that is tested.
    hypothesis.settings.register_profile("patient", deadline=None)
    hypothesis.settings.load_profile("patient")

TESTS = Path(__file__).parent

# What a test runs follows from where it stands: the nearest folder named here decides.
KINDS = {
    ".": "unit",  # one part of the package, alone
    "benchmarks": "fit",  # a whole fit in this process
    "callbacks": "fit",
    "golden": "fit",
    "hosts": "fit",
    "callbacks/ranks": "system",  # other processes, a browser, scripts as a user runs them
    "examples": "system",
    "evidence/faults": "system",
    "notebooks": "system",
    "replay": "fit",
    "replay/ranks": "system",
    "system": "system",
}


def kind_of(path: Path) -> str:
    """The marker of the tests in a file."""
    return next(KINDS[str(folder)] for folder in path.relative_to(TESTS).parents if str(folder) in KINDS)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(TESTS):
            item.add_marker(kind_of(item.path))


@pytest.fixture
def all_detailed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Costly statistics are taken in each sampled batch."""
    monkeypatch.setattr("lightning_hooks.session.batches.FIRST_DETAILED", math.inf)


@pytest.fixture(autouse=True)
def _no_mode_stays() -> Iterator[None]:
    """A dispatch mode that is left behind would change whatever runs later: under one, nothing is compiled."""
    yield
    mode = _get_current_dispatch_mode()
    if mode is not None:
        mode.__exit__(None, None, None)
    assert mode is None
