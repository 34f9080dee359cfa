"""The slow, independent reference: keep everything, compute in float64 with numpy at the end."""

from __future__ import annotations

import dataclasses
import math
from collections import defaultdict
from typing import Any

import numpy as np
import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor, nn


class Recorder(Callback):
    """Keeps each named module's outputs and output gradients, and each optimizer step's gradients, of training batches."""

    def __init__(self, names: list[str], every: int = 1) -> None:
        self.names = names
        self.every = every
        self.outputs: dict[str, list[np.ndarray]] = defaultdict(list)
        self.gradients: dict[str, list[np.ndarray]] = defaultdict(list)
        self.steps: list[dict[str, np.ndarray | None]] = []
        self.weights: list[dict[str, np.ndarray]] = []
        self.on = False

    def setup(self, trainer: Any, pl_module: nn.Module, stage: str) -> None:
        modules = dict(pl_module.named_modules())
        for name in self.names:
            modules[name].register_forward_hook(self._hook(name))

    def _hook(self, name: str) -> Any:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            if not self.on:
                return
            tensors = [output] if isinstance(output, Tensor) else [output[0], *output[1]]
            for tensor in tensors:
                self.outputs[name].append(tensor.detach().double().numpy().copy())
                if tensor.requires_grad:
                    tensor.register_hook(lambda g: self.gradients[name].append(g.detach().double().numpy().copy()))

        return keep

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.on = batch_idx % self.every == 0

    def on_before_optimizer_step(self, trainer: Any, pl_module: nn.Module, optimizer: Any) -> None:
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        named = [(name, p) for name, p in pl_module.named_parameters() if id(p) in held]
        self.steps.append({n: None if p.grad is None else p.grad.double().numpy().copy() for n, p in named})
        self.weights.append({n: p.detach().double().numpy().copy() for n, p in named})

    def on_train_batch_end(self, *args: Any) -> None:
        self.on = False


def reference_stats(chunks: list[np.ndarray]) -> dict[str, float]:
    """Statistics of the concatenated values in float64."""
    values = np.concatenate([chunk.reshape(-1) for chunk in chunks])
    finite = values[np.isfinite(values)]
    nothing = not finite.size
    return {
        "calls": len(chunks),
        "count": finite.size,
        "mean": math.nan if nothing else finite.mean(),
        "std": math.nan if nothing else finite.std(),
        "min": math.nan if nothing else finite.min(),
        "max": math.nan if nothing else finite.max(),
        "rms": math.nan if nothing else math.sqrt((finite**2).mean()),
        "zero_fraction": (values == 0).mean() if values.size else math.nan,
        "nonfinite_fraction": 1 - finite.size / values.size if values.size else math.nan,
    }


SCALES = {"mean": "rms"}
"""A statistic that cancels, so that near zero it is the rounding of what was added up, and the one that is its scale."""


def scale_of(name: str) -> str:
    """The name of the statistic that is the scale of another, such as ``features/net.0/rms``; empty if that one does not cancel."""
    place, slash, stat = name.rpartition("/")
    return f"{place}{slash}{SCALES[stat]}" if stat in SCALES else ""


def same_number(found: float, expected: float, rel: float, scale: float = 0.0, tiny: float = 0.0) -> bool:
    """Whether two numbers differ by at most ``rel`` of the larger, ``rel`` of ``scale``, or ``tiny``; NaN equals NaN."""
    near = math.isclose(found, expected, rel_tol=rel, abs_tol=max(tiny, rel * scale if math.isfinite(scale) else 0.0))
    return near or (math.isnan(found) and math.isnan(expected))


def assert_stats(found: Any, expected: dict[str, float], rel: float = 1e-6, context: str = "") -> None:
    """Hold a statistics dataclass against the reference; a mean near zero is held to the scale of the values."""
    for stat, value in expected.items():
        got = getattr(found, stat)
        if stat in ("calls", "count"):
            assert got == value, (context, stat, got, value)
        else:
            assert same_number(got, value, rel, expected.get(scale_of(stat), 0.0)), (context, stat, got, value)


def total_norm(gradients: dict[str, np.ndarray | None]) -> float:
    return math.sqrt(sum(float((g**2).sum()) for g in gradients.values() if g is not None))


def same_state(one: nn.Module, other: nn.Module) -> bool:
    """Whether two models are bit-identical, keys and values."""
    first, second = one.state_dict(), other.state_dict()
    return list(first) == list(second) and all(torch.equal(first[key], second[key]) for key in first)


def assert_same(found: Any, expected: Any, where: str = "", rel: float = 1e-5, skip: Any = (), tiny: float = 1e-9) -> None:
    """Compare reports field by field, numbers within ``rel``; a mean near zero is held to the scale of the values."""
    if dataclasses.is_dataclass(expected):
        for entry in dataclasses.fields(expected):
            if entry.name not in skip and entry.compare:  # what is measured of time differs
                one, other = getattr(found, entry.name), getattr(expected, entry.name)
                least = max(tiny, rel * getattr(expected, scale_of(entry.name) or "-", 0.0))
                assert_same(one, other, f"{where}.{entry.name}", rel, skip, least)
    elif isinstance(expected, dict):
        assert list(found) == list(expected), where
        for key, value in expected.items():
            assert_same(found[key], value, f"{where}[{key}]", rel, skip, tiny)
    elif isinstance(expected, float):
        assert same_number(found, expected, rel, tiny=tiny), (where, found, expected)
    elif isinstance(expected, tuple):
        assert len(found) == len(expected), where
        for one, other in zip(found, expected, strict=True):
            assert_same(one, other, where, rel, skip, tiny)
    else:
        assert found == expected, (where, found, expected)


def everything(value: Any) -> str:
    """All that a report, or something that holds reports, says: as ``repr`` of a dataclass, which is short for reports."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        entries = (f"{entry.name}={everything(getattr(value, entry.name))}" for entry in dataclasses.fields(value) if entry.repr)
        return f"{type(value).__name__}({', '.join(entries)})"
    if isinstance(value, dict):
        return f"{{{', '.join(f'{key!r}: {everything(entry)}' for key, entry in value.items())}}}"
    if isinstance(value, (list, tuple)):
        return f"({', '.join(map(everything, value))})"
    return repr(value)


def grad_norm(parameters: Any) -> float:
    return math.sqrt(sum(float((p.grad.double() ** 2).sum()) for p in parameters if p.grad is not None))


def assert_events(stats: Any, pairs: list[tuple[float, float]], rel: float = 1e-5) -> None:
    before, after = (np.array(column) for column in zip(*pairs, strict=True))
    clipped = int((after < before * (1 - 1e-6)).sum())
    assert (stats.steps, stats.clipped_steps) == (len(pairs), clipped)
    assert stats.rate == pytest.approx(clipped / len(pairs))
    assert stats.norm_before == pytest.approx(before.mean(), rel=rel)
    assert stats.norm_before_max == pytest.approx(before.max(), rel=rel)
    assert stats.norm_after == pytest.approx(after.mean(), rel=rel)
    assert stats.norm_after_max == pytest.approx(after.max(), rel=rel)
    assert stats.coefficient == pytest.approx((after / before).mean(), rel=rel)
    assert (stats.nonfinite_steps, stats.skipped_steps) == (0, 0)
