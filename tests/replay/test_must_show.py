"""Faults that make a training NaN or infinite: each is planted in one module, at one operation, and on one sample of the data set.

The monitor has its default settings; the batch with the sample is hardly ever a sampled one.
"""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest
import torch
from lightning.pytorch import LightningModule, seed_everything
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import Alert, TrainingMonitor
from tests.replay.planted import Fault
from tests.support.models import trainer

BAD = 77
"""The planted sample."""


def log_of_zero(x: Tensor, h: Tensor) -> Tensor:
    return h + torch.log(x[:, :1])


def gan(x: Tensor, h: Tensor) -> Tensor:
    judged = torch.sigmoid(torch.where(x[:, :1] == 0, 200.0, 1.0) + 0 * h)
    return h + torch.log(1 - judged)


def root_of_zero(x: Tensor, h: Tensor) -> Tensor:
    return torch.sqrt(h.abs() * x[:, :1])


def norm_of_zeros(x: Tensor, h: Tensor) -> Tensor:
    v = h * x[:, :1]
    return v / v.norm(dim=1, keepdim=True)


def zero_deviation(x: Tensor, h: Tensor) -> Tensor:
    v = h * x[:, :1]
    return (v - v.mean(1, keepdim=True)) / v.detach().std(1, keepdim=True)


def exponential(x: Tensor, h: Tensor) -> Tensor:
    return h + torch.exp(1.0 / (x[:, :1] + 1e-3))


def half(x: Tensor, h: Tensor) -> Tensor:
    return h + (100.0 / (x[:, :1] + 1e-4)).to(torch.float16).float()


def arccos(x: Tensor, h: Tensor) -> Tensor:
    return torch.acos(1 - x[:, :1] * torch.sigmoid(h))


def negative_base(x: Tensor, h: Tensor) -> Tensor:
    return h + (x[:, :1] - 0.01) ** 0.5


def bad_branch(x: Tensor, h: Tensor) -> Tensor:
    scaled = x[:, :1] * h.abs()
    return h + torch.where(x[:, :1] > 0, torch.log(scaled), h)


def focal(x: Tensor, h: Tensor) -> Tensor:
    p = 1 - x[:, :1] * torch.sigmoid(h)
    return (1 - p) ** 0.5 * torch.log(p.clamp(min=1e-3))


def masked_attention(x: Tensor, h: Tensor) -> Tensor:
    scores = (h[:, :, None] * h[:, None]).masked_fill((x[:, :1] == 0)[..., None], -math.inf)
    return torch.softmax(scores, dim=-1).mean(-1)


OPERATIONS = {
    "log of zero": (log_of_zero, "log"),
    "GAN's log(1 - D)": (gan, "log"),
    "root of zero": (root_of_zero, "sqrt"),
    "norm of a zero vector": (norm_of_zeros, "division"),
    "zero standard deviation": (zero_deviation, "division"),
    "exponential overflow": (exponential, "exp"),
    "half-precision overflow": (half, "cast"),
    "arccos at 1": (arccos, "acos"),
    "power of a negative base": (negative_base, "pow"),
    "where with a bad branch": (bad_branch, "log"),
    "focal loss at p = 1": (focal, "pow"),
    "fully masked rows": (masked_attention, "softmax"),
}


class Net(LightningModule):
    def __init__(self, bad: nn.Module, loss: Any = F.mse_loss) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.1))
        self.head, self.bad, self.loss = nn.Linear(8, 3), bad, loss

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        x, y = batch
        return self.loss(self.bad(x, self.head(self.body(x))), y)

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-3)


def fit(model: LightningModule, data: Any, folder: Path, shuffle: bool = True, **options: Any) -> list[Alert]:
    monitor = TrainingMonitor(summary=False, capsule=folder)
    with suppress(IndexError):
        trainer([monitor], **options).fit(model, DataLoader(data, batch_size=8, shuffle=shuffle))
    return [alert for alert in monitor.alerts if alert.kind in ("nonfinite", "loss_nonfinite", "id_out_of_range", "masked_rows")]


def planted(count: int = 160) -> tuple[Tensor, Tensor]:
    seed_everything(3, verbose=False)
    x, y = torch.rand(count, 4) * 0.8 + 0.1, torch.randn(count, 3)
    x[BAD, 0] = 0
    return x, y


@pytest.mark.parametrize("name", OPERATIONS)
def test_an_operation_is_named_with_its_module_its_line_and_the_sample(name: str, tmp_path: Path) -> None:
    operation, called = OPERATIONS[name]
    x, y = planted()
    [alert] = fit(Net(Fault(operation)), TensorDataset(x, y), tmp_path)
    lines = range(operation.__code__.co_firstlineno, operation.__code__.co_firstlineno + 4)
    assert called in alert.title.lower()
    assert any(f"in {operation.__name__}, test_must_show.py:{line}." in alert.seen for line in lines), alert.seen
    assert (alert.site, alert.samples) == ("bad", (BAD,))


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_pixel_that_is_not_finite(value: float, tmp_path: Path) -> None:
    x, y = planted()
    x[BAD, 2] = value
    [alert] = fit(Net(Fault(lambda x, h: h)), TensorDataset(x, y), tmp_path)
    assert alert.message == f"batch[0] has {'NaN' if value != value else 'inf'} in it."
    assert "The first operation with it is addmm in Net.training_step, test_must_show.py" in alert.seen
    assert (alert.site, alert.samples) == ("body.0", (BAD,))
