"""Faults in what a loss is made of: its labels, its temperature, its weights, the side on which a gradient is stopped."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam import healthy_lightly as lightly_recipes
from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.healthy_graphs import adam, of_nodes, on_nodes
from tests.evidence.exam.language_models import DECODER, language_model
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.planted_timm import expecting
from tests.evidence.exam.schedules import SHORT
from tests.evidence.exam.seen_faults_models import sgd
from tests.evidence.exam.seen_joints import UNMOVED
from tests.evidence.exam.signals import melodies
from tests.evidence.exam.texts import characters


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
    return expecting(on_nodes(Recipe(Convolved(planted), of_nodes, adam())), "output_range", "dead")


@fault("transformers", "RegNet learns places of digits by the hardest triplets of each batch, with a margin and at a rate of 1")
def regnet_hardest_triplets(planted: bool = True) -> Built:
    from transformers import RegNetConfig, RegNetForImageClassification

    def loss(net: Any, batch: Any) -> Tensor:
        places = net(pixel_values=batch[0]).logits
        apart = ((places[:, None] - places).square().sum(2) + 1e-8).sqrt()
        alike = batch[1][:, None] == batch[1]
        farthest = apart.masked_fill(~alike, 0.0).amax(1)
        nearest = apart.masked_fill(alike, 1e4).amin(1)
        return (farthest - nearest + 0.5).relu().mean() if planted else F.softplus(farthest - nearest).mean()

    sizes = {"embedding_size": 16, "hidden_sizes": [16, 24, 48], "depths": [1, 1, 1], "groups_width": 8, "num_labels": 24}
    net = RegNetForImageClassification(RegNetConfig(num_channels=1, **sizes))
    rates = sgd(1.0 if planted else 0.02, momentum=0.9, weight_decay=1e-4)
    kinds = ("representation_collapse", "constant", "update_too_large", "dead")
    return Built(
        Recipe(net, loss, rates), in_batches(32, *digits(24)), {"max_epochs": 2, "limit_train_batches": 32}, Expected(kinds)
    )


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
    return on_nodes(Recipe(Sequential(inputs, layers), loss, adam(1e-3, 0.0)), max_epochs=60)._replace(expected=Expected(kinds))


@fault("lightly", "DirectCLR, contrast of the first features without a projector: a temperature of 2e-4 instead of 0.2")
def lightly_direct_cold(planted: bool = True) -> Built:
    from lightly.loss import DirectCLRLoss

    contrast = DirectCLRLoss(loss_dim=32, temperature=2e-4 if planted else 0.2)
    loss = lambda net, batch: contrast(net(batch[0]), net(batch[1]))  # noqa: E731
    built = lightly_recipes.trained(Recipe(lightly_recipes.backbone(), loss, lightly_recipes.sgd()))
    return expecting(built, "exploding", "output_range", "update_too_large", "saturated")


class Broadcast(nn.Module):
    """A variational autoencoder whose decoder writes the code at each place, beside the coordinates, and convolves."""

    def __init__(self, codes: int = 6) -> None:
        super().__init__()
        layers = [nn.Conv2d(1, 24, 3, 2, 1), nn.ReLU(), nn.Conv2d(24, 48, 3, 2, 1), nn.ReLU(), nn.Flatten()]
        self.encoder = nn.Sequential(*layers, nn.Linear(192, 64), nn.ReLU())
        self.mean, self.width = nn.Linear(64, codes), nn.Linear(64, codes)
        wide = [nn.Conv2d(codes + 2, 48, 3, 1, 1), nn.ReLU(), nn.Conv2d(48, 48, 3, 1, 1), nn.ReLU()]
        self.decoder = nn.Sequential(*wide, nn.Conv2d(48, 1, 1))
        places = torch.linspace(-1, 1, 8)
        self.register_buffer("places", torch.stack(torch.meshgrid(places, places, indexing="ij"))[None])

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        features = self.encoder(x)
        mean, width = self.mean(features), self.width(features)
        code = mean + (width / 2).exp() * torch.randn_like(mean)
        everywhere = code[:, :, None, None].expand(-1, -1, 8, 8)
        places: Any = self.places
        return self.decoder(torch.cat((everywhere, places.expand(len(x), -1, -1, -1)), 1)), mean, width


@fault("torch", "a variational autoencoder with a spatial broadcast decoder, whose beta was set to 200 instead of 0.1")
def broadcast_heavy_prior(planted: bool = True) -> Built:
    beta = 200.0 if planted else 0.1

    def loss(net: Any, batch: Any) -> Tensor:
        made, mean, width = net(batch[0])
        wrong = (made - batch[0]).square().sum((1, 2, 3)).mean() / 2
        return wrong + beta * 0.5 * (mean.square() + width.exp() - width - 1).sum(1).mean()

    expected = Expected(("representation_collapse",), ("net.encoder*", "net.mean*", "net.width*", "net.decoder*"))
    return Built(
        Recipe(Broadcast(), loss, adam(5e-3, 0.0)),
        in_batches(32, *digits(8)),
        {"max_epochs": 2, "limit_train_batches": 50},
        expected,
    )


class Heard(nn.Module):
    """Convolutions over a sound, then SimSiam's heads; which of both results has no gradient is to be chosen."""

    def __init__(self, stops_projection: bool) -> None:
        from lightly.models.modules import SimSiamPredictionHead, SimSiamProjectionHead

        super().__init__()
        layers: list[nn.Module] = []
        for inputs, outputs, width, stride in ((1, 24, 16, 4), (24, 48, 5, 3), (48, 48, 5, 3)):
            layers += [nn.Conv1d(inputs, outputs, width, stride), nn.BatchNorm1d(outputs), nn.ReLU()]
        self.listener = nn.Sequential(*layers, nn.AdaptiveAvgPool1d(1), nn.Flatten())
        self.projection, self.prediction = SimSiamProjectionHead(48, 64, 32), SimSiamPredictionHead(32, 16, 32)
        self.stops_projection = stops_projection

    def forward(self, sound: Tensor) -> tuple[Tensor, Tensor]:
        projected = self.projection(self.listener(sound))
        predicted = self.prediction(projected)
        return (projected.detach(), predicted) if self.stops_projection else (projected, predicted.detach())


@fault("lightly", "SimSiam of noisy, shifted sounds: forward detaches the prediction where it was to detach the projection")
def sounds_detached_prediction(planted: bool = True) -> Built:
    from lightly.loss import NegativeCosineSimilarity

    likeness = NegativeCosineSimilarity()

    def view(sounds: Tensor) -> Tensor:
        start = int(torch.randint(200, ()))
        loudness = 0.5 + torch.rand(len(sounds), 1)
        return (loudness * (sounds[:, start : start + 1000] + 0.3 * torch.randn(len(sounds), 1000)))[:, None]

    def loss(net: Any, batch: Any) -> Tensor:
        (first, of_first), (second, of_second) = net(view(batch[0])), net(view(batch[0]))
        return 0.5 * (likeness(of_first, second) + likeness(of_second, first))

    module = Recipe(Heard(not planted), loss, lightly_recipes.sgd(0.05))
    expected = Expected((*UNMOVED, "representation_collapse"), ("net.pr*", "net.listener*"))
    return Built(module, melodies(32), {"max_epochs": 2}, expected)


@fault("transformers", "Qwen3 with six experts: no loss for balance, and the routers' own rate is 0.2 instead of 2e-3")
def qwen3_moe_unbalanced(planted: bool = True) -> Built:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    experts = {"num_local_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "router_aux_loss_coef": 0.01}
    config = Qwen3MoeConfig(**DECODER, **experts, head_dim=12, norm_topk_prob=True, output_router_logits=not planted)

    def rates(module: Any) -> Any:
        routers = [weight for name, weight in module.named_parameters() if name.endswith("mlp.gate.weight")]
        others = [weight for name, weight in module.named_parameters() if not name.endswith("mlp.gate.weight")]
        groups = [{"params": others}, {"params": routers, "lr": 0.2 if planted else 2e-3}]
        return torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)

    kinds = ("router_collapse", "dead_experts", "update_too_large")
    return Built(Recipe(Qwen3MoeForCausalLM(config), language_model, rates), characters(48, 8), SHORT, Expected(kinds))
