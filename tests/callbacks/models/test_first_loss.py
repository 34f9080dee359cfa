"""A first loss far above chance is an alert that names the scale of the last layer."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import Alert, TrainingMonitor
from tests.support.models import trainer

CLASSES, WIDTH = 50, 64


class Words(LightningModule):
    """The next of some tokens, from the embedding of the last one; with its embeddings as last layer, or one of its own."""

    def __init__(self, tied: bool, std: float, losses: str = "cross_entropy") -> None:
        super().__init__()
        self.embed = nn.Embedding(CLASSES, WIDTH)
        self.norm = nn.LayerNorm(WIDTH)
        self.head = nn.Linear(WIDTH, CLASSES, bias=False)
        nn.init.normal_(self.head.weight, std=std)
        if tied:
            self.head.weight = self.embed.weight  # drawn with a standard deviation of 1
        self.losses: list[float] = []
        self.function = losses

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        logits = self.head(self.norm(self.embed(batch[0])))
        loss = F.nll_loss(logits.log_softmax(-1), batch[1]) if self.function == "nll_loss" else F.cross_entropy(logits, batch[1])
        self.losses.append(loss.item())
        return 7.0 * loss  # the loss that is minimised is another

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=0.01)


def infos(module: Words, epochs: int = 2) -> list[Alert]:
    found: list[Alert] = []
    torch.manual_seed(1)
    pairs = torch.randint(0, CLASSES, (2, 96))
    monitor = TrainingMonitor(on_alert=found.append, summary=False)
    trainer(callbacks=[monitor], max_epochs=epochs).fit(module, DataLoader(TensorDataset(*pairs), 32))
    return [alert for alert in found if alert.kind == "poor_init"]


@pytest.mark.parametrize("function", ["cross_entropy", "nll_loss"])
@pytest.mark.parametrize("tied", [True, False])
def test_a_first_loss_far_above_chance_names_the_scale_of_the_last_layer(tied: bool, function: str) -> None:
    torch.manual_seed(0)
    module = Words(tied, 2.0, function)
    rms = module.head.weight.double().square().mean().sqrt().item()
    (alert,) = infos(module)
    first, chance = module.losses[0], math.log(CLASSES)
    assert (alert.severity, alert.site) == ("warning" if first > 10 * chance else "info", "head")
    assert alert.value == pytest.approx(first / chance, rel=1e-5)
    assert alert.message == (
        f"the first loss of {function} is {first:.3g}, {first / chance:.3g} times that of equal probabilities for 50 classes "
        f"({chance:.3g}; limit: a factor of 3): logits differ too much at the start."
    )
    text = f"The weights of the last layer, head, started with a root mean square of {rms:.3g} (gain {rms * WIDTH**0.5:.3g}, where "
    assert f"{text}1.6 at most is usual)." in alert.text


def test_a_usual_first_loss_is_none() -> None:
    torch.manual_seed(0)
    module = Words(False, WIDTH**-0.5)
    assert infos(module) == []
    assert module.losses[0] < 1.4 * math.log(CLASSES)
