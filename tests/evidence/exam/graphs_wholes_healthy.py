"""Nets of PyTorch Geometric that tell what a whole graph is."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.graphs import graphs_adam, of_graphs, of_nodes, on_nodes, on_pixels, pixels
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.schedules import CLIPPED, TWICE_30, adamw, scheduled


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
    return Built(Recipe(net, of_graphs, graphs_adam(1e-3, 0.0)), pixels(), TWICE_30, Expected())


@healthy("torch_geometric", "PNA-like sums of several aggregations, Adam")
def graphs_pna() -> Built:
    from torch_geometric.nn import global_mean_pool
    from torch_geometric.nn.models import PNA

    aggregators, scalers = ["mean", "min", "max", "std"], ["identity", "amplification", "attenuation"]
    degrees = torch.tensor([0, 0, 4, 24, 36])
    body = PNA(3, 16, 2, aggregators=aggregators, scalers=scalers, deg=degrees, norm="batch_norm")
    return Built(Recipe(OfGraph(body, 16, global_mean_pool), of_graphs, graphs_adam(0.01, 0.0)), pixels(), TWICE_30, Expected())


class Molecules(nn.Module):
    """SchNet whose atoms are all joined within a molecule."""

    def __init__(self) -> None:
        from torch_geometric.nn.models import SchNet

        super().__init__()
        self.net = SchNet(32, 32, 3, 24, cutoff=6.0, interaction_graph=self.joined)

    @staticmethod
    def joined(places: Tensor, batch: Tensor) -> tuple[Tensor, Tensor]:
        same = (batch[:, None] == batch) & ~torch.eye(len(batch), dtype=torch.bool)
        edges = same.nonzero().T
        return edges, (places[edges[0]] - places[edges[1]]).norm(dim=1)

    def forward(self, kinds: Tensor, places: Tensor) -> Tensor:
        batch = torch.arange(len(kinds)).repeat_interleave(kinds.shape[1])
        return self.net(kinds.flatten(), places.flatten(0, 1), batch).squeeze(1)


@healthy(
    "torch_geometric", "SchNet: energies of clusters of six simulated atoms, mean absolute error, an exponential decay of the rate"
)
def graphs_schnet() -> Built:
    generator = torch.Generator().manual_seed(0)
    kinds = torch.randint(1, 4, (1200, 6), generator=generator)
    grid = torch.tensor([[x, y, z] for x in (0.0, 1.6) for y in (0.0, 1.6) for z in (0.0, 1.6)])
    chosen = torch.rand(1200, 8, generator=generator).argsort(1)[:, :6]
    places = grid[chosen] + 0.2 * torch.randn(1200, 6, 3, generator=generator)
    far = (places[:, :, None] - places[:, None] + 1e-3).norm(dim=3) + 10 * torch.eye(6)
    pairs = (kinds[:, :, None] * kinds[:, None]).float() * ((1 - (-(far - 1.6)).exp()).square() - 1)
    energy = pairs.sum((1, 2)) / 2
    energy = (energy - energy.mean()) / energy.std()
    loss = lambda net, batch: F.l1_loss(net(batch[0], batch[1]), batch[2])  # noqa: E731
    decay = scheduled(adamw(3e-3, 0.0), lambda chosen: torch.optim.lr_scheduler.ExponentialLR(chosen, 0.98))
    return Built(Recipe(Molecules(), loss, decay), in_batches(32, kinds, places, energy), {**CLIPPED, "max_epochs": 3}, WELL)


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


@healthy("torch_geometric", "graph U-Net with pooling and skips")
def graphs_unet() -> Built:
    from torch_geometric.nn.models import GraphUNet

    return on_nodes(Recipe(GraphUNet(64, 32, 10, 2, 0.5), of_nodes, graphs_adam()))


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


class Edges(nn.Module):
    """Two edge convolutions and the largest value of each feature."""

    def __init__(self) -> None:
        from torch_geometric.nn import MLP, EdgeConv

        super().__init__()
        self.first, self.second = EdgeConv(MLP([6, 32, 32])), EdgeConv(MLP([64, 48]))
        self.head = MLP([80, 48, 10], dropout=0.3)

    def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        from torch_geometric.nn import global_max_pool

        first = self.first(x, edges)
        return self.head(global_max_pool(torch.cat((first, self.second(first, edges)), 1), batch))


@healthy("torch_geometric", "edge convolutions over the pixels (DGCNN), Adam")
def graphs_edges() -> Built:
    return on_pixels(Edges())


@healthy(
    "torch_geometric",
    "DiffPool: pixels are assigned to twelve clusters, with losses of links and of entropy, Adam",
    learned_from=False,
)
def graphs_clusters() -> Built:
    from torch_geometric.nn import DenseSAGEConv, dense_diff_pool
    from torch_geometric.utils import to_dense_adj, to_dense_batch

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.parts, self.embed = DenseSAGEConv(3, 12), DenseSAGEConv(3, 32)
            self.norm, self.deep = nn.BatchNorm1d(32), DenseSAGEConv(32, 32)
            self.head = nn.Sequential(nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))

        def forward(self, x: Tensor, joined: Tensor) -> tuple[Tensor, Tensor]:
            assigned = self.parts(x, joined)
            x = self.norm(self.embed(x, joined).transpose(1, 2)).transpose(1, 2).relu()
            x, joined, links, entropy = dense_diff_pool(x, joined, assigned)
            return self.head(self.deep(x, joined).relu().mean(1)), links + entropy

    def loss(net: Any, graph: Any) -> Tensor:
        logits, extra = net(to_dense_batch(graph.x, graph.batch)[0], to_dense_adj(graph.edge_index, graph.batch))
        return F.cross_entropy(logits, graph.y) + extra

    return Built(Recipe(Net(), loss, graphs_adam(3e-3, 0.0)), pixels(), {**TWICE_30, "limit_train_batches": 45}, WELL)
