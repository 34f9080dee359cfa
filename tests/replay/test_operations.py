"""For each operation that can give the first NaN: the message that a person gets. Run as a module, it writes the page."""

from __future__ import annotations

import math
import re
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from lightning.pytorch import LightningModule, seed_everything
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

from lightning_hooks import Alert, TrainingMonitor
from tests.replay.planted import Fault
from tests.support.models import trainer

PAGE = Path(__file__).parents[2] / "docs/guides/operations.md"
BAD = 77
"""The sample whose first feature is 0."""


class Case(NamedTuple):
    """An operation, and what is said of it."""

    operation: Callable[[Tensor, Tensor], Tensor]  # of the batch and of a hidden state, each of 8 rows
    what: str
    why: str
    remedy: str


def where(x: Tensor, yes: float, no: float) -> Tensor:
    """A column with one number for the bad sample, and another for the others."""
    return torch.where(x[:, :1] == 0, yes, no)


def ctc(x: Tensor, h: Tensor) -> Tensor:
    logits = h[None].expand(5, -1, -1).log_softmax(-1)
    targets = torch.tensor([1, 1, 2, 2]).expand(len(x), 4)
    lengths = torch.where(x[:, 0] == 0, 4, 2)
    return F.ctc_loss(logits, targets, torch.full((len(x),), 5), lengths, reduction="none")[:, None]


def scores(x: Tensor, h: Tensor) -> Tensor:
    return h[:, :, None] * h[:, None]


def masked(x: Tensor, h: Tensor) -> Tensor:
    return torch.softmax(scores(x, h).masked_fill((x[:, :1] == 0)[..., None], -math.inf), -1).mean(-1)


def queries(x: Tensor, h: Tensor) -> Tensor:
    hidden = (x[:, :1] == 0) & torch.tensor([False, False, True])
    return torch.softmax(scores(x, h).masked_fill(hidden[:, :, None], -math.inf), -1).mean(-1)


def masked_class(x: Tensor, h: Tensor) -> Tensor:
    hidden = (x[:, :1] == 0) & torch.tensor([True, False, False])
    return F.cross_entropy(h.masked_fill(hidden, -math.inf), torch.zeros(len(x), dtype=torch.long), reduction="none")[:, None]


def ignored(x: Tensor, h: Tensor) -> Tensor:
    return F.cross_entropy(h, torch.full((len(x),), -100 if (x[:, 0] == 0).any() else 1))


def matrices(x: Tensor, h: Tensor) -> Tensor:
    return torch.eye(3) * where(x, 0.0, 1.0)[..., None] * (1 + h[..., None] ** 2)


CASES = {
    "log": Case(lambda x, h: h + torch.log(x[:, :1]), "log of 0 gives -inf", "1 of 8 inputs is 0", "torch.log(x.clamp_min(1e-8))"),
    "log of a negative number": Case(
        lambda x, h: h + torch.log(x[:, :1] - 0.05),
        "log of a negative number gives NaN",
        "1 of 8 inputs is negative (they go from -0.05 to",
        "torch.log(x.clamp_min(1e-8))",
    ),
    "sqrt": Case(
        lambda x, h: torch.sqrt(h.abs() * x[:, :1]),
        "the gradient of sqrt at 0 is",
        "3 of 24 inputs are 0, where its slope is infinite",
        "torch.sqrt(x.clamp_min(1e-8))",
    ),
    "rsqrt": Case(
        lambda x, h: h * torch.rsqrt(x[:, :1]), "rsqrt of 0 gives inf", "1 of 8 inputs is 0", "torch.rsqrt(x.clamp_min(1e-8))"
    ),
    "pow, its value": Case(
        lambda x, h: h + (x[:, :1] - 0.01) ** 0.5,
        "pow of a negative number gives NaN",
        "1 of 8 bases is negative, and the exponent is 0.5",
        "x.clamp_min(1e-8) ** exponent",
    ),
    "pow, its slope": Case(
        lambda x, h: (x[:, :1] * h.abs()) ** 0.3,
        "the gradient of pow at 0 is inf",
        "3 of 24 bases are 0, and the exponent is 0.3",
        "x.clamp_min(1e-8) ** exponent",
    ),
    "division": Case(lambda x, h: h / x[:, :1], "division by 0 gives", "1 of 8 divisors is 0", "x / y.clamp_min(1e-8)"),
    "reciprocal": Case(
        lambda x, h: h * x[:, :1].reciprocal(), "reciprocal of 0 gives inf", "1 of 8 inputs is 0", "1 / x.clamp_min(1e-8)"
    ),
    "std of one value": Case(
        lambda x, h: h * (h[:1] if (x[:, 0] == 0).any() else h).std(0),
        "std of a single value gives NaN",
        "It divides by 0, the number of values less one",
        "DataLoader(…, drop_last=True)",
    ),
    "a vector over its norm": Case(
        lambda x, h: (h * x[:, :1]) / (h * x[:, :1]).norm(dim=1, keepdim=True),
        "division by 0 gives NaN",
        "1 of 8 divisors is 0",
        "x / y.clamp_min(1e-8)",
    ),
    "acos": Case(
        lambda x, h: torch.acos(1 - x[:, :1] * torch.sigmoid(h)),
        "the gradient of acos at ±1 is inf",
        "3 of 24 inputs are ±1, where its slope is infinite",
        "torch.acos(x.clamp(-1 + 1e-6, 1 - 1e-6))",
    ),
    "asin": Case(
        lambda x, h: h + torch.asin(where(x, 1.01, 0.5)),
        "asin of a number beyond ±1 gives NaN",
        "1 of 8 inputs is beyond ±1 (they go from 0.5 to 1.01)",
        "torch.asin(x.clamp(-1 + 1e-6, 1 - 1e-6))",
    ),
    "atanh": Case(
        lambda x, h: h + torch.atanh(where(x, 1.0, 0.5)),
        "atanh of ±1 gives inf",
        "1 of 8 inputs is ±1",
        "torch.atanh(x.clamp(-1 + 1e-6, 1 - 1e-6))",
    ),
    "exp": Case(
        lambda x, h: h + torch.exp(where(x, 100.0, 1.0)),
        "exp of 100 gives inf",
        "The largest input is 100; above 88.7 exp passes the largest float32",
        "torch.exp(x.clamp(max=80.0))",
    ),
    "cosh": Case(
        lambda x, h: h + torch.cosh(where(x, -100.0, 1.0)),
        "cosh of 100 gives inf",
        "The largest input is 100; above 88.7 cosh passes the largest float32",
        "torch.cosh(x.clamp(-80.0, 80.0))",
    ),
    "softmax": Case(
        masked,
        "softmax of rows of -inf gives NaN",
        "3 of 24 rows are -inf throughout: a mask leaves them no key",
        "scores.masked_fill(mask, torch.finfo(scores.dtype).min)",
    ),
    "softmax, a mask of queries": Case(
        queries,
        "softmax of rows of -inf gives NaN",
        "1 of 24 rows is -inf throughout, the others not masked: the mask is of queries in place of keys",
        "mask[:, None, :]",
    ),
    "logsumexp": Case(
        lambda x, h: h + (h * 0 + where(x, -math.inf, 0.0)).logsumexp(1, keepdim=True).clamp_min(-9),
        "the gradient of logsumexp at rows of -inf is NaN",
        "1 of 8 rows is -inf throughout",
        "torch.finfo(scores.dtype).min",
    ),
    "ctc_loss": Case(
        ctc,
        "ctc_loss of targets that do not fit gives inf",
        "of the batch has 5 input steps, too few for 4 labels, which need 6, one more for each of 2 repeated labels",
        "zero_infinity",
    ),
    "where with a bad branch": Case(
        lambda x, h: h + torch.where(x[:, :1] > 0, torch.log(x[:, :1] * h.abs()), h),
        "the gradient of log at 0 is NaN",
        "even where torch.where or a mask leaves the value out",
        "torch.log(x.clamp_min(1e-8))",
    ),
    "half precision": Case(
        lambda x, h: h + (h * where(x, 1e6, 1.0)).to(torch.float16).float(),
        "cast of numbers that are too large gives",
        "float16 ends at 6.55e+04",
        "x.to(torch.bfloat16)",
    ),
    "cross_entropy of a class of -inf": Case(
        masked_class,
        "nll_loss of -inf gives inf",
        "The logit of a label's class is -inf: the class is masked",
        "mask.scatter(1, target[:, None], False)",
    ),
    "cross_entropy of ignored labels": Case(
        ignored,
        "nll_loss of no label gives NaN",
        "All 8 labels are ignore_index (-100): it is the mean of nothing",
        ".clamp_min(1)",
    ),
    "binary_cross_entropy": Case(
        lambda x, h: F.binary_cross_entropy(torch.sigmoid(h) + where(x, 1.0, 0.0), torch.ones_like(h)),
        "binary_cross_entropy raises RuntimeError",
        "3 of 24 inputs are outside [0, 1]",
        "F.binary_cross_entropy_with_logits(logits, target)",
    ),
    "a matrix product": Case(
        lambda x, h: (h * where(x, 3e38, 1.0)) @ torch.full((3, 3), 9.0),
        "mm of numbers that are too large gives",
        "float32 ends at 3.403e+38",
        "",
    ),
    "linalg.inv": Case(
        lambda x, h: torch.linalg.inv(matrices(x, h)).sum(-1),
        "inv raises LinAlgError in bad",
        "A matrix is singular",
        "A + 1e-6 * torch.eye(A.shape[-1])",
    ),
    "layer_norm without eps": Case(
        lambda x, h: F.layer_norm(h * x[:, :1], (3,), eps=0.0), "layer_norm of equal values gives NaN", "its eps is 0", "bad.eps"
    ),
    "mean of nothing": Case(
        lambda x, h: h + x[:, 0][x[:, 0] < (1 if (x[:, 0] > 0).all() else -1)].mean(),
        "mean of nothing gives NaN",
        "Its input has no values",
        "x.sum() / max(x.numel(), 1)",
    ),
    "a constant": Case(
        lambda x, h: h * (1.0 if (x[:, 0] > 0).all() else math.nan), "mul of nan gives NaN", "It is given nan in the code", ""
    ),
}


class Net(LightningModule):
    def __init__(self, operation: Callable[[Tensor, Tensor], Tensor]) -> None:
        super().__init__()
        self.body, self.bad = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 3)), Fault(operation)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        return self.bad(batch[0], self.body(batch[0])).square().mean()

    def configure_optimizers(self) -> Any:
        return torch.optim.SGD(self.parameters(), lr=1e-6)


def message(operation: Callable[[Tensor, Tensor], Tensor]) -> Alert:
    """The alert of a training with an operation that fails on one sample."""
    seed_everything(3, verbose=False)
    x = torch.rand(160, 4) * 0.8 + 0.1
    x[BAD, 0] = 0
    monitor = TrainingMonitor(summary=False)
    with suppress(RuntimeError):
        trainer([monitor]).fit(Net(operation), DataLoader(TensorDataset(x), batch_size=8))
    return next(alert for alert in monitor.alerts if alert.kind in ("nonfinite", "loss_nonfinite"))


@pytest.mark.filterwarnings("ignore:std")
@pytest.mark.parametrize("name", CASES)
def test_the_message_knows_the_operation(name: str) -> None:
    case = CASES[name]
    alert = message(case.operation)
    first, *rest = str(alert).split("\n")
    assert alert.site == "bad"
    assert alert.batch == alert.since_step == BAD // 8
    assert alert.message.startswith(case.what)
    assert case.why in alert.seen
    assert case.remedy in alert.advice[0]
    assert BAD in alert.samples
    assert len(rest) == 2
    assert len(first) + len(rest[1]) < 400
    said = " ".join([str(alert), *alert.advice])
    assert "arguments that it holds for" not in said
    assert not [remedy for remedy in alert.remedies if remedy.to in (0, math.inf, -math.inf)]


def test_the_page_has_each_operation() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for name, case in CASES.items():
        assert f"## {name}\n" in text
        assert case.why in text


def page() -> str:
    """The page of messages."""
    lines = [
        "# Messages by operation",
        "",
        "The message for each operation that can be the first to produce NaN or infinity, and a line of code that keeps its value",
        "and its gradient finite. Replace the names in that line with yours.",
        "",
    ]
    for name, case in CASES.items():
        alert = message(case.operation)
        what, advice = (
            re.sub(r"\w+, test_operations.py:\d+", "Net.forward, net.py:12", one)
            for one in (alert.diagnosis or alert.message, alert.advice[0])
        )
        seen = " ".join(filter(None, (alert.measured, alert.of_samples)))
        lines += [f"## {name}", "", "```text", what, seen, f"try: {advice}", "```", ""]
    return "\n".join(lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
