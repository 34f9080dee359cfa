"""Healthy trainings with lightly's losses and of diffusers' models."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.healthy_diffusers import adamw, noisy, small_unet
from tests.evidence.exam.healthy_diffusers import trained as denoising
from tests.evidence.exam.healthy_lightly import adam, backbone, sgd, trained


def two_views(net: nn.Module, criterion: Any, optimizers: Any) -> Built:
    """A loss of what a net makes of two views."""
    return trained(Recipe(net, lambda net, batch: criterion(net(batch[0]), net(batch[1])), optimizers))


@healthy("lightly", "decoupled contrastive loss, LARS")
def lightly_decoupled() -> Built:
    from lightly.loss import DCLLoss
    from lightly.models.modules import SimCLRProjectionHead
    from lightly.utils.lars import LARS

    net = nn.Sequential(backbone(), SimCLRProjectionHead(48, 48, 32))
    return two_views(net, DCLLoss(0.1), lambda m: LARS(m.parameters(), 0.3, momentum=0.9, weight_decay=1e-6))


class Neighbours(Recipe):
    """NNCLR: the positive is the nearest of a queue."""

    def __init__(self) -> None:
        from lightly.loss import NTXentLoss
        from lightly.models.modules import NNCLRPredictionHead, NNCLRProjectionHead, NNMemoryBankModule

        net = nn.Sequential(backbone(), NNCLRProjectionHead(48, 64, 32))
        super().__init__(net, lambda *_: None, sgd())
        self.predictor, self.memory = NNCLRPredictionHead(32, 64, 32), NNMemoryBankModule(size=(256, 32))
        self.criterion = NTXentLoss(0.2)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        codes = [self.net(view) for view in batch]
        said = [self.predictor(code) for code in codes]
        near = [self.memory(code.detach(), update=number == 0) for number, code in enumerate(codes)]
        return 0.5 * (self.criterion(near[0], said[1]) + self.criterion(near[1], said[0]))


@healthy("lightly", "NNCLR with a queue of 256")
def lightly_neighbours() -> Built:
    return trained(Neighbours())


class Followed(Recipe):
    """TiCo, with a net that follows."""

    def __init__(self) -> None:
        from lightly.loss import TiCoLoss
        from lightly.models.modules import BarlowTwinsProjectionHead

        net = nn.Sequential(backbone(), BarlowTwinsProjectionHead(48, 64, 32))
        super().__init__(net, lambda *_: None, sgd(0.03))
        self.follower, self.criterion = copy.deepcopy(net).requires_grad_(False), TiCoLoss()

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        from lightly.models.utils import update_momentum

        update_momentum(self.net, self.follower, m=0.99)
        return self.criterion(self.net(batch[0]), self.follower(batch[1]).detach())


@healthy("lightly", "FroSSL: the norms of the covariances of three views, Adam")
def lightly_frobenius() -> Built:
    from lightly.loss import FroSSLLoss
    from lightly.models.modules import BarlowTwinsProjectionHead

    net, criterion = nn.Sequential(backbone(), BarlowTwinsProjectionHead(48, 48, 24)), FroSSLLoss()
    return trained(Recipe(net, lambda net, batch: criterion([net(view) for view in batch]), adam(2e-3)), 3)


@healthy("lightly", "whitened embeddings (W-MSE), Adam")
def lightly_whitened() -> Built:
    from lightly.loss import WMSELoss
    from lightly.models.modules import BarlowTwinsProjectionHead

    net = nn.Sequential(backbone(), BarlowTwinsProjectionHead(48, 48, 8))
    criterion = WMSELoss(embedding_dim=8, w_size=32)
    loss = lambda net, batch: criterion(torch.cat([net(view) for view in batch]))  # noqa: E731
    return trained(Recipe(net, loss, adam(1e-3)))


@healthy("diffusers", "EDM: scaled inputs and outputs, noise of a log-normal width, Adam")
def diffusers_edm() -> Built:
    def loss(net: Any, batch: Any) -> Any:
        width = (torch.randn(len(batch[0]), 1, 1, 1) * 1.2 - 1.2).exp()
        total = (width**2 + 1).sqrt()
        noise = torch.randn_like(batch[0]) * width
        said = net((batch[0] + noise) / total, width.flatten()).sample
        found = (batch[0] + noise) / total**2 + said * width / total
        return ((found - batch[0]) ** 2 * total**2 / width**2).mean()

    net = small_unet(time_embedding_type="fourier")
    return denoising(Recipe(net, loss, lambda m: torch.optim.Adam(m.parameters(), 2e-3)))


@healthy("diffusers", "U-Net with weights by signal-to-noise ratio, bf16-mixed, clipped at 1")
def diffusers_min_snr() -> Built:
    from diffusers import DDPMScheduler
    from diffusers.training_utils import compute_snr

    schedule = DDPMScheduler(beta_schedule="scaled_linear")

    def loss(net: Any, batch: Any) -> Any:
        noise, images, steps = noisy(batch[0], schedule)
        ratio = compute_snr(schedule, steps)
        each = ((net(images, steps).sample - noise) ** 2).mean((1, 2, 3))
        return (each * ratio.clamp(max=5.0) / ratio).mean()

    return denoising(Recipe(small_unet(), loss, adamw(1e-3)), precision="bf16-mixed", gradient_clip_val=1.0)


def joint_transformer() -> nn.Module:
    """The transformer of Stable Diffusion 3: pictures and words in one attention."""
    from diffusers import SD3Transformer2DModel

    sizes = {"sample_size": 8, "patch_size": 2, "in_channels": 1, "out_channels": 1, "num_layers": 2, "num_attention_heads": 2}
    widths = {"attention_head_dim": 16, "joint_attention_dim": 24, "caption_projection_dim": 32, "pooled_projection_dim": 24}
    net = nn.ModuleDict({"body": SD3Transformer2DModel(**sizes, **widths, pos_embed_max_size=8)})
    net["words"] = nn.Embedding(10, 24)
    return net


def straightened(net: Any, batch: Any) -> Any:
    """Rectified flow."""
    noise, share = torch.randn_like(batch[0]), torch.sigmoid(torch.randn(len(batch[0])))
    images = torch.lerp(batch[0], noise, share.view(-1, 1, 1, 1))
    words = net["words"](batch[1])
    said = net["body"](images, words[:, None], words, share * 1000).sample
    return F.mse_loss(said, noise - batch[0])


@healthy("diffusers", "rectified flow with the transformer of Stable Diffusion 3")
def diffusers_joint() -> Built:
    return denoising(Recipe(joint_transformer(), straightened, adamw(1e-3)))
