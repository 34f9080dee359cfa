"""Faults of graph nets themselves: depth, first weights, what is shared or not registered."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.expectations import FLAT, JUMPS, RATE, expecting
from tests.evidence.exam.graphs import FIFTY_STEPS, gcn, graphs_adam, of_digits, of_nodes, on_graph, on_nodes, whole


@fault("torch_geometric", "24 layers of GCN: nodes become the same")
def graphs_oversmoothing(planted: bool = True) -> Built:
    return expecting(
        on_nodes(Recipe(gcn(24 if planted else 2), of_nodes, graphs_adam())), "representation_collapse", "vanishing", "constant"
    )


@fault("torch_geometric", "sums over neighbours in eight layers without norms, on a dense graph")
def graphs_sums_explode(planted: bool = True) -> Built:
    from torch_geometric.nn.models import GIN

    net = GIN(64, 32, 8 if planted else 2, 10, **({} if planted else {"norm": "batch_norm"}))
    return expecting(
        on_graph(of_digits(nearest=20), Recipe(net, of_nodes, graphs_adam())),
        "exploding",
        "residual_growth",
        "update_too_large",
        "poor_init",
    )


@fault("torch_geometric", "GAT at a learning rate of 5")
def graphs_rate_too_high(planted: bool = True) -> Built:
    from torch_geometric.nn.models import GAT

    net = GAT(64, 64, 2, 10, dropout=0.6, heads=8, act="elu")
    return expecting(on_nodes(Recipe(net, of_nodes, graphs_adam(5.0 if planted else 0.005))), *RATE, "saturated")


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

    return expecting(on_nodes(Recipe(Deep(), of_nodes, graphs_adam())), "shared", sites=("net.layers*",))


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

    return expecting(on_nodes(Recipe(Deep(), of_nodes, graphs_adam())), "unregistered", sites=("net.layers*",))


class Added(nn.Module):
    """Twelve layers that add their input themselves; it may be added once more around them."""

    def __init__(self, again: bool, width: int = 32) -> None:
        from torch_geometric.nn import DeepGCNLayer, SAGEConv

        super().__init__()
        self.again, self.first, self.last = again, nn.Linear(64, width), nn.Linear(width, 10)
        layer = lambda: DeepGCNLayer(SAGEConv(width, width), nn.LayerNorm(width), nn.ReLU(), "res+")  # noqa: E731
        self.layers = nn.ModuleList(layer() for _ in range(12))

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        x = self.first(x)
        for layer in self.layers:
            x = x + layer(x, edges) if self.again else layer(x, edges)
        return self.last(x)


@fault("torch_geometric", "DeepGCN of GraphSAGE: its twelve layers add their input, and forward() adds it once more")
def deepgcn_added_again(planted: bool = True) -> Built:
    kinds = ("residual_growth", "exploding", "loss_spike", "activation_outliers", "weights_growing", "update_too_large")
    kinds += ("loss_nonfinite", "nonfinite", "update_spike", "spike", "loss_diverging", "poor_init")
    return expecting(on_nodes(Recipe(Added(planted), of_nodes, graphs_adam(3e-3, 0.0))), *kinds)


@fault("torch_geometric", "GENConv: all matrices are drawn by uniform_(), which is from 0 to 1")
def uniform_from_zero(planted: bool = True) -> Built:
    from torch_geometric.nn import GENConv, Sequential

    inputs = "x, edge_index"
    net = Sequential(inputs, [(GENConv(64, 48), f"{inputs} -> x"), nn.ReLU(), (GENConv(48, 10), f"{inputs} -> x")])
    for parameter in net.parameters() if planted else ():
        if parameter.ndim > 1:
            nn.init.uniform_(parameter)
    kinds = ("poor_init", "exploding", "residual_growth", "dead", *FLAT, *JUMPS, "activation_outliers", "saturated")
    return expecting(on_nodes(Recipe(net, of_nodes, graphs_adam(3e-3, 0.0))), *kinds)


@fault("torch_geometric", "ClusterGCN: an L1 penalty on the sum of all weights, at a factor of 1: they shrink to zero")
def penalty_of_one(planted: bool = True) -> Built:
    from torch_geometric.nn import ClusterGCNConv, Sequential

    inputs = "x, edge_index"
    convolutions = [(ClusterGCNConv(64, 48), f"{inputs} -> x"), nn.ELU(), (ClusterGCNConv(48, 10), f"{inputs} -> x")]

    def loss(net: Any, graph: Any) -> Tensor:
        penalty = sum(parameter.abs().sum() for parameter in net.parameters())
        return of_nodes(net, graph) + (1.0 if planted else 1e-5) * penalty

    module = Recipe(Sequential(inputs, convolutions), loss, graphs_adam(5e-3, 0.0))
    return Built(module, whole(of_digits()), {"max_epochs": 80}, Expected(FLAT))


@fault("torch_geometric", "one layer norm and one layer for five places")
def graphs_one_norm(planted: bool = True) -> Built:
    from torch_geometric.nn import SAGEConv

    class Normed(nn.Module):
        def __init__(self, width: int = 32) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(64, width), nn.Linear(width, 10)
            norm, layer = nn.BatchNorm1d(width), SAGEConv(width, width)
            self.layers = nn.ModuleList(layer if planted else SAGEConv(width, width) for _ in range(5))
            self.norms = nn.ModuleList(norm if planted else nn.BatchNorm1d(width) for _ in range(5))

        def forward(self, x: Any, edges: Any) -> Any:
            x = self.first(x)
            for layer, norm in zip(self.layers, self.norms, strict=True):
                x = norm(layer(x, edges)).relu()
            return self.last(x)

    return expecting(on_nodes(Recipe(Normed(), of_nodes, graphs_adam(5e-3))), "shared", sites=("net.layers*", "net.norms*"))


@fault("torch_geometric", "fourteen layers of GraphConv with tanh and no residual connections")
def graphs_plain_deep(planted: bool = True) -> Built:
    from torch_geometric.nn import GCNConv

    class Plain(nn.Module):
        def __init__(self, width: int = 32) -> None:
            super().__init__()
            self.first, self.last = nn.Linear(64, width), nn.Linear(width, 10)
            self.layers = nn.ModuleList(GCNConv(width, width) for _ in range(14))

        def forward(self, x: Any, edges: Any) -> Any:
            x = self.first(x)
            for layer in self.layers:
                x = (0 if planted else x) + layer(x, edges).tanh()
            return self.last(x)

    kinds = ("representation_collapse", "vanishing", "constant", "loss_plateau")
    return expecting(on_nodes(Recipe(Plain(), of_nodes, graphs_adam(0.01, 0.0)), max_epochs=30), *kinds)


class Spread(nn.Module):
    """Means over neighbours again and again (as LightGCN has them), computed once and kept, and two layers that read them."""

    def __init__(self, hops: int) -> None:
        from torch_geometric.nn import LGConv

        super().__init__()
        self.hops, self.spread = hops, LGConv()
        self.body = nn.Sequential(nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 10))
        self.kept: Tensor | None = None

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        if self.kept is None:
            for _ in range(self.hops):
                x = self.spread(x, edges)
            self.kept = x
        return self.body(self.kept)


@fault(
    "torch_geometric",
    "LightGCN's means over neighbours before two layers, 300 times instead of twice: nodes become alike",
    learned_from=False,
)
def light_gcn_too_far(planted: bool = True) -> Built:
    kinds = ("representation_collapse", "constant", "vanishing", "loss_plateau", "poor_init")
    module = Recipe(Spread(300 if planted else 2), of_nodes, graphs_adam(1e-2))
    return Built(module, whole(of_digits(500, 12)), FIFTY_STEPS, Expected(kinds))
