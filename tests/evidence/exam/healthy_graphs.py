"""Healthy trainings of torch_geometric's models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.graphs import of_digits, pixels, whole

EPOCHS = {"max_epochs": 2, "limit_train_batches": 30}
STEPS = {"max_epochs": 50}


def adam(lr: float = 0.01, weight_decay: float = 5e-4) -> Callable[[Any], Any]:
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
    return Built(module, whole(of_digits()), {**STEPS, **kwargs}, Expected())


@healthy("torch_geometric", "GCN of two layers with dropout, Adam at 0.01 with L2, as in its paper")
def graphs_gcn() -> Built:
    from torch_geometric.nn.models import GCN

    return on_nodes(Recipe(GCN(64, 32, 2, 10, dropout=0.5), of_nodes, adam()))


@healthy("torch_geometric", "GAT with eight heads, ELU and dropout of 0.6, as in its paper")
def graphs_gat() -> Built:
    from torch_geometric.nn.models import GAT

    return on_nodes(Recipe(GAT(64, 64, 2, 10, dropout=0.6, heads=8, act="elu", v2=False), of_nodes, adam(0.005)))


@healthy("torch_geometric", "GraphSAGE with neighbours that are sampled")
def graphs_sage() -> Built:
    from torch_geometric.nn.models import GraphSAGE

    net = GraphSAGE(64, 32, 2, 10, dropout=0.5)

    def loss(net: Any, graph: Any) -> Any:
        kept = graph.edge_index[:, torch.rand(graph.edge_index.shape[1]) < 0.7]
        rows = graph.train_mask & (torch.rand(len(graph.y)) < 0.3)
        return F.cross_entropy(net(graph.x, kept)[rows], graph.y[rows])

    return on_nodes(Recipe(net, loss, adam(0.01, 0.0)))


class OfGraph(nn.Module):
    """A graph net, the mean or sum over nodes, and a head."""

    def __init__(self, body: nn.Module, width: int, pool: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.body, self.pool = body, pool
        self.head = nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Dropout(0.5), nn.Linear(width, 10))

    def forward(self, x: Any, edges: Any, batch: Any) -> Any:
        return self.head(self.pool(self.body(x, edges), batch))


@healthy("torch_geometric", "GIN with batch norm, sums over pixels")
def graphs_gin() -> Built:
    from torch_geometric.nn import global_add_pool
    from torch_geometric.nn.models import GIN

    net = OfGraph(GIN(3, 24, 3, norm="batch_norm"), 24, global_add_pool)
    return Built(Recipe(net, of_graphs, adam(1e-3, 0.0)), pixels(), EPOCHS, Expected())


@healthy("torch_geometric", "PNA-like sums of several aggregations, Adam")
def graphs_pna() -> Built:
    from torch_geometric.nn import global_mean_pool
    from torch_geometric.nn.models import PNA

    aggregators, scalers = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]
    degrees = torch.tensor([0, 0, 4, 24, 36])
    body = PNA(3, 16, 2, aggregators=aggregators, scalers=scalers, deg=degrees, norm="batch_norm")
    return Built(Recipe(OfGraph(body, 16, global_mean_pool), of_graphs, adam(0.01, 0.0)), pixels(), EPOCHS, Expected())


def reconstruct(net: Any, graph: Any) -> Any:
    """Which nodes are joined."""
    return net.recon_loss(net.encode(graph.x, graph.edge_index), graph.edge_index)


@healthy("torch_geometric", "graph autoencoder")
def graphs_gae() -> Built:
    from torch_geometric.nn import GAE
    from torch_geometric.nn.models import GCN

    return on_nodes(Recipe(GAE(GCN(64, 32, 2, 16)), reconstruct, adam(0.01, 0.0)))


class Encoder(nn.Module):
    """Mean and logarithm of the standard deviation of each node's code."""

    def __init__(self) -> None:
        from torch_geometric.nn import GCNConv

        super().__init__()
        self.body, self.mean, self.log_std = GCNConv(64, 32), GCNConv(32, 16), GCNConv(32, 16)

    def forward(self, x: Any, edges: Any) -> tuple[Any, Any]:
        hidden = self.body(x, edges).relu()
        return self.mean(hidden, edges), self.log_std(hidden, edges)


@healthy("torch_geometric", "variational graph autoencoder")
def graphs_vgae() -> Built:
    from torch_geometric.nn import VGAE

    def loss(net: Any, graph: Any) -> Any:
        return reconstruct(net, graph) + net.kl_loss() / len(graph.x)

    return on_nodes(Recipe(VGAE(Encoder()), loss, adam(0.01, 0.0)))


class GCN2(nn.Module):
    """Eight layers with a residual connection to the first, as GCNII has it."""

    def __init__(self, layers: int = 8, width: int = 32) -> None:
        from torch_geometric.nn import GCN2Conv

        super().__init__()
        self.first, self.last = nn.Linear(64, width), nn.Linear(width, 10)
        self.layers = nn.ModuleList(GCN2Conv(width, 0.1, 0.5, layer + 1) for layer in range(layers))

    def forward(self, x: Any, edges: Any) -> Any:
        x = start = self.first(x).relu()
        for layer in self.layers:
            x = layer(F.dropout(x, 0.3, self.training), start, edges).relu()
        return self.last(x)


@healthy("torch_geometric", "GCNII with eight layers")
def graphs_gcn2() -> Built:
    return on_nodes(Recipe(GCN2(), of_nodes, adam()))


@healthy("torch_geometric", "graph transformer with gated residual connections and layer norm")
def graphs_transformer() -> Built:
    from torch_geometric.nn import Sequential, TransformerConv

    inputs, width = "x, edge_index", 32
    layers: list[Any] = [(TransformerConv(64, 8, 4, beta=True, dropout=0.1), f"{inputs} -> x"), nn.LayerNorm(width), nn.ReLU()]
    layers += [(TransformerConv(width, 8, 4, beta=True), f"{inputs} -> x"), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 10)]
    return on_nodes(Recipe(Sequential(inputs, layers), of_nodes, adam(5e-3)))


@healthy("torch_geometric", "deep graph infomax")
def graphs_infomax() -> Built:
    from torch_geometric.nn import DeepGraphInfomax
    from torch_geometric.nn.models import GCN

    def corrupted(x: Any, edges: Any) -> tuple[Any, Any]:
        return x[torch.randperm(len(x))], edges

    net = DeepGraphInfomax(32, GCN(64, 32, 1, act="prelu"), lambda z, *_: z.mean(0).sigmoid(), corrupted)

    def loss(net: Any, graph: Any) -> Any:
        return net.loss(*net(graph.x, graph.edge_index))

    return on_nodes(Recipe(net, loss, adam(1e-3, 0.0)))
