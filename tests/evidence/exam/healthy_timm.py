"""Healthy trainings of timm's models."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.pictures import pictures

BATCHES = {"max_epochs": 2, "limit_train_batches": 30}
TINY_VIT = {"img_size": 32, "patch_size": 8, "embed_dim": 48, "depth": 4, "num_heads": 3}


def create(name: str, **options: Any) -> nn.Module:
    """A model of timm for ten classes of pictures with one channel."""
    import timm

    return timm.create_model(name, **{"num_classes": 10, "in_chans": 1, **options})


def optimizer(opt: str, lr: float, weight_decay: float = 0.0, **options: Any) -> Callable[[Any], Any]:
    """As timm's training script makes it: no weight decay on biases and norms."""

    def make(module: Any) -> Any:
        from timm.optim import create_optimizer_v2

        return create_optimizer_v2(module, opt=opt, lr=lr, weight_decay=weight_decay, **options)

    return make


def with_cosine(make: Callable[[Any], Any], steps: int = 60) -> Callable[[Any], Any]:
    """A cosine over the training, stepped at every batch."""

    def make_both(module: Any) -> Any:
        chosen = make(module)
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(chosen, steps)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    return make_both


def cross_entropy(net: Any, batch: Any) -> Any:
    return F.cross_entropy(net(batch[0]), batch[1])


def smoothed(net: Any, batch: Any) -> Any:
    from timm.loss import LabelSmoothingCrossEntropy

    return LabelSmoothingCrossEntropy(0.1)(net(batch[0]), batch[1])


def mixed(net: Any, batch: Any) -> Any:
    """Mixup and CutMix."""
    from timm.data import Mixup
    from timm.loss import SoftTargetCrossEntropy

    images, targets = Mixup(0.8, 1.0, num_classes=10)(batch[0].clone(), batch[1])
    return SoftTargetCrossEntropy()(net(images), targets)


class Averaged(Recipe):
    """Keeps a moving average of the model, as timm's training script does."""

    def __init__(self, *parts: Any) -> None:
        from timm.utils import ModelEmaV3

        super().__init__(*parts)
        self.average = [ModelEmaV3(self.net, decay=0.99)]

    def on_train_batch_end(self, *_: Any) -> None:
        self.average[0].update(self.net)


class Clipped(Recipe):
    """Adaptive gradient clipping."""

    def configure_gradient_clipping(self, *_: Any, **__: Any) -> None:
        from timm.utils import adaptive_clip_grad

        adaptive_clip_grad(self.net.parameters(), clip_factor=0.02)


def trained(module: Recipe, batch_size: int = 32, size: int = 32, **kwargs: Any) -> Built:
    """On the digits, for two epochs of 30 batches."""
    return Built(module, pictures(batch_size, size), {**BATCHES, **kwargs}, Expected())


@healthy("timm", "ResNet, SGD with Nesterov momentum and a cosine")
def timm_resnet() -> Built:
    net = create("resnet10t", block_args={}, channels=(16, 24, 32, 48), stem_width=16)
    return trained(Recipe(net, cross_entropy, with_cosine(optimizer("sgd", 0.05, 1e-4))))


@healthy("timm", "pre-activation ResNet whose residual branches start at zero, AdamW")
def timm_resnetv2() -> Built:
    net = create("resnetv2_18", layers=(1, 1, 1, 1), channels=(16, 24, 32, 48), zero_init_last=True)
    return trained(Recipe(net, cross_entropy, optimizer("adamw", 2e-3, 0.05)))


@healthy("timm", "MobileNetV3 with hard-swish, RMSprop as TensorFlow has it")
def timm_mobilenetv3() -> Built:
    return trained(Recipe(create("mobilenetv3_small_050"), smoothed, optimizer("rmsproptf", 2e-3, 1e-5, eps=1e-3)), 24)


@healthy("timm", "MobileNetV2 with ReLU6, SGD and dropout")
def timm_mobilenetv2() -> Built:
    return trained(Recipe(create("mobilenetv2_035", drop_rate=0.2), cross_entropy, optimizer("sgd", 0.01, 4e-5)), 24)


@healthy("timm", "EfficientNet with a moving average of its weights, stochastic depth, AdamW")
def timm_efficientnet() -> Built:
    net = create("test_efficientnet", drop_path_rate=0.1, drop_rate=0.2)
    return trained(Averaged(net, smoothed, optimizer("adamw", 2e-3, 0.05)))


@healthy("timm", "ConvNeXt with layer scale of 1e-6, mixup, AdamW with warm-up")
def timm_convnext() -> Built:
    net = create("convnext_atto", depths=(1, 1, 2, 1), dims=(16, 24, 32, 48), drop_path_rate=0.1)

    def optimizers(module: Any) -> Any:
        chosen = optimizer("adamw", 4e-3, 0.05)(module)
        warm_up = torch.optim.lr_scheduler.LinearLR(chosen, 0.01, total_iters=15)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": warm_up, "interval": "step"}}

    return trained(Recipe(net, mixed, optimizers))


@healthy("timm", "vision transformer with a class token, AdamW and a cosine")
def timm_vit() -> Built:
    net = create("vit_tiny_patch16_224", **TINY_VIT)
    return trained(Recipe(net, cross_entropy, with_cosine(optimizer("adamw", 1e-3, 0.1))))


@healthy("timm", "vision transformer with layer scale, registers and mean pooling, clipped at 1")
def timm_vit_registers() -> Built:
    net = create("vit_tiny_patch16_224", **TINY_VIT, class_token=False, reg_tokens=2, global_pool="avg", init_values=1e-5)
    return trained(Recipe(net, cross_entropy, optimizer("adamw", 1e-3, 0.05)), gradient_clip_val=1.0)


@healthy("timm", "DeiT with a distillation token, mixup and CutMix")
def timm_deit() -> Built:
    net = create("deit_tiny_distilled_patch16_224", **TINY_VIT)
    net.set_distilled_training(True)

    def loss(net: Any, batch: Any) -> Any:
        of_class, of_distilled = net(batch[0])
        return F.cross_entropy(of_class, batch[1], label_smoothing=0.1) + F.cross_entropy(of_distilled, batch[1])

    return trained(Recipe(net, loss, optimizer("adamw", 1e-3, 0.05)))


@healthy("timm", "Swin transformer, stochastic depth, AdamW")
def timm_swin() -> Built:
    sizes = {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)}
    net = create("swin_tiny_patch4_window7_224", **sizes, drop_path_rate=0.1)
    return trained(Recipe(net, smoothed, optimizer("adamw", 1e-3, 0.05)), 24)


@healthy("timm", "MLP-Mixer, LAMB")
def timm_mixer() -> Built:
    from timm.models.mlp_mixer import MlpMixer

    net = MlpMixer(10, 32, 1, patch_size=8, embed_dim=48, num_blocks=4)
    return trained(Recipe(net, mixed, optimizer("lamb", 5e-3, 0.02)))


def resmlp(act_layer: Any = nn.GELU, **options: Any) -> nn.Module:
    from timm.models.mlp_mixer import Affine, MlpMixer, ResBlock

    sizes = {"patch_size": 8, "embed_dim": 48, "num_blocks": 4, "mlp_ratio": 4}
    return MlpMixer(10, 32, 1, **sizes, block_layer=ResBlock, norm_layer=Affine, act_layer=act_layer, **options)


@healthy("timm", "ResMLP with layer scale, Lion")
def timm_resmlp() -> Built:
    return trained(Recipe(resmlp(), cross_entropy, optimizer("lion", 2e-4, 0.1)))


@healthy("timm", "RegNet with squeeze and excitation, SGD with Nesterov momentum")
def timm_regnet() -> Built:
    return trained(Recipe(create("regnety_002", group_size=4, depth=6, w0=16), cross_entropy, optimizer("sgd", 0.05, 5e-5)))


@healthy("timm", "DenseNet, SGD")
def timm_densenet() -> Built:
    net = create("densenet121", growth_rate=8, block_config=(2, 2, 2, 2))
    return trained(Recipe(net, cross_entropy, optimizer("sgd", 0.05, 1e-4)))


@healthy("timm", "GhostNet, SGD")
def timm_ghostnet() -> Built:
    return trained(Recipe(create("ghostnet_050"), cross_entropy, optimizer("sgd", 0.05, 4e-5)), 24)


@healthy("timm", "CaiT: class attention, talking heads, layer scale")
def timm_cait() -> Built:
    net = create("cait_xxs24_224", **{**TINY_VIT, "depth": 3}, init_values=1e-5)
    return trained(Recipe(net, cross_entropy, optimizer("adamw", 1e-3, 0.05)))


@healthy("timm", "norm-free net with adaptive gradient clipping")
def timm_nfnet() -> Built:
    return trained(Clipped(create("test_nfnet"), cross_entropy, optimizer("sgd", 0.05, 2e-5)), 16)


@healthy("timm", "VGG without batch norm, SGD at 0.01")
def timm_vgg() -> Built:
    from timm.models.vgg import VGG

    net = VGG([16, "M", 32, "M", 32, 48, "M", 48, "M"], 10, 1, mlp_ratio=0.02)
    return trained(Recipe(net, cross_entropy, optimizer("sgd", 0.01, 5e-4)))


@healthy("timm", "CoAtNet: convolutions, then attention with relative positions, AdamW")
def timm_coatnet() -> Built:
    net = create("test_coatnet", img_size=64)
    return trained(Recipe(net, cross_entropy, optimizer("adamw", 1e-3, 0.05)), 8, 64)


@healthy("timm", "the head trained on a frozen body in evaluation mode")
def timm_linear_probe() -> Built:
    net = create("test_resnet", zero_init_last=False)  # as of a net that has been trained
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name.startswith("fc."))

    class Probe(Recipe):
        def on_train_epoch_start(self) -> None:
            self.net.eval()

    return trained(Probe(net, cross_entropy, lambda m: torch.optim.Adam(m.net.get_classifier().parameters(), 0.01)))
