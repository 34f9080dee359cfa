"""Healthy trainings of torch_geometric's models and layers."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.graphs import of_digits, pixels
from tests.evidence.exam.healthy_graphs import EPOCHS, adam, of_graphs, of_nodes, on_nodes


class Layers(nn.Module):
    """Layers on one graph with ELU and dropout between them."""

    def __init__(self, *layers: nn.Module) -> None:
        super().__init__()
        self.layers = nn.ModuleList(layers)

    def forward(self, x: Any, edges: Any) -> Any:
        for layer in self.layers[:-1]:
            x = F.dropout(F.elu(layer(x, edges)), 0.3, self.training)
        return self.layers[-1](x, edges)


class Gated(nn.Module):
    """A gated graph net over pixels and attention over its nodes."""

    def __init__(self, width: int = 24) -> None:
        from torch_geometric.nn import GatedGraphConv, GlobalAttention

        super().__init__()
        self.first, self.body = nn.Linear(3, width), GatedGraphConv(width, 3)
        self.pool = GlobalAttention(nn.Linear(width, 1))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Any, edges: Any, batch: Any) -> Any:
        return self.head(self.pool(self.body(self.first(x), edges), batch))


class Pooled(nn.Module):
    """Half of the pixels stay after each of two layers (self-attention pooling)."""

    def __init__(self, width: int = 32) -> None:
        from torch_geometric.nn import GraphConv, SAGPooling

        super().__init__()
        self.first, self.second = GraphConv(3, width), GraphConv(width, width)
        self.pools = nn.ModuleList([SAGPooling(width, 0.5), SAGPooling(width, 0.5)])
        self.head = nn.Sequential(nn.Linear(4 * width, width), nn.ReLU(), nn.Linear(width, 10))

    def forward(self, x: Any, edges: Any, batch: Any) -> Any:
        from torch_geometric.nn import global_max_pool, global_mean_pool

        read = []
        for layer, pool in zip((self.first, self.second), self.pools, strict=True):
            x, edges, _, batch, *_ = pool(layer(x, edges).relu(), edges, batch=batch)
            read += [global_max_pool(x, batch), global_mean_pool(x, batch)]
        return self.head(torch.cat(read, 1))


def on_pixels(net: nn.Module, lr: float = 5e-3, **kwargs: Any) -> Built:
    """What each picture shows, as a graph of its pixels."""
    return Built(Recipe(net, of_graphs, adam(lr, 0.0)), pixels(), {**EPOCHS, **kwargs}, Expected())


@healthy("torch_geometric", "GATv2 with edge dropout, Adam at 0.005")
def graphs_gat2() -> Built:
    from torch_geometric.nn import GATv2Conv
    from torch_geometric.utils import dropout_edge

    def loss(net: Any, graph: Any) -> Any:
        edges, _ = dropout_edge(graph.edge_index, 0.2)
        return F.cross_entropy(net(graph.x, edges)[graph.train_mask], graph.y[graph.train_mask])

    return on_nodes(Recipe(Layers(GATv2Conv(64, 8, 4), GATv2Conv(32, 10, concat=False)), loss, adam(5e-3)))


@healthy("torch_geometric", "Chebyshev polynomials of the Laplacian, as in their paper")
def graphs_chebyshev() -> Built:
    from torch_geometric.nn import ChebConv

    return on_nodes(Recipe(Layers(ChebConv(64, 32, 3), ChebConv(32, 10, 3)), of_nodes, adam()))


@healthy("torch_geometric", "APPNP: an MLP, then personalised PageRank")
def graphs_appnp() -> Built:
    from torch_geometric.nn import APPNP
    from torch_geometric.nn.models import MLP

    class Spread(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.mlp, self.spread = MLP([64, 32, 10], dropout=0.5, norm=None), APPNP(10, 0.1, dropout=0.2)

        def forward(self, x: Any, edges: Any) -> Any:
            return self.spread(self.mlp(x), edges)

    return on_nodes(Recipe(Spread(), of_nodes, adam()))


@healthy("torch_geometric", "graph U-Net with pooling and skips")
def graphs_unet() -> Built:
    from torch_geometric.nn.models import GraphUNet

    return on_nodes(Recipe(GraphUNet(64, 32, 10, 2, 0.5), of_nodes, adam()))


@healthy("torch_geometric", "jumping knowledge of an LSTM over GraphSAGE's layers")
def graphs_jumping() -> Built:
    from torch_geometric.nn.models import GraphSAGE

    return on_nodes(Recipe(GraphSAGE(64, 32, 3, 10, dropout=0.3, jk="lstm"), of_nodes, adam(5e-3)))


@healthy("torch_geometric", "deep GCN: 8 blocks with norms before them (GENConv)")
def graphs_deep() -> Built:
    from torch_geometric.nn import DeepGCNLayer, GENConv

    class Deep(nn.Module):
        def __init__(self, width: int = 32) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(64, width), nn.Linear(width, 10)
            blocks = [GENConv(width, width, learn_t=True, num_layers=2, norm="layer") for _ in range(8)]
            self.blocks = nn.ModuleList(DeepGCNLayer(b, nn.LayerNorm(width), nn.ReLU(), "res+", 0.1) for b in blocks)

        def forward(self, x: Any, edges: Any) -> Any:
            x = self.first(x)
            for block in self.blocks:
                x = block(x, edges)
            return self.last(x)

    return on_nodes(Recipe(Deep(), of_nodes, adam(0.01, 0.0)), max_epochs=40)


@healthy("torch_geometric", "gated graph net and attention over nodes")
def graphs_gated() -> Built:
    return on_pixels(Gated(), 0.02)


@healthy("torch_geometric", "self-attention pooling of pixels")
def graphs_pooled() -> Built:
    return on_pixels(Pooled())


@healthy("torch_geometric", "GPS: message passing beside attention to all pixels")
def graphs_gps() -> Built:
    from torch_geometric.nn import GINConv, GPSConv, global_mean_pool

    class Both(nn.Module):
        def __init__(self, width: int = 24) -> None:
            super().__init__()
            self.first, self.head = nn.Linear(3, width), nn.Linear(width, 10)
            nets = [nn.Sequential(nn.Linear(width, width), nn.ReLU(), nn.Linear(width, width)) for _ in range(2)]
            self.layers = nn.ModuleList(GPSConv(width, GINConv(net), heads=4, dropout=0.1) for net in nets)

        def forward(self, x: Any, edges: Any, batch: Any) -> Any:
            x = self.first(x)
            for layer in self.layers:
                x = layer(x, edges, batch)
            return self.head(global_mean_pool(x, batch))

    return on_pixels(Both(), 3e-3)


@healthy("torch_geometric", "LightGCN: who liked what, ranked in pairs (BPR)")
def graphs_recommender() -> Built:
    from torch_geometric.nn.models import LightGCN

    graph = of_digits()
    net = LightGCN(len(graph.x), 32, 2)

    def loss(net: Any, graph: Any) -> Any:
        liked = graph.edge_index[:, torch.randperm(graph.edge_index.shape[1])[:500]]
        others = torch.stack((liked[0], torch.randint(0, len(graph.x), (liked.shape[1],))))
        ranks = net(graph.edge_index, torch.cat((liked, others), 1)).chunk(2)
        return net.recommendation_loss(*ranks, node_id=liked.unique(), lambda_reg=1e-4)

    return on_nodes(Recipe(net, loss, adam(0.02, 0.0)))
