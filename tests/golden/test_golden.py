"""Eight trainings have exactly the outcome that is stored: every number, alert, report, line and message, in order."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.golden.record import OUTCOMES
from tests.golden.trainings import TRAININGS, normalised
from tests.support.reference import same_number, scale_of

TOLERANCE = dict.fromkeys(TRAININGS, 1e-6) | {"amp": 5e-3}  # half precision differs between processors


def differences(found: Any, stored: Any, tolerance: float, where: str = "", scale: Any = 0.0) -> Iterator[str]:
    """Where two outcomes differ; a number that cancels is held to the scale of what it is of."""
    if isinstance(stored, dict) and isinstance(found, dict):
        if list(found) != list(stored):
            yield f"{where}: keys {list(found)} instead of {list(stored)}"
        for key in [key for key in stored if key in found]:
            yield from differences(found[key], stored[key], tolerance, f"{where}/{key}", _scale(key, stored))
    elif isinstance(stored, list) and isinstance(found, list):
        if len(found) != len(stored):
            yield f"{where}: {len(found)} entries instead of {len(stored)}"
        scales = scale if isinstance(scale, list) else [scale] * len(stored)
        for index, (one, other, each) in enumerate(zip(found, stored, scales, strict=False)):
            yield from differences(one, other, tolerance, f"{where}[{index}]", each)
    elif isinstance(stored, (int, float)) and isinstance(found, (int, float)) and not isinstance(stored, bool):
        if not same_number(found, stored, tolerance, scale if isinstance(scale, (int, float)) else 0.0, tiny=1e-9):
            yield f"{where}: {found!r} instead of {stored!r}"
    elif found != stored:
        yield f"{where}: {found!r} instead of {stored!r}"


def _scale(key: str, stored: dict[str, Any]) -> Any:
    """The scale that a number is held to: 1 for a share and a cosine, the sum for an addend."""
    if key in ("zero_fraction", "share", "coherence"):  # how many values are exactly 0 is a matter of rounding in half precision
        return 1.0
    if key == "gain" and stored.get("share"):
        return abs(stored["gain"] / stored["share"])
    return stored.get(scale_of(key), 0.0)


def by_tag(outcome: dict[str, Any]) -> dict[str, Any]:
    """An outcome whose logged values are next to the others of their site."""
    logged = {f"{step} {tag}": value for step, tag, value in outcome["logged"]}
    assert len(logged) == len(outcome["logged"])
    return {**outcome, "logged": logged}


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.ranks] if name == "two_ranks" else []) for name in TRAININGS]
)
def test_a_training_has_the_outcome_that_is_stored(name: str, tmp_path: Path) -> None:
    stored = json.loads((OUTCOMES / f"{name}.json").read_text())
    found = json.loads(json.dumps(normalised(TRAININGS[name](tmp_path))))
    wrong = list(differences(by_tag(found), by_tag(stored), TOLERANCE[name]))
    assert not wrong, "\n".join(
        [f"{len(wrong)} differences; if they are meant, run: python -m tests.golden.record {name}", *wrong[:20]]
    )


def test_differences_are_found() -> None:
    stored = {"a": [1.0, {"b": "x"}], "c": 0}
    assert not list(differences({"a": [1.0 + 1e-9, {"b": "x"}], "c": 0}, stored, 1e-6))
    assert len(list(differences({"a": [1.1, {"b": "y"}, 3], "d": 0}, stored, 1e-6))) == 4


def test_an_addend_is_compared_on_the_scale_of_the_sum() -> None:
    stored = {"gain": 1e-5, "share": 1e-4, "coherence": 1e-4}
    assert not list(differences({"gain": 1.4e-5, "share": 1.4e-4, "coherence": 5e-4}, stored, 1e-3))
    assert len(list(differences({"gain": 3e-4, "share": 3e-3, "coherence": 3e-3}, stored, 1e-3))) == 3


@pytest.mark.parametrize(("scale", "differ"), [(1.0, 0), (1e-4, 1)])
def test_a_mean_is_compared_on_the_scale_of_its_values(scale: float, differ: int) -> None:
    """In a report, in the columns of a file, and as it is logged."""
    for stored in (
        {"mean": 1e-6, "rms": scale},
        {"mean": [1.0, 1e-6], "rms": [1.0, scale]},
        {"mean": [scale, 1e-6], "rms": scale},
        {"3 features/net.0/mean": 1e-6, "3 features/net.0/rms": scale},
    ):
        found = json.loads(json.dumps(stored).replace("1e-06", "1.5e-06"))
        assert len(list(differences(found, stored, 1e-6))) == differ
