"""What the batch and the weights of a bad step say of it, where it is not run again."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from lightning.pytorch import Callback
from torch import Tensor, nn

from lightning_hooks import TrainingMonitor
from lightning_hooks.replay.blame import describe_inputs
from tests.support.models import Classifier, loader, mlp, trainer


class Manual(Classifier):
    """Steps by itself."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        optimizer: Any = self.optimizers()
        loss = super().training_step(batch, batch_idx)
        optimizer.zero_grad()
        self.manual_backward(loss)
        optimizer.step()
        return loss


def test_the_batch_is_looked_at_before_the_weights_and_masks_of_minus_infinity_are_none() -> None:
    net = nn.Linear(3, 2)
    net.register_buffer("mask", torch.tensor([0.0, -math.inf]))
    batch = {"ids": torch.arange(4), "x": torch.ones(4, 2, 3)}
    assert describe_inputs(net, batch)[0] == "The batch and the weights were finite: an operation of the step was the first."
    net.bias.data[1] = math.inf
    assert describe_inputs(net, batch) == ("bias has inf in it, first at [1]: no step makes it finite again.", ())
    batch["x"][1:3, 1, 2] = math.nan
    assert describe_inputs(net, batch) == ("The batch itself has nan in it (batch['x']), first at [1, 1, 2].", (1, 2))


@pytest.mark.parametrize("kind", [Classifier, Manual])
def test_a_weight_that_is_nan_at_the_start_is_the_cause(kind: Any) -> None:
    module, monitor = kind(mlp()), TrainingMonitor(summary=False)
    module.net[2].weight.data[3, 5] = math.nan
    trainer([monitor]).fit(module, loader())
    (alert,) = [alert for alert in monitor.alerts if alert.severity != "info"]
    assert (alert.kind, alert.site, alert.since_step, alert.severity) == ("nonfinite", "net.2.weight", 0, "critical")
    since = "1 of its 256 numbers has been NaN or infinite since before the first step"
    assert alert.message.startswith(f"{since}, the first at [3, 5].")
    assert alert.advice[0].startswith("Initialise net.2.weight again")


class Breaks(Callback):
    """Makes a weight NaN before the fifth step."""

    def on_train_batch_start(self, trainer: Any, module: Any, batch: Any, batch_idx: int) -> None:
        if batch_idx == 5:
            module.net[2].bias.data[1] = math.nan


def test_a_weight_that_becomes_nan_between_steps_is_named() -> None:
    monitor = TrainingMonitor(summary=False)
    trainer([Breaks(), monitor], max_epochs=1).fit(Classifier(mlp()), loader(n=160))
    [alert] = (one for one in monitor.alerts if one.kind == "nonfinite" and not one.cause)
    assert (alert.site, alert.batch, alert.since_step) == ("net.2.bias", 5, 5)
    assert "net.2.bias was NaN before the step, and no step makes it finite again." in alert.seen


def test_a_batch_is_looked_at_under_manual_optimization() -> None:
    data, monitor = loader(), TrainingMonitor(summary=False)
    data.dataset.tensors[0][19, 2] = math.inf
    trainer([monitor]).fit(Manual(mlp()), data)
    (alert,) = [alert for alert in monitor.alerts if alert.severity != "info"]
    assert (alert.kind, alert.batch, alert.samples) == ("loss_nonfinite", 2, (19,))
    assert alert.message.endswith(
        "The batch itself has inf in it (batch[0]), first at [3, 2]. The step was not run again: that is done under automatic "
        "optimization only."
    )
