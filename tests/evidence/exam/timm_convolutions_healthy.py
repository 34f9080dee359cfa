"""Convolutional nets of timm, each by an optimizer that suits it."""

from __future__ import annotations

from typing import Any

import torch

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.small_nets import to_classes
from tests.evidence.exam.timm_nets import (
    convmixer,
    cosine_from_warm,
    mixed,
    repvgg,
    res2net,
    sknet,
    smoothed,
    timm_model,
    timm_optimizer,
    trained_on_digits,
    with_cosine,
)


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


@healthy("timm", "ResNet, SGD with Nesterov momentum and a cosine")
def timm_resnet() -> Built:
    net = timm_model("resnet10t", block_args={}, channels=(16, 24, 32, 48), stem_width=16)
    return trained_on_digits(Recipe(net, to_classes, with_cosine(timm_optimizer("sgd", 0.05, 1e-4))))


@healthy("timm", "pre-activation ResNet whose residual branches start at zero, AdamW")
def timm_resnetv2() -> Built:
    net = timm_model("resnetv2_18", layers=(1, 1, 1, 1), channels=(16, 24, 32, 48), zero_init_last=True)
    return trained_on_digits(Recipe(net, to_classes, timm_optimizer("adamw", 2e-3, 0.05)))


@healthy("timm", "MobileNetV3 with hard-swish, RMSprop as TensorFlow has it")
def timm_mobilenetv3() -> Built:
    return trained_on_digits(
        Recipe(timm_model("mobilenetv3_small_050"), smoothed, timm_optimizer("rmsproptf", 2e-3, 1e-5, eps=1e-3)), 24
    )


@healthy("timm", "MobileNetV2 with ReLU6, SGD and dropout")
def timm_mobilenetv2() -> Built:
    return trained_on_digits(
        Recipe(timm_model("mobilenetv2_035", drop_rate=0.2), to_classes, timm_optimizer("sgd", 0.01, 4e-5)), 24
    )


@healthy("timm", "EfficientNet with a moving average of its weights, stochastic depth, AdamW")
def timm_efficientnet() -> Built:
    net = timm_model("test_efficientnet", drop_path_rate=0.1, drop_rate=0.2)
    return trained_on_digits(Averaged(net, smoothed, timm_optimizer("adamw", 2e-3, 0.05)))


@healthy("timm", "ConvNeXt with layer scale of 1e-6, mixup, AdamW with warm-up")
def timm_convnext() -> Built:
    net = timm_model("convnext_atto", depths=(1, 1, 2, 1), dims=(16, 24, 32, 48), drop_path_rate=0.1)

    def optimizers(module: Any) -> Any:
        chosen = timm_optimizer("adamw", 4e-3, 0.05)(module)
        warm_up = torch.optim.lr_scheduler.LinearLR(chosen, 0.01, total_iters=15)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": warm_up, "interval": "step"}}

    return trained_on_digits(Recipe(net, mixed, optimizers))


@healthy("timm", "RegNet with squeeze and excitation, SGD with Nesterov momentum")
def timm_regnet() -> Built:
    return trained_on_digits(
        Recipe(timm_model("regnety_002", group_size=4, depth=6, w0=16), to_classes, timm_optimizer("sgd", 0.05, 5e-5))
    )


@healthy("timm", "DenseNet, SGD")
def timm_densenet() -> Built:
    net = timm_model("densenet121", growth_rate=8, block_config=(2, 2, 2, 2))
    return trained_on_digits(Recipe(net, to_classes, timm_optimizer("sgd", 0.05, 1e-4)))


@healthy("timm", "GhostNet, SGD")
def timm_ghostnet() -> Built:
    return trained_on_digits(Recipe(timm_model("ghostnet_050"), to_classes, timm_optimizer("sgd", 0.05, 4e-5)), 24)


@healthy("timm", "norm-free net with adaptive gradient clipping")
def timm_nfnet() -> Built:
    return trained_on_digits(Clipped(timm_model("test_nfnet"), to_classes, timm_optimizer("sgd", 0.05, 2e-5)), 16)


@healthy("timm", "VGG without batch norm, SGD at 0.01")
def timm_vgg() -> Built:
    from timm.models.vgg import VGG

    net = VGG([16, "M", 32, "M", 32, 48, "M", 48, "M"], 10, 1, mlp_ratio=0.02)
    return trained_on_digits(Recipe(net, to_classes, timm_optimizer("sgd", 0.01, 5e-4)))


@healthy("timm", "ReXNet with mixup, RAdam whose slow weights look ahead")
def timm_rexnet() -> Built:
    net = timm_model("rexnet_100", width_mult=0.3, depth_mult=0.3, initial_chs=16, final_chs=64, drop_path_rate=0.05)
    return trained_on_digits(Recipe(net, mixed, timm_optimizer("lookahead_radam", 5e-3, 1e-4)), limit_train_batches=16)


@healthy("timm", "LCNet, SGD with Nesterov momentum and a cosine")
def timm_lcnet() -> Built:
    return trained_on_digits(Recipe(timm_model("lcnet_050"), to_classes, with_cosine(timm_optimizer("sgd", 0.05, 4e-5))))


@healthy("timm", "deep layer aggregation, SGD")
def timm_dla() -> Built:
    return trained_on_digits(Recipe(timm_model("dla46_c"), to_classes, timm_optimizer("sgd", 0.05, 1e-4)), limit_train_batches=20)


@healthy("timm", "FasterNet: convolutions of a part of the channels, AdamW")
def timm_fasternet() -> Built:
    net = timm_model("fasternet_t0", embed_dim=16, depths=(1, 1, 2, 1), drop_path_rate=0.05)
    return trained_on_digits(Recipe(net, smoothed, with_cosine(timm_optimizer("adamw", 2e-3, 0.005))))


@healthy("timm", "StarNet: branches that are multiplied, AdamW and a cosine")
def timm_starnet() -> Built:
    net = timm_model("starnet_s050", depths=(1, 1, 2, 1))
    return trained_on_digits(Recipe(net, to_classes, with_cosine(timm_optimizer("adamw", 2e-3, 0.03), 40)), limit_train_batches=20)


@healthy("timm", "MambaOut: gated convolutions, AdamW")
def timm_mambaout() -> Built:
    return trained_on_digits(Recipe(timm_model("test_mambaout"), to_classes, with_cosine(timm_optimizer("adamw", 1e-3, 0.05))))


@healthy("timm", "ConvMixer, AdamW clipped at 1")
def timm_convmixer() -> Built:
    return trained_on_digits(Recipe(convmixer(), to_classes, timm_optimizer("adamw", 5e-3, 0.02)), gradient_clip_val=1.0)


@healthy("timm", "RepVGG, SGD, no decay on its norms")
def timm_repvgg() -> Built:
    return trained_on_digits(Recipe(repvgg(), to_classes, with_cosine(timm_optimizer("sgd", 0.2, 1e-4))))


@healthy("timm", "Res2Net, SGD")
def timm_res2net() -> Built:
    return trained_on_digits(Recipe(res2net(), to_classes, timm_optimizer("sgd", 0.05, 1e-4)), 24)


@healthy("timm", "EdgeNeXt: split depthwise convolutions and attention between channels, AdaBelief")
def timm_edgenext() -> Built:
    net = timm_model("edgenext_xx_small", depths=(1, 1, 1, 1), dims=(16, 24, 32, 48))
    return trained_on_digits(Recipe(net, to_classes, timm_optimizer("adabelief", 3e-3, 0.01)), 16)


@healthy("timm", "InceptionNeXt, Adan")
def timm_inception_next() -> Built:
    net = timm_model("inception_next_atto", depths=(1, 1, 1, 1), dims=(16, 24, 32, 48), drop_path_rate=0.1)
    return trained_on_digits(Recipe(net, to_classes, timm_optimizer("adan", 5e-3, 0.02)), 16)


@healthy("timm", "SKNet: kernels chosen by attention, MADGRAD")
def timm_sknet() -> Built:
    return trained_on_digits(Recipe(sknet(), to_classes, timm_optimizer("madgrad", 5e-3)), 16)


@healthy(
    "timm",
    "RepViT: depthwise convolutions in two branches and a head for each of two classifiers, cautious AdamW",
    learned_from=False,
)
def timm_repvit() -> Built:
    net = timm_model("repvit_m0_9", embed_dim=(16, 24, 32, 48), depth=(1, 1, 2, 1))
    return trained_on_digits(Recipe(net, smoothed, cosine_from_warm(timm_optimizer("cadamw", 2e-3, 0.025), 2e-3)), 16)
