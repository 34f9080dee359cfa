"""Operations with arguments that are not plain: what is said of them is true, and no look at them makes the step raise."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_hooks import Alert, TrainingMonitor
from tests.replay.planted import Net, fit
from tests.replay.test_operations import BAD, message, where


class Divides(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, h: Tensor) -> Tensor:
        ctx.save_for_backward(x)
        return h * 1.0

    @staticmethod
    def backward(ctx: Any, gradient: Tensor) -> tuple[None, Tensor]:  # type: ignore[override]
        (x,) = ctx.saved_tensors
        return None, gradient / x[:, :1]


def two(x: Tensor, first: float, second: float) -> Tensor:
    return torch.cat([where(x, first, 1.0), where(x, second, 1.0)], 1)


def through(x: Tensor, h: Tensor, *dtypes: torch.dtype) -> Tensor:
    for dtype in dtypes:
        x = x.to(dtype)
    return h + torch.log(x[:, :1])


CASES: dict[str, tuple[Callable[[Tensor, Tensor], Tensor], str, str]] = {
    "log of 0 and of less": (
        lambda x, h: h + torch.log(two(x, 0, -1)).sum(),
        "log of a negative number gives NaN",
        "1 of 16 inputs",
    ),
    "pow, exponents": (
        lambda x, h: h + (two(x, 0, -2) ** torch.tensor([-1.0, 2.0])).sum(),
        "pow of 0 gives inf",
        "1 of 16 bases is 0.",
    ),
    "pow, its overflow": (lambda x, h: h + (two(x, 1e30, 0) ** 2.5).sum(), "pow gives inf in", ""),
    "det, its overflow": (
        lambda x, h: h + torch.linalg.det(torch.eye(3) * where(x, 1e30, 1)[..., None]).sum(),
        "det gives inf",
        "",
    ),
    "float16": (lambda x, h: h + torch.log1p(where(x, -1, 0).half()).sum(), "log1p gives -inf in", ""),
    "a backward of the user's": (Divides.apply, "division by 0 gives", "1 of 8 divisors is 0."),
    "uint16": (lambda x, h: through(x, h, torch.uint16, torch.float32), "log of 0 gives -inf", "8 of 8 inputs"),
    "8 bits": (lambda x, h: through(x, h, torch.float8_e4m3fn, torch.float32), "log of 0 gives -inf", "1 of 8 inputs is 0."),
    "quantized": (
        lambda x, h: h + torch.log(torch.quantize_per_tensor(x, 0.01, 0, torch.quint8).dequantize()[:, :1]),
        "log of 0 gives -inf",
        "1 of 8 inputs is 0.",
    ),
    "nested": (
        lambda x, h: h + torch.log(torch.nested.nested_tensor(list(x)).to_padded_tensor(1.0)[:, :1]),
        "log of 0 gives -inf",
        "1 of 8 inputs is 0.",
    ),
    "complex": (lambda x, h: h + torch.log(torch.complex(x[:, :1], 0 * x[:, :1])).real, "log gives inf in", ""),
}


@pytest.mark.filterwarnings("ignore:The PyTorch API of nested", "ignore:.*quantiz")
@pytest.mark.parametrize("name", CASES)
def test_what_is_said_of_an_operation_is_true(name: str) -> None:
    operation, what, why = CASES[name]
    alert = message(operation)
    assert alert.message.startswith(what)
    assert why in alert.seen
    assert BAD in alert.samples or name == "uint16"  # all of its inputs are 0


class Raises(Net):
    def __init__(self, step: Callable[[Tensor], Any]) -> None:
        super().__init__()
        self.step = step

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if (batch[0][:, 0] == 0).any():
            self.step(batch[0])
        return self.head(self.body(batch[0])).mean()


def alerts_of(step: Callable[[Tensor], Any], error: type[Exception]) -> list[Alert]:
    monitor = TrainingMonitor(summary=False)
    with pytest.raises(error):
        fit([monitor], model=Raises(step))
    return [alert for alert in monitor.alerts if "nonfinite" in alert.kind]


def ctc(x: Tensor) -> Tensor:
    return F.ctc_loss(torch.zeros(5, 8, 3), torch.ones(8, 4).long(), [5] * 7, [4] * 8)


def log(x: Tensor) -> None:
    torch.log(x)
    raise ValueError("a bad sample")


@pytest.mark.parametrize(
    ("step", "error"),
    [(lambda x: x @ torch.ones(5, 5), RuntimeError), (ctc, RuntimeError), (log, ValueError), (lambda x: x.softmax(5), IndexError)],
)
def test_a_call_that_raises_is_no_alert_on_values(step: Callable[[Tensor], Any], error: type[Exception]) -> None:
    assert not alerts_of(step, error)
