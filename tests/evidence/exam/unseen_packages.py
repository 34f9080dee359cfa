"""Healthy trainings with parts of other libraries, from torch_geometric to gymnasium, that no other module of the exam has."""

from __future__ import annotations

import copy
from typing import Any

import torch
from sklearn.decomposition import PCA
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.episodes import Replay, loader
from tests.evidence.exam.graphs import of_digits, pixels, whole
from tests.evidence.exam.healthy_forecasting import trained as forecast
from tests.evidence.exam.healthy_graphs import EPOCHS, adam, of_nodes, on_nodes
from tests.evidence.exam.healthy_lightly import backbone
from tests.evidence.exam.healthy_lightly import trained as on_views
from tests.evidence.exam.healthy_peft import with_adapter
from tests.evidence.exam.language_models import language_model
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import CLIPPED, adamw, warm_cosine, warm_linear
from tests.evidence.exam.seen_libraries import names, reader

WELL = Expected()


@healthy("torch_geometric", "R-GCN: weights for each of two relations from two bases, Adam at 0.01 with L2, as in its example")
def graphs_relations() -> Built:
    from torch_geometric.nn import RGCNConv

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = RGCNConv(64, 16, 2, num_bases=2), RGCNConv(16, 10, 2, num_bases=2)

        def forward(self, x: Tensor, edges: Tensor) -> Tensor:
            kinds = (torch.arange(edges.shape[1]) >= edges.shape[1] // 2).long()
            return self.second(self.first(x, edges, kinds).relu(), edges, kinds)

    return on_nodes(Recipe(Net(), of_nodes, adam()))


@healthy("torch_geometric", "MixHop: powers 0 to 2 of the neighbourhood side by side, batch norm, dropout of 0.7, SGD")
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


@healthy("torch_geometric", "RotatE: relations turn complex embeddings, a margin against wrong tails, Adam in batches of triples")
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


@healthy("torch_geometric", "DiffPool: pixels are assigned to twelve clusters, with losses of links and of entropy, Adam")
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

    return Built(Recipe(Net(), loss, adam(3e-3, 0.0)), pixels(), {**EPOCHS, "limit_train_batches": 45}, WELL)


@healthy("peft", "RandLoRA: random bases of full rank whose two diagonals learn, in a Llama that has read code")
def rand_lora() -> Built:
    from peft import RandLoraConfig

    config = RandLoraConfig(r=8, randlora_alpha=160, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    module = Recipe(with_adapter(reader(), config), language_model, warm_linear(adamw(3e-3)))
    return Built(module, names(), CLIPPED, WELL)


@healthy("peft", "RoAd: pairs of outputs are turned and stretched, in all layers of a Llama that has read code")
def road() -> Built:
    from peft import RoadConfig

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = RoadConfig(variant="road_1", group_size=8, target_modules=targets, task_type="CAUSAL_LM")
    module = Recipe(with_adapter(reader(), config), language_model, warm_linear(adamw(1e-2)))
    return Built(module, names(), CLIPPED, WELL)


@healthy("lightly", "alignment and uniformity on the hypersphere, a loss that falls below 0, SGD")
def lightly_hypersphere() -> Built:
    from lightly.loss.hypersphere_loss import HypersphereLoss

    net, criterion = nn.Sequential(backbone(), nn.Linear(48, 32)), HypersphereLoss()
    sgd = lambda module: torch.optim.SGD(module.parameters(), 0.06, momentum=0.9, weight_decay=5e-4)  # noqa: E731
    return on_views(Recipe(net, lambda net, batch: criterion(net(batch[0]), net(batch[1])), sgd))


@healthy("lightly", "EMP-SSL: six views of each picture lie near their mean, and a coding rate keeps all apart, Adam")
def lightly_many_views() -> Built:
    from lightly.loss.emp_ssl_loss import EMPSSLLoss

    net, criterion = nn.Sequential(backbone(), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 32)), EMPSSLLoss()

    def loss(net: Any, batch: Any) -> Tensor:
        said = F.normalize(net(torch.cat(list(batch))), dim=1)
        return criterion(list(said.chunk(len(batch))))

    return on_views(Recipe(net, loss, warm_cosine(adamw(1e-3, 1e-4), 50, 5)), 6, limit_train_batches=25)


@healthy("pytorch_forecasting", "a GRU of two layers that forecasts, mean absolute error over the scale, clipped at 0.1")
def forecasting_recurrent() -> Built:
    from pytorch_forecasting import MASE, RecurrentNetwork

    return forecast(RecurrentNetwork, learning_rate=0.01, cell_type="GRU", hidden_size=24, rnn_layers=2, dropout=0.1, loss=MASE())


@healthy("diffusers", "the prior of unCLIP: a transformer finds the embedding of a picture behind noise, from that of a text")
def diffusers_prior() -> Built:
    from diffusers import DDPMScheduler, PriorTransformer

    images, shown = digits(8)
    parts = torch.tensor(PCA(16, whiten=True, random_state=0).fit_transform(images.flatten(1).numpy())).float()
    words = torch.randn(10, 4, 16, generator=torch.Generator().manual_seed(0))
    net: Any = PriorTransformer(num_attention_heads=4, attention_head_dim=12, num_layers=2, embedding_dim=16, num_embeddings=4)
    schedule = DDPMScheduler(beta_schedule="squaredcos_cap_v2", prediction_type="sample")

    def loss(net: Any, batch: Any) -> Tensor:
        times = torch.randint(0, 1000, (len(batch[0]),))
        noisy = schedule.add_noise(batch[0], torch.randn_like(batch[0]), times)
        said = words[batch[1]]
        found = net(noisy, times, said.mean(1), said).predicted_image_embedding
        return F.mse_loss(found, batch[0])

    module = Recipe(net, loss, warm_cosine(adamw(2e-3), 80, 8))
    return Built(module, in_batches(32, parts, shown), {**CLIPPED, "limit_train_batches": 40}, WELL)


class Munchausen(Recipe):
    """Q-learning whose rewards are raised by the scaled logarithm of the chance of what was done."""

    def __init__(self) -> None:
        net = nn.Sequential(nn.Linear(4, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 2))
        super().__init__(net, lambda *_: None, lambda module: torch.optim.Adam(module.net.parameters(), 1e-3))
        self.target = copy.deepcopy(net).requires_grad_(False)

    def choose(self, seen: Tensor) -> Tensor:
        return torch.distributions.Categorical(logits=self.net(seen) / 0.1).sample()

    def training_step(self, batch: Any, batch_idx: int) -> Tensor:
        if self.global_step % 20 == 0:
            self.target.load_state_dict(self.net.state_dict())
        heat, actions = 0.03, batch["actions"][:, None]
        with torch.no_grad():
            chances = (self.target(batch["observations"]) / heat).log_softmax(1).gather(1, actions)[:, 0]
            values = self.target(batch["after"])
            soft = heat * (values / heat).logsumexp(1)
            bonus = 0.9 * (heat * chances).clamp(-1, 0)
            goal = batch["rewards"] + bonus + 0.99 * (1 - batch["ended"]) * soft
        found = self.net(batch["observations"]).gather(1, actions)[:, 0]
        return F.smooth_l1_loss(found, goal)


@healthy("gymnasium", "Munchausen DQN: rewards are raised by the chance of what was done, soft values, Huber loss, Adam")
def rl_munchausen() -> Built:
    module = Munchausen()
    return Built(module, loader(Replay("CartPole-v1", module.choose, steps=4)), {"max_epochs": 3}, WELL)


@healthy("torch_geometric", "LINKX: the rows of the adjacency and the features of nodes, each by an MLP of its own, AdamW")
def graphs_linkx() -> Built:
    from torch_geometric.nn import LINKX

    graph = of_digits()
    net = LINKX(graph.num_nodes, 64, 32, 10, num_layers=2, dropout=0.5)
    return Built(Recipe(net, of_nodes, adamw(0.01, 1e-3)), whole(graph), {"max_epochs": 50}, WELL)
