"""watch() with a GradScaler: the loss scale leaves no trace, and skipped steps are counted."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import watch
from tests.support.models import hook_counts

BAD = 3
"""The batch whose gradients are not finite."""


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first, self.act, self.last = nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.last(self.act(self.first(x)))


def batches(bad: bool) -> list[tuple[Tensor, Tensor]]:
    generator = torch.Generator().manual_seed(1)
    found = [(torch.randn(16, 4, generator=generator), torch.randint(0, 3, (16,), generator=generator)) for _ in range(8)]
    if bad:
        found[BAD][0][0, 0] = torch.inf
    return found


def new_optimizer(kind: str, parameters: Any) -> torch.optim.Optimizer:
    if kind == "sgd":
        return torch.optim.SGD(parameters, lr=0.1)
    return torch.optim.Adam(parameters, lr=0.01, fused=kind == "fused")


def run(scale: float | None, kind: str, clip: float | None, accumulate: int, bad: bool) -> tuple[dict[str, Any], Net]:
    """Train with a scaler, or without one where the scale is None."""
    net = Net()
    optimizer = new_optimizer(kind, net.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=scale or 1.0, growth_interval=10_000, enabled=scale is not None)
    with watch(net, optimizer, scaler=scaler, every_n_steps=1, summary=False) as monitor:
        for index, (x, y) in enumerate(batches(bad)):
            loss = nn.functional.cross_entropy(net(x), y)
            scaler.scale(loss / accumulate).backward()
            if (index + 1) % accumulate == 0:
                if clip is not None:
                    scaler.unscale_(optimizer)
                    nn.utils.clip_grad_norm_(net.parameters(), clip)
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
            monitor.step(loss)
        reports = monitor.end_window()
    assert "unscale_" not in vars(scaler)
    assert not any(hook_counts(net).values())
    return reports, net


MATRIX = [
    (kind, clip, accumulate, bad)
    for kind, clip, accumulate, bad in itertools.product(("sgd", "adam", "fused"), (None, 0.05), (1, 2), (False, True))
    if not (kind == "fused" and clip is not None)  # unscaled by the user, a fused optimizer divides by the scale no more
]


@pytest.mark.parametrize(("kind", "clip", "accumulate", "bad"), MATRIX)
def test_the_loss_scale_leaves_no_trace(kind: str, clip: float | None, accumulate: int, bad: bool) -> None:
    scaled, net = run(1024.0, kind, clip, accumulate, bad)
    plain, same = run(1.0, kind, clip, accumulate, bad)
    assert all(map(torch.equal, net.parameters(), same.parameters())), "a power of two changes no bit"
    (clips,), (others,) = (reports["clipping"].optimizers.values() for reports in (scaled, plain))
    assert (clips.steps + clips.skipped_steps, clips.skipped_steps) == (8 // accumulate, int(bad))
    assert clips.clipped_steps == (clips.steps if clip else 0)
    assert (clips.norm_before, clips.norm_after, clips.coefficient) == (others.norm_before, others.norm_after, others.coefficient)
    assert scaled["gradients"].modules["last"] == plain["gradients"].modules["last"]
    assert scaled["gradients"].parameters["first.weight"] == plain["gradients"].parameters["first.weight"]
    assert scaled["gradients"].loss.mean == plain["gradients"].loss.mean or bad
    assert scaled["gradients"].parameters["first.weight"].steps == 8 // accumulate - bad


def test_the_numbers_before_the_clip_are_unscaled() -> None:
    reports, _ = run(4096.0, "sgd", 0.05, 1, False)
    net = Net()
    optimizer, norms = new_optimizer("sgd", net.parameters()), []
    for x, y in batches(False):
        nn.functional.cross_entropy(net(x), y).backward()
        norms.append(float(nn.utils.clip_grad_norm_(net.parameters(), 0.05)))
        optimizer.step()
        optimizer.zero_grad()
    clips = reports["clipping"].optimizers["0-SGD"]
    assert clips.norm_before == pytest.approx(sum(norms) / 8, rel=1e-5)
    assert clips.norm_after == pytest.approx(0.05, rel=1e-4)


def test_a_scaler_that_is_not_passed_is_one_warning() -> None:
    net = Net()
    optimizer = new_optimizer("sgd", net.parameters())
    scaler = torch.amp.GradScaler("cpu", init_scale=1024.0)

    def train() -> None:
        with watch(net, optimizer, every_n_steps=1, summary=False) as monitor:
            for x, y in batches(False):
                loss = nn.functional.cross_entropy(net(x), y)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                optimizer.zero_grad()
                monitor.step(loss)

    with pytest.warns(UserWarning, match=r"watch\(model, optimizer, scaler=scaler\)") as found:
        train()
    assert len(found) == 1
