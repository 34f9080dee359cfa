"""What monitors hold of each module stays within its budget, in Python's memory; tensors' values are not counted."""

from __future__ import annotations

import gc
import tracemalloc

import torch
from torch import nn

from lightning_hooks import watch
from tests.benchmarks.workloads import ManyLayers


def held(layers: int) -> int:
    """Bytes that are held within a window, of a model of linear layers."""
    net, inputs = ManyLayers(layers), torch.randn(4, 32)
    optimizer = torch.optim.SGD(net.parameters(), lr=1e-3)
    tracemalloc.start()
    try:
        with watch(net, optimizer, every_n_steps=1, summary=False) as monitor:
            for _ in range(4):
                optimizer.zero_grad()
                loss = nn.functional.cross_entropy(net(inputs), torch.zeros(4, dtype=torch.long))
                loss.backward()
                optimizer.step()
                monitor.step(loss)
            gc.collect()
            return tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()


def test_a_layer_with_two_parameters_takes_a_few_kilobytes() -> None:
    held(10)  # what is imported and cached at the first run is nobody's
    assert held(300) - held(100) <= 200 * 6200
