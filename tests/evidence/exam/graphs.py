"""Graphs: pictures of digits that are joined to their nearest, and the pixels of each picture to theirs; nets and their losses."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
from sklearn.datasets import load_digits
from sklearn.neighbors import kneighbors_graph
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests.evidence.exam.cases import Built, Expected, Recipe
from tests.evidence.exam.schedules import TWICE_30

FIFTY_STEPS = {"max_epochs": 50}


@functools.cache
def of_digits(number: int = 600, nearest: int = 5) -> Any:
    """One graph: a node is a picture, joined in both directions to the nearest ones; half of the nodes are for training."""
    from torch_geometric.data import Data

    x, y = load_digits(return_X_y=True)
    x, y = x[:number] / 16, y[:number]
    joined = kneighbors_graph(x, nearest).tocoo()
    edges = torch.tensor([[*joined.row, *joined.col], [*joined.col, *joined.row]]).long()
    features = torch.tensor(x, dtype=torch.float32)
    return Data(x=features - features.mean(0), y=torch.tensor(y), edge_index=edges, train_mask=torch.arange(number) % 2 == 0)


def whole(graph: Any) -> dict[str, Any]:
    """One graph as the only batch: an epoch is a step, as in the library's examples."""
    return {"train_dataloaders": DataLoader([graph], batch_size=None)}


@functools.cache
def _grid() -> Tensor:
    """Edges between the neighbours of a picture of 8 x 8 pixels."""
    pixels = torch.arange(64).view(8, 8)
    pairs = [(pixels[:, :-1], pixels[:, 1:]), (pixels[:-1], pixels[1:])]
    edges = torch.cat([torch.stack((a.flatten(), b.flatten())) for a, b in pairs], 1)
    return torch.cat((edges, edges.flip(0)), 1)


@functools.cache
def of_pixels() -> list[Any]:
    """A graph for each picture: nodes are pixels, with brightness and place."""
    from torch_geometric.data import Data

    images, shown = load_digits(return_X_y=True)
    place = torch.stack(torch.meshgrid(torch.linspace(-1, 1, 8), torch.linspace(-1, 1, 8), indexing="ij"), -1).view(64, 2)
    values = torch.tensor(images, dtype=torch.float32)[:, :, None] / 8 - 1
    return [Data(x=torch.cat((x, place), 1), y=y, edge_index=_grid()) for x, y in zip(values, torch.tensor(shown), strict=True)]


def pixels(batch_size: int = 16) -> dict[str, Any]:
    """Batches of such graphs."""
    from torch_geometric.loader import DataLoader as Graphs

    return {"train_dataloaders": Graphs(of_pixels(), batch_size, shuffle=True, drop_last=True)}


def graphs_adam(lr: float = 0.01, weight_decay: float = 5e-4) -> Callable[[Any], Any]:
    return lambda module: torch.optim.Adam(module.parameters(), lr, weight_decay=weight_decay)


def of_nodes(net: Any, graph: Any) -> Any:
    """What the nodes for training show."""
    out = net(graph.x, graph.edge_index)
    return F.cross_entropy(out[graph.train_mask], graph.y[graph.train_mask])


def of_graphs(net: Any, graph: Any) -> Any:
    """What each picture shows."""
    return F.cross_entropy(net(graph.x, graph.edge_index, graph.batch), graph.y)


def on_nodes(module: Recipe, **kwargs: Any) -> Built:
    """The whole graph in each of 50 epochs of one step, as in the library's examples."""
    return Built(module, whole(of_digits()), {**FIFTY_STEPS, **kwargs}, Expected())


def gcn(layers: int = 2, **options: Any) -> nn.Module:
    from torch_geometric.nn.models import GCN

    return GCN(64, 32, layers, 10, **options)


def on_graph(graph: Any, module: Recipe) -> Built:
    return on_nodes(module)._replace(data=whole(graph))


class Layers(nn.Module):
    """Layers on one graph with ELU and dropout between them."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Any, edges: Any) -> Any:
        for layer in self.layers[:-1]:
            x = F.dropout(F.elu(layer(x, edges)), 0.3, self.training)
        return self.layers[-1](x, edges)


def on_pixels(net: nn.Module, lr: float = 5e-3, **kwargs: Any) -> Built:
    """What each picture shows, as a graph of its pixels."""
    return Built(Recipe(net, of_graphs, graphs_adam(lr, 0.0)), pixels(), {**TWICE_30, **kwargs}, Expected())
