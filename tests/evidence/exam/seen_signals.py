"""Healthy trainings of transformers' models of sounds and series, and of pytorch-forecasting's."""

from __future__ import annotations

from typing import Any

import torch

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.healthy_forecasting import trained
from tests.evidence.exam.language_models import BART, SOUND
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, warm_linear
from tests.evidence.exam.signals import melodies, series, spectrograms
from tests.evidence.exam.texts import END, PAD

WELL = Expected()
PAST, FUTURE = 32, 8


def spoken(net: Any, batch: Any) -> Any:
    """The loss of a sound's notes."""
    return net(input_values=batch[0], labels=batch[1]).loss


def first_note(net: Any, batch: Any) -> Any:
    """The loss of a sound's first note."""
    return net(input_values=batch[0], labels=batch[1][:, 0]).loss


def wavlm_net(**options: Any) -> Any:
    """WavLM, for the first of the notes."""
    from transformers import WavLMConfig, WavLMForSequenceClassification

    config = {**SOUND, "num_labels": 12, "classifier_proj_size": 32, "num_buckets": 16, "max_bucket_distance": 64}
    return WavLMForSequenceClassification(WavLMConfig(**{**config, **options}))


def patchtsmixer_net(**options: Any) -> Any:
    """PatchTSMixer that forecasts."""
    from transformers import PatchTSMixerConfig, PatchTSMixerForPrediction

    sizes = {"d_model": 32, "num_layers": 2, "patch_length": 8, "patch_stride": 4, "num_input_channels": 1, "expansion_factor": 2}
    lengths = {"context_length": PAST, "prediction_length": FUTURE, "loss": "mse"}
    return PatchTSMixerForPrediction(PatchTSMixerConfig(**{**sizes, **lengths, **options}))


def by_level(batch: Any) -> Any:
    """Past and future of a series over the level of its past."""
    level = batch[0].mean(1, keepdim=True)
    return batch[0] / level - 1, batch[1] / level - 1


def forecast(net: Any, batch: Any) -> Any:
    """The squared error of the days to come."""
    past, future = by_level(batch)
    return net(past_values=past[..., None], future_values=future[..., None]).loss


def forecast_with_times(net: Any, batch: Any) -> Any:
    """The negative log-likelihood of the days to come."""
    seen = torch.ones_like(batch[0])
    times = {"past_time_features": batch[2], "future_time_features": batch[3]}
    return net(past_values=batch[0], past_observed_mask=seen, future_values=batch[1], **times).loss


DAILY: dict[str, Any] = {
    "prediction_length": FUTURE,
    "context_length": PAST - 7,
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


@healthy("transformers", "WavLM for classes, with gated relative positions")
def wavlm() -> Built:
    return Built(Recipe(wavlm_net(), first_note, warm_linear(adamw(2e-3))), melodies(8), CLIPPED, WELL)


@healthy("transformers", "SEW with CTC, its sequence squeezed")
def sew() -> Built:
    from transformers import SEWConfig, SEWForCTC

    net = SEWForCTC(SEWConfig(**SOUND, vocab_size=12, ctc_loss_reduction="mean", squeeze_factor=2))
    return Built(Recipe(net, spoken, warm_linear(adamw(1e-3))), melodies(8), CLIPPED, WELL)


@healthy("transformers", "Speech2Text from spectrograms to notes")
def speech_to_text() -> Built:
    from transformers import Speech2TextConfig, Speech2TextForConditionalGeneration

    sizes = {"vocab_size": 16, "input_feat_per_channel": 40, "conv_channels": 64, "max_source_positions": 64}
    net = Speech2TextForConditionalGeneration(
        Speech2TextConfig(**{**BART, **sizes, "max_target_positions": 8, "pad_token_id": PAD, "eos_token_id": END})
    )

    def loss(net: Any, batch: Any) -> Any:
        return net(input_features=batch[0].transpose(1, 2), labels=batch[1]).loss

    return Built(Recipe(net, loss, warm_linear(adamw(1e-3))), spectrograms(8), CLIPPED, WELL)


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
    return Built(Recipe(patchtsmixer_net(), forecast, adamw(2e-3)), series(16, PAST, FUTURE), SHORT, WELL)


@healthy("transformers", "Autoformer: autocorrelation, a trend and seasons")
def autoformer() -> Built:
    from transformers import AutoformerConfig, AutoformerForPrediction

    net = AutoformerForPrediction(AutoformerConfig(**DAILY, label_length=8, moving_average=7))
    return Built(Recipe(net, forecast_with_times, warm_linear(adamw(1e-3))), series(16, PAST, FUTURE), CLIPPED, WELL)


@healthy("pytorch_forecasting", "N-HiTS")
def forecasting_nhits() -> Built:
    from pytorch_forecasting import NHiTS

    return trained(NHiTS, learning_rate=3e-3, hidden_size=32)


@healthy("pytorch_forecasting", "DeepAR: an LSTM and a normal distribution")
def forecasting_deepar() -> Built:
    from pytorch_forecasting import DeepAR
    from pytorch_forecasting.metrics import NormalDistributionLoss

    return trained(DeepAR, learning_rate=1e-2, hidden_size=24, rnn_layers=2, dropout=0.1, loss=NormalDistributionLoss())
