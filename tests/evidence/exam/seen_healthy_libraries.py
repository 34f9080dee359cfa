"""Healthy trainings of other libraries' models that no other module of the exam has, written without a look at the rules."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.healthy_graphs import adam, of_nodes, on_nodes
from tests.evidence.exam.healthy_timm import TINY_VIT, create, cross_entropy, optimizer, smoothed, with_cosine
from tests.evidence.exam.healthy_timm import trained as on_digits
from tests.evidence.exam.schedules import CLIPPED, adamw, warm_cosine
from tests.evidence.exam.seen_graphs import on_pixels
from tests.evidence.exam.texts import batches


@healthy("timm", "LCNet, SGD with Nesterov momentum and a cosine")
def timm_lcnet() -> Built:
    return on_digits(Recipe(create("lcnet_050"), cross_entropy, with_cosine(optimizer("sgd", 0.05, 4e-5))))


@healthy("timm", "deep layer aggregation, SGD")
def timm_dla() -> Built:
    return on_digits(Recipe(create("dla46_c"), cross_entropy, optimizer("sgd", 0.05, 1e-4)), limit_train_batches=20)


@healthy("timm", "FasterNet: convolutions of a part of the channels, AdamW")
def timm_fasternet() -> Built:
    net = create("fasternet_t0", embed_dim=16, depths=(1, 1, 2, 1), drop_path_rate=0.05)
    return on_digits(Recipe(net, smoothed, with_cosine(optimizer("adamw", 2e-3, 0.005))))


@healthy("timm", "StarNet: branches that are multiplied, AdamW and a cosine")
def timm_starnet() -> Built:
    net = create("starnet_s050", depths=(1, 1, 2, 1))
    return on_digits(Recipe(net, cross_entropy, with_cosine(optimizer("adamw", 2e-3, 0.03), 40)), limit_train_batches=20)


@healthy("timm", "ConViT: attention that starts as a convolution, AdamW")
def timm_convit() -> Built:
    return on_digits(Recipe(create("convit_tiny", **TINY_VIT, local_up_to_layer=3), smoothed, optimizer("adamw", 1e-3, 0.05)))


@healthy("timm", "MambaOut: gated convolutions, AdamW")
def timm_mambaout() -> Built:
    return on_digits(Recipe(create("test_mambaout"), cross_entropy, with_cosine(optimizer("adamw", 1e-3, 0.05))))


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
    return on_nodes(Recipe(net, of_nodes, adam()))


@healthy("torch_geometric", "topology-adaptive graph convolutions (TAGCN)")
def graphs_tag() -> Built:
    from torch_geometric.nn import TAGConv

    return on_nodes(Recipe(OfNodes(TAGConv(64, 16), TAGConv(16, 10)), of_nodes, adam()))


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


@healthy("timm", "PiT: a vision transformer that pools between its stages, AdamW")
def timm_pit() -> Built:
    sizes = {"img_size": 32, "patch_size": 4, "stride": 4, "base_dims": [16, 16, 16], "depth": [1, 1, 1], "heads": [1, 2, 4]}
    return on_digits(Recipe(create("pit_ti_224", **sizes), smoothed, with_cosine(optimizer("adamw", 2e-3, 0.05))))


@healthy("diffusers", "a one-dimensional U-Net that takes noise from waves, AdamW with warm-up and cosine, clipped at 1")
def diffusers_waves() -> Built:
    from diffusers import DDPMScheduler, UNet1DModel

    blocks = {"block_out_channels": (16, 32), "down_block_types": ("DownBlock1DNoSkip", "DownBlock1D")}
    blocks |= {"up_block_types": ("UpBlock1D", "UpBlock1DNoSkip"), "mid_block_type": "UNetMidBlock1D", "extra_in_channels": 32}
    net = UNet1DModel(sample_size=64, in_channels=1, out_channels=1, **blocks)
    schedule = DDPMScheduler()

    def loss(net: Any, batch: Any) -> Tensor:
        noise, steps = torch.randn_like(batch[0]), torch.randint(0, 1000, (len(batch[0]),))
        return F.mse_loss(net(schedule.add_noise(batch[0], noise, steps), steps).sample, noise)

    generator = torch.Generator().manual_seed(0)
    phases, rates = 2 * math.pi * torch.rand(1000, 1, 1, generator=generator), 1 + 3 * torch.rand(1000, 1, 1, generator=generator)
    waves = torch.sin(phases + rates * torch.linspace(0, 2 * math.pi, 64))
    return Built(Recipe(net, loss, warm_cosine(adamw(1e-3))), batches(16, waves), CLIPPED, Expected())
