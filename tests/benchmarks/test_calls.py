"""The package's Python calls in a step stay within their budgets: they are counted, so that no machine's speed matters."""

from __future__ import annotations

import pytest

from lightning_hooks import GradientClipMonitor, TrainingMonitor
from lightning_hooks.statistics.kernels import kernels_for
from tests.benchmarks.calls import HOSTS, epoch_end_calls, lightning_steps, of_kinds

MODULES, PARAMETERS = 10, 8  # of the CNN


@pytest.fixture(scope="module")
def cnn() -> dict[str, int]:
    steps = lightning_steps("cnn", TrainingMonitor(every_n_steps=5, summary=False), 40)
    return {kind: calls.total() for kind, calls in of_kinds(steps, 5).items()}


def test_a_step_that_is_not_sampled_is_a_handful_of_calls(cnn: dict[str, int]) -> None:
    assert cnn["not sampled"] <= 60


def test_such_a_step_makes_no_call_for_a_module_or_a_parameter(cnn: dict[str, int]) -> None:
    steps = lightning_steps("transformer", TrainingMonitor(every_n_steps=5, summary=False), 40)
    assert of_kinds(steps, 5)["not sampled"].total() == cnn["not sampled"]


def test_a_step_whose_gradients_are_clipped_reads_them_once_more() -> None:
    steps = lightning_steps("cnn", TrainingMonitor(every_n_steps=5, summary=False), 40, clip=1e-3)
    assert of_kinds(steps, 5)["not sampled"].total() <= 66


def test_a_sampled_step_makes_some_calls_for_each_module_and_parameter(cnn: dict[str, int]) -> None:
    assert cnn["sampled"] <= 120 + 14 * MODULES + 6 * PARAMETERS


def test_the_first_step_looks_at_everything_once(cnn: dict[str, int]) -> None:
    assert cnn["first"] <= 2 * (120 + 14 * MODULES + 6 * PARAMETERS)


def test_the_end_of_an_epoch_makes_few_calls_for_each_module_and_its_parameter() -> None:
    assert epoch_end_calls(200).total() - epoch_end_calls(100).total() <= 100 * 36


def test_without_the_c_library(monkeypatch: pytest.MonkeyPatch) -> None:
    kernels_for.cache_clear()
    monkeypatch.setenv("LIGHTNING_HOOKS_NATIVE", "0")
    try:
        kinds = of_kinds(lightning_steps("cnn", TrainingMonitor(every_n_steps=5, summary=False), 40), 5)
    finally:
        kernels_for.cache_clear()
    assert kinds["not sampled"].total() <= 60
    assert kinds["sampled"].total() <= 370


def test_clip_events_alone() -> None:
    steps = lightning_steps("cnn", GradientClipMonitor(summary=False), 40)
    assert of_kinds(steps, 5)["not sampled"].total() <= 45


@pytest.mark.parametrize(("host", "most"), [("watch", 115), ("Fabric", 120), ("Accelerate", 115), ("transformers", 160)])
def test_other_loops(host: str, most: int) -> None:
    if host in ("Accelerate", "transformers"):
        pytest.importorskip("accelerate")
        pytest.importorskip("transformers")
    assert of_kinds(HOSTS[host]("cnn", 40, every_n_steps=5, summary=False), 5)["not sampled"].total() <= most
