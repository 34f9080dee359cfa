"""Nets of PyTorch Geometric that learn from a graph itself, without labels."""

from __future__ import annotations

import copy
import math
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.graphs import graphs_adam, of_digits, on_nodes, whole
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.schedules import adamw, scheduled
from tests.evidence.exam.small_nets import mlp


def reconstruct(net: Any, graph: Any) -> Any:
    """Which nodes are joined."""
    return net.recon_loss(net.encode(graph.x, graph.edge_index), graph.edge_index)


@healthy("torch_geometric", "graph autoencoder")
def graphs_gae() -> Built:
    from torch_geometric.nn import GAE
    from torch_geometric.nn.models import GCN

    return on_nodes(Recipe(GAE(GCN(64, 32, 2, 16)), reconstruct, graphs_adam(0.01, 0.0)))


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

    return on_nodes(Recipe(VGAE(Encoder()), loss, graphs_adam(0.01, 0.0)))


@healthy("torch_geometric", "deep graph infomax")
def graphs_infomax() -> Built:
    from torch_geometric.nn import DeepGraphInfomax
    from torch_geometric.nn.models import GCN

    def corrupted(x: Any, edges: Any) -> tuple[Any, Any]:
        return x[torch.randperm(len(x))], edges

    net = DeepGraphInfomax(32, GCN(64, 32, 1, act="prelu"), lambda z, *_: z.mean(0).sigmoid(), corrupted)

    def loss(net: Any, graph: Any) -> Any:
        return net.loss(*net(graph.x, graph.edge_index))

    return on_nodes(Recipe(net, loss, graphs_adam(1e-3, 0.0)))


@healthy(
    "torch_geometric",
    "metapath2vec over pictures and their bright pixels: sparse gradients and SparseAdam, as in the library's example",
)
def graphs_metapath() -> Built:
    from torch_geometric.nn import MetaPath2Vec

    rows, columns = torch.tensor(load_digits().data[:500] > 10).nonzero().T
    has, within = ("picture", "has", "pixel"), ("pixel", "within", "picture")
    edges = {has: torch.stack((rows, columns)), within: torch.stack((columns, rows))[:, columns.argsort(stable=True)]}
    net = MetaPath2Vec(edges, 32, [has, within], 10, 5, 2, 2, {"picture": 500, "pixel": 64}, sparse=True)
    loss = lambda net, batch: net.loss(*batch)  # noqa: E731
    sparse = lambda module: torch.optim.SparseAdam(list(module.parameters()), 0.01)  # noqa: E731
    data = {"train_dataloaders": net.loader(batch_size=16, shuffle=True, num_workers=0)}
    return Built(Recipe(net, loss, sparse), data, {"max_epochs": 3}, WELL)


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

    return on_nodes(Recipe(net, loss, graphs_adam(0.02, 0.0)))


class Adversarial(Recipe):
    """ARGVA, as the library's example trains it: a judge of codes learns five times a step, then the encoder."""

    def __init__(self) -> None:
        from torch_geometric.nn import ARGVA, GCNConv

        class Encoder(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.first, self.mean, self.width = GCNConv(64, 32), GCNConv(32, 16), GCNConv(32, 16)

            def forward(self, x: Tensor, edges: Tensor) -> tuple[Tensor, Tensor]:
                x = self.first(x, edges).relu()
                return self.mean(x, edges), self.width(x, edges)

        judge = nn.Sequential(nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 1))
        super().__init__(ARGVA(Encoder(), judge), lambda *_: None, self._both)
        self.automatic_optimization = False

    @staticmethod
    def _both(module: Any) -> Any:
        parts = ((module.net.encoder, 0.005), (module.net.discriminator, 0.001))
        return [torch.optim.Adam(part.parameters(), rate) for part, rate in parts]

    def training_step(self, graph: Any, batch_idx: int) -> Any:
        of_encoder, of_judge = self.optimizers()
        codes = self.net.encode(graph.x, graph.edge_index)
        for _ in range(5):
            of_judge.zero_grad()
            self.manual_backward(self.net.discriminator_loss(codes))
            of_judge.step()
        loss = self.net.recon_loss(codes, graph.edge_index) + self.net.reg_loss(codes) + self.net.kl_loss() / len(codes)
        of_encoder.zero_grad()
        self.manual_backward(loss)
        of_encoder.step()
        return {"loss": loss.detach()}


@healthy("torch_geometric", "ARGVA: a graph's codes are to look like noise to a judge, who learns five times as often")
def graphs_adversarial() -> Built:
    return Built(Adversarial(), whole(of_digits(300)), {"max_epochs": 80}, WELL)


@healthy(
    "torch_geometric",
    "RotatE: relations turn complex embeddings, a margin against wrong tails, Adam in batches of triples",
    learned_from=False,
)
def graphs_turned() -> Built:
    from torch_geometric.nn.kge import RotatE

    graph = of_digits()
    heads, tails = graph.edge_index
    kinds = (torch.arange(len(heads)) >= len(heads) // 2).long()
    net = RotatE(graph.num_nodes, 2, 32, margin=9.0)

    def loss(net: Any, batch: Any) -> Tensor:
        return net.loss(*batch)

    optimizers = lambda module: torch.optim.Adam(module.parameters(), 1e-2)  # noqa: E731
    return Built(Recipe(net, loss, optimizers), in_batches(250, heads, kinds, tails), {"max_epochs": 3}, WELL)


class Bootstrapped(Recipe):
    """Two views of one graph: a net foresees what its slow copy says of the other (BGRL)."""

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.slow = copy.deepcopy(self.net["body"]).requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        from torch_geometric.utils import dropout_edge

        views = []
        for share in (0.2, 0.4):
            kept = torch.rand(batch.x.shape[1]) > share
            views.append((batch.x * kept, dropout_edge(batch.edge_index, share)[0]))
        told = [self.net["foresees"](self.net["body"](*view)) for view in views]
        with torch.no_grad():
            aims = [self.slow(*view) for view in reversed(views)]
        return 2 - sum(F.cosine_similarity(*both).mean() for both in zip(told, aims, strict=True))

    def on_train_batch_end(self, *_: Any) -> None:
        share = 0.01 * (1 + math.cos(math.pi * self.global_step / 200)) / 2
        for slow, fast in zip(self.slow.parameters(), self.net["body"].parameters(), strict=True):
            slow.data.lerp_(fast.data, share)


@healthy("torch_geometric", "BGRL: a graph's two views, without negatives; the slow copy follows ever less, AdamW with a cosine")
def graph_bootstrapped() -> Built:
    from torch_geometric.nn import BatchNorm, GCNConv, Sequential

    parts = [
        (GCNConv(64, 64), "x, edges -> x"),
        BatchNorm(64),
        nn.PReLU(),
        (GCNConv(64, 32), "x, edges -> x"),
        BatchNorm(32),
        nn.PReLU(),
    ]
    net = nn.ModuleDict({"body": Sequential("x, edges", parts), "foresees": mlp(32, 64, 32, activation=nn.PReLU)})
    falling = scheduled(
        lambda module: torch.optim.AdamW(module.net.parameters(), 3e-3, weight_decay=1e-5),
        lambda chosen: torch.optim.lr_scheduler.CosineAnnealingLR(chosen, 200),
    )
    return Built(Bootstrapped(net, None, falling), whole(of_digits()), {"max_epochs": 200}, Expected())


@healthy(
    "torch_geometric", "GraphMAE: half of the nodes are hidden, their features are drawn again under a scaled cosine error, AdamW"
)
def graph_hidden_nodes() -> Built:
    from torch_geometric.nn import GATConv, Sequential

    def layers(before: int, after: int, heads: int) -> Any:
        parts = [(GATConv(before, 32 // heads, heads), "x, edges -> x"), nn.PReLU(), (GATConv(32, after), "x, edges -> x")]
        return Sequential("x, edges", parts)

    class Hides(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.encode, self.decode, self.hidden = layers(64, 32, 4), layers(32, 64, 4), nn.Parameter(torch.zeros(64))

        def forward(self, graph: Any) -> Tensor:
            chosen = torch.rand(len(graph.x), 1) < 0.5
            codes = self.encode(torch.where(chosen, self.hidden, graph.x), graph.edge_index)
            drawn = self.decode(codes * ~chosen, graph.edge_index)
            return (1 - F.cosine_similarity(drawn, graph.x)[chosen[:, 0]]).square().mean()

    module = Recipe(Hides(), lambda net, batch: net(batch), adamw(3e-3, 2e-4))
    return Built(module, whole(of_digits()), {"max_epochs": 150}, Expected())
