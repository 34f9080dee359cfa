"""Nets of PyTorch Geometric that tell what nodes are."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.graphs import Layers, graphs_adam, of_digits, of_nodes, on_nodes, on_pixels, whole
from tests.evidence.exam.schedules import adamw


@healthy("torch_geometric", "GCN of two layers with dropout, Adam at 0.01 with L2, as in its paper")
def graphs_gcn() -> Built:
    from torch_geometric.nn.models import GCN

    return on_nodes(Recipe(GCN(64, 32, 2, 10, dropout=0.5), of_nodes, graphs_adam()))


@healthy("torch_geometric", "GAT with eight heads, ELU and dropout of 0.6, as in its paper")
def graphs_gat() -> Built:
    from torch_geometric.nn.models import GAT

    return on_nodes(Recipe(GAT(64, 64, 2, 10, dropout=0.6, heads=8, act="elu", v2=False), of_nodes, graphs_adam(0.005)))


@healthy("torch_geometric", "GraphSAGE with neighbours that are sampled")
def graphs_sage() -> Built:
    from torch_geometric.nn.models import GraphSAGE

    net = GraphSAGE(64, 32, 2, 10, dropout=0.5)

    def loss(net: Any, graph: Any) -> Any:
        kept = graph.edge_index[:, torch.rand(graph.edge_index.shape[1]) < 0.7]
        rows = graph.train_mask & (torch.rand(len(graph.y)) < 0.3)
        return F.cross_entropy(net(graph.x, kept)[rows], graph.y[rows])

    return on_nodes(Recipe(net, loss, graphs_adam(0.01, 0.0)))


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
    return on_nodes(Recipe(GCN2(), of_nodes, graphs_adam()))


@healthy("torch_geometric", "graph transformer with gated residual connections and layer norm")
def graphs_transformer() -> Built:
    from torch_geometric.nn import Sequential, TransformerConv

    inputs, width = "x, edge_index", 32
    layers: list[Any] = [(TransformerConv(64, 8, 4, beta=True, dropout=0.1), f"{inputs} -> x"), nn.LayerNorm(width), nn.ReLU()]
    layers += [(TransformerConv(width, 8, 4, beta=True), f"{inputs} -> x"), nn.LayerNorm(width), nn.ReLU(), nn.Linear(width, 10)]
    return on_nodes(Recipe(Sequential(inputs, layers), of_nodes, graphs_adam(5e-3)))


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


@healthy("torch_geometric", "GATv2 with edge dropout, Adam at 0.005")
def graphs_gat2() -> Built:
    from torch_geometric.nn import GATv2Conv
    from torch_geometric.utils import dropout_edge

    def loss(net: Any, graph: Any) -> Any:
        edges, _ = dropout_edge(graph.edge_index, 0.2)
        return F.cross_entropy(net(graph.x, edges)[graph.train_mask], graph.y[graph.train_mask])

    return on_nodes(Recipe(Layers(GATv2Conv(64, 8, 4), GATv2Conv(32, 10, concat=False)), loss, graphs_adam(5e-3)))


@healthy("torch_geometric", "Chebyshev polynomials of the Laplacian, as in their paper")
def graphs_chebyshev() -> Built:
    from torch_geometric.nn import ChebConv

    return on_nodes(Recipe(Layers(ChebConv(64, 32, 3), ChebConv(32, 10, 3)), of_nodes, graphs_adam()))


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

    return on_nodes(Recipe(Spread(), of_nodes, graphs_adam()))


@healthy("torch_geometric", "jumping knowledge of an LSTM over GraphSAGE's layers")
def graphs_jumping() -> Built:
    from torch_geometric.nn.models import GraphSAGE

    return on_nodes(Recipe(GraphSAGE(64, 32, 3, 10, dropout=0.3, jk="lstm"), of_nodes, graphs_adam(5e-3)))


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

    return on_nodes(Recipe(Deep(), of_nodes, graphs_adam(0.01, 0.0)), max_epochs=40)


@healthy("torch_geometric", "gated graph net and attention over nodes")
def graphs_gated() -> Built:
    return on_pixels(Gated(), 0.02)


class OfNodes(nn.Module):
    """Two layers of a convolution, with dropout."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__()
        self.first, self.second = first, second

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        hidden = self.first(F.dropout(x, 0.25, self.training), edges).relu()
        return self.second(F.dropout(hidden, 0.5, self.training), edges)


@healthy("torch_geometric", "ARMA filters, two stacks, Adam at 0.01 with L2")
def graphs_arma() -> Built:
    from torch_geometric.nn import ARMAConv

    net = OfNodes(ARMAConv(64, 32, num_stacks=2, num_layers=2, dropout=0.25), ARMAConv(32, 10, num_stacks=2, act=None))
    return on_nodes(Recipe(net, of_nodes, graphs_adam()))


@healthy("torch_geometric", "topology-adaptive graph convolutions (TAGCN)")
def graphs_tag() -> Built:
    from torch_geometric.nn import TAGConv

    return on_nodes(Recipe(OfNodes(TAGConv(64, 16), TAGConv(16, 10)), of_nodes, graphs_adam()))


class Heterogeneous(nn.Module):
    """A heterogeneous graph transformer over pictures and their bright pixels, as the library's example has it."""

    def __init__(self, metadata: Any) -> None:
        from torch_geometric.nn import HGTConv

        super().__init__()
        self.first = nn.ModuleDict({"picture": nn.Linear(64, 32), "pixel": nn.Embedding(64, 32)})
        self.convolutions = nn.ModuleList([HGTConv(32, 32, metadata, 2) for _ in range(2)])
        self.head = nn.Linear(32, 10)

    def forward(self, x: Any, edges: Any) -> Tensor:
        x = {kind: self.first[kind](values).relu() for kind, values in x.items()}
        for convolution in self.convolutions:
            x = convolution(x, edges)
        return self.head(x["picture"])


@healthy("torch_geometric", "HGT: pictures and pixels that attend to each other by what joins them, AdamW at 0.005")
def graphs_kinds() -> Built:
    from torch_geometric.data import HeteroData

    graph, known = HeteroData(), of_digits(600)
    rows, columns = (known.x > known.x.mean() + 0.3).nonzero().T
    graph["picture"].x, graph["pixel"].x = known.x, torch.arange(64)
    graph["picture", "shows", "pixel"].edge_index = torch.stack((rows, columns))
    graph["pixel", "shown", "picture"].edge_index = torch.stack((columns, rows))
    graph["picture", "like", "picture"].edge_index = known.edge_index

    def loss(net: Any, graph: Any) -> Tensor:
        return F.cross_entropy(net(graph.x_dict, graph.edge_index_dict)[known.train_mask], known.y[known.train_mask])

    module = Recipe(Heterogeneous(graph.metadata()), loss, adamw(5e-3, 1e-3))
    return Built(module, whole(graph), {"max_epochs": 40}, WELL)


class Supervised(nn.Module):
    """SuperGAT: attention also says which nodes are joined."""

    def __init__(self) -> None:
        from torch_geometric.nn import SuperGATConv

        super().__init__()
        options = {"dropout": 0.6, "attention_type": "MX", "edge_sample_ratio": 0.8, "is_undirected": True}
        self.first, self.second = SuperGATConv(64, 8, 8, **options), SuperGATConv(64, 10, 8, concat=False, **options)

    def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
        x = self.first(F.dropout(x, 0.6, self.training), edges)
        joined = self.first.get_attention_loss()
        x = self.second(F.dropout(F.elu(x), 0.6, self.training), edges)
        return x, joined + self.second.get_attention_loss()


@healthy(
    "torch_geometric",
    "SuperGAT: attention is taught who is joined, at a weight of four, dropout of 0.6, Adam with L2",
)
def graphs_taught() -> Built:
    def loss(net: Any, graph: Any) -> Tensor:
        out, joined = net(graph.x, graph.edge_index)
        return F.cross_entropy(out[graph.train_mask], graph.y[graph.train_mask]) + 4.0 * joined

    return on_nodes(Recipe(Supervised(), loss, graphs_adam(0.005)))


@healthy(
    "torch_geometric",
    "R-GCN: weights for each of two relations from two bases, Adam at 0.01 with L2, as in its example",
    learned_from=False,
)
def graphs_relations() -> Built:
    from torch_geometric.nn import RGCNConv

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = RGCNConv(64, 16, 2, num_bases=2), RGCNConv(16, 10, 2, num_bases=2)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            kinds = (torch.arange(edges.shape[1]) >= edges.shape[1] // 2).long()
            return self.second(self.first(x, edges, kinds).relu(), edges, kinds)

    return on_nodes(Recipe(Net(), of_nodes, graphs_adam()))


@healthy(
    "torch_geometric",
    "MixHop: powers 0 to 2 of the neighbourhood side by side, batch norm, dropout of 0.7, SGD",
    learned_from=False,
)
def graphs_mixhop() -> Built:
    from torch_geometric.nn import BatchNorm, MixHopConv

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([MixHopConv(64, 20, [0, 1, 2]), MixHopConv(60, 20, [0, 1, 2])])
            self.norms = nn.ModuleList([BatchNorm(60), BatchNorm(60)])
            self.head = nn.Linear(60, 10)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            x = F.dropout(x, 0.7, self.training)
            for layer, norm in zip(self.layers, self.norms, strict=True):
                x = F.dropout(norm(layer(x, edges)), 0.5, self.training)
            return self.head(x)

    sgd = lambda module: torch.optim.SGD(module.parameters(), 0.5, weight_decay=0.005)  # noqa: E731
    return on_nodes(Recipe(Net(), of_nodes, sgd))


@healthy(
    "torch_geometric",
    "LINKX: the rows of the adjacency and the features of nodes, each by an MLP of its own, AdamW",
    learned_from=False,
)
def graphs_linkx() -> Built:
    from torch_geometric.nn import LINKX

    graph = of_digits()
    net = LINKX(graph.num_nodes, 64, 32, 10, num_layers=2, dropout=0.5)
    return Built(Recipe(net, of_nodes, adamw(0.01, 1e-3)), whole(graph), {"max_epochs": 50}, WELL)
