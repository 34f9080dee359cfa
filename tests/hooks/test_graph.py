"""What the graph of a loss says of the softmax before it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from lightning_hooks.hooks.graph import aligns, distance_sign, made_by, squashed_twice

W = torch.randn(4, 3, requires_grad=True)
X = torch.randn(5, 4)
Y = torch.tensor([0, 1, 2, 0, 1])
ONE = torch.rand(5, 3)

TWICE: dict[str, Callable[[Tensor], Tensor]] = {
    "softmax, cross entropy": lambda z: F.cross_entropy(z.softmax(1), Y),
    "reshaped between": lambda z: F.cross_entropy(z.softmax(1).view(1, 5, 3).flatten(0, 1)[:, :], Y),
    "cast between": lambda z: F.cross_entropy(z.softmax(1).double(), Y),
    "sigmoid, with logits": lambda z: F.binary_cross_entropy_with_logits(z.sigmoid(), ONE),
    "softmax, log_softmax, nll": lambda z: F.nll_loss(z.softmax(1).log_softmax(1), Y),
    "one term of several": lambda z: 0.1 * z.square().mean() + F.cross_entropy(z.softmax(1), Y) / 2,
}
ONCE: dict[str, Callable[[Tensor], Tensor]] = {
    "cross entropy": lambda z: F.cross_entropy(z, Y),
    "sigmoid and binary cross entropy": lambda z: F.binary_cross_entropy(z.sigmoid(), ONE),
    "log of a softmax": lambda z: F.nll_loss(z.softmax(1).log(), Y),
    "attention before a layer": lambda z: F.cross_entropy(z.softmax(1) @ torch.eye(3), Y),
    "scaled by a temperature": lambda z: F.cross_entropy(z.softmax(1) * 20, Y),  # cosine-like logits: a decision
    "no graph": lambda z: z.detach().sum(),
}


@pytest.mark.parametrize("loss", TWICE.values(), ids=TWICE)
def test_squashed_twice(loss: Callable[[Tensor], Tensor]) -> None:
    node = squashed_twice(loss(X @ W))
    assert node is not None
    assert node.name().startswith(("SoftmaxBackward", "SigmoidBackward"))


@pytest.mark.parametrize("loss", ONCE.values(), ids=ONCE)
def test_squashed_once(loss: Callable[[Tensor], Tensor]) -> None:
    assert squashed_twice(loss(X @ W)) is None


def test_a_loss_that_aligns() -> None:
    logits = torch.randn(6, 2, 4, requires_grad=True)
    lengths = torch.tensor([6, 6]), torch.tensor([2, 2])
    loss = F.ctc_loss(logits.log_softmax(-1), torch.tensor([[1, 2], [3, 1]]), *lengths)
    assert aligns(loss / 2)
    assert not aligns(F.cross_entropy(logits.mean(0), torch.tensor([1, 2])))


@pytest.mark.parametrize(
    ("output", "function"),
    [
        (lambda z: z.sigmoid(), "sigmoid"),
        (lambda z: torch.tanh(z).double()[:, :2].transpose(0, 1).reshape(2, 5), "tanh"),
        (lambda z: F.relu(z).squeeze(0).unsqueeze(-1).clone(), "relu"),
        (lambda z: F.softmax(z, 1).flatten(), "softmax"),
        (lambda z: 100 * z.sigmoid(), "mul"),
        (lambda z: z.detach(), ""),
    ],
)
def test_what_computed_a_tensor(output: Callable[[Tensor], Tensor], function: str) -> None:
    assert made_by(output(X @ W)) == function


@pytest.mark.parametrize(
    ("loss", "sign"),
    [
        (lambda z: F.cross_entropy(z, Y) / 2, 1),
        (lambda z: -F.cross_entropy(z, Y) / 2, -1),
        (lambda z: -1.0 * F.cross_entropy(z, Y), -1),
        (lambda z: F.cross_entropy(z, Y) * -2, -1),
        (lambda z: 2 * F.cross_entropy(z, Y), 0),
        (lambda z: F.cross_entropy(z, Y) * torch.tensor(-1.0, requires_grad=True), 0),
        (lambda z: F.mse_loss(z, ONE, reduction="none").mean(1).mean(), 1),
        (lambda z: F.binary_cross_entropy_with_logits(z, ONE).neg().neg(), 1),
        (lambda z: (F.cross_entropy(z, Y, reduction="none") * torch.tensor([1.0, -1, 1, 1, 1])).mean(), 0),  # rewards
        (lambda z: F.cross_entropy(z, Y) - 0.1 * z.square().mean(), 0),
        (lambda z: -z.log_softmax(1).mean(), 0),
        (lambda z: torch.zeros(()), 0),
    ],
)
def test_the_sign_of_a_distance(loss: Callable[[Tensor], Tensor], sign: int) -> None:
    assert distance_sign(loss(X @ W)) == sign
