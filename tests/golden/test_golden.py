"""Eight trainings have exactly the outcome that is stored: every number, alert, report, line and message, in order."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.golden.record import OUTCOMES
from tests.golden.trainings import TRAININGS, normalised

TOLERANCE = dict.fromkeys(TRAININGS, 1e-6) | {"amp": 5e-3}  # half precision differs between processors


def differences(found: Any, stored: Any, tolerance: float, where: str = "") -> Iterator[str]:
    """Where two outcomes differ."""
    if isinstance(stored, dict) and isinstance(found, dict):
        if list(found) != list(stored):
            yield f"{where}: keys {list(found)} instead of {list(stored)}"
        for key in stored.keys() & found.keys():
            yield from differences(found[key], stored[key], tolerance, f"{where}/{key}")
    elif isinstance(stored, list) and isinstance(found, list):
        if len(found) != len(stored):
            yield f"{where}: {len(found)} entries instead of {len(stored)}"
        for index, (one, other) in enumerate(zip(found, stored, strict=False)):
            yield from differences(one, other, tolerance, f"{where}[{index}]")
    elif isinstance(stored, (int, float)) and isinstance(found, (int, float)) and not isinstance(stored, bool):
        if not math.isclose(found, stored, rel_tol=tolerance, abs_tol=1e-9):
            yield f"{where}: {found!r} instead of {stored!r}"
    elif found != stored:
        yield f"{where}: {found!r} instead of {stored!r}"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.ranks] if name == "two_ranks" else []) for name in TRAININGS]
)
def test_a_training_has_the_outcome_that_is_stored(name: str, tmp_path: Path) -> None:
    stored = json.loads((OUTCOMES / f"{name}.json").read_text())
    found = json.loads(json.dumps(normalised(TRAININGS[name](tmp_path))))
    wrong = list(differences(found, stored, TOLERANCE[name]))
    assert not wrong, "\n".join(
        [f"{len(wrong)} differences; if they are meant, run: python -m tests.golden.record {name}", *wrong[:20]]
    )


def test_differences_are_found() -> None:
    stored = {"a": [1.0, {"b": "x"}], "c": 0}
    assert not list(differences({"a": [1.0 + 1e-9, {"b": "x"}], "c": 0}, stored, 1e-6))
    assert len(list(differences({"a": [1.1, {"b": "y"}, 3], "d": 0}, stored, 1e-6))) == 4
