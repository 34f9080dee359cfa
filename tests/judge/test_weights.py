"""The weights of evidence, and that they are those which the stored table gives."""

from __future__ import annotations

import json
import math

import pytest

from lightning_hooks.alerts.explain import explain
from lightning_hooks.declare.cause import AGAINST, EXCLUDES, PROOF, SHOWN, SLIGHT, SOME, STRONG
from lightning_hooks.declare.kinds import KINDS
from lightning_hooks.judge import weights
from lightning_hooks.judge.weights import probability, probability_of_cause, record_of
from tests.evidence.judge.fit import SIGNS, TABLE, WEIGHTS, fitted, text, weights_of

STORED = json.loads(WEIGHTS.read_text(encoding="utf-8"))


def test_the_probability_is_the_logistic_of_the_sum(monkeypatch: pytest.MonkeyPatch) -> None:
    known = {"intercept": 1.5, "weights": {"fact": [0.5, 30], "kind dead": [-2.25, 4]}}
    monkeypatch.setattr(weights, "_stored", lambda: known)
    assert probability([]) == pytest.approx(0.817574)  # 1 / (1 + exp(-1.5))
    assert probability(["fact"]) == pytest.approx(0.880797)  # 1 / (1 + exp(-2))
    assert probability(["fact", "kind dead", "never seen"]) == pytest.approx(0.4378235)  # 1 / (1 + exp(0.25))
    monkeypatch.setitem(known, "intercept", 0.0)
    assert probability([]) == 0.5


def test_the_probability_of_a_cause_is_that_of_its_strengths(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_stored", lambda: {"causes": {"intercept": -1.0, STRONG: 1.5, AGAINST: -0.25, SHOWN: 0.0}})
    assert probability_of_cause([]) == pytest.approx(0.2689414)  # 1 / (1 + exp(1))
    assert probability_of_cause([STRONG, SHOWN, AGAINST]) == pytest.approx(0.5621765)  # 1 / (1 + exp(-0.25))
    assert probability_of_cause([STRONG, STRONG]) == pytest.approx(0.8807971)  # 1 / (1 + exp(-2))


def test_a_strength_adds_at_least_as_much_as_the_one_before_it() -> None:
    known = STORED["causes"]
    assert 0 == known[SHOWN] <= known[SLIGHT] <= known[SOME] <= known[STRONG] <= known[PROOF]
    assert 0 >= known[AGAINST] >= known[EXCLUDES]


def test_records_are_those_of_the_fitted_trainings(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(weights, "_stored", lambda: {"date": "2026-11-28", "kinds": {"dead": [21, 8], "zero": [1, 0]}})
    for kind, says in (("dead", "21 of the 29 trainings"), ("zero", "1 of the 1 training")):
        assert f"Record: {says} with such an alert were harmed (2026-11-28)." in " ".join(" ".join(explain(kind)).split())
    assert record_of("saturated") == record_of("own") == ""
    assert "Record" not in " ".join(explain("saturated"))


def test_the_stored_table_gives_the_stored_weights() -> None:
    pytest.importorskip("sklearn")
    table = json.loads(TABLE.read_text(encoding="utf-8"))
    found = weights_of(table)
    assert found.keys() == STORED.keys()
    assert found["intercept"] == pytest.approx(STORED["intercept"], abs=0.01)
    assert found["weights"].keys() == STORED["weights"].keys()
    for name, (value, trainings) in found["weights"].items():
        assert STORED["weights"][name] == [pytest.approx(value, abs=0.01), trainings], name
    assert found["causes"] == pytest.approx(STORED["causes"], abs=0.01)
    for name in found.keys() - {"intercept", "weights", "causes"}:
        assert found[name] == STORED[name], name
    turned = {**table, "evidence": [[healthy, harmed, names] for harmed, healthy, names in table["evidence"]]}
    _, left, dropped = fitted(turned)
    assert dropped
    assert not {*dropped} & left.keys()
    assert all(SIGNS.get(name, 0) * value >= 0 for name, value in left.items())


def test_the_file_is_small_and_its_signs_are_as_declared() -> None:
    assert WEIGHTS.stat().st_size <= 60_000
    assert text(STORED) == WEIGHTS.read_text(encoding="utf-8")
    assert STORED["kinds"].keys() <= KINDS.keys()
    assert SIGNS.keys() <= STORED["weights"].keys() | {*STORED["dropped"]}
    for name, (value, trainings) in STORED["weights"].items():
        assert math.isfinite(value)
        assert trainings > 0
        assert SIGNS.get(name, 0) * value >= 0, name
        part, _, rest = name.partition(" ")
        assert part != "kind" or rest in KINDS
        assert part != "cause" or any(rest == cause.name for kind in KINDS.values() for cause in kind.causes), name
