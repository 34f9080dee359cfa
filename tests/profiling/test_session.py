"""Profiling in a loop of one's own."""

from __future__ import annotations

import statistics
import time
from typing import Any

import pytest
import torch
from torch import nn

from lightning_hooks.profiling import ProfileReport, ProfileSession
from tests.support.models import ResidualCNN, TinyTransformer, hook_counts, mlp
from tests.support.reference import same_state


class Net(nn.Module):
    """Enough real work that a hook's cost is small in comparison."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Conv2d(3, 12, 3, padding=1)
        self.body = nn.Sequential(*(nn.Sequential(nn.Conv2d(12, 12, 3, padding=1), nn.ReLU(inplace=True)) for _ in range(3)))
        self.head = nn.Linear(12 * 32 * 32, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.stem(x)
        return self.head((y + self.body(y)).flatten(1))


def measure() -> tuple[Any, float]:
    """A report, and the median milliseconds of forward and backward in the same steps, taken from outside."""
    model, x = Net(), torch.randn(16, 3, 32, 32)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    measured: list[float] = []
    with ProfileSession(model, warmup_steps=1) as session:
        for index in range(8):
            with session.step():
                optimizer.zero_grad()
                start = time.perf_counter()
                model(x).sum().backward()
                end = time.perf_counter()
                optimizer.step()
            if index:
                measured.append((end - start) * 1e3)
    return session.report(), statistics.median(measured)


def test_the_parts_add_up_to_the_step_measured_from_outside() -> None:
    for _ in range(6):  # again where the machine was busy with something else in between
        report, measured = measure()
        selves = sum(times.self_time.mean for times in report.sites.values())
        outside = report.outside_forward.mean + report.outside_backward.mean
        assert selves + outside + report.other_time.mean == pytest.approx(report.step_time.mean, rel=1e-9)
        roots = sum(report.sites[name].total_time.p50 for name in ("stem", "body", "head"))
        phases = report.forward_time.p50 + report.backward_time.p50
        if roots == pytest.approx(measured, rel=0.25) and phases == pytest.approx(measured, rel=0.25):
            return
    pytest.fail(f"forward and backward took {measured:.4g} ms, the layers {roots:.4g} and the phases {phases:.4g}")


def step_of(model: nn.Module, shape: tuple[int, ...]) -> Any:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)

    def step() -> None:
        optimizer.zero_grad()
        model(torch.randn(4, *shape)).sum().backward()
        optimizer.step()

    return step


def profile(model: nn.Module, step: Any, steps: int, warmup_steps: int, modules: Any = None) -> ProfileReport:
    with ProfileSession(model, modules=modules, warmup_steps=warmup_steps) as session:
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


@pytest.mark.parametrize(
    ("kwargs", "error", "text"),
    [
        ({"warmup_steps": -1}, ValueError, r"warmup_steps must be at least 0; got -1\."),
        ({"modules": "nothing*"}, ValueError, r"modules='nothing\*' matches no module of Sequential\. Closest names"),
        ({"modules": 3}, TypeError, "modules must be a glob pattern .*; got 3"),
    ],
)
def test_bad_input_says_what_came(kwargs: Any, error: type[Exception], text: str) -> None:
    model = mlp()
    with pytest.raises(error, match=text):
        ProfileSession(model, **kwargs)
    assert not any(hook_counts(model).values())


def test_a_session_that_raises_removes_its_hooks_and_is_used_once() -> None:
    model = mlp()
    session = ProfileSession(model, warmup_steps=0)
    with pytest.raises(RuntimeError, match="Run steps inside the with block"), session.step():
        pass
    with pytest.raises(ZeroDivisionError), session, session.step():
        model(torch.ones(2, 8))
        raise ZeroDivisionError
    assert not any(hook_counts(model).values())
    with pytest.raises(RuntimeError, match=r"has been used\. Create a new one"), session:
        pass


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
