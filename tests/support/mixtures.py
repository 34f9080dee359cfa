"""A small mixture of experts and a small vector quantiser, and what a slow reference sees of their choices."""

from __future__ import annotations

from typing import Any

import lightning.pytorch as pl
import torch
from torch import Tensor, nn

from tests.support.models import Classifier


class Mixture(nn.Module):
    """A linear gate next to a list of experts, as people write it: ``gate`` and ``experts.0, …``."""

    def __init__(self, width: int = 8, experts: int = 4, top_k: int = 2) -> None:
        super().__init__()
        self.gate, self.top_k = nn.Linear(width, experts), top_k
        self.experts = nn.ModuleList(nn.Linear(width, width) for _ in range(experts))

    def forward(self, x: Tensor) -> Tensor:
        weights, chosen = self.gate(x).softmax(-1).topk(self.top_k, -1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            out = out + (weights * (chosen == number)).sum(-1, keepdim=True) * expert(x)
        return out


class Quantiser(nn.Module):
    """The nearest code of a book; returns the code's vector and its number."""

    def __init__(self, width: int = 8, codes: int = 16) -> None:
        super().__init__()
        self.embedding = nn.Embedding(codes, width)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        codes = torch.cdist(x, self.embedding.weight).argmin(-1)
        return x + (self.embedding(codes) - x).detach(), codes


class Routed(nn.Module):
    """A mixture, a quantiser, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.mixture, self.quantise, self.head = Mixture(), Quantiser(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.quantise(self.mixture(x))[0])


def routed() -> Classifier:
    torch.manual_seed(0)
    return Classifier(Routed(), lr=0.5)


class Choices(pl.Callback):
    """Keeps what a module puts out while ``training_step`` runs, call by call, in double precision where it is not of integers.

    Args:
        module: The name of the module.
        every: Which batches of an epoch: 0, n, 2n, ….
    """

    def __init__(self, module: str, every: int = 1) -> None:
        self.module, self.every, self.calls = module, every, []  # type: ignore[var-annotated]
        self.open = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        def keep(module: nn.Module, args: Any, output: Any) -> None:
            if self.open:
                found = output if isinstance(output, tuple) else (output,)
                self.calls.append([x.detach().double() if x.is_floating_point() else x.clone() for x in found])

        pl_module.get_submodule(self.module).register_forward_hook(keep)

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        self.open = batch_idx % self.every == 0

    def on_before_backward(self, trainer: Any, pl_module: Any, loss: Any) -> None:
        self.open = False  # what is recomputed in backward does not count
