"""Two processes that are started once, for all modules of ``tests/support`` that say what each rank found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.two_processes import run_twice

KINDS = (
    "attention",
    "features",
    "functional",
    "outputs",
    "residual",
    "routers",
    "setup",
    "transforms",
)
MODULES = [f"rank_{kind}" for kind in KINDS]


@pytest.fixture(scope="session")
def by_module(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, list[Any]]]:
    """The folder of the processes, and what rank 0 and rank 1 found, by module."""
    folder = tmp_path_factory.mktemp("ranks")
    return folder, run_twice("tests.support.two_processes", folder, *MODULES, timeout=600.0)


@pytest.fixture(scope="module")
def folder(request: pytest.FixtureRequest, by_module: Any) -> Path:
    """Where the module of a file of tests has written."""
    return by_module[0] / request.path.stem.removeprefix("test_")


@pytest.fixture(scope="module")
def two_ranks(request: pytest.FixtureRequest, by_module: Any) -> dict[str, list[Any]]:
    """What each rank found in the module of a file of tests, by case."""
    first, second = by_module[1][request.path.stem.removeprefix("test_")]
    return {key: [first[key], second[key]] for key in first}
