"""Healthy trainings of transformers' models of sounds, pictures and series."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.language_models import (
    PICTURES,
    SOUND,
    clip_net,
    contrast,
    convnext_net,
    image_classifier,
    swin_net,
    vit_net,
    wav2vec2_net,
    whisper_net,
)
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, decayed_apart, warm_cosine, warm_linear
from tests.evidence.exam.signals import captioned, crops, digits, melodies, series, spectrograms

WELL = Expected()


def spoken(net: Any, batch: Any) -> Any:
    """The loss of a sound's notes."""
    return net(input_values=batch[0], labels=batch[1]).loss


def transcribed(net: Any, batch: Any) -> Any:
    """The loss of a spectrogram's notes."""
    return net(input_features=batch[0], labels=batch[1]).loss


@healthy("transformers", "wav2vec 2.0 with CTC, its convolutions frozen")
def wav2vec2() -> Built:
    net = wav2vec2_net()
    net.freeze_feature_encoder()
    return Built(Recipe(net, spoken, warm_linear(adamw(1e-3, 0.005))), melodies(8), CLIPPED, WELL)


@healthy("transformers", "HuBERT for classes")
def hubert() -> Built:
    from transformers import HubertConfig, HubertForSequenceClassification

    net = HubertForSequenceClassification(HubertConfig(**SOUND, num_labels=12, classifier_proj_size=32))

    def loss(net: Any, batch: Any) -> Any:
        return net(input_values=batch[0], labels=batch[1][:, 0]).loss

    return Built(Recipe(net, loss, warm_linear(adamw(1e-3))), melodies(8), SHORT, WELL)


@healthy("transformers", "Whisper, from spectrograms to notes")
def whisper() -> Built:
    return Built(Recipe(whisper_net(), transcribed, warm_linear(adamw(1e-3))), spectrograms(8), CLIPPED, WELL)


@healthy("transformers", "a spectrogram transformer for classes")
def spectrogram_transformer() -> Built:
    from transformers import ASTConfig, ASTForAudioClassification

    sizes = {**PICTURES, "patch_size": 8, "frequency_stride": 8, "time_stride": 8, "max_length": 60, "num_mel_bins": 40}
    sizes.pop("image_size")
    net = ASTForAudioClassification(ASTConfig(**sizes, num_labels=12))

    def loss(net: Any, batch: Any) -> Any:
        return net(input_values=batch[0].transpose(1, 2), labels=batch[1][:, 0]).loss

    return Built(Recipe(net, loss, warm_cosine(adamw(1e-3))), spectrograms(8, frames=60), SHORT, WELL)


@healthy("transformers", "ViT, warm-up and cosine, decay 0.3, clipped at 1")
def vit() -> Built:
    return Built(Recipe(vit_net(), image_classifier, warm_cosine(adamw(1e-3, 0.3))), digits(16, 16), CLIPPED, WELL)


@healthy("transformers", "DeiT, labels smoothed")
def deit() -> Built:
    from transformers import DeiTConfig, DeiTForImageClassification

    net = DeiTForImageClassification(DeiTConfig(**PICTURES, num_labels=10))

    def loss(net: Any, batch: Any) -> Any:
        return F.cross_entropy(net(pixel_values=batch[0]).logits, batch[1], label_smoothing=0.1)

    return Built(Recipe(net, loss, warm_cosine(adamw(1e-3, 0.05))), digits(16, 16), SHORT, WELL)


@healthy("transformers", "DINOv2 whose body is frozen, with a linear head, SGD")
def dinov2_probe() -> Built:
    from transformers import Dinov2Config, Dinov2ForImageClassification

    config = {key: value for key, value in PICTURES.items() if key != "intermediate_size"}
    net = Dinov2ForImageClassification(Dinov2Config(**config, mlp_ratio=2, num_labels=10))
    net.dinov2.requires_grad_(False)
    return Built(
        Recipe(net, image_classifier, lambda m: torch.optim.SGD(m.net.classifier.parameters(), lr=0.05, momentum=0.9)),
        digits(16, 16),
        SHORT,
        WELL,
    )


@healthy("transformers", "DINOv2, all of it, layer scale")
def dinov2() -> Built:
    from transformers import Dinov2Config, Dinov2ForImageClassification

    config = {key: value for key, value in PICTURES.items() if key != "intermediate_size"}
    net = Dinov2ForImageClassification(Dinov2Config(**config, mlp_ratio=2, num_labels=10))
    return Built(Recipe(net, image_classifier, warm_cosine(adamw(1e-3, 0.05))), digits(16, 16), SHORT, WELL)


@healthy("transformers", "Swin, decay 0.05, clipped at 5")
def swin() -> Built:
    return Built(
        Recipe(swin_net(), image_classifier, warm_cosine(adamw(1e-3, 0.05))),
        digits(16, 16),
        {**SHORT, "gradient_clip_val": 5.0},
        WELL,
    )


@healthy("transformers", "ConvNeXt, layer scale of 1e-6, AdamW")
def convnext() -> Built:
    return Built(Recipe(convnext_net(), image_classifier, warm_cosine(adamw(4e-3, 0.05))), digits(32, 8), SHORT, WELL)


@healthy("transformers", "ResNet as transformers has it, SGD with momentum")
def resnet() -> Built:
    from transformers import ResNetConfig, ResNetForImageClassification

    config = {"embedding_size": 16, "hidden_sizes": [16, 32], "depths": [1, 1], "layer_type": "basic", "num_labels": 10}

    def optimizers(module: Any) -> Any:
        return torch.optim.SGD(module.parameters(), lr=0.05, momentum=0.9, weight_decay=1e-4)

    net = ResNetForImageClassification(ResNetConfig(**config))
    return Built(Recipe(net, image_classifier, optimizers), digits(32, 16), SHORT, WELL)


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


PAST, FUTURE = 28, 7


def forecast(net: Any, batch: Any) -> Any:
    """The loss of the days to come."""
    past, future, past_time, future_time = batch
    seen = {"past_observed_mask": torch.ones_like(past)}
    times = {"past_time_features": past_time, "future_time_features": future_time}
    return net(past_values=past, future_values=future, **seen, **times).loss


SERIES: dict[str, Any] = {
    "prediction_length": FUTURE,
    "context_length": 21,
    "lags_sequence": [1, 2, 7],
    "num_time_features": 2,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_ffn_dim": 32,
    "decoder_ffn_dim": 32,
}


@healthy("transformers", "the time-series transformer with a Student-t head")
def time_series_transformer() -> Built:
    from transformers import TimeSeriesTransformerConfig, TimeSeriesTransformerForPrediction

    net = TimeSeriesTransformerForPrediction(TimeSeriesTransformerConfig(**SERIES))
    return Built(Recipe(net, forecast, adamw(6e-4, 0.1, betas=(0.9, 0.95))), series(16, PAST, FUTURE), SHORT, WELL)


@healthy("transformers", "Informer")
def informer() -> Built:
    from transformers import InformerConfig, InformerForPrediction

    net = InformerForPrediction(InformerConfig(**SERIES))
    return Built(Recipe(net, forecast, adamw(6e-4, 0.1, betas=(0.9, 0.95))), series(16, PAST, FUTURE), SHORT, WELL)


@healthy("transformers", "PatchTST")
def patchtst() -> Built:
    from transformers import PatchTSTConfig, PatchTSTForPrediction

    config = {"num_input_channels": 1, "context_length": PAST, "prediction_length": FUTURE, "patch_length": 7, "patch_stride": 7}
    net = PatchTSTForPrediction(PatchTSTConfig(**config, d_model=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64))

    def loss(net: Any, batch: Any) -> Any:
        return net(past_values=batch[0][..., None], future_values=batch[1][..., None]).loss

    return Built(Recipe(net, loss, adamw(1e-3)), series(16, PAST, FUTURE), SHORT, WELL)
