"""Inductor with its C++ backend: graphs, losses and weights with the monitors on, and the numbers of a model without it."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

from lightning_hooks import monitors
from tests.support.models import loader, trainer
from tests.support.reference import assert_same, same_state
from tests.support.trainings import Plain

pytestmark = [
    pytest.mark.slow,
    pytest.mark.filterwarnings("ignore::DeprecationWarning"),  # torch's own, from within its compiler
    pytest.mark.filterwarnings("ignore::FutureWarning"),
    pytest.mark.filterwarnings("ignore:.*lru_cache.*"),
]


class CNN(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm, self.relu, self.head = nn.Conv2d(1, 4, 3, bias=False), nn.BatchNorm2d(4), nn.ReLU(), nn.Linear(64, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.relu(self.norm(self.conv(x))).flatten(1))  # type: ignore[no-any-return]


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.norm, self.gelu, self.head = nn.Linear(8, 24, bias=False), nn.LayerNorm(8), nn.GELU(), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = self.qkv(x).chunk(3, -1)
        x = x + nn.functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        return self.head(self.gelu(self.norm(x)).mean(1))  # type: ignore[no-any-return]


NETS = {"cnn": (CNN, (1, 6, 6)), "attention": (Attention, (5, 8))}


class Losses(Plain):
    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        loss: Tensor = super().training_step(batch, batch_idx)
        self.losses: list[Tensor] = [*getattr(self, "losses", ()), loss.detach()]
        return loss


def fit(net: str, ours: Any, backend: str | None, mode: str | None = None) -> tuple[Any, dict[str, int]]:
    """Train; return the model, and how many graphs and breaks there were."""
    torch.compiler.reset()
    torch._dynamo.utils.counters.clear()
    torch.manual_seed(0)
    build, shape = NETS[net]
    model: Any = Losses(build(), lr=0.1)
    if backend is not None:
        model.net.compile(backend=backend, mode=mode)
    trainer(ours).fit(model, loader(shape, n=32))
    counters = torch._dynamo.utils.counters
    return model, {"graphs": counters["stats"]["unique_graphs"], "breaks": sum(counters["graph_break"].values())}


@pytest.mark.parametrize("net", NETS)
def test_a_compiled_training_is_the_same_and_its_numbers_are_those_of_an_uncompiled_one(net: str) -> None:
    eager, ours = (monitors(every_n_steps=2, summary=False, functional=False) for _ in range(2))
    fit(net, eager, None)
    plain, plain_graphs = fit(net, [], "inductor")
    model, graphs = fit(net, ours, "inductor")
    torch.compiler.reset()
    assert graphs == plain_graphs == {"graphs": 1, "breaks": 0}
    assert same_state(model, plain)
    assert torch.equal(torch.stack(model.losses), torch.stack(plain.losses))
    assert not any(callback.faults.errors for callback in ours[:3])
    unseen = ("loss_sign", "feature_scales", "linear_layers", "layer_inputs", "first_layer")  # what graphs do not show
    compare = [tuple(callback.report for callback in each[:3]) for each in (ours, eager)]
    assert_same(*compare, rel=1e-4, skip=unseen, tiny=1e-6)


@pytest.mark.parametrize("name", ["record_output", "record_gradient"])
def test_a_graph_of_reduce_overhead_is_divided_where_a_site_records(name: str) -> None:
    """Its CUDA graphs would replay what was recorded when they were captured; inductor asks for this tag."""
    assert torch.Tag.cudagraph_unsafe in getattr(torch.ops.lightning_hooks, name).default.tags
