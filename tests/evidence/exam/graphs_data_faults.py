"""Faults of edges, features, masks and labels of graphs, and of what pools them."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils.data import DataLoader

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.expectations import FLAT, NOTHING_LEARNED, RATE, expecting
from tests.evidence.exam.graphs import (
    Layers,
    gcn,
    graphs_adam,
    of_digits,
    of_graphs,
    of_nodes,
    of_pixels,
    on_graph,
    on_nodes,
    pixels,
)
from tests.evidence.exam.pictures import Again, digits, in_batches
from tests.evidence.exam.schedules import SHORT, TWICE_40, adam
from tests.evidence.exam.small_nets import mlp, to_classes


@fault(
    "torch_geometric",
    "no edges: the adjacency is empty",
    missed="a net on a graph without edges is an ordinary net that learns, and integers as inputs are not looked at",
)
def graphs_no_edges(planted: bool = True) -> Built:
    graph = of_digits().clone()
    graph.edge_index = graph.edge_index[:, :0] if planted else graph.edge_index
    return expecting(on_graph(graph, Recipe(gcn(), of_nodes, graphs_adam())), "silent", "missing", "zero", "constant")


@fault("torch_geometric", "all nodes have the same features")
def graphs_same_features(planted: bool = True) -> Built:
    graph = of_digits().clone()
    graph.x = torch.ones_like(graph.x) if planted else graph.x
    return expecting(on_graph(graph, Recipe(gcn(), of_nodes, graphs_adam())), "constant")


@fault("torch_geometric", "the mask of the training nodes is empty")
def graphs_empty_mask(planted: bool = True) -> Built:
    graph = of_digits().clone()
    graph.train_mask = graph.train_mask & (not planted)
    return expecting(on_graph(graph, Recipe(gcn(), of_nodes, graphs_adam())), "loss_nonfinite", "labels_ignored", "nonfinite")


@fault("torch_geometric", "the softmax of the classes is taken over the nodes")
def graphs_softmax_dim(planted: bool = True) -> Built:
    def loss(net: Any, graph: Any) -> Any:
        out = net(graph.x, graph.edge_index)[graph.train_mask]
        return F.nll_loss(out.log_softmax(0 if planted else 1), graph.y[graph.train_mask])

    return expecting(on_nodes(Recipe(gcn(), loss, graphs_adam())), "softmax_dim", "output_range")


@fault("torch_geometric", "features that were not normalised: 1e4 times too large")
def graphs_large_features(planted: bool = True) -> Built:
    graph = of_digits().clone()
    graph.x = graph.x * (1e4 if planted else 1.0)
    sgd = lambda module: torch.optim.SGD(module.parameters(), 0.1)  # noqa: E731
    return expecting(on_graph(graph, Recipe(gcn(), of_nodes, sgd)), *RATE, "dead", "spike")


@fault(
    "torch_geometric",
    "labels that are all the same class",
    missed="the last bias is that of a layer that holds others, and gradients of half of the nodes are 0: agreement is not seen",
)
def graphs_one_class(planted: bool = True) -> Built:
    graph = of_digits().clone()
    graph.y = graph.y * (not planted)
    return expecting(on_graph(graph, Recipe(gcn(), of_nodes, graphs_adam())), "constant")


@fault("torch_geometric", "edges as a table of pairs that was given the shape (2, edges) by view")
def graphs_edges_viewed(planted: bool = True) -> Built:
    from torch_geometric.nn import SAGEConv

    graph = of_digits().clone()
    edges = graph.edge_index[:, graph.edge_index[0].argsort(stable=True)]
    graph.edge_index = edges.T.reshape(2, -1) if planted else edges
    net = Layers(SAGEConv(64, 32), SAGEConv(32, 10))
    return expecting(on_graph(graph, Recipe(net, of_nodes, graphs_adam(5e-3))), "loss_plateau", "settings")


@fault("torch_geometric", "features over their deviation, which is 0 for pixels that are always black")
def graphs_zero_deviation(planted: bool = True) -> Built:
    from torch_geometric.nn import ChebConv

    graph = of_digits().clone()
    graph.x = graph.x / (graph.x.std(0) + (0.0 if planted else 1e-2))
    net = Layers(ChebConv(64, 32, 3), ChebConv(32, 10, 3))
    return expecting(on_graph(graph, Recipe(net, of_nodes, graphs_adam())), "nonfinite", "loss_nonfinite", sites=("net*", "loss*"))


class Graphs(nn.Module):
    """Two ARMA convolutions, the mean over nodes, and a head."""

    def __init__(self) -> None:
        super().__init__()
        from torch_geometric.nn import ARMAConv

        self.first, self.second, self.head = ARMAConv(3, 32), ARMAConv(32, 32), nn.Linear(32, 10)

    def forward(self, x: Tensor, edges: Tensor, batch: Tensor) -> Tensor:
        from torch_geometric.nn import global_mean_pool

        return self.head(global_mean_pool(self.second(self.first(x, edges), edges), batch))


@fault("torch_geometric", "ARMA: each step takes the first batch of a new iterator, next(iter(loader))")
def arma_first_batch(planted: bool = True) -> Built:
    data = pixels(32)
    if planted:
        data = {"train_dataloaders": Again(data["train_dataloaders"])}
    return Built(Recipe(Graphs(), of_graphs, graphs_adam(2e-2)), data, SHORT, Expected(("batch_repeated",)))


class Nodes(nn.Module):
    """A layer for each node, then TAG convolutions."""

    def __init__(self, planted: bool) -> None:
        super().__init__()
        from torch_geometric.nn import TAGConv

        self.first, self.body, self.last = nn.Linear(64, 12), TAGConv(12, 32, 2), TAGConv(32, 10, 2)
        self.planted = planted

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        hidden = self.first(x).tanh()
        return self.last(self.body(hidden.data if self.planted else hidden, edges).relu(), edges)


@fault("torch_geometric", "TAG: the features of its first layer are taken as .data")
def tag_data(planted: bool = True) -> Built:
    return expecting(on_nodes(Recipe(Nodes(planted), of_nodes, graphs_adam(1e-2))), "missing", sites=("net.first*",))


class Shown(nn.Module):
    """Pictures are nodes that know nothing; their bright pixels, nodes too, tell them what they show."""

    def __init__(self, relation: str) -> None:
        from torch_geometric.nn import HeteroConv, SAGEConv

        super().__init__()
        between = {("pixel", relation, "picture"): SAGEConv((16, 48), 48), ("picture", "next", "picture"): SAGEConv((48, 48), 48)}
        self.start, self.place = nn.Linear(1, 48), nn.Embedding(64, 16)
        self.convolution, self.head = HeteroConv(between), nn.Linear(48, 10)

    def forward(self, images: Tensor) -> Tensor:
        bright = (images.flatten(1) > 0.3).nonzero().T.flip(0)
        beside = torch.arange(len(images)).repeat(2, 1)
        nodes = {"picture": self.start(torch.ones(len(images), 1)), "pixel": self.place.weight}
        edges = {("pixel", "lights", "picture"): bright, ("picture", "next", "picture"): beside}
        return self.head(self.convolution(nodes, edges)["picture"].relu())


@fault("torch_geometric", "HeteroConv: the name of a relation is misspelled, and its convolution is skipped without a word")
def relation_misspelled(planted: bool = True) -> Built:
    module = Recipe(Shown("light" if planted else "lights"), to_classes, graphs_adam(1e-2, 0.0))
    return Built(module, in_batches(32, *digits(8)), TWICE_40, Expected(("missing", *FLAT), ("net.convolution*", "net.place*")))


@fault("torch_geometric", "EdgeConv: pooling is not told the batch; its one row is expanded to all pictures to fit the labels")
def pooled_as_one(planted: bool = True) -> Built:
    from torch_geometric.nn import EdgeConv, global_max_pool

    net = nn.ModuleList([EdgeConv(nn.Sequential(nn.Linear(6, 48), nn.ReLU(), nn.Linear(48, 48))), nn.Linear(48, 10)])

    def loss(net: Any, graph: Any) -> Tensor:
        pooled = global_max_pool(net[0](graph.x, graph.edge_index), None if planted else graph.batch)
        return F.cross_entropy(net[1](pooled).expand(len(graph.y), -1), graph.y)

    return Built(Recipe(net, loss, graphs_adam(1e-2, 0.0)), pixels(32), SHORT, Expected(FLAT))


class Convolved(nn.Module):
    """Convolutions of a graph, of which each is followed by a rectifier; the last one's output is taken as it is or not."""

    def __init__(self, last: bool) -> None:
        from torch_geometric.nn import SSGConv

        super().__init__()
        self.last, self.layers = last, nn.ModuleList([SSGConv(64, 48, 0.1, 2), SSGConv(48, 48, 0.1, 2), SSGConv(48, 10, 0.1, 2)])

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        for index, layer in enumerate(self.layers):
            x = layer(x, edges)
            if self.last or index < len(self.layers) - 1:
                x = x.relu()
        return x


@fault("torch_geometric", "SSGConv: the loop over layers has a rectifier after each, also after the last, under cross_entropy")
def graphs_rectified_to_the_end(planted: bool = True) -> Built:
    return expecting(on_nodes(Recipe(Convolved(planted), of_nodes, graphs_adam())), "output_range", "dead")


@fault("torch_geometric", "FiLMConv as for several labels a node: labels of -1 and 1 for a binary cross entropy with logits")
def film_signs(planted: bool = True) -> Built:
    from torch_geometric.nn import FiLMConv, Sequential

    inputs = "x, edge_index"
    layers = [(FiLMConv(64, 48), f"{inputs} -> x"), (FiLMConv(48, 48), f"{inputs} -> x"), nn.Linear(48, 10)]

    def loss(net: Any, graph: Any) -> Tensor:
        logits, shown = net(graph.x, graph.edge_index), F.one_hot(graph.y, 10)
        goal = (2 * shown - 1 if planted else shown).float()
        return F.binary_cross_entropy_with_logits(logits[graph.train_mask], goal[graph.train_mask])

    kinds = ("output_range", "weights_growing", "loss_diverging", "exploding")
    return on_nodes(Recipe(Sequential(inputs, layers), loss, graphs_adam(1e-3, 0.0)), max_epochs=60)._replace(
        expected=Expected(kinds)
    )


@fault("torch_geometric", "features that were divided by 255 three times: nodes are next to the same")
def graphs_tiny_features(planted: bool = True) -> Built:
    from torch_geometric.nn import ChebConv

    graph = of_digits().clone()
    graph.x = graph.x / (255.0**3 if planted else 1.0)
    net = Layers(ChebConv(64, 32, 3), ChebConv(32, 10, 3))
    kinds = ("constant", "representation_collapse", "vanishing", "update_too_small", "loss_plateau")
    return expecting(on_graph(graph, Recipe(net, of_nodes, graphs_adam())), *kinds)


@fault("torch_geometric", "graphs are put together by torch.cat alone: the edges of all of them join the nodes of the first")
def pixels_edges_of_the_first(planted: bool = True) -> Built:
    from torch_geometric.nn import GCNConv, global_mean_pool

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second, self.head = GCNConv(1, 48), GCNConv(48, 48), mlp(48, 48, 10)

        def forward(self, x: Tensor, edges: Tensor, graph: Tensor) -> Tensor:
            x = F.relu(self.second(F.relu(self.first(x, edges)), edges))
            return self.head(global_mean_pool(x, graph))

    def collate(graphs: list[Any]) -> Any:
        edges = [each.edge_index + (0 if planted else 64 * place) for place, each in enumerate(graphs)]
        graph = torch.arange(len(graphs)).repeat_interleave(64)
        return torch.cat([each.x[:, :1] for each in graphs]), torch.cat(edges, 1), graph, torch.stack([each.y for each in graphs])

    data = DataLoader(of_pixels(), 32, shuffle=True, drop_last=True, collate_fn=collate)
    module = Recipe(Net(), lambda net, batch: F.cross_entropy(net(*batch[:3]), batch[3]), adam(5e-3))
    return Built(
        module, {"train_dataloaders": data}, {"max_epochs": 5}, Expected((*NOTHING_LEARNED, "activation_outliers", "constant"))
    )
