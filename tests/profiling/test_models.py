"""Profiling of whole models, compiled ones among them."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks.profiling import ProfileReport
from tests.support.models import ResidualCNN, TinyTransformer, hook_counts
from tests.support.profiled import ProfiledSteps
from tests.support.reference import same_state


def step_of(model: nn.Module, shape: tuple[int, ...]) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, *shape)).sum().backward()
        optimizer.step()

    return step


def profile(model: nn.Module, step: Any, steps: int, warmup_steps: int, modules: Any = None) -> ProfileReport:
    with ProfiledSteps(model, modules, warmup_steps) as session:
        for _ in range(warmup_steps + steps):
            with session.step():
                step()
    return session.report()


@pytest.mark.parametrize(("build", "shape"), [(ResidualCNN, (1, 6, 6)), (TinyTransformer, (5, 6))])
def test_profile_measures_every_module_and_changes_nothing(build: Any, shape: tuple[int, ...]) -> None:
    models = []
    for profiled in (False, True):
        torch.manual_seed(0)
        model = build()
        before = hook_counts(model)
        step = step_of(model, shape)
        if profiled:
            report = profile(model, step, steps=3, warmup_steps=2)
            assert report.measured_steps == 3
            silent = {name for name in dict(model.named_modules()) if name.endswith("out_proj")}
            assert set(report.silent) == silent
            assert set(report.sites) == {name for name, module in model.named_modules() if name} - silent - {"encoder.layers"}
        else:
            for _ in range(5):
                step()
        models.append(model)
        assert hook_counts(model) == before
    assert same_state(*models)


@pytest.mark.filterwarnings(
    "ignore::DeprecationWarning", "ignore::FutureWarning", "ignore:The .grad attribute"
)  # the compiler's own
def test_a_compiled_module_is_timed_as_a_whole_and_left_alone() -> None:
    inner = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
    model = nn.ModuleDict({"eager": nn.Linear(8, 8), "compiled": torch.compile(inner, backend="eager"), "inplace": nn.Linear(8, 3)})
    model["inplace"].compile(backend="eager")

    def step() -> None:
        model["inplace"](model["compiled"](model["eager"](torch.randn(4, 8)))).sum().backward()

    torch._dynamo.utils.counters.clear()
    report = profile(model, step, steps=2, warmup_steps=1)
    assert list(report.sites) == ["eager", "compiled"]
    assert set(report.silent) == {"compiled.0", "compiled.1", "inplace"}
    assert report.sites["compiled"].backward_self.mean > 0
    assert not torch._dynamo.utils.counters["graph_break"]
    assert not any(hook_counts(inner).values())
