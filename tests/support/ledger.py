"""A clock that only moves where work is done, and the account of who did it: what the profiler must find, exactly."""

from __future__ import annotations

from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn


class Ledger:
    """Time in nanoseconds, moved by :class:`Work` alone; entered by module, as the modules themselves report."""

    def __init__(self) -> None:
        self.now = 0
        self.stack: list[str] = []
        self.backward = False
        self.spent: Counter[tuple[str, str]] = Counter()  # (phase, site) -> ns, of a step
        self.calls: Counter[tuple[str, str]] = Counter()

    def spend(self, phase: str, site: str, amount: int) -> None:
        self.now += amount
        self.spent[phase, site] += amount

    @property
    def site(self) -> str:
        return self.stack[-1] if self.stack else ""

    def total(self, phase: str, site: str) -> int:
        return sum(ns for (p, s), ns in self.spent.items() if p == phase and (s == site or s.startswith(f"{site}.")))

    def patch(self, monkeypatch: Any) -> None:
        monkeypatch.setattr("lightning_hooks.profiling.clock.perf_counter_ns", lambda: self.now)


LEDGER = Ledger()


class _Work(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, forward: int, backward: int) -> Tensor:
        ctx.site, ctx.cost = LEDGER.site, backward
        ctx.save_for_backward(x)  # what makes checkpointing recompute
        LEDGER.spend("recompute" if LEDGER.backward else "forward", LEDGER.site, forward)
        return x * weight

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> Any:
        (x,) = ctx.saved_tensors
        LEDGER.spend("backward", ctx.site, ctx.cost)
        return gradient, (gradient * x).sum(), None, None


class Work(nn.Module):
    """Not a site of its own: a means to spend time wherever it is used, through its ``forward``."""

    def __init__(self, forward: int = 3, backward: int = 5, frozen: bool = False) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor(0.9), requires_grad=not frozen)
        self.costs = forward, backward

    def forward(self, x: Tensor) -> Tensor:
        return _Work.apply(x, self.weight, *self.costs)


class Site(nn.Module):
    """A module that reports the ledger when it runs. ``report`` in :func:`name_sites` gives it its name."""

    name = ""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return super().__call__(*args, **kwargs)

    def forward(self, *args: Any) -> Any:
        LEDGER.calls["recompute" if LEDGER.backward else "forward", self.name] += 1
        LEDGER.stack.append(self.name)
        try:
            return self.run(*args)
        finally:
            LEDGER.stack.pop()

    def run(self, *args: Any) -> Any:
        raise NotImplementedError


class Leaf(Site):
    """Spends, and does something in place."""

    def __init__(self, forward: int = 3, backward: int = 5, frozen: bool = False) -> None:
        super().__init__()
        self.work = Work(forward, backward, frozen)

    def run(self, x: Tensor) -> Tensor:
        y = self.work.forward(x)
        y += 1.0
        return torch.nn.functional.relu(y, inplace=True)


def name_sites(root: nn.Module) -> nn.Module:
    for name, module in root.named_modules():
        if isinstance(module, Site):
            module.name = name
    return root


def sites(name: str, module: nn.Module) -> bool:
    """For ``modules=``: what reports the ledger."""
    return isinstance(module, Site)


def assert_agrees(report: Any, steps: int = 1) -> None:
    """The report holds the ledger's numbers, to the nanosecond."""
    found = {name for _, name in LEDGER.calls if name}
    assert set(report.sites) == found
    for name, times in report.sites.items():
        for phase in ("forward", "backward", "recompute"):
            self_ms = getattr(times, f"{phase}_self")
            assert round(self_ms.mean * 1e6 * steps) == LEDGER.spent[phase, name], (name, phase, "self")
        for phase in ("forward", "backward"):
            total_ms = getattr(times, f"{phase}_total")
            assert round(total_ms.mean * 1e6 * steps) == LEDGER.total(phase, name), (name, phase, "total")
        assert round(times.calls * steps) == LEDGER.calls["forward", name], name
        assert round(times.recomputed_calls * steps) == LEDGER.calls["recompute", name], name
    for phase, spread in (("forward", report.outside_forward), ("backward", report.outside_backward)):
        assert round(spread.mean * 1e6 * steps) == LEDGER.spent[phase, ""], f"outside, {phase}"
    assert round(report.step_time.mean * 1e6 * steps) == sum(LEDGER.spent.values())
    shares = sum(times.share for times in report.sites.values())
    outside = report.outside_forward.mean + report.outside_backward.mean + report.other_time.mean
    assert abs(shares + outside / report.step_time.mean - 1) < 1e-9
