"""Rules over single steps, just below and just above their thresholds."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch

from lightning_hooks.alerts import ClipReport, Discarded, Diverging, NonfiniteSteps, NotZeroed, Spike, WastedClip
from lightning_hooks.clipping.stats import N_CLIP_COLUMNS, clip_stats, tally
from lightning_hooks.clipping.watch import StepEvents

ZERO = "Call optimizer.zero_grad() after each step, and at no other time."
QUIET = StepEvents(
    jump=1.2, jump_sigmas=2.0, jump_norm=1.2, jump_mean=0.8, jump_before=128, jump_batch=3, jump_parameter="head.weight",
    growth=1.5, growth_norm=1.2, growth_batch=3,
)  # fmt: skip


def report(**change: Any) -> ClipReport:
    return ClipReport(3, 120, {}, events={"0-SGD": QUIET, "1-Adam": replace(QUIET, **change)})


def names(rule: Any, **change: Any) -> list[tuple[str, str, float, str]]:
    return [(alert.kind, alert.site, alert.value, alert.severity) for alert in rule(report(**change))]


@pytest.mark.parametrize(
    ("change", "found"),
    [
        ({"jump": 10.0, "jump_sigmas": 99.0}, False),
        ({"jump": 10.1, "jump_sigmas": 99.0}, True),
        ({"jump": 10.1, "jump_sigmas": 6.0}, False),
        ({"jump": 10.1, "jump_sigmas": 6.1}, True),
        ({"jump": 99.0, "jump_sigmas": 99.0, "jump_before": 15}, False),
        ({"jump": 99.0, "jump_sigmas": 99.0, "jump_before": 16}, True),
    ],
)
def test_spike(change: dict[str, Any], found: bool) -> None:
    assert names(Spike(), **change) == ([("spike", "1-Adam", change["jump"], "warning")] if found else [])


@pytest.mark.parametrize(("growth", "found"), [(1e3, False), (1.1e3, True)])
def test_diverging(growth: float, found: bool) -> None:
    change = {"growth": growth, "growth_norm": 4.2e5, "growth_batch": 8}
    assert names(Diverging(), **change) == ([("exploding", "1-Adam", growth, "warning")] if found else [])
    for alert in Diverging()(report(**change)):
        assert alert.text.startswith(
            "at training batch 8 of the epoch the gradient norm was 4.2e+05: 1.1e+03 times the largest of the first steps"
        )
        assert "Try a lower learning rate." in alert.text


def test_a_step_with_a_gradient_that_is_not_finite() -> None:
    faulty = {"first_nonfinite_batch": 7, "first_nonfinite_parameters": ("stem.weight", "fc.bias")}
    assert names(NonfiniteSteps(), **faulty, nonfinite_share=1.0) == [("nonfinite", "1-Adam", 1.0, "critical")]
    assert names(NonfiniteSteps(), **faulty, nonfinite_share=0.5) == [("nonfinite", "fc.bias", 0.5, "critical")]
    (whole,) = NonfiniteSteps()(report(**faulty, nonfinite_share=1.0))
    assert whole.text.startswith("at training batch 7 of the epoch a step was taken with gradients that were all NaN or infinite")
    (part,) = NonfiniteSteps()(report(**faulty, nonfinite_share=0.5))
    assert "the backward pass fails between this layer and the next" in part.text
    assert part.text.endswith("Add an eps inside it.")


@pytest.mark.parametrize(
    ("rule", "field", "kind"), [(NotZeroed(), "unzeroed_steps", "not_zeroed"), (WastedClip(), "wasted_clips", "clip_ineffective")]
)
def test_careless_loops(rule: Any, field: str, kind: str) -> None:
    assert names(rule, **{field: 1}) == []
    assert names(rule, **{field: 2}) == [(kind, "1-Adam", 2, "warning")]
    (alert,) = rule(report(**{field: 9}))
    expected = {
        "not_zeroed": ("at 9 steps (limit 2) its gradients had not been zeroed", ZERO),
        "clip_ineffective": (
            "its gradients were changed 9 times (limit 2) between a step and the next zero_grad",
            "configure_gradient_clipping.",
        ),
    }[kind]
    assert alert.text.startswith(expected[0])
    assert alert.text.endswith(expected[1])


@pytest.mark.parametrize("rule", [Spike(), Diverging(), NonfiniteSteps(), NotZeroed(), WastedClip()], ids=repr)
def test_quiet_steps_give_no_alert(rule: Any) -> None:
    assert list(rule(report())) == []
    assert list(rule(ClipReport(0, 0, {}, events={"0-SGD": StepEvents()}))) == []  # no step at all


@pytest.mark.parametrize(
    ("steps", "lost", "optimizers", "found"),
    [
        (10, 30, 1, [0.75]),
        (12, 8, 1, [0.4]),
        (13, 8, 1, []),
        (1, 4, 1, []),  # too few
        (0, 9, 1, [1.0]),  # no step at all
        (10, 30, 2, []),  # as a GAN's two do
    ],
)
def test_gradients_that_are_thrown_away(steps: int, lost: int, optimizers: int, found: list[float]) -> None:
    names = ["0-SGD", "1-Adam"][:optimizers]
    stats = {name: clip_stats([float(steps), *[0.0] * (N_CLIP_COLUMNS - 1)], []) for name in names}
    given = ClipReport(0, 40, stats, events=dict.fromkeys(names, replace(QUIET, discarded_batches=lost)))
    assert [(alert.kind, alert.value) for alert in Discarded()(given)] == [("not_zeroed", value) for value in found]


@pytest.mark.parametrize(
    ("steps", "before", "after", "found"), [(4, 2.0, 0.0, True), (4, 0.0, 0.0, False), (4, 2.0, 1e-9, False), (4, 2e19, 0.0, False)]
)
def test_gradients_that_are_zeroed_before_the_step(steps: int, before: float, after: float, found: bool) -> None:
    """Norms before and after clipping; the other optimizer's are as they should be."""
    norms = torch.full((steps, 1), before), torch.full((steps, 1), after), torch.ones(steps, dtype=torch.bool)
    stats = {"0-SGD": clip_stats(tally(*norms).tolist(), ["a"]), "1-Adam": clip_stats(tally(norms[0], *norms[::2]).tolist(), ["a"])}
    alerts = [*Discarded()(ClipReport(0, 40, stats, events=dict.fromkeys(stats, QUIET)))]
    assert [(alert.site, alert.value) for alert in alerts] == [("0-SGD", 1.0)] * found
    assert all("of 4 of 4 batches" in alert.message and "zeroed between backward and the step" in alert.message for alert in alerts)
