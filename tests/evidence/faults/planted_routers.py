"""Faults of mixtures of experts: a router that collapses, experts that get nothing; and mixtures that are kept in balance."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.faults import data
from tests.evidence.faults.tasks import Supervised, adam, cross_entropy
from tests.evidence.faults.zoo import Built, Expected, fault, healthy

EPOCHS = {"max_epochs": 4}


class Mixture(nn.Module):
    """Experts of two layers, ``top_k`` of them for each token, next to an identity shortcut.

    Args:
        width: Of the tokens.
        experts: How many.
        top_k: How many a token gets.

    Attributes:
        balance: The loss for balance of the last call, as Switch Transformer has it (arXiv 2101.03961, equation 4).
    """

    def __init__(self, width: int, experts: int = 8, top_k: int = 2) -> None:
        super().__init__()
        self.top_k = top_k
        self.gate = nn.Linear(width, experts)
        two_layers = [nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width)) for _ in range(experts)]
        self.experts = nn.ModuleList(two_layers)
        self.balance = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        likely = self.gate(x).softmax(-1)
        weights, chosen = likely.topk(self.top_k, -1)
        shares = F.one_hot(chosen, len(self.experts)).float().mean((0, 1))
        self.balance = len(self.experts) * (shares * likely.mean(0)).sum()
        out = x
        for number, expert in enumerate(self.experts):
            taken, place = (chosen == number).nonzero(as_tuple=True)
            out = out.index_add(0, taken, weights[taken, place, None] * expert(x[taken]))
        return out


class Experts(nn.Module):
    """Two mixtures over the rows of an image: ``embed, norms.0, mixtures.0, norms.1, mixtures.1, head``."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()
        self.embed = nn.Linear(8, width)
        self.rows = nn.Parameter(torch.randn(8, width) / 2)
        self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
        self.mixtures = nn.ModuleList(Mixture(width) for _ in range(2))
        self.head = nn.Linear(8 * width, 10)

    def forward(self, x: Tensor) -> Tensor:
        tokens = (self.embed(x) + self.rows).flatten(0, 1)
        for norm, mixture in zip(self.norms, self.mixtures, strict=True):
            tokens = mixture(norm(tokens))
        return self.head(tokens.view(len(x), -1))


class Balanced(Supervised):
    """Adds the losses for balance, weighed."""

    def __init__(self, net: Experts, weight: float) -> None:
        super().__init__(net, adam(), self.with_balance)
        self.weight = weight

    def with_balance(self, output: Tensor, target: Tensor) -> Tensor:
        balance: Tensor = sum(mixture.balance for mixture in self.net.mixtures)  # type: ignore[union-attr,assignment,misc]
        return cross_entropy(output, target) + self.weight * balance


@fault("transformer", "a mixture of experts whose loss for balance has the wrong sign", reaches=0.8, hurts=None)
def balance_with_wrong_sign(seed: int, planted: bool = True) -> Built:
    module = Balanced(Experts(), -2.0 if planted else 0.05)
    expected = Expected(("router_collapse", "dead_experts"), ("net.mixtures.?.gate",))
    return Built(module, data.loaders(data.digits(shape=(8, 8)), 64, seed), EPOCHS, expected)


@fault("transformer", "a router whose bias is far apart from the start, without a loss for balance", reaches=0.8, hurts=None)
def router_starts_collapsed(seed: int, planted: bool = True) -> Built:
    net = Experts()
    if planted:
        with torch.no_grad():
            net.mixtures[seed % 2].gate.bias.copy_(torch.arange(8) * 5.0)  # type: ignore[union-attr,operator]
    module = Balanced(net, 0.0 if planted else 0.05)
    expected = Expected(("router_collapse",), (f"net.mixtures.{seed % 2}.gate",))
    return Built(module, data.loaders(data.digits(shape=(8, 8)), 64, seed), EPOCHS, expected)


@fault("transformer", "two of eight experts that no token reaches: their bias is far below the others", reaches=0.8, hurts=None)
def experts_out_of_reach(seed: int, planted: bool = True) -> Built:
    net = Experts()
    if planted:
        with torch.no_grad():
            net.mixtures[seed % 2].gate.bias[seed % 7 : seed % 7 + 2] = -30.0  # type: ignore[union-attr,index]
    expected = Expected(("dead_experts",), (f"net.mixtures.{seed % 2}.gate", f"net.mixtures.{seed % 2}.experts.*"))
    return Built(Balanced(net, 0.05), data.loaders(data.digits(shape=(8, 8)), 64, seed), EPOCHS, expected)


@healthy("transformer", "a mixture of experts with the usual loss for balance", reaches=0.85)
def balanced_experts(seed: int) -> Built:
    return Built(Balanced(Experts(), 0.05), data.loaders(data.digits(shape=(8, 8)), 64, seed), EPOCHS, Expected())
