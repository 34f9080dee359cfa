"""Rules over what optimizers do to weights, just below and just above their thresholds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from lightning_hooks.alerts import (
    GradientFlowReport,
    LossReport,
    NeverStepped,
    NotOptimized,
    ParameterSetup,
    UpdateTooLarge,
    UpdateTooSmall,
)
from lightning_hooks.diagnostics.gradients.tables import GradientStats, ParameterGradientStats
from lightning_hooks.diagnostics.gradients.weight_rules import NotUpdated
from lightning_hooks.diagnostics.optimizer.table import GroupSettings, OptimizerStats
from lightning_hooks.diagnostics.reports import weight_ratios
from tests.support.judged import judged

MEASURED = ParameterGradientStats(
    steps=4, norm=1.0, norm_max=2.0, rms=0.1, zero_fraction=0.0, nonfinite_steps=0, missing_steps=0, update_ratio=1e-3
)
GRADIENT = GradientStats(4, 100, 0.0, 0.1, -1.0, 1.0, 0.1, 1.0, 2.0, 0.0, 0.0)
HELD = ParameterSetup(100, 2, True, True, ("0-Adam",), steps=40, lr=1e-3, lr_peak=1e-3)


def report(
    *ratios: float | None, setups: dict[int, dict[str, Any]] | None = None, total_norm: float = 1.0, **change: Any
) -> GradientFlowReport:
    """Weights with these update ratios: epoch 3, unless said otherwise."""
    parameters = {f"{i}.weight": replace(MEASURED, update_ratio=ratio) for i, ratio in enumerate(ratios)}
    held = {f"{i}.weight": replace(HELD, **(setups or {}).get(i, {})) for i in range(len(ratios))}
    base = GradientFlowReport(3, 120, {}, parameters, total_norm, sampled_batches=4, batches=40, setups=held)
    return replace(base, **change)


def names(rule: Any, *args: Any, **kwargs: Any) -> list[tuple[str, str, float, str]]:
    return [(alert.kind, alert.site, alert.value, alert.severity) for alert in rule(report(*args, **kwargs))]


def test_weights_alone_are_judged() -> None:
    assert weight_ratios(report(0.1, None, 0.3, setups={2: {"dimensions": 1}})) == {"0.weight": 0.1}
    assert weight_ratios(replace(report(0.1), setups={})) == {}
    stacked = report(0.1)
    renamed = {"a.bias": stacked.parameters["0.weight"]}, {"a.bias": stacked.setups["0.weight"]}
    assert weight_ratios(replace(stacked, parameters=renamed[0], setups=renamed[1])) == {}  # one bias for each of several stacks


@pytest.mark.parametrize(
    ("steps", "batches", "gradients", "found"),
    [(0, 20, True, True), (0, 19, True, False), (1, 20, True, False), (0, 20, False, False)],
)
def test_no_step_at_all(steps: int, batches: int, gradients: bool, found: bool) -> None:
    given = report(None, setups={0: {"steps": steps}}, batches=batches, modules=dict.fromkeys("a" * gradients, GRADIENT))
    assert [(alert.kind, alert.site) for alert in NeverStepped()(given)] == [("not_updated", "0-Adam")] * found


@pytest.mark.parametrize(
    ("steps", "before", "gradient", "found"),
    [(0, 0, True, ["1-SGD"]), (1, 0, True, []), (0, 1, True, []), (0, 0, False, [])],  # it had a turn before; nothing reaches it
)
def test_one_optimizer_of_two_takes_no_step(steps: int, before: int, gradient: bool, found: list[str]) -> None:
    def window(steps: int) -> GradientFlowReport:
        setups = {1: {"steps": steps, "optimizers": ("1-SGD",)}}
        return report(1e-3, None, setups=setups, batches=10, modules={"1" if gradient else "0": GRADIENT})

    assert [alert.site for alert in NeverStepped()(window(steps).after([window(before)]))] == found
    assert list(NeverStepped()(window(0))) == []  # of 10 batches


@pytest.mark.parametrize(
    ("ratio", "planned", "found"),
    [
        (9e-6, 1000, 1e-5),  # at most 0.9 % in the whole training
        (1.1e-5, 1000, None),
        (9e-6, 10000, None),
        (9e-5, 64, 1e-4),
        (1.1e-4, 64, None),
        (9e-5, 63, None),  # a trial
        (9e-5, None, None),
        (9e-7, 10**6, 1e-6),
    ],
)
def test_updates_that_all_planned_steps_cannot_make_large(ratio: float, planned: int | None, found: float | None) -> None:
    alerts = list(judged(UpdateTooSmall(), report(ratio, 1e-9, planned_steps=planned)))
    assert [alert.threshold for alert in alerts] == ([] if found is None else [pytest.approx(found)])
    assert not list(judged(UpdateTooSmall(), report(0.0, planned_steps=planned, epoch=0, sampled_batches=1)))  # a warm-up from 0
    falls, stays = (LossReport(8, 1.0, 0.1, 0.1, 0.9, last, recent=(1.0,) * 6 + (last,) * 2) for last in (0.89, 0.91))
    assert bool(list(judged(UpdateTooSmall(), report(ratio, planned_steps=planned, loss=stays)))) is (found is not None)
    assert bool(list(judged(UpdateTooSmall(), report(ratio, planned_steps=planned, loss=falls)))) is (found == 1e-6)
    assert all(("planned" in alert.seen) is (found != 1e-6) for alert in alerts)


@pytest.mark.parametrize(
    ("ratios", "setups", "found"),
    [
        ((1e-6, 1e-9), {}, None),
        ((9e-7, 1e-9), {}, 9e-7),
        ((9e-7, 1e-3), {}, None),  # one that moves is enough
        ((9e-7, 1e-3), {1: {"optimizers": ("1-SGD",)}}, 9e-7),  # not if it is another optimizer's
        ((9e-7,), {0: {"lr": 5e-4}}, 9e-7),
        ((9e-7,), {0: {"lr": 4.9e-4}}, None),  # low for the moment, by its schedule
        ((9e-7,), {0: {"lr": None}}, None),
        ((9e-7,), {0: {"lr": 0.0, "lr_peak": 0.0}}, None),  # meant
        ((9e-7,), {0: {"optimizers": ()}}, None),
        ((), {}, None),
    ],
)
def test_update_too_small(ratios: tuple[float, ...], setups: dict[int, dict[str, Any]], found: float | None) -> None:
    expected = [] if found is None else [("update_too_small", "0-Adam", found, "warning")]
    assert names(UpdateTooSmall(), *ratios, setups=setups) == expected


def test_update_too_large() -> None:
    assert names(UpdateTooLarge(), 0.4, 1e-3) == []
    assert names(UpdateTooLarge(), 0.41, 1e-3, 0.9) == [
        ("update_too_large", "2.weight", 0.9, "warning"),
        ("update_too_large", "0.weight", 0.41, "warning"),
    ]
    assert names(UpdateTooLarge(), 0.9, setups={0: {"dimensions": 1}}) == []  # a bias starts at 0
    assert names(UpdateTooLarge(), 0.9, epoch=0, sampled_batches=1) == []  # the first step of all
    assert names(UpdateTooLarge(), 0.9, epoch=1, sampled_batches=1) != []
    (alert,) = UpdateTooLarge()(report(0.9, 1e-3, 1e-3))
    assert alert.text.startswith(
        "a step changes it by 90% of its size (limit 40%; the median of all weights is 0.1%, and about 0.1% is usual)"
    )


@pytest.mark.slow
@pytest.mark.parametrize(("steps", "largest", "found"), [(3, 1.3, False), (3, 0.6, True), (2, 0.9, True), (3, None, True)])
def test_one_large_update_is_not_a_large_update_at_every_step(steps: int, largest: float | None, found: bool) -> None:
    given = replace(MEASURED, steps=steps, update_ratio=0.5, update_ratio_max=largest)  # without 1.3 of 3: a mean of 0.1
    parameters = {"0.weight": given, "1.weight": MEASURED, "2.weight": MEASURED}
    of_sgd = {0: {"optimizers": ("0-SGD",)}}
    assert bool(list(UpdateTooLarge()(report(0.5, 1e-3, 1e-3, parameters=parameters, setups=of_sgd)))) is found
    assert list(UpdateTooLarge()(report(0.5, 1e-3, 1e-3, parameters=parameters)))  # of Adam's the learning rate is the size
    alike = dict.fromkeys(parameters, given)
    assert list(UpdateTooLarge()(report(0.5, 0.5, 0.5, parameters=alike)))  # all weights have made it


def test_weight_decay_that_takes_too_much() -> None:
    assert names(UpdateTooLarge(), 1e-3, setups={0: {"decay": 0.0099}}) == []
    assert names(UpdateTooLarge(), 1e-3, setups={0: {"decay": 0.01}}) == [("update_too_large", "0-Adam", 0.01, "warning")]
    faulty = report(1e-3, 1e-3, setups={0: {"decay": 0.3}, 1: {"decay": 0.3}}, epoch=0, sampled_batches=1)
    (alert,) = UpdateTooLarge()(faulty)
    assert (alert.site, alert.value, alert.threshold) == ("0-Adam", 0.3, 0.01)
    assert alert.text.startswith(
        "its weight decay removes 30% of every weight at each step (learning rate times weight_decay; limit 1%)"
    )


def test_no_optimizer_at_all_is_reported_once() -> None:
    alone = {"optimizers": (), "lr": None, "lr_peak": None, "steps": 0}
    assert names(NotOptimized(), 1e-3, 1e-3, setups={0: alone, 1: alone}) == [("not_optimized", "the model", 200.0, "info")]
    assert names(NotOptimized()) == []  # nor anything to train
    of_a_copy = {"optimizers": {"0-SGD": OptimizerStats(groups=(GroupSettings(lr=0.1),))}}
    assert names(NotOptimized(), 1e-3, setups={0: alone}, **of_a_copy) == [("not_optimized", "the model", 1.0, "warning")]


def test_an_optimizer_that_holds_only_frozen_parameters() -> None:
    """All was frozen but for the normalisation, then the head too, which is all that the optimizer holds."""
    frozen = {"trains": False, "has_gradient": False}
    norm = {"optimizers": (), "lr": None, "lr_peak": None, "steps": 0}
    faulty = report(None, None, setups={0: frozen, 1: norm})
    faulty = replace(faulty, parameters={"1.weight": MEASURED})
    (optimizer, parameter) = NotOptimized()(faulty)
    assert (optimizer.kind, optimizer.site, optimizer.severity) == ("not_optimized", "0-Adam", "warning")
    assert optimizer.text.startswith("all 1 of its parameters are frozen (requires_grad is False): its steps change nothing.")
    assert parameter.site == "1.weight"
    assert names(NotOptimized(), 1e-3, 1e-3, setups={0: frozen}) == []  # it holds one more
    assert names(NotOptimized(), 1e-3, setups={0: frozen}) == []  # it had a gradient: frozen in turn


def moved(ratio: float | None) -> bool | None:
    return None if ratio is None else ratio > 0


def still(ratios: dict[str, float | None], changes: dict[str, dict[str, Any]] | None = None, **stats: Any) -> list[tuple[str, str]]:
    """Sites and messages of what is said of weights with these names and update ratios."""
    measured = {
        name: replace(MEASURED, steps=4, norm=0.5, update_ratio=ratio, moved=moved(ratio), **stats)
        for name, ratio in ratios.items()
    }
    held = {name: replace(HELD, **(changes or {}).get(name, {})) for name in ratios}
    found = GradientFlowReport(3, 120, {}, measured, 1.0, sampled_batches=4, batches=40, setups=held)
    return [(alert.site, alert.seen) for alert in NotUpdated()(found)]


@pytest.mark.parametrize(
    ("changes", "stats"),
    [
        ({"trains": False}, {}),
        ({"lr": 0.0}, {}),
        ({"lr": None}, {}),
        ({"dimensions": 1}, {}),
        ({"optimizers": ("1-SGD",)}, {}),  # all of this optimizer's stand still: it may take its steps together
        ({"elements": 100_000}, {"zero_fraction": 0.95}),  # what moves may not have been among the elements compared
        ({}, {"norm": 0.0}),
        ({}, {"steps": 2}),
    ],
)
def test_weights_that_may_stand_still(changes: dict[str, Any], stats: dict[str, Any]) -> None:
    ratios = {"encoder.weight": 0.0, "decoder.weight": 1e-3}
    assert [site for site, _ in still(ratios)] == ["encoder.weight"]
    given = {"steps": 4, "norm": 0.5, **stats}
    measured = {name: replace(MEASURED, **given, update_ratio=ratio, moved=moved(ratio)) for name, ratio in ratios.items()}
    held = {"encoder.weight": replace(HELD, **changes), "decoder.weight": HELD}
    report = GradientFlowReport(3, 120, {}, measured, 1.0, sampled_batches=4, batches=40, setups=held)
    assert list(NotUpdated()(report)) == []


def test_a_part_whose_own_optimizer_never_moves_it() -> None:
    ratios = {"encoder.0.weight": 0.0, "encoder.1.weight": None, "decoder.weight": 1e-3}
    measured = {name: replace(MEASURED, update_ratio=ratio, moved=bool(ratio)) for name, ratio in ratios.items()}
    held = {name: replace(HELD, optimizers=("0-Adam" if name != "decoder.weight" else "1-SGD",)) for name in ratios}
    now = GradientFlowReport(3, 120, {}, measured, 1.0, sampled_batches=4, batches=40, setups=held)
    assert list(NotUpdated()(now)) == []  # 4 steps are few
    (alert,) = NotUpdated()(now.after([now]))
    assert alert.site == "encoder"  # with the weight of zeros, whose ratio is not defined
    assert alert.seen.startswith(
        "encoder.0.weight and 1 more of its weights did not change in 4 measured steps, while other weights (of 1-SGD) did"
    )
    moved = replace(now, parameters={name: replace(stats, moved=True, update_ratio=1e-3) for name, stats in measured.items()})
    assert list(NotUpdated()(now.after([moved]))) == []
    nothing = replace(now, parameters={name: replace(stats, moved=False, update_ratio=0.0) for name, stats in measured.items()})
    assert list(NotUpdated()(nothing.after([nothing]))) == []  # another rule's
