"""Nets of timm that attend or mix, each by an optimizer that suits it."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.loops import ByHand
from tests.evidence.exam.small_nets import to_classes
from tests.evidence.exam.timm_nets import (
    TINY_VIT,
    cosine_from_warm,
    eva,
    levit,
    mixed,
    poolformer,
    resmlp,
    smoothed,
    timm_model,
    timm_optimizer,
    trained_on_digits,
    with_cosine,
    xcit,
)


@healthy("timm", "vision transformer with a class token, AdamW and a cosine")
def timm_vit() -> Built:
    net = timm_model("vit_tiny_patch16_224", **TINY_VIT)
    return trained_on_digits(Recipe(net, to_classes, with_cosine(timm_optimizer("adamw", 1e-3, 0.1))))


@healthy("timm", "vision transformer with layer scale, registers and mean pooling, clipped at 1")
def timm_vit_registers() -> Built:
    net = timm_model("vit_tiny_patch16_224", **TINY_VIT, class_token=False, reg_tokens=2, global_pool="avg", init_values=1e-5)
    return trained_on_digits(Recipe(net, to_classes, timm_optimizer("adamw", 1e-3, 0.05)), gradient_clip_val=1.0)


@healthy("timm", "DeiT with a distillation token, mixup and CutMix")
def timm_deit() -> Built:
    net = timm_model("deit_tiny_distilled_patch16_224", **TINY_VIT)
    net.set_distilled_training(True)

    def loss(net: Any, batch: Any) -> Any:
        of_class, of_distilled = net(batch[0])
        return F.cross_entropy(of_class, batch[1], label_smoothing=0.1) + F.cross_entropy(of_distilled, batch[1])

    return trained_on_digits(Recipe(net, loss, timm_optimizer("adamw", 1e-3, 0.05)))


@healthy("timm", "Swin transformer, stochastic depth, AdamW")
def timm_swin() -> Built:
    sizes = {"img_size": 32, "patch_size": 2, "window_size": 4, "embed_dim": 24, "depths": (2, 2), "num_heads": (2, 4)}
    net = timm_model("swin_tiny_patch4_window7_224", **sizes, drop_path_rate=0.1)
    return trained_on_digits(Recipe(net, smoothed, timm_optimizer("adamw", 1e-3, 0.05)), 24)


@healthy("timm", "MLP-Mixer, LAMB")
def timm_mixer() -> Built:
    from timm.models.mlp_mixer import MlpMixer

    net = MlpMixer(10, 32, 1, patch_size=8, embed_dim=48, num_blocks=4)
    return trained_on_digits(Recipe(net, mixed, timm_optimizer("lamb", 5e-3, 0.02)))


@healthy("timm", "ResMLP with layer scale, Lion")
def timm_resmlp() -> Built:
    return trained_on_digits(Recipe(resmlp(), to_classes, timm_optimizer("lion", 2e-4, 0.1)))


@healthy("timm", "CaiT: class attention, talking heads, layer scale")
def timm_cait() -> Built:
    net = timm_model("cait_xxs24_224", **{**TINY_VIT, "depth": 3}, init_values=1e-5)
    return trained_on_digits(Recipe(net, to_classes, timm_optimizer("adamw", 1e-3, 0.05)))


@healthy("timm", "CoAtNet: convolutions, then attention with relative positions, AdamW")
def timm_coatnet() -> Built:
    net = timm_model("test_coatnet", img_size=64)
    return trained_on_digits(Recipe(net, to_classes, timm_optimizer("adamw", 1e-3, 0.05)), 8, 64)


@healthy("timm", "Sequencer: LSTMs along rows and columns, Adafactor at a fixed rate with a cosine")
def timm_sequencer() -> Built:
    sizes = {"img_size": 32, "layers": (1, 1, 1, 1), "patch_sizes": (4, 2, 1, 1), "embed_dims": (24, 48, 48, 48)}
    net = timm_model("sequencer2d_s", **sizes, hidden_sizes=(8, 12, 12, 12), mlp_ratios=(3.0, 3.0, 3.0, 3.0))
    loss = lambda net, batch: F.cross_entropy(net(batch[0]), batch[1])  # noqa: E731
    return trained_on_digits(Recipe(net, loss, with_cosine(timm_optimizer("adafactorbv", 1e-2, 0.01))))


@healthy("timm", "multiscale vision transformer, mixup and CutMix, binary cross entropy over soft targets, ADOPT")
def timm_mvit() -> Built:
    from timm.data import Mixup
    from timm.loss import BinaryCrossEntropy
    from timm.models.mvitv2 import MultiScaleVit, MultiScaleVitCfg

    mixup, entropy = Mixup(0.1, 1.0, num_classes=10, label_smoothing=0.1), BinaryCrossEntropy(smoothing=0.1)

    def loss(net: Any, batch: Any) -> Tensor:
        images, targets = mixup(batch[0].clone(), batch[1])
        return entropy(net(images), targets)

    config = MultiScaleVitCfg(depths=(1, 1, 1), embed_dim=(24, 48, 96), num_heads=(1, 2, 4), stride_kv_adaptive=(2, 2))
    net = MultiScaleVit(config, (32, 32), in_chans=1, num_classes=10)
    return trained_on_digits(Recipe(net, loss, with_cosine(timm_optimizer("adopt", 2e-3, 0.05), 40)), limit_train_batches=20)


@healthy("timm", "ConViT: attention that starts as a convolution, AdamW")
def timm_convit() -> Built:
    return trained_on_digits(
        Recipe(timm_model("convit_tiny", **TINY_VIT, local_up_to_layer=3), smoothed, timm_optimizer("adamw", 1e-3, 0.05))
    )


@healthy("timm", "PiT: a vision transformer that pools between its stages, AdamW")
def timm_pit() -> Built:
    sizes = {"img_size": 32, "patch_size": 4, "stride": 4, "base_dims": [16, 16, 16], "depth": [1, 1, 1], "heads": [1, 2, 4]}
    return trained_on_digits(Recipe(timm_model("pit_ti_224", **sizes), smoothed, with_cosine(timm_optimizer("adamw", 2e-3, 0.05))))


@healthy("timm", "DaViT: attention over windows and over channels in turn, NAdamW and a cosine, smoothed labels, clipped at 1")
def timm_davit() -> Built:
    sizes = {"depths": (1, 1, 1), "embed_dims": (24, 48, 96), "num_heads": (2, 4, 8), "window_size": 4}
    net = timm_model("davit_tiny", **sizes, drop_path_rate=0.05)
    loss = lambda net, batch: F.cross_entropy(net(batch[0]), batch[1], label_smoothing=0.1)  # noqa: E731
    return trained_on_digits(Recipe(net, loss, with_cosine(timm_optimizer("nadamw", 1e-3, 0.05))), gradient_clip_val=1.0)


class Sharpness(ByHand):
    """SAM: the gradient where the loss is highest nearby, in manual optimisation."""

    radius = 0.05

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


@healthy("timm", "XCiT: attention between channels, class attention, NAdamW")
def timm_xcit() -> Built:
    return trained_on_digits(Recipe(xcit(), smoothed, timm_optimizer("nadamw", 1e-3, 0.05)))


@healthy("timm", "MetaFormer with averages, SAM around SGD")
def timm_sharpness() -> Built:
    return trained_on_digits(Sharpness(poolformer(), to_classes, timm_optimizer("sgd", 0.05)), 16)


@healthy("timm", "LeViT: batch norm in attention, hard-swish")
def timm_levit() -> Built:
    return trained_on_digits(Recipe(levit(), to_classes, timm_optimizer("adamw", 2e-3, 0.025)))


@healthy("timm", "gMLP, LAMB, smoothed labels")
def timm_gmlp() -> Built:
    from timm.models.mlp_mixer import GatedMlp, MlpMixer, SpatialGatingBlock

    sizes = {"patch_size": 8, "embed_dim": 48, "num_blocks": 3, "mlp_ratio": 4}
    net = MlpMixer(10, 32, 1, **sizes, block_layer=SpatialGatingBlock, mlp_layer=GatedMlp)
    return trained_on_digits(Recipe(net, smoothed, timm_optimizer("lamb", 2e-2, 0.01)))


@healthy("timm", "EVA: rotary positions, SwiGLU, a trained mean, clipped at 3")
def timm_eva() -> Built:
    return trained_on_digits(Recipe(eva(), to_classes, with_cosine(timm_optimizer("adamw", 1e-3, 0.05))), gradient_clip_val=3.0)


@healthy(
    "timm", "Twins-SVT: attention in windows and to a summary of all, in turn, smoothed labels, clipped at 5", learned_from=False
)
def timm_twins() -> Built:
    sizes = {"embed_dims": (16, 32, 48, 64), "num_heads": (1, 2, 3, 4), "mlp_ratios": (2, 2, 2, 2), "depths": (1, 1, 2, 1)}
    net = timm_model("twins_svt_small", img_size=32, **sizes, sr_ratios=(4, 2, 1, 1), wss=(4, 2, 2, 1))
    return trained_on_digits(
        Recipe(net, smoothed, cosine_from_warm(timm_optimizer("adamw", 2e-3, 0.05), 2e-3)), 32, gradient_clip_val=5.0
    )
