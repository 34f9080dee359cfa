"""Vision models of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.language_models import ENCODER
from tests.evidence.exam.perception_models import (
    PICTURES,
    beit_net,
    bright,
    clip_net,
    contrast,
    convnext_net,
    image_classifier,
    segformer_net,
    swin_net,
    vit_net,
)
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, decayed_apart, layer_wise, warm_cosine, warm_linear
from tests.evidence.exam.signals import captioned, crops, digits_in_colour
from tests.evidence.exam.small_nets import learn


@healthy("transformers", "ViT, warm-up and cosine, decay 0.3, clipped at 1")
def vit() -> Built:
    return Built(Recipe(vit_net(), image_classifier, warm_cosine(adamw(1e-3, 0.3))), digits_in_colour(16, 16), CLIPPED, WELL)


@healthy("transformers", "DeiT, labels smoothed")
def deit() -> Built:
    from transformers import DeiTConfig, DeiTForImageClassification

    net = DeiTForImageClassification(DeiTConfig(**PICTURES, num_labels=10))

    def loss(net: Any, batch: Any) -> Any:
        return F.cross_entropy(net(pixel_values=batch[0]).logits, batch[1], label_smoothing=0.1)

    return Built(Recipe(net, loss, warm_cosine(adamw(1e-3, 0.05))), digits_in_colour(16, 16), SHORT, WELL)


@healthy("transformers", "DINOv2 whose body is frozen, with a linear head, SGD")
def dinov2_probe() -> Built:
    from transformers import Dinov2Config, Dinov2ForImageClassification

    config = {key: value for key, value in PICTURES.items() if key != "intermediate_size"}
    net = Dinov2ForImageClassification(Dinov2Config(**config, mlp_ratio=2, num_labels=10))
    learn(net, image_classifier, digits_in_colour(16, 16), 5)
    net.dinov2.requires_grad_(False)
    return Built(
        Recipe(net, image_classifier, lambda m: torch.optim.SGD(m.net.classifier.parameters(), lr=0.05, momentum=0.9)),
        digits_in_colour(16, 16),
        SHORT,
        WELL,
    )


@healthy("transformers", "DINOv2, all of it, layer scale")
def dinov2() -> Built:
    from transformers import Dinov2Config, Dinov2ForImageClassification

    config = {key: value for key, value in PICTURES.items() if key != "intermediate_size"}
    net = Dinov2ForImageClassification(Dinov2Config(**config, mlp_ratio=2, num_labels=10))
    return Built(Recipe(net, image_classifier, warm_cosine(adamw(1e-3, 0.05))), digits_in_colour(16, 16), SHORT, WELL)


@healthy("transformers", "Swin, decay 0.05, clipped at 5")
def swin() -> Built:
    return Built(
        Recipe(swin_net(), image_classifier, warm_cosine(adamw(1e-3, 0.05))),
        digits_in_colour(16, 16),
        {**SHORT, "gradient_clip_val": 5.0},
        WELL,
    )


@healthy("transformers", "ConvNeXt, layer scale of 1e-6, AdamW")
def convnext() -> Built:
    return Built(Recipe(convnext_net(), image_classifier, warm_cosine(adamw(4e-3, 0.05))), digits_in_colour(32, 8), SHORT, WELL)


@healthy("transformers", "ResNet as transformers has it, SGD with momentum")
def resnet() -> Built:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic", "num_labels": 10}

    def optimizers(module: Any) -> Any:
        return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)

    net = ResNetForImageClassification(ResNetConfig(**config))
    return Built(Recipe(net, image_classifier, optimizers), digits_in_colour(32, 16), SHORT, WELL)


@healthy("transformers", "a masked autoencoder, three quarters hidden")
def mae() -> Built:
    from transformers import ViTMAEConfig, ViTMAEForPreTraining

    decoder = {"decoder_hidden_size": 32, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 4}
    net = ViTMAEForPreTraining(ViTMAEConfig(**PICTURES, **decoder, decoder_intermediate_size=64, norm_pix_loss=True))

    def loss(net: Any, batch: Any) -> Any:
        return net(pixel_values=batch[0]).loss

    return Built(Recipe(net, loss, warm_cosine(decayed_apart(1e-3, 0.05))), crops(16, 16), SHORT, WELL)


@healthy("transformers", "CLIP, pictures and their captions")
def clip() -> Built:
    return Built(Recipe(clip_net(), contrast, warm_cosine(decayed_apart(5e-4, 0.2, (0.9, 0.98)))), captioned(16, 16), CLIPPED, WELL)


@healthy("transformers", "ViT that fills in hidden patches (SimMIM)")
def vit_masked() -> Built:
    from transformers import ViTConfig, ViTForMaskedImageModeling

    def loss(net: Any, batch: Any) -> Tensor:
        return net(pixel_values=batch[0], bool_masked_pos=torch.rand(len(batch[0]), 16) < 0.6).loss

    net = ViTForMaskedImageModeling(ViTConfig(**PICTURES, encoder_stride=4))
    return Built(Recipe(net, loss, warm_cosine(adamw(1e-3, 0.05))), digits_in_colour(16, 16), CLIPPED, WELL)


@healthy("transformers", "ViT-MSN for ten classes, AdamW with warm-up and cosine")
def vit_msn() -> Built:
    from transformers import ViTMSNConfig, ViTMSNForImageClassification

    net = ViTMSNForImageClassification(ViTMSNConfig(**PICTURES, num_labels=10))
    return Built(
        Recipe(net, image_classifier, warm_cosine(adamw(2e-3, 0.05), 90, 9)),
        digits_in_colour(16, 16),
        {**SHORT, "limit_train_batches": 45},
        WELL,
    )


def poolformer_net(**options: Any) -> Any:
    """PoolFormer: averages of neighbours in the place of attention."""
    from transformers import PoolFormerConfig, PoolFormerForImageClassification

    stages = {"depths": [1, 1], "hidden_sizes": [24, 48], "num_encoder_blocks": 2, "patch_sizes": [3, 3], "strides": [2, 2]}
    config = {**stages, "padding": [1, 1], "mlp_ratio": 2.0, "num_labels": 10, "drop_path_rate": 0.1}
    return PoolFormerForImageClassification(PoolFormerConfig(**{**config, **options}))


def siglip_net() -> Any:
    """SigLIP."""
    from transformers import SiglipConfig, SiglipModel

    text = {**ENCODER, "max_position_embeddings": 16, "projection_size": 48}
    return SiglipModel(SiglipConfig(text_config=text, vision_config=PICTURES))


@healthy("transformers", "BEiT, with rates that fall from layer to layer, clipped at 3")
def beit() -> Built:
    rates = layer_wise(1e-3, 0.75, "beit.layers.")
    return Built(Recipe(beit_net(), image_classifier, rates), digits_in_colour(16, 16), {**SHORT, "gradient_clip_val": 3.0}, WELL)


@healthy("transformers", "SegFormer: which pixels are bright, a head with ten times the rate")
def segformer() -> Built:
    def rates(module: Any) -> Any:
        head = {"params": module.net.decode_head.parameters(), "lr": 5e-3}
        return torch.optim.AdamW([{"params": module.net.segformer.parameters(), "lr": 5e-4}, head], weight_decay=0.01)

    return Built(Recipe(segformer_net(), bright, rates), digits_in_colour(32, 8), SHORT, WELL)


@healthy("transformers", "PoolFormer with stochastic depth and mixup")
def poolformer() -> Built:
    def loss(net: Any, batch: Any) -> Any:
        share, order = torch.distributions.Beta(0.8, 0.8).sample(), torch.randperm(len(batch[1]))
        logits = net(pixel_values=torch.lerp(batch[0][order], batch[0], share)).logits
        return share * F.cross_entropy(logits, batch[1]) + (1 - share) * F.cross_entropy(logits, batch[1][order])

    return Built(Recipe(poolformer_net(), loss, warm_cosine(adamw(5e-3, 0.05))), digits_in_colour(16, 16), SHORT, WELL)


@healthy("transformers", "SigLIP: a sigmoid for each pair, with a bias of -10")
def siglip() -> Built:
    return Built(Recipe(siglip_net(), contrast, warm_linear(adamw(1e-3))), captioned(16, 16), CLIPPED, WELL)


@healthy("transformers", "PVT v2: attention to fewer keys than queries")
def pvt() -> Built:
    from transformers import PvtV2Config, PvtV2ForImageClassification

    stages = {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [24, 48], "mlp_ratios": [2, 2]}
    convolutions = {"patch_sizes": [7, 3], "strides": [2, 2], "num_attention_heads": [1, 2], "num_labels": 10}
    net = PvtV2ForImageClassification(PvtV2Config(**stages, **convolutions))
    return Built(Recipe(net, image_classifier, adamw(1e-3, 0.05)), digits_in_colour(16, 16), SHORT, WELL)


@healthy("transformers", "CvT: convolutions make queries, keys and values")
def cvt() -> Built:
    from transformers import CvtConfig, CvtForImageClassification

    stages: dict[str, Any] = {"num_heads": [1, 2], "depth": [1, 2], "embed_dim": [24, 48], "patch_sizes": [3, 3]}
    stages |= {"patch_stride": [2, 2], "patch_padding": [1, 1], "mlp_ratio": [2.0, 2.0]}
    pairs = ("attention_drop_rate", "drop_rate", "drop_path_rate", "qkv_bias", "cls_token", "qkv_projection_method", "kernel_qkv")
    pairs += ("padding_kv", "stride_kv", "padding_q", "stride_q")
    whole = CvtConfig()
    stages |= {name: getattr(whole, name)[-2:] for name in pairs}
    net = CvtForImageClassification(CvtConfig(**stages, num_labels=10))
    return Built(Recipe(net, image_classifier, warm_cosine(adamw(1e-3, 0.05))), digits_in_colour(16, 16), CLIPPED, WELL)


@healthy("transformers", "FocalNet, AdamW")
def focalnet() -> Built:
    from transformers import FocalNetConfig, FocalNetForImageClassification

    sizes = {"image_size": 16, "patch_size": 2, "embed_dim": 24, "hidden_sizes": [24, 48], "depths": [1, 1], "num_labels": 10}
    net = FocalNetForImageClassification(FocalNetConfig(**sizes, focal_levels=[2, 2], focal_windows=[3, 3]))
    return Built(Recipe(net, image_classifier, adamw(4e-3, 0.05)), digits_in_colour(16, 16), SHORT, WELL)


@healthy("transformers", "ConvNeXt V2 with global response normalisation")
def convnext2() -> Built:
    from transformers import ConvNextV2Config, ConvNextV2ForImageClassification

    sizes = {"image_size": 32, "patch_size": 4, "num_stages": 2, "hidden_sizes": [24, 48], "depths": [2, 2], "num_labels": 10}
    net = ConvNextV2ForImageClassification(ConvNextV2Config(**sizes))
    return Built(Recipe(net, image_classifier, warm_cosine(adamw(2e-3, 0.05))), digits_in_colour(32, 8), SHORT, WELL)


@healthy(
    "transformers",
    "DINOv3's encoder with rotary places and registers tells digits, layer scale, AdamW, smoothed labels, two batches a step",
)
def dinov3_digits() -> Built:
    from transformers import DINOv3ViTConfig, DINOv3ViTModel

    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "image_size": 16}
    body = DINOv3ViTModel(DINOv3ViTConfig(**sizes, patch_size=4, num_register_tokens=2))
    net = nn.ModuleDict({"body": body, "head": nn.Linear(48, 10)})

    def loss(net: Any, batch: Any) -> Tensor:
        told = net["head"](net["body"](pixel_values=batch[0]).pooler_output)
        return F.cross_entropy(told, batch[1], label_smoothing=0.05)

    kwargs = {"max_epochs": 4, "accumulate_grad_batches": 2}
    return Built(Recipe(net, loss, adamw(3e-3, 0.05)), digits_in_colour(16, 32), kwargs, Expected())


@healthy(
    "transformers", "PVT of the first version for ten classes: four stages with positions of their own, AdamW", learned_from=False
)
def pvt_first() -> Built:
    from transformers import PvtConfig, PvtForImageClassification

    sizes = {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4], "image_size": 32}
    net = PvtForImageClassification(PvtConfig(**sizes, mlp_ratios=[4, 4, 2, 2], num_labels=10))
    limits = {**CLIPPED, "limit_train_batches": 35}
    return Built(Recipe(net, image_classifier, warm_cosine(adamw(1e-3, 0.05), 70, 7)), digits_in_colour(32, 16), limits, WELL)
