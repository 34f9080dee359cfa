"""Whose time it is, to the nanosecond, on a clock that only moves where work is done."""

from __future__ import annotations

import dataclasses
import random
from collections.abc import Callable
from typing import Any, NamedTuple

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from lightning_hooks.profiling import ProfileReport
from tests.support.ledger import LEDGER, Leaf, Site, Work, assert_agrees, name_sites, sites
from tests.support.profiled import ProfiledSteps


@pytest.fixture(autouse=True)
def ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    LEDGER.__init__()  # type: ignore[misc]
    LEDGER.patch(monkeypatch)


class Model(Site):
    """The root: what it does itself is outside every site."""

    def __init__(self, **parts: nn.Module) -> None:
        super().__init__()
        for name, part in parts.items():
            self.add_module(name, part)
        self.script: Callable[[Any, Tensor], Any] = lambda m, x: x
        name_sites(self)

    def run(self, x: Tensor) -> Any:
        return self.script(self, x)


class Chain(Site):
    """Its own work, each part, its own work again; a residual if asked."""

    def __init__(self, *parts: nn.Module, residual: bool = False) -> None:
        super().__init__()
        self.parts = nn.ModuleList(parts)
        self.before, self.after = Work(7, 11), Work(13, 17)
        self.residual = residual

    def run(self, x: Tensor) -> Tensor:
        y = self.before.forward(x)
        for part in self.parts:
            y = part(y) + y if self.residual else part(y)
        return self.after.forward(y)


def profile(model: nn.Module, script: Callable[[Any, Tensor], Any] | None = None, loss: Any = None, **kwargs: Any) -> ProfileReport:
    if script is not None:
        model.script = script  # type: ignore[assignment]
    with ProfiledSteps(model, modules=sites) as session, session.step():
        output = model(torch.ones(3))
        total = (loss or torch.Tensor.sum)(output)
        LEDGER.backward = True
        if total.requires_grad:
            total.backward(**kwargs)
        LEDGER.backward = False
    return session.report()


def test_nested_modules_count_once_in_self_and_once_in_each_total() -> None:
    report = profile(Model(a=Chain(Leaf(1, 2), Chain(Leaf(), residual=True)), b=Leaf()), lambda m, x: m.b(m.a(x)))
    assert_agrees(report)
    outer = report.sites["a"]
    assert outer.forward_self.mean == pytest.approx(20e-6)
    assert outer.forward_total.mean == pytest.approx((20 + 1 + 20 + 3) * 1e-6)


def test_a_module_that_calls_itself_is_in_its_own_total_once() -> None:
    class Recursive(Leaf):
        def run(self, x: Tensor, depth: int = 2) -> Tensor:
            y = self.work.forward(x)
            return self(y, depth - 1) if depth else y

    report = profile(Model(a=Recursive(3, 5)), lambda m, x: m.a(x))
    times = report.sites["a"]
    assert times.forward_self.mean == times.forward_total.mean == pytest.approx(9e-6)
    assert times.backward_total.mean == pytest.approx(15e-6)


@pytest.mark.parametrize("frozen", [("a",), ("a", "b"), ("b",), ("a", "b", "c")])
def test_frozen_layers_have_the_backward_that_really_runs(frozen: tuple[str, ...]) -> None:
    parts = {name: Leaf(frozen=name in frozen) for name in "abc"}
    report = profile(Model(**parts), lambda m, x: m.c(m.b(m.a(x))))
    assert_agrees(report)
    assert (report.sites["a"].backward_self.mean == 0) == ("a" in frozen)
    assert (report.sites["b"].backward_self.mean == 0) == ({"a", "b"} <= set(frozen))  # frozen, but in the way


class Pair(NamedTuple):
    first: Tensor
    second: Tensor


@dataclasses.dataclass
class Result:
    value: Tensor


class Opaque:
    def __init__(self, value: Tensor) -> None:
        self.value = value


OUTPUTS: dict[str, tuple[Callable[[Tensor], Any], Callable[[Any], Tensor]]] = {
    "dict": (lambda y: {"y": y, "n": 3}, lambda out: out["y"]),
    "list": (lambda y: [None, y], lambda out: out[1]),
    "named tuple": (lambda y: Pair(y.detach(), y), lambda out: out.second),
    "dataclass": (Result, lambda out: out.value),
    "nested": (lambda y: ({"y": [y]}, 1), lambda out: out[0]["y"][0]),
    "opaque": (Opaque, lambda out: out.value),
    "view": (lambda y: y[1:], lambda out: out),
}


@pytest.mark.parametrize("kind", OUTPUTS)
def test_outputs_of_any_structure(kind: str) -> None:
    wrap, unwrap = OUTPUTS[kind]

    class Wrapping(Leaf):
        def run(self, x: Tensor) -> Any:
            return wrap(self.work.forward(x))

    report = profile(Model(a=Leaf(1, 2), b=Wrapping(), c=Leaf()), lambda m, x: m.c(unwrap(m.b(m.a(x)))))
    assert_agrees(report)
    last = profile(Model(a=Leaf(1, 2), b=Wrapping()), lambda m, x: m.b(m.a(x)), loss=lambda out: unwrap(out).sum())
    assert last.sites["b"].forward_self.mean == pytest.approx(3e-6)


def test_functional_work_between_modules_is_outside() -> None:
    class Glue(Model):
        def __init__(self) -> None:
            super().__init__(a=Leaf(1, 2), b=Leaf(3, 4))
            self.glue = Work(100, 200)

        def run(self, x: Tensor) -> Tensor:
            LEDGER.stack.append("")  # outside
            y = self.b(self.glue.forward(self.a(self.glue.forward(x))))
            LEDGER.stack.pop()
            return y

    report = profile(Glue())
    assert_agrees(report)
    assert report.outside_backward.mean == pytest.approx(400e-6)


@pytest.mark.parametrize("reentrant", [False, True])
@pytest.mark.parametrize("early_stop", [True, False])
def test_recomputation_by_checkpointing_is_separate(reentrant: bool, early_stop: bool) -> None:
    class Saving(Chain):
        def run(self, x: Tensor) -> Tensor:
            y = self.before.forward(x)
            for part in self.parts:
                y = checkpoint(part, y, use_reentrant=reentrant)
            return self.after.forward(y)

    model = Model(a=Leaf(1, 2), b=Saving(Chain(Leaf(19, 23), Leaf(29, 31)), Leaf(37, 41)), c=Leaf())
    with torch.utils.checkpoint.set_checkpoint_early_stop(early_stop):
        report = profile(model, lambda m, x: m.c(m.b(m.a(x))))
    assert_agrees(report)
    inner = report.sites["b.parts.0.parts.1"]
    assert inner.recompute_self.mean == pytest.approx(29e-6)
    assert (inner.calls, inner.recomputed_calls) == (1, 1)
    assert report.sites["b"].recompute_self.mean == 0


def test_a_module_that_raises_and_is_caught() -> None:
    class Raises(Leaf):
        def run(self, x: Tensor) -> Tensor:
            self.work.forward(x)
            raise ValueError

    def script(m: Any, x: Tensor) -> Tensor:
        y = m.a(x)
        try:
            y = m.b(y)
        except ValueError:
            y = m.c(y)
        return y

    assert_agrees(profile(Model(a=Leaf(1, 2), b=Chain(Raises()), c=Leaf()), script))


def test_a_backward_that_raises_leaves_nothing_behind() -> None:
    model = Model(a=Leaf(1, 2), b=Leaf(3, 4))

    def fail(gradient: Tensor) -> None:
        raise ZeroDivisionError

    with ProfiledSteps(model, modules=sites) as session:
        with pytest.raises(ZeroDivisionError), session.step():
            hidden = model.a(torch.ones(3))
            hidden.register_hook(fail)
            model.b(hidden).sum().backward()
        LEDGER.spent.clear()
        LEDGER.calls.clear()
        with session.step():
            model.b(model.a(torch.ones(3))).sum().backward()
    assert_agrees(session.report())
    assert session.report().measured_steps == 1


def build(rng: random.Random, depth: int) -> nn.Module:
    """A module of random make: leaves, chains, residuals, checkpoints, repeats, branches, frozen parts."""
    if depth == 0 or rng.random() < 0.3:
        return Leaf(rng.randint(1, 99), rng.randint(1, 99), frozen=rng.random() < 0.2)
    parts = [build(rng, depth - 1) for _ in range(rng.randint(1, 3))]
    hows = [rng.choice(["call", "call", "residual", "twice", "reentrant", "non-reentrant", "no_grad", "dict"]) for _ in parts]

    class Random(Chain):
        def run(self, x: Tensor) -> Tensor:
            y = self.before.forward(x)
            for part, how in zip(self.parts, hows, strict=True):
                if how == "call":
                    y = part(y)
                elif how == "residual":
                    y = part(y) + y
                elif how == "twice":
                    y = part(part(y)) * part(y)
                elif how == "no_grad":
                    with torch.no_grad():
                        z = part(y)
                    y = y + z
                elif how == "dict":
                    y = {"y": part(y)}["y"]
                elif not LEDGER.backward or how == "non-reentrant":  # reentrant inside another is not everywhere allowed
                    y = checkpoint(part, y, use_reentrant=how == "reentrant")
                else:
                    y = part(y)
            return self.after.forward(y)

    return Random(*parts)


@pytest.mark.filterwarnings("ignore:None of the inputs have requires_grad")  # where all before it is frozen
@pytest.mark.parametrize("seed", range(30))
def test_models_of_random_make(seed: int) -> None:
    rng = random.Random(seed)
    model = Model(a=build(rng, 3), b=build(rng, 2))
    assert_agrees(profile(model, lambda m, x: m.b(m.a(x))))
