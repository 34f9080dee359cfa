"""Faults planted in trainings of torch_geometric's models."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, fault
from tests.evidence.exam.graphs import of_digits, whole
from tests.evidence.exam.healthy_graphs import adam, of_nodes, on_nodes
from tests.evidence.exam.planted_timm import RATE, expecting


def gcn(layers: int = 2, **options: Any) -> nn.Module:
    from torch_geometric.nn.models import GCN

    return GCN(64, 32, layers, 10, **options)


def on(graph: Any, module: Recipe) -> Built:
    return on_nodes(module)._replace(data=whole(graph))


@fault(
    "torch_geometric",
    "no edges: the adjacency is empty",
    missed="a net on a graph without edges is an ordinary net that learns, and integers as inputs are not looked at",
)
def graphs_no_edges(planted: bool = True) -> Built:
    graph = of_digits().clone()
    graph.edge_index = graph.edge_index[:, :0] if planted else graph.edge_index
    return expecting(on(graph, Recipe(gcn(), of_nodes, adam())), "silent", "missing", "zero", "constant")


@fault("torch_geometric", "24 layers of GCN: nodes become the same")
def graphs_oversmoothing(planted: bool = True) -> Built:
    return expecting(
        on_nodes(Recipe(gcn(24 if planted else 2), of_nodes, adam())), "representation_collapse", "vanishing", "constant"
    )


@fault("torch_geometric", "all nodes have the same features")
def graphs_same_features(planted: bool = True) -> Built:
    graph = of_digits().clone()
    graph.x = torch.ones_like(graph.x) if planted else graph.x
    return expecting(on(graph, Recipe(gcn(), of_nodes, adam())), "constant")


@fault("torch_geometric", "the mask of the training nodes is empty")
def graphs_empty_mask(planted: bool = True) -> Built:
    graph = of_digits().clone()
    graph.train_mask = graph.train_mask & (not planted)
    return expecting(on(graph, Recipe(gcn(), of_nodes, adam())), "loss_nonfinite", "labels_ignored", "nonfinite")


@fault("torch_geometric", "sums over neighbours in eight layers without norms, on a dense graph")
def graphs_sums_explode(planted: bool = True) -> Built:
    from torch_geometric.nn.models import GIN

    net = GIN(64, 32, 8 if planted else 2, 10, **({} if planted else {"norm": "batch_norm"}))
    return expecting(
        on(of_digits(nearest=20), Recipe(net, of_nodes, adam())), "exploding", "residual_growth", "update_too_large", "poor_init"
    )


@fault("torch_geometric", "GAT at a learning rate of 5")
def graphs_rate_too_high(planted: bool = True) -> Built:
    from torch_geometric.nn.models import GAT

    net = GAT(64, 64, 2, 10, dropout=0.6, heads=8, act="elu")
    return expecting(on_nodes(Recipe(net, of_nodes, adam(5.0 if planted else 0.005))), *RATE, "saturated")


@fault("torch_geometric", "one layer four times, by [layer] * 4")
def graphs_shared(planted: bool = True) -> Built:
    from torch_geometric.nn import GCNConv

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = GCNConv(64, 32), GCNConv(32, 10)
            self.layers = nn.ModuleList([GCNConv(32, 32)] * 4 if planted else [GCNConv(32, 32) for _ in range(4)])

        def forward(self, x: Any, edges: Any) -> Any:
            x = self.first(x, edges).relu()
            for layer in self.layers:
                x = x + layer(x, edges).relu()
            return self.last(x, edges)

    return expecting(on_nodes(Recipe(Deep(), of_nodes, adam())), "shared", sites=("net.layers*",))


@fault("torch_geometric", "graph layers in a plain list")
def graphs_unregistered(planted: bool = True) -> Built:
    from torch_geometric.nn import GCNConv

    class Deep(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            layers = [GCNConv(64, 32), GCNConv(32, 32), GCNConv(32, 32)]
            self.layers: Any = layers if planted else nn.ModuleList(layers)
            self.last = nn.Linear(32, 10)

        def forward(self, x: Any, edges: Any) -> Any:
            for layer in self.layers:
                x = layer(x, edges).relu()
            return self.last(x)

    return expecting(on_nodes(Recipe(Deep(), of_nodes, adam())), "unregistered", sites=("net.layers*",))


@fault("torch_geometric", "the softmax of the classes is taken over the nodes")
def graphs_softmax_dim(planted: bool = True) -> Built:
    def loss(net: Any, graph: Any) -> Any:
        out = net(graph.x, graph.edge_index)[graph.train_mask]
        return F.nll_loss(out.log_softmax(0 if planted else 1), graph.y[graph.train_mask])

    return expecting(on_nodes(Recipe(gcn(), loss, adam())), "softmax_dim", "output_range")


@fault("torch_geometric", "features that were not normalised: 1e4 times too large")
def graphs_large_features(planted: bool = True) -> Built:
    graph = of_digits().clone()
    graph.x = graph.x * (1e4 if planted else 1.0)
    sgd = lambda module: torch.optim.SGD(module.parameters(), 0.1)  # noqa: E731
    return expecting(on(graph, Recipe(gcn(), of_nodes, sgd)), *RATE, "dead", "spike")


@fault(
    "torch_geometric",
    "labels that are all the same class",
    missed="the last bias is that of a layer that holds others, and gradients of half of the nodes are 0: agreement is not seen",
)
def graphs_one_class(planted: bool = True) -> Built:
    graph = of_digits().clone()
    graph.y = graph.y * (not planted)
    return expecting(on(graph, Recipe(gcn(), of_nodes, adam())), "constant")
