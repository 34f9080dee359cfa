"""Models of timm at tiny sizes, and its script's optimizers and losses; for healthy families and for planted ones."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from tests.evidence.exam.cases import Built, Expected, Recipe
from tests.evidence.exam.pictures import pictures
from tests.evidence.exam.schedules import TWICE_30, scheduled

TINY_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 4, "num_heads": 3}


def timm_optimizer(opt: str, lr: float, weight_decay: float = 0.0, **options: Any) -> Callable[[Any], Any]:
    """As timm's training script makes it: no weight decay on biases and norms."""

    def make(module: Any) -> Any:
        from timm.optim import create_optimizer_v2

        return create_optimizer_v2(module, opt=opt, lr=lr, weight_decay=weight_decay, **options)

    return make


TIMM_ADAMW = timm_optimizer("adamw", 1e-3, 0.05)
TIMM_SGD = timm_optimizer("sgd", 0.05, 1e-4)


def timm_model(name: str, **options: Any) -> nn.Module:
    """A model of timm for ten classes of pictures with one channel."""
    import timm

    return timm.create_model(name, **{"num_classes": 10, "in_chans": 1, **options})


def with_cosine(make: Callable[[Any], Any], steps: int = 60) -> Callable[[Any], Any]:
    """A cosine over the training, stepped at every batch."""

    def make_both(module: Any) -> Any:
        chosen = make(module)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(chosen, steps)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return make_both


def smoothed(net: Any, batch: Any) -> Any:
    from timm.loss import LabelSmoothingCrossEntropy

    return LabelSmoothingCrossEntropy(0.1)(net(batch[0]), batch[1])


def mixed(net: Any, batch: Any) -> Any:
    """Mixup and CutMix."""
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy

    images, targets = Mixup(0.8, 1.0, num_classes=10)(batch[0].clone(), batch[1])
    return SoftTargetCrossEntropy()(net(images), targets)


def trained_on_digits(module: Recipe, batch_size: int = 32, size: int = 32, **kwargs: Any) -> Built:
    """On the digits, for two epochs of 30 batches."""
    return Built(module, pictures(batch_size, size), {**TWICE_30, **kwargs}, Expected())


def resmlp(act_layer: Any = nn.GELU, **options: Any) -> nn.Module:
    from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock

    sizes = {"patch_size": 8, "embed_dim": 48, "num_blocks": 4, "mlp_ratio": 4}
    return MlpMixer(10, 32, 1, **sizes, block_layer=ResBlock, norm_layer=Affine, act_layer=act_layer, **options)


def timm_resnet_net() -> Any:
    return timm_model("resnet10t", block_args={}, channels=(16, 24, 32, 48), stem_width=16)


def timm_vit_net(**options: Any) -> Any:
    return timm_model("vit_tiny_patch16_224", **TINY_VIT, **options)


def convmixer() -> Any:
    """ConvMixer, of 32 channels and four layers."""
    from timm.models.convmixer import ConvMixer

    return ConvMixer(32, 4, kernel_size=5, patch_size=4, in_chans=1, num_classes=10)


def xcit(**options: Any) -> Any:
    """XCiT: attention between channels."""
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 2, "num_heads": 4, "eta": 1.0}
    return timm_model("xcit_nano_12_p8_224", **{**sizes, **options})


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
    return timm_model("levit_128s", **sizes, attn_ratio=(2, 2), mlp_ratio=(2, 2))


def eva() -> Any:
    """EVA-02 of three blocks."""
    sizes = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 3, "num_heads": 3}
    return timm_model("eva02_tiny_patch14_224", **sizes)


def sknet() -> Any:
    """SKNet of four blocks."""
    options = {"layers": (1, 1, 1, 1), "channels": (16, 24, 32, 48), "block_args": {"sk_kwargs": {"rd_divisor": 8}}}
    return timm_model("skresnet18", **options)


def cosine_from_warm(make: Any, rate: float, steps: int = 60) -> Any:
    """As timm's script: a short warm-up in a line, then a cosine."""
    return scheduled(
        make, lambda chosen: torch.optim.lr_scheduler.OneCycleLR(chosen, rate, steps, pct_start=0.1, cycle_momentum=False)
    )
