"""The profiler on a CUDA device."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from lightning_hooks import LayerProfiler
from tests.support.host_reads import NoSync
from tests.support.models import loader, trainer

pytestmark = [
    pytest.mark.cuda,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device, and this machine has none"),
]


class Heavy(LightningModule):
    """Enough for the device that the host is ahead of it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = nn.Sequential(*(nn.Sequential(nn.Linear(2048, 2048), nn.ReLU(inplace=True)) for _ in range(6)))
        self.events: list[list[torch.cuda.Event]] = []

    def stamp(self) -> None:
        event = torch.cuda.Event(enable_timing=True)
        event.record()
        self.events[-1].append(event)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        self.events.append([])
        x = batch[0].repeat(128, 256)
        self.stamp()
        loss = self.net(x).square().mean()
        self.stamp()
        return loss

    def backward(self, loss: Tensor) -> None:
        self.stamp()
        loss.backward()
        self.stamp()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-4)


def test_stream_times_add_up_to_those_measured_with_events_and_nothing_waits() -> None:
    model = Heavy()
    profiler = LayerProfiler(every_n_steps=1, warmup_steps=3, summary=False)
    trainer([NoSync(), profiler], accelerator="gpu").fit(model, loader(n=160, pin_memory=True))
    report = profiler.report
    torch.cuda.synchronize()
    stamps = model.events[3:]
    forward = sum(a.elapsed_time(b) for a, b, _, _ in stamps) / len(stamps)
    backward = sum(c.elapsed_time(d) for _, _, c, d in stamps) / len(stamps)
    assert report.measured_steps == len(stamps) == 17
    assert not profiler.faults.errors
    assert report.backward_time.mean == pytest.approx(backward, rel=0.1)
    assert report.sites["net"].forward_total.mean == pytest.approx(forward, rel=0.1)
    selves = sum(times.self_time.mean for times in report.sites.values())
    assert selves == pytest.approx(forward + backward, rel=0.1)


def test_memory_is_what_a_layer_leaves_allocated() -> None:
    profiler = LayerProfiler(every_n_steps=1, warmup_steps=1, summary=False)
    trainer([profiler], accelerator="gpu").fit(Heavy(), loader())
    sites = profiler.report.sites
    output = 8 * 128 * 2048 * 4
    assert sites["net.0.0"].output_bytes == pytest.approx(output, rel=0.2)  # the last batch is shorter
    assert sites["net.0.0"].memory_bytes == output
    assert sites["net.0.1"].memory_bytes == 0  # in place
    assert sites["net"].memory_bytes == 6 * output
