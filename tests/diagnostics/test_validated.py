"""Labels and predictions of validation, counted by plain Python: which classes have other numbers."""

from __future__ import annotations

import math
from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import one_hot

from lightning_hooks.alerts import Alert, FeatureReport
from lightning_hooks.diagnostics.causes.code import other_numbers
from lightning_hooks.diagnostics.causes.data import unlike_validation
from lightning_hooks.diagnostics.causes.facts import Facts
from lightning_hooks.diagnostics.loss.learning_rules import ClassesRenumbered
from lightning_hooks.diagnostics.loss_inputs.predictions import MOST_ROWS, measure, output_stats
from lightning_hooks.diagnostics.loss_inputs.validated import PAIRS, ClassPairs, ValidatedClasses, ValidatedNumbers
from lightning_hooks.statistics.reduction import merge_ranks
from tests.support.calls import call_table


def reference(logits: Tensor, target: Tensor, ignored: int = -100) -> ClassPairs:
    """Row by row: of a class the most frequent prediction counts, if most of its rows have it and no other class has most of it."""
    rows = logits.double().movedim(1, -1).reshape(-1, logits.shape[1]).tolist()
    labels = target.reshape(-1).tolist()
    measured = min(len(rows), MOST_ROWS)
    taken = [number * len(rows) // measured for number in range(0, measured, math.ceil(measured / PAIRS))]
    pairs = [(labels[i], rows[i].index(max(rows[i]))) for i in taken if labels[i] != ignored]
    moved = {}
    for label in sorted({label for label, _ in pairs}):
        guess, count = Counter(guess for one, guess in pairs if one == label).most_common(1)[0]
        of_class, of_guess = sum(one == label for one, _ in pairs), sum(other == guess for _, other in pairs)
        if guess != label and count >= 3 and count > of_class / 2 and count > of_guess / 2:
            moved[label] = guess
    right = sum(label == guess for label, guess in pairs)
    chance = sum(one == guess for one, _ in pairs for _, guess in pairs) / len(pairs) ** 2
    sigmas = (right / len(pairs) - chance) / math.sqrt(chance * (1 - chance) / len(pairs))
    about: Any = pytest.approx(sigmas)
    return ClassPairs(len(pairs), right, moved, sum(pair in moved.items() for pair in pairs), about)


def validated(logits: Tensor, target: Tensor, ignored: int = -100) -> ValidatedClasses:
    table = call_table(ValidatedClasses)
    table.add(1, logits, target, ignored)
    return table


def predictions(target: Tensor, classes: int, right: float, order: Tensor) -> Tensor:
    """Logits that are largest at the class that stands for the label, for a share of the rows."""
    guess = torch.where(torch.rand(target.shape) < right, order[target.clamp(min=0)], torch.randint(classes, target.shape))
    chosen = one_hot(guess, classes).movedim(-1, 1)
    return chosen + 0.1 * torch.rand(chosen.shape)


@pytest.mark.parametrize(("shape", "classes"), [((200,), 3), ((900,), 10), ((4, 50), 7), ((2, 9, 8), 2)])
@pytest.mark.parametrize("right", [0.0, 0.6, 0.95])
def test_pairs(shape: tuple[int, ...], classes: int, right: float) -> None:
    torch.manual_seed(0)
    target = torch.where(torch.rand(shape) < 0.1, -100, torch.randint(classes, shape))
    for order in (torch.arange(classes), torch.arange(classes).roll(1)):
        logits = predictions(target, classes, right, order)
        table = validated(logits, target)
        found = table.read(table.pack())["validated"]
        assert found == {"b": reference(logits, target)}
        assert len(found["b"].renumbered) == classes * bool(order[0]) or right < 0.9


def test_windows_and_ranks() -> None:
    target = torch.arange(300) % 3
    table = validated(predictions(target, 3, 1.0, torch.tensor([1, 2, 0])), target)
    few = predictions(target[:20], 3, 1.0, torch.arange(3))
    table.add(1, few, target[:20], -100)  # of the last validation alone
    expected = {"b": reference(few, target[:20])}
    assert table.read(table.pack())["validated"] == expected
    assert table.read(merge_ranks(table.spans, [table.pack(), call_table(ValidatedClasses).pack()]))["validated"] == expected
    back = call_table(ValidatedClasses)
    back.unpack(table.pack())
    assert back.read(back.pack())["validated"] == expected
    back.add(1, torch.full((8, 3), torch.nan), target[:8], -100)
    back.add(0, torch.rand(2, 5000), torch.tensor([0, 1]), -100)  # too many classes
    assert back.read(back.pack()) == {"validated": {}}


def report(pairs: ClassPairs, accuracy: float) -> FeatureReport:
    stats = output_stats(measure(torch.eye(4)[torch.arange(100) % 4], torch.arange(100) % 4).tolist())
    return FeatureReport(
        0, 10, {}, outputs={"cross_entropy": replace(stats, accuracy=accuracy)}, validated={"cross_entropy": pairs}
    )


CYCLE = {0: 1, 1: 2, 2: 0}


@pytest.mark.parametrize(
    ("pairs", "accuracy", "found"),
    [
        (ClassPairs(100, 10, CYCLE, 80), 0.5, True),
        (ClassPairs(100, 10, CYCLE, 80), 0.44, False),  # training is as wrong: nothing is learned
        (ClassPairs(100, 10, {0: 1}, 80), 0.9, False),  # one class alone may be taken for another
        (ClassPairs(100, 30, CYCLE, 70), 0.9, False),  # by four standard deviations
        (ClassPairs(100, 29, CYCLE, 71), 0.9, True),
        (ClassPairs(100, 90, {}, 0), 0.9, False),
    ],
)
def test_rule(pairs: ClassPairs, accuracy: float, found: bool) -> None:
    given = report(pairs, accuracy)
    alerts: list[Any] = [*ClassesRenumbered()(given)]
    assert [(alert.kind, alert.site, alert.severity) for alert in alerts] == [
        ("validation_shift", "cross_entropy", "warning")
    ] * found
    assert not [*ClassesRenumbered()(replace(given, outputs={}))]
    for alert in alerts:
        assert "class 0 is predicted as 1, 1 is predicted as 2, 2 is predicted as 0: " in alert.message
        (cause,) = [other_numbers.judge(alert, Facts(features=given))]
        assert cause is not None
        assert cause.strengths == ("proof",)


@pytest.mark.parametrize("shape", [(40,), (40, 1), (12, 3, 4)])
@pytest.mark.parametrize("noise", [0.1, 3.0])
def test_agreement_of_numbers(shape: tuple[int, ...], noise: float) -> None:
    torch.manual_seed(0)
    table, expected = call_table(ValidatedNumbers, 2), []
    for _ in range(2):
        target = torch.randn(shape)
        given = 5 - 2 * target + noise * torch.randn(shape)
        table.add(1, given, target)
        one, other = (values.double().reshape(len(values), -1).numpy() for values in (given, target))
        centred = [(values - values.mean(0)).ravel() for values in (one, other)]
        expected.append(float(np.corrcoef(*centred)[0, 1]) * math.sqrt(shape[0]))
    assert table.read(table.pack()) == {"agreement": {"b": pytest.approx(sum(expected) / 2, abs=1e-6)}}
    merged = merge_ranks(table.spans, [table.pack(), table.pack()])
    assert table.read(merged) == table.read(table.pack())
    table.add(1, torch.ones(4), torch.ones(4))  # no relation can be judged
    assert table.read(table.pack()) == {"agreement": {}}


@pytest.mark.parametrize(
    ("agreement", "sigmas", "severity", "found"),
    [
        ({}, 1.9, "warning", True),
        ({}, 2.1, "warning", False),
        ({}, math.inf, "warning", False),
        ({}, 1.9, "info", False),  # it was better than guessing before
        ({"mse_loss": 1.0}, 1.9, "warning", True),
        ({"mse_loss": 2.1}, 1.9, "warning", False),  # another loss's predictions follow
    ],
)
def test_what_is_learned_does_not_hold(agreement: dict[str, float], sigmas: float, severity: Any, found: bool) -> None:
    given = replace(report(ClassPairs(100, 10, {}, 0, sigmas), 0.9), agreement=agreement)
    alert = Alert("overfitting", "validation loss", 1.2, 1.1, 3, 40, severity, "it was never better than guessing.")
    cause = unlike_validation.judge(alert, Facts(features=given))
    assert (cause is not None) == found
    assert cause is None or "1.9 standard deviations" in cause.evidence_for[0]
    assert unlike_validation.judge(alert, Facts()) is None
