"""Healthy trainings of transformers' models of pictures."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.language_models import ENCODER, PICTURES, contrast, image_classifier
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, decayed_apart, layer_wise, warm_cosine, warm_linear
from tests.evidence.exam.signals import captioned, digits

WELL = Expected()


def beit_net(**options: Any) -> Any:
    """BEiT with relative positions and layer scale."""
    from transformers import BeitConfig, BeitForImageClassification

    config = {**PICTURES, "num_labels": 10, "use_relative_position_bias": True, "layer_scale_init_value": 0.1}
    return BeitForImageClassification(BeitConfig(**{**config, **options}))


def segformer_net(**options: Any) -> Any:
    """SegFormer of two stages, for two classes of pixels."""
    from transformers import SegformerConfig, SegformerForSemanticSegmentation

    stages = {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [24, 48], "decoder_hidden_size": 32}
    convolutions = {"patch_sizes": [7, 3], "strides": [2, 2], "num_attention_heads": [1, 2], "mlp_ratios": [2, 2]}
    return SegformerForSemanticSegmentation(SegformerConfig(**{**stages, **convolutions, "num_labels": 2, **options}))


def bright(net: Any, batch: Any) -> Any:
    """The loss of which pixels are bright."""
    return net(pixel_values=batch[0], labels=(batch[0][:, 0] > 0).long()).loss


def poolformer_net(**options: Any) -> Any:
    """PoolFormer: averages of neighbours in the place of attention."""
    from transformers import PoolFormerConfig, PoolFormerForImageClassification

    stages = {"depths": [1, 1], "hidden_sizes": [24, 48], "num_encoder_blocks": 2, "patch_sizes": [3, 3], "strides": [2, 2]}
    config = {**stages, "padding": [1, 1], "mlp_ratio": 2.0, "num_labels": 10, "drop_path_rate": 0.1}
    return PoolFormerForImageClassification(PoolFormerConfig(**{**config, **options}))


def picture_to_text_net() -> Any:
    """A ViT, and TrOCR's decoder."""
    from transformers import TrOCRConfig, VisionEncoderDecoderConfig, VisionEncoderDecoderModel, ViTConfig

    writer: dict[str, Any] = {"vocab_size": 128, "d_model": 48, "decoder_layers": 2, "decoder_attention_heads": 4}
    writer |= {"decoder_ffn_dim": 96}
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(ViTConfig(**PICTURES), TrOCRConfig(**writer))
    config.decoder_start_token_id, config.pad_token_id = 2, 0
    return VisionEncoderDecoderModel(config)


def siglip_net() -> Any:
    """SigLIP."""
    from transformers import SiglipConfig, SiglipModel

    text = {**ENCODER, "max_position_embeddings": 16, "projection_size": 48}
    return SiglipModel(SiglipConfig(text_config=text, vision_config=PICTURES))


@healthy("transformers", "BEiT, with rates that fall from layer to layer, clipped at 3")
def beit() -> Built:
    rates = layer_wise(1e-3, 0.75, "beit.layers.")
    return Built(Recipe(beit_net(), image_classifier, rates), digits(16, 16), {**SHORT, "gradient_clip_val": 3.0}, WELL)


@healthy("transformers", "SegFormer: which pixels are bright, a head with ten times the rate")
def segformer() -> Built:
    def rates(module: Any) -> Any:
        head = {"params": module.net.decode_head.parameters(), "lr": 5e-3}
        return torch.optim.AdamW([{"params": module.net.segformer.parameters(), "lr": 5e-4}, head], weight_decay=0.01)

    return Built(Recipe(segformer_net(), bright, rates), digits(32, 8), SHORT, WELL)


@healthy("transformers", "PoolFormer with stochastic depth and mixup")
def poolformer() -> Built:
    def loss(net: Any, batch: Any) -> Any:
        share, order = torch.distributions.Beta(0.8, 0.8).sample(), torch.randperm(len(batch[1]))
        logits = net(pixel_values=torch.lerp(batch[0][order], batch[0], share)).logits
        return share * F.cross_entropy(logits, batch[1]) + (1 - share) * F.cross_entropy(logits, batch[1][order])

    return Built(Recipe(poolformer_net(), loss, warm_cosine(adamw(5e-3, 0.05))), digits(16, 16), SHORT, WELL)


@healthy("transformers", "SigLIP: a sigmoid for each pair, with a bias of -10")
def siglip() -> Built:
    return Built(Recipe(siglip_net(), contrast, warm_linear(adamw(1e-3))), captioned(16, 16), CLIPPED, WELL)


@healthy("transformers", "PVT v2: attention to fewer keys than queries")
def pvt() -> Built:
    from transformers import PvtV2Config, PvtV2ForImageClassification

    stages = {"num_encoder_blocks": 2, "depths": [1, 1], "sr_ratios": [2, 1], "hidden_sizes": [24, 48], "mlp_ratios": [2, 2]}
    convolutions = {"patch_sizes": [7, 3], "strides": [2, 2], "num_attention_heads": [1, 2], "num_labels": 10}
    net = PvtV2ForImageClassification(PvtV2Config(**stages, **convolutions))
    return Built(Recipe(net, image_classifier, adamw(1e-3, 0.05)), digits(16, 16), SHORT, WELL)


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
    return Built(Recipe(net, image_classifier, warm_cosine(adamw(1e-3, 0.05))), digits(16, 16), CLIPPED, WELL)


@healthy("transformers", "FocalNet, AdamW")
def focalnet() -> Built:
    from transformers import FocalNetConfig, FocalNetForImageClassification

    sizes = {"image_size": 16, "patch_size": 2, "embed_dim": 24, "hidden_sizes": [24, 48], "depths": [1, 1], "num_labels": 10}
    net = FocalNetForImageClassification(FocalNetConfig(**sizes, focal_levels=[2, 2], focal_windows=[3, 3]))
    return Built(Recipe(net, image_classifier, adamw(4e-3, 0.05)), digits(16, 16), SHORT, WELL)


@healthy("transformers", "Swin V2 whose hidden pixels are to be found (SimMIM)")
def swin2_masked() -> Built:
    from transformers import Swinv2Config, Swinv2ForMaskedImageModeling

    sizes = {"image_size": 32, "patch_size": 2, "embed_dim": 24, "depths": [1, 1], "num_heads": [2, 4], "window_size": 4}
    net = Swinv2ForMaskedImageModeling(Swinv2Config(**sizes, encoder_stride=4))

    def loss(net: Any, batch: Any) -> Any:
        hidden = torch.rand(len(batch[0]), 8, 8) < 0.5
        return net(pixel_values=batch[0], bool_masked_pos=hidden.repeat_interleave(2, 1).repeat_interleave(2, 2).flatten(1)).loss

    return Built(Recipe(net, loss, warm_cosine(decayed_apart(1e-3, 0.05))), digits(32, 8), CLIPPED, WELL)


@healthy("transformers", "ConvNeXt V2 with global response normalisation")
def convnext2() -> Built:
    from transformers import ConvNextV2Config, ConvNextV2ForImageClassification

    sizes = {"image_size": 32, "patch_size": 4, "num_stages": 2, "hidden_sizes": [24, 48], "depths": [2, 2], "num_labels": 10}
    net = ConvNextV2ForImageClassification(ConvNextV2Config(**sizes))
    return Built(Recipe(net, image_classifier, warm_cosine(adamw(2e-3, 0.05))), digits(32, 8), SHORT, WELL)


@healthy("transformers", "YOLOS: boxes around digits, matched to twenty queries")
def yolos() -> Built:
    from transformers import YolosConfig, YolosForObjectDetection

    sizes = {**PICTURES, "image_size": [16, 16], "num_detection_tokens": 10, "num_labels": 10}
    net = YolosForObjectDetection(YolosConfig(**sizes))

    def loss(net: Any, batch: Any) -> Any:
        box = torch.tensor([[0.5, 0.5, 0.6, 0.9]])
        return net(pixel_values=batch[0], labels=[{"class_labels": shown[None], "boxes": box} for shown in batch[1]]).loss

    return Built(Recipe(net, loss, adamw(5e-4, 1e-4)), digits(16, 8), {**SHORT, "gradient_clip_val": 0.1}, WELL)


@healthy("transformers", "TrOCR-like: a ViT reads the digit, a decoder writes its name")
def picture_to_text() -> Built:
    def loss(net: Any, batch: Any) -> Any:
        return net(pixel_values=batch[0], labels=batch[1]).loss

    return Built(Recipe(picture_to_text_net(), loss, warm_linear(adamw(5e-4))), captioned(16, 16), CLIPPED, WELL)
