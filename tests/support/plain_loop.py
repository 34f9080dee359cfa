"""A plain training loop of one window, observed."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

from lightning_hooks import Alert, watch
from lightning_hooks.alerts import FeatureReport


def trained(
    model: nn.Module, batches: Sequence[tuple[Tensor, Tensor]], loss: Callable[[Tensor, Tensor], Tensor], kind: str
) -> tuple[FeatureReport, list[Alert]]:
    """Train a model, as module ``0``, on pairs of inputs and targets; what was measured of outputs, and the alerts of a kind."""
    model = nn.Sequential(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)

    def loss_of(batch: tuple[Tensor, Tensor]) -> Tensor:
        return loss(model(batch[0]), batch[1])

    with watch(model, optimizer, loss_function=loss_of, every_n_steps=1, summary=False) as monitor:
        for batch in monitor.batches(batches):
            optimizer.zero_grad()
            found = monitor.loss(batch)
            found.backward()
            optimizer.step()
            monitor.step(found)
        monitor.end_window()
        assert monitor.features is not None
        return monitor.features, [alert for alert in monitor.alerts if alert.kind == kind]
