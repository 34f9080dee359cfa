"""Healthy trainings of timm's models: other architectures, other optimizers."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.healthy_timm import create, cross_entropy, optimizer, smoothed, trained, with_cosine


def convmixer() -> Any:
    """ConvMixer, of 32 channels and four layers."""
    from timm.models.convmixer import ConvMixer

    return ConvMixer(32, 4, kernel_size=5, patch_size=4, in_chans=1, num_classes=10)


def xcit(**options: Any) -> Any:
    """XCiT: attention between channels."""
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4, "eta": 1.0}
    return create("xcit_nano_12_p8_224", **{**sizes, **options})


def repvgg() -> Any:
    """RepVGG: three branches beside each other that can be made one."""
    from timm.models.byobnet import ByoBlockCfg, ByobNet, ByoModelCfg

    blocks = tuple(ByoBlockCfg(type="rep", d=1, c=width, s=2, gs=0) for width in (16, 32, 48))
    return ByobNet(ByoModelCfg(blocks=blocks, stem_type="rep", stem_chs=16), num_classes=10, in_chans=1)


def poolformer(**options: Any) -> Any:
    """MetaFormer with averages of neighbours."""
    from timm.models.metaformer import MetaFormer, Pooling

    sizes = {"depths": (1, 1, 1, 1), "dims": (16, 24, 32, 48), "num_classes": 10, "in_chans": 1, "use_mlp_head": False}
    return MetaFormer(**{**sizes, "token_mixers": Pooling, **options})


def res2net() -> Any:
    """Res2Net: groups of channels one after the other."""
    from timm.models.res2net import Bottle2neck
    from timm.models.resnet import ResNet

    sizes = {"channels": (8, 12, 16, 24), "base_width": 26, "stem_width": 16}
    return ResNet(Bottle2neck, (1, 1, 1, 1), 10, 1, **sizes, block_args={"scale": 4})


def levit() -> Any:
    """LeViT of two stages."""
    sizes = {"img_size": 32, "embed_dim": (32, 48), "key_dim": 8, "stem_type": "s8", "depth": (1, 1), "num_heads": (2, 3)}
    return create("levit_128s", **sizes, attn_ratio=(2, 2), mlp_ratio=(2, 2))


def eva() -> Any:
    """EVA-02 of three blocks."""
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3}
    return create("eva02_tiny_patch14_224", **sizes)


def sknet() -> Any:
    """SKNet of four blocks."""
    options = {"layers": (1, 1, 1, 1), "channels": (16, 24, 32, 48), "block_args": {"sk_kwargs": {"rd_divisor": 8}}}
    return create("skresnet18", **options)


class Sharpness(Recipe):
    """SAM: the gradient where the loss is highest nearby, in manual optimisation."""

    radius = 0.05

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        loss = self.loss_of_batch(self.net, batch)
        self.manual_backward(loss)
        with torch.no_grad():
            known = [p for p in self.net.parameters() if p.grad is not None]
            norm = torch.stack([p.grad.norm() for p in known]).norm()
            steps = [self.radius * p.grad / (norm + 1e-12) for p in known]
            torch._foreach_add_(known, steps)
        optimizer.zero_grad()
        self.manual_backward(self.loss_of_batch(self.net, batch))
        with torch.no_grad():
            torch._foreach_sub_(known, steps)
        optimizer.step()
        optimizer.zero_grad()
        return {"loss": loss.detach()}


@healthy("timm", "ConvMixer, AdamW clipped at 1")
def timm_convmixer() -> Built:
    return trained(Recipe(convmixer(), cross_entropy, optimizer("adamw", 5e-3, 0.02)), gradient_clip_val=1.0)


@healthy("timm", "XCiT: attention between channels, class attention, NAdamW")
def timm_xcit() -> Built:
    return trained(Recipe(xcit(), smoothed, optimizer("nadamw", 1e-3, 0.05)))


@healthy("timm", "RepVGG, SGD, no decay on its norms")
def timm_repvgg() -> Built:
    return trained(Recipe(repvgg(), cross_entropy, with_cosine(optimizer("sgd", 0.2, 1e-4))))


@healthy("timm", "MetaFormer with averages, SAM around SGD")
def timm_sharpness() -> Built:
    return trained(Sharpness(poolformer(), cross_entropy, optimizer("sgd", 0.05)), 16)


@healthy("timm", "Res2Net, SGD")
def timm_res2net() -> Built:
    return trained(Recipe(res2net(), cross_entropy, optimizer("sgd", 0.05, 1e-4)), 24)


@healthy("timm", "LeViT: batch norm in attention, hard-swish")
def timm_levit() -> Built:
    return trained(Recipe(levit(), cross_entropy, optimizer("adamw", 2e-3, 0.025)))


@healthy("timm", "gMLP, LAMB, smoothed labels")
def timm_gmlp() -> Built:
    from timm.models.mlp_mixer import GatedMlp, MlpMixer, SpatialGatingBlock

    sizes = {"patch_size": 8, "embed_dim": 48, "num_blocks": 3, "mlp_ratio": 4}
    net = MlpMixer(10, 32, 1, **sizes, block_layer=SpatialGatingBlock, mlp_layer=GatedMlp)
    return trained(Recipe(net, smoothed, optimizer("lamb", 2e-2, 0.01)))


@healthy("timm", "EdgeNeXt: split depthwise convolutions and attention between channels, AdaBelief")
def timm_edgenext() -> Built:
    net = create("edgenext_xx_small", depths=(1, 1, 1, 1), dims=(16, 24, 32, 48))
    return trained(Recipe(net, cross_entropy, optimizer("adabelief", 3e-3, 0.01)), 16)


@healthy("timm", "InceptionNeXt, Adan")
def timm_inception_next() -> Built:
    net = create("inception_next_atto", depths=(1, 1, 1, 1), dims=(16, 24, 32, 48), drop_path_rate=0.1)
    return trained(Recipe(net, cross_entropy, optimizer("adan", 5e-3, 0.02)), 16)


@healthy("timm", "EVA: rotary positions, SwiGLU, a trained mean, clipped at 3")
def timm_eva() -> Built:
    return trained(Recipe(eva(), cross_entropy, with_cosine(optimizer("adamw", 1e-3, 0.05))), gradient_clip_val=3.0)


@healthy("timm", "SKNet: kernels chosen by attention, MADGRAD")
def timm_sknet() -> Built:
    return trained(Recipe(sknet(), cross_entropy, optimizer("madgrad", 5e-3)), 16)


class Taught(Recipe):
    """A small net learns from a larger one, which learns on its own (deep mutual learning): two optimizers by hand."""

    def __init__(self, first: nn.Module, second: nn.Module) -> None:
        super().__init__(nn.ModuleList([first, second]), lambda *_: None, self.both)
        self.automatic_optimization = False

    @staticmethod
    def both(module: Any) -> Any:
        return [torch.optim.SGD(net.parameters(), 0.05, momentum=0.9, weight_decay=1e-4) for net in module.net]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = [net(batch[0]) for net in self.net]
        total = torch.zeros(())
        for own, other, chosen in zip(logits, reversed(logits), self.optimizers(), strict=True):
            soft = F.kl_div(own.log_softmax(1), other.detach().softmax(1), reduction="batchmean")
            loss = F.cross_entropy(own, batch[1]) + soft
            chosen.zero_grad()
            self.manual_backward(loss)
            chosen.step()
            total = total + loss.detach()
        return {"loss": total}


@healthy("timm", "RepVGG and ResNet that learn from each other")
def timm_mutual() -> Built:
    return trained(Taught(repvgg(), create("test_resnet")), 16)


class ArcFace(nn.Module):
    """A body, and directions of the classes with a margin between them."""

    def __init__(self, body: nn.Module, width: int) -> None:
        super().__init__()
        self.body, self.directions = body, nn.Parameter(torch.empty(10, width))
        nn.init.xavier_uniform_(self.directions)

    def forward(self, images: Any, shown: Any, margin: float = 0.2, scale: float = 16.0) -> Any:
        cosines = F.normalize(self.body(images)) @ F.normalize(self.directions).T
        angles = cosines.clamp(-1 + 1e-6, 1 - 1e-6).acos() + margin * F.one_hot(shown, 10)
        return scale * angles.cos()


@healthy("timm", "ArcFace over a Res2Net: angles with a margin")
def timm_arcface() -> Built:
    body = res2net()
    body.reset_classifier(0)
    net = ArcFace(body, 96)
    loss = lambda net, batch: F.cross_entropy(net(*batch), batch[1])  # noqa: E731
    return trained(Recipe(net, loss, lambda m: torch.optim.SGD(m.parameters(), 0.05, momentum=0.9, weight_decay=5e-4)), 24)


class Several(nn.Module):
    """One body, and a head for each task, weighed by uncertainties that are trained."""

    def __init__(self) -> None:
        super().__init__()
        self.body = create("test_efficientnet", num_classes=0)
        width = self.body.num_features
        self.digit, self.parity, self.mean = nn.Linear(width, 10), nn.Linear(width, 2), nn.Linear(width, 1)
        self.uncertain = nn.Parameter(torch.zeros(3))


@healthy("timm", "three tasks with one body: which digit, odd or even, how bright; weights that are trained")
def timm_tasks() -> Built:
    def loss(net: Any, batch: Any) -> Any:
        hidden = net.body(batch[0])
        brightness = F.mse_loss(net.mean(hidden)[:, 0], 5 * batch[0].mean((1, 2, 3)))
        parts = torch.stack(
            [F.cross_entropy(net.digit(hidden), batch[1]), F.cross_entropy(net.parity(hidden), batch[1] % 2), brightness]
        )
        return (parts * (-net.uncertain).exp() + net.uncertain / 2).sum()

    return trained(Recipe(Several(), loss, optimizer("adamw", 2e-3, 0.01)))


class Semisupervised(Recipe):
    """Mean teacher: a quarter of the labels, and agreement with an average of the net on noisy pictures."""

    def __init__(self, net: nn.Module) -> None:
        super().__init__(net, lambda *_: None, optimizer("adamw", 2e-3, 0.01))
        self.teacher = copy.deepcopy(net).requires_grad_(False)

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        logits = self.net(batch[0] + 0.1 * torch.randn_like(batch[0]))
        with torch.no_grad():
            goal = self.teacher(batch[0] + 0.1 * torch.randn_like(batch[0])).softmax(1)
        known = len(batch[1]) // 4
        agree = F.mse_loss(logits.softmax(1), goal)
        return F.cross_entropy(logits[:known], batch[1][:known]) + min(self.global_step / 30, 1.0) * 10 * agree

    def on_train_batch_end(self, *_: Any) -> None:
        for average, new in zip(self.teacher.parameters(), self.net.parameters(), strict=True):
            average.lerp_(new.detach(), 0.05)


@healthy("timm", "mean teacher with a quarter of the labels")
def timm_mean_teacher() -> Built:
    return trained(Semisupervised(create("test_resnet")), 16)
