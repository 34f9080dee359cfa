"""Models of transformers for pictures, sounds and series at tiny sizes, with random weights, and their losses."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.evidence.exam.language_models import BART, ENCODER
from tests.evidence.exam.texts import PAD

PAST, FUTURE = 28, 7
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
VISION: dict[str, Any] = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
PICTURES: dict[str, Any] = {**VISION, "image_size": 16, "patch_size": 4}
SOUND: dict[str, Any] = {
    **VISION,
    "conv_dim": (32, 32, 32),
    "conv_kernel": (8, 4, 4),
    "conv_stride": (4, 4, 2),
    "num_feat_extract_layers": 3,
    "num_conv_pos_embeddings": 16,
    "num_conv_pos_embedding_groups": 4,
    "mask_time_length": 2,
    "pad_token_id": PAD,
}
LONG_PAST, LONG_FUTURE = 32, 8


def spoken(net: Any, batch: Any) -> Any:
    """The loss of a sound's notes."""
    return net(input_values=batch[0], labels=batch[1]).loss


def transcribed(net: Any, batch: Any) -> Any:
    """The loss of a spectrogram's notes."""
    return net(input_features=batch[0], labels=batch[1]).loss


def forecast(net: Any, batch: Any) -> Any:
    """The loss of the days to come."""
    past, future, past_time, future_time = batch
    seen = {"past_observed_mask": torch.ones_like(past)}
    times = {"past_time_features": past_time, "future_time_features": future_time}
    return net(past_values=past, future_values=future, **seen, **times).loss


def image_classifier(net: Any, batch: Any) -> Tensor:
    """The loss of a picture's class."""
    return net(pixel_values=batch[0], labels=batch[1]).loss


def vit_net(**options: Any) -> Any:
    """ViT, for ten classes."""
    from transformers import ViTConfig, ViTForImageClassification

    return ViTForImageClassification(ViTConfig(**{**PICTURES, "num_labels": 10, **options}))


def swin_net(**options: Any) -> Any:
    """Swin, for ten classes."""
    from transformers import SwinConfig, SwinForImageClassification

    config = {"image_size": 16, "patch_size": 2, "embed_dim": 24, "depths": [1, 2], "num_heads": [2, 4], "window_size": 4}
    return SwinForImageClassification(SwinConfig(**{**config, "num_labels": 10, **options}))


def convnext_net(**options: Any) -> Any:
    """ConvNeXt, for ten classes."""
    from transformers import ConvNextConfig, ConvNextForImageClassification

    config = {"image_size": 32, "patch_size": 4, "num_stages": 2, "hidden_sizes": [24, 48], "depths": [2, 2], "num_labels": 10}
    return ConvNextForImageClassification(ConvNextConfig(**{**config, **options}))


def clip_net(**options: Any) -> Any:
    """CLIP."""
    from transformers import CLIPConfig, CLIPModel

    text = {**ENCODER, "max_position_embeddings": 16}
    return CLIPModel(CLIPConfig(text_config=text, vision_config=PICTURES, projection_dim=32, **options))


def contrast(net: Any, batch: Any) -> Tensor:
    """CLIP's loss of pictures and their captions."""
    return net(pixel_values=batch[0], input_ids=batch[1], return_loss=True).loss


def wav2vec2_net(**options: Any) -> Any:
    """wav2vec 2.0 with CTC."""
    from transformers import Wav2Vec2Config, Wav2Vec2ForCTC

    return Wav2Vec2ForCTC(Wav2Vec2Config(**{**SOUND, "vocab_size": 12, "ctc_loss_reduction": "mean", **options}))


def whisper_net(**options: Any) -> Any:
    """Whisper, for a few notes."""
    from transformers import WhisperConfig, WhisperForConditionalGeneration

    sizes = {"vocab_size": 16, "num_mel_bins": 40, "max_source_positions": 32, "max_target_positions": 8}
    return WhisperForConditionalGeneration(
        WhisperConfig(**{**BART, **sizes, "suppress_tokens": None, "begin_suppress_tokens": None, **options})
    )


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


def picture_to_text_net() -> Any:
    """A ViT, and TrOCR's decoder."""
    from transformers import TrOCRConfig, VisionEncoderDecoderConfig, VisionEncoderDecoderModel, ViTConfig

    writer: dict[str, Any] = {"vocab_size": 128, "d_model": 48, "decoder_layers": 2, "decoder_attention_heads": 4}
    writer |= {"decoder_ffn_dim": 96}
    config = VisionEncoderDecoderConfig.from_encoder_decoder_configs(ViTConfig(**PICTURES), TrOCRConfig(**writer))
    config.decoder_start_token_id, config.pad_token_id = 2, 0
    return VisionEncoderDecoderModel(config)


def patchtsmixer_net(**options: Any) -> Any:
    """PatchTSMixer that forecasts."""
    from transformers import PatchTSMixerConfig, PatchTSMixerForPrediction

    sizes = {"d_model": 32, "num_layers": 2, "patch_length": 8, "patch_stride": 4, "num_input_channels": 1, "expansion_factor": 2}
    lengths = {"context_length": LONG_PAST, "prediction_length": LONG_FUTURE, "loss": "mse"}
    return PatchTSMixerForPrediction(PatchTSMixerConfig(**{**sizes, **lengths, **options}))


def by_level(batch: Any) -> Any:
    """Past and future of a series over the level of its past."""
    level = batch[0].mean(1, keepdim=True)
    return batch[0] / level - 1, batch[1] / level - 1
