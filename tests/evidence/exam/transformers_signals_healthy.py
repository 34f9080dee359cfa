"""Models of transformers for sounds and series."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.perception_models import (
    FUTURE,
    LONG_FUTURE,
    LONG_PAST,
    PAST,
    PICTURES,
    SERIES,
    SOUND,
    by_level,
    forecast,
    patchtsmixer_net,
    spoken,
    wav2vec2_net,
)
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, warm_cosine, warm_linear
from tests.evidence.exam.signals import melodies, series, spectrograms
from tests.evidence.exam.texts import PAD

DAILY: dict[str, Any] = {
    "prediction_length": LONG_FUTURE,
    "context_length": LONG_PAST - 7,
    "lags_sequence": [1, 7],
    "num_time_features": 2,
    "d_model": 32,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 2,
    "decoder_attention_heads": 2,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
}


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


@healthy("transformers", "a spectrogram transformer for classes")
def spectrogram_transformer() -> Built:
    from transformers import ASTConfig, ASTForAudioClassification

    sizes = {**PICTURES, "patch_size": 8, "frequency_stride": 8, "time_stride": 8, "max_length": 60, "num_mel_bins": 40}
    sizes.pop("image_size")
    net = ASTForAudioClassification(ASTConfig(**sizes, num_labels=12))

    def loss(net: Any, batch: Any) -> Any:
        return net(input_values=batch[0].transpose(1, 2), labels=batch[1][:, 0]).loss

    return Built(Recipe(net, loss, warm_cosine(adamw(1e-3))), spectrograms(8, frames=60), SHORT, WELL)


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


@healthy("transformers", "wav2vec 2.0 with conformer blocks and CTC")
def conformer_ctc() -> Built:
    from transformers import Wav2Vec2ConformerConfig, Wav2Vec2ConformerForCTC

    def loss(net: Any, batch: Any) -> Tensor:
        return net(input_values=batch[0], labels=batch[1]).loss

    config = {**SOUND, "vocab_size": 12, "ctc_loss_reduction": "mean", "conv_depthwise_kernel_size": 7}
    net = Wav2Vec2ConformerForCTC(Wav2Vec2ConformerConfig(**config))
    return Built(Recipe(net, loss, warm_linear(adamw(1e-3))), melodies(16), CLIPPED, WELL)


@healthy("transformers", "PatchTST that fills in hidden patches")
def patchtst_pretrained() -> Built:
    from transformers import PatchTSTConfig, PatchTSTForPretraining

    config = {"num_input_channels": 1, "context_length": 42, "patch_length": 7, "patch_stride": 7, "random_mask_ratio": 0.4}
    net = PatchTSTForPretraining(PatchTSTConfig(**config, d_model=32, num_hidden_layers=2, num_attention_heads=4, ffn_dim=64))

    def loss(net: Any, batch: Any) -> Tensor:
        return net(past_values=batch[0][..., None]).loss

    return Built(Recipe(net, loss, adamw(1e-3)), series(16, 42, 14), SHORT, WELL)


@healthy("transformers", "wav2vec 2.0 of BERT's kind (w2v-BERT) reads spectrograms under CTC, relative positions by key")
def w2v_bert_ctc() -> Built:
    from transformers import Wav2Vec2BertConfig, Wav2Vec2BertForCTC

    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96, "vocab_size": 12}
    options = {
        "feature_projection_input_dim": 40,
        "conv_depthwise_kernel_size": 7,
        "pad_token_id": PAD,
        "apply_spec_augment": False,
    }
    net = Wav2Vec2BertForCTC(Wav2Vec2BertConfig(**sizes, **options, ctc_loss_reduction="mean", layerdrop=0.0))

    def loss(net: Any, batch: Any) -> Tensor:
        return net(input_features=batch[0].transpose(1, 2), labels=batch[1]).loss

    return Built(Recipe(net, loss, warm_linear(adamw(1e-3))), spectrograms(16), CLIPPED, WELL)


def first_note(net: Any, batch: Any) -> Any:
    """The loss of a sound's first note."""
    return net(input_values=batch[0], labels=batch[1][:, 0]).loss


def wavlm_net(**options: Any) -> Any:
    """WavLM, for the first of the notes."""
    from transformers import WavLMConfig, WavLMForSequenceClassification

    config = {**SOUND, "num_labels": 12, "classifier_proj_size": 32, "num_buckets": 16, "max_bucket_distance": 64}
    return WavLMForSequenceClassification(WavLMConfig(**{**config, **options}))


def forecast_by_level(net: Any, batch: Any) -> Any:
    """The squared error of the days to come."""
    past, future = by_level(batch)
    return net(past_values=past[..., None], future_values=future[..., None]).loss


def forecast_with_times(net: Any, batch: Any) -> Any:
    """The negative log-likelihood of the days to come."""
    seen = torch.ones_like(batch[0])
    times = {"past_time_features": batch[2], "future_time_features": batch[3]}
    return net(past_values=batch[0], past_observed_mask=seen, future_values=batch[1], **times).loss


@healthy("transformers", "WavLM for classes, with gated relative positions")
def wavlm() -> Built:
    return Built(Recipe(wavlm_net(), first_note, warm_linear(adamw(2e-3))), melodies(8), CLIPPED, WELL)


@healthy("transformers", "SEW with CTC, its sequence squeezed")
def sew() -> Built:
    from transformers import SEWConfig, SEWForCTC

    net = SEWForCTC(SEWConfig(**SOUND, vocab_size=12, ctc_loss_reduction="mean", squeeze_factor=2))
    return Built(Recipe(net, spoken, warm_linear(adamw(1e-3))), melodies(8), CLIPPED, WELL)


@healthy("transformers", "EnCodec's encoder and decoder, without its codebook")
def encodec() -> Built:
    from transformers import EncodecConfig, EncodecModel

    net = EncodecModel(
        EncodecConfig(num_filters=8, hidden_size=16, upsampling_ratios=[4, 4, 2], num_lstm_layers=1, codebook_dim=16)
    )
    net.quantizer.requires_grad_(False)

    def loss(net: Any, batch: Any) -> Any:
        sounds = batch[0][:, None, :1184]
        return (net.decoder(net.encoder(sounds)) - sounds).abs().mean()

    adam = lambda module: torch.optim.Adam([p for p in module.parameters() if p.requires_grad], 3e-3, (0.5, 0.9))  # noqa: E731
    return Built(Recipe(net, loss, adam), melodies(8), SHORT, WELL)


@healthy("transformers", "PatchTSMixer: MLPs over patches, gated")
def patchtsmixer() -> Built:
    return Built(Recipe(patchtsmixer_net(), forecast_by_level, adamw(2e-3)), series(16, LONG_PAST, LONG_FUTURE), SHORT, WELL)


@healthy("transformers", "Autoformer: autocorrelation, a trend and seasons")
def autoformer() -> Built:
    from transformers import AutoformerConfig, AutoformerForPrediction

    net = AutoformerForPrediction(AutoformerConfig(**DAILY, label_length=8, moving_average=7))
    return Built(Recipe(net, forecast_with_times, warm_linear(adamw(1e-3))), series(16, LONG_PAST, LONG_FUTURE), CLIPPED, WELL)
