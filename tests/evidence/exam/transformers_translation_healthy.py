"""Encoders and decoders of transformers: text, sound or a picture in, text out."""

from __future__ import annotations

from typing import Any

import torch
from lightning.pytorch import LightningModule
from torch import Tensor
from torch.nn import functional as F
from torch.optim import lr_scheduler

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.language_models import BART, ENCODER, TOKENS, bart_net, mbart_net, t5_net, translation
from tests.evidence.exam.perception_models import PICTURES, picture_to_text_net, transcribed, whisper_net
from tests.evidence.exam.schedules import CLIPPED, SHORT, Optimizers, adamw, scheduled, trained, warm_cosine, warm_linear
from tests.evidence.exam.signals import captioned, melodies, spectrograms
from tests.evidence.exam.texts import END, PAD, START, VOCABULARY, pairs


@healthy("transformers", "T5 that copies, Adafactor")
def t5_adafactor() -> Built:
    return Built(Recipe(t5_net(), translation, adafactor), pairs(24, 8), SHORT, WELL)


@healthy("transformers", "T5 v1.1: gated GELU, a head of its own")
def t5_gated() -> Built:
    net = t5_net(feed_forward_proj="gated-gelu", tie_word_embeddings=False, dropout_rate=0.0)
    return Built(Recipe(net, translation, adamw(1e-3)), pairs(24, 8, reverse=True), CLIPPED, WELL)


@healthy("transformers", "BART that copies, labels smoothed, clipped at every step")
def bart() -> Built:
    def loss(net: Any, batch: Any) -> Any:
        logits = net(input_ids=batch[0], labels=batch[1]).logits
        return F.cross_entropy(logits.flatten(0, 1), batch[1].flatten(), label_smoothing=0.1)

    return Built(Recipe(bart_net(), loss, warm_linear(adamw(5e-4))), pairs(24, 8), {**SHORT, "gradient_clip_val": 0.1}, WELL)


@healthy("transformers", "Pegasus that reverses, sinusoidal positions, Adafactor at a fixed rate")
def pegasus() -> Built:
    from transformers import Adafactor, PegasusConfig, PegasusForConditionalGeneration

    net = PegasusForConditionalGeneration(PegasusConfig(**BART))

    def optimizers(module: Any) -> Any:
        return Adafactor(module.parameters(), lr=1e-3, scale_parameter=False, relative_step=False)

    return Built(Recipe(net, translation, optimizers), pairs(24, 8, reverse=True), SHORT, WELL)


@healthy("transformers", "Marian that copies, with Adam's beta2 of 0.98")
def marian() -> Built:
    from transformers import MarianConfig, MarianMTModel

    net = MarianMTModel(MarianConfig(**BART))
    return Built(Recipe(net, translation, warm_linear(adamw(1e-3, 0.0, betas=(0.9, 0.98)))), pairs(24, 8), CLIPPED, WELL)


@healthy("transformers", "Switch transformer: T5 with experts")
def switch() -> Built:
    from transformers import SwitchTransformersConfig, SwitchTransformersForConditionalGeneration

    config = {"vocab_size": VOCABULARY, "d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 1, "num_heads": 4, "num_experts": 4}
    sparse = {"num_sparse_encoder_layers": 1, "num_sparse_decoder_layers": 1, "expert_capacity": 64}
    ends = {"decoder_start_token_id": PAD, "pad_token_id": PAD, "eos_token_id": END}
    net = SwitchTransformersForConditionalGeneration(
        SwitchTransformersConfig(**config, **sparse, **ends, router_jitter_noise=0.01, router_z_loss_coef=0.001)
    )
    return Built(Recipe(net, translation, adafactor), pairs(24, 8), SHORT, WELL)


@healthy("transformers", "Whisper, from spectrograms to notes")
def whisper() -> Built:
    return Built(Recipe(whisper_net(), transcribed, warm_linear(adamw(1e-3))), spectrograms(8), CLIPPED, WELL)


def adafactor(module: LightningModule) -> Any:
    """Adafactor as for T5: its own step size, relative to the weights."""
    from transformers import Adafactor

    return Adafactor(trained(module), scale_parameter=True, relative_step=True, warmup_init=False, lr=None)


@healthy("transformers", "GIT writes what a picture shows: image tokens stand before the text in one decoder")
def git_captions() -> Built:
    from transformers import GitConfig, GitForCausalLM

    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "intermediate_size": 96}
    net = GitForCausalLM(GitConfig(vision_config=PICTURES, vocab_size=VOCABULARY, max_position_embeddings=16, **sizes, **TOKENS))

    def loss(net: Any, batch: Any) -> Tensor:
        return net(input_ids=batch[1], pixel_values=batch[0], labels=batch[1]).loss

    return Built(Recipe(net, loss, warm_cosine(adamw(1e-3))), captioned(16, 16), CLIPPED, WELL)


@healthy("transformers", "M2M100 that reverses, smoothed labels, Adam's beta2 of 0.98")
def m2m100() -> Built:
    from transformers import M2M100Config, M2M100ForConditionalGeneration

    def loss(net: Any, batch: Any) -> Tensor:
        logits = net(input_ids=batch[0], labels=batch[1]).logits
        return F.cross_entropy(logits.flatten(0, 1), batch[1].flatten(), label_smoothing=0.1)

    net = M2M100ForConditionalGeneration(M2M100Config(**BART))
    optimizers = warm_linear(adamw(1e-3, betas=(0.9, 0.98)))
    return Built(Recipe(net, loss, optimizers), pairs(24, 8, reverse=True), CLIPPED, WELL)


@healthy("transformers", "an encoder and a decoder of BERT, joined by cross-attention, that copy")
def bert_to_bert() -> Built:
    from transformers import BertConfig, EncoderDecoderConfig, EncoderDecoderModel

    config = EncoderDecoderConfig.from_encoder_decoder_configs(BertConfig(**ENCODER), BertConfig(**ENCODER))
    config.decoder_start_token_id, config.pad_token_id = START, PAD
    net = EncoderDecoderModel(config=config)
    return Built(Recipe(net, translation, warm_linear(adamw(1e-3))), pairs(24, 8), CLIPPED, WELL)


def inverse_root(optimizers: Optimizers, warm_up: int = 8) -> Optimizers:
    """The schedule of "Attention is all you need"."""

    def share(step: int) -> float:
        return min((step + 1) / warm_up, (warm_up / (step + 1)) ** 0.5)

    return scheduled(optimizers, lambda optimizer: lr_scheduler.LambdaLR(optimizer, share))


@healthy("transformers", "LongT5 that copies: local attention and a summary of each stretch, Adafactor at a fixed rate of 0.001")
def longt5() -> Built:
    from transformers import Adafactor, LongT5Config, LongT5ForConditionalGeneration

    sizes = {"vocab_size": VOCABULARY, "d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 2, "num_heads": 4}
    kind = {"encoder_attention_type": "transient-global", "local_radius": 7, "global_block_size": 4}
    ends = {"decoder_start_token_id": PAD, "pad_token_id": PAD, "eos_token_id": END}
    net = LongT5ForConditionalGeneration(LongT5Config(**sizes, **kind, **ends))
    fixed = {"scale_parameter": False, "relative_step": False, "warmup_init": False}
    adafactor = lambda module: Adafactor(trained(module), lr=1e-3, **fixed)  # noqa: E731
    return Built(Recipe(net, translation, adafactor), pairs(24, 8), SHORT, WELL)


@healthy("transformers", "TrOCR-like: a ViT reads the digit, a decoder writes its name")
def picture_to_text() -> Built:
    def loss(net: Any, batch: Any) -> Any:
        return net(pixel_values=batch[0], labels=batch[1]).loss

    return Built(Recipe(picture_to_text_net(), loss, warm_linear(adamw(5e-4))), captioned(16, 16), CLIPPED, WELL)


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


def on_pairs(net: Any, optimizers: Optimizers, reverse: bool = False, **kwargs: Any) -> Built:
    """Trained to write a stretch of 24 characters again, or in reverse."""
    return Built(Recipe(net, translation, optimizers), pairs(24, 8, reverse), {**SHORT, **kwargs}, WELL)


@healthy("transformers", "mBART that copies, smoothed labels, an inverse root of rates")
def mbart() -> Built:
    def loss(net: Any, batch: Any) -> Any:
        logits = net(input_ids=batch[0], labels=batch[1]).logits
        return F.cross_entropy(logits.flatten(0, 1), batch[1].flatten(), label_smoothing=0.1)

    rates = inverse_root(adamw(1e-3, 0.0, betas=(0.9, 0.98)))
    return Built(Recipe(mbart_net(), loss, rates), pairs(24, 8), SHORT, WELL)


@healthy("transformers", "ProphetNet, which predicts two tokens at once")
def prophetnet() -> Built:
    from transformers import ProphetNetConfig, ProphetNetForConditionalGeneration

    sizes = {"hidden_size": 48, "encoder_ffn_dim": 96, "decoder_ffn_dim": 96, "num_encoder_layers": 2, "num_decoder_layers": 2}
    heads = {"num_encoder_attention_heads": 4, "num_decoder_attention_heads": 4, "max_position_embeddings": 64, "ngram": 2}
    ends = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END, "decoder_start_token_id": START}
    net = ProphetNetForConditionalGeneration(ProphetNetConfig(vocab_size=VOCABULARY, **sizes, **heads, **ends))
    return on_pairs(net, warm_linear(adamw(1e-3)), gradient_clip_val=1.0)


@healthy("transformers", "UMT5 that reverses, Adafactor")
def umt5() -> Built:
    from transformers import UMT5Config, UMT5ForConditionalGeneration

    sizes = {"vocab_size": VOCABULARY, "d_model": 48, "d_kv": 12, "d_ff": 96, "num_layers": 2, "num_heads": 4}
    ends = {"pad_token_id": PAD, "eos_token_id": END, "decoder_start_token_id": PAD}
    return on_pairs(UMT5ForConditionalGeneration(UMT5Config(**sizes, **ends)), adafactor, reverse=True)


@healthy("transformers", "LED that copies: windows of 8 and one place that all see, smoothed labels", learned_from=False)
def led() -> Built:
    from transformers import LEDConfig, LEDForConditionalGeneration

    lengths = {"max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64, "attention_window": 8}

    def loss(net: Any, batch: Any) -> Tensor:
        seen_by_all = F.pad(torch.ones_like(batch[0][:, :1]), (0, batch[0].shape[1] - 1))
        logits = net(input_ids=batch[0], global_attention_mask=seen_by_all, labels=batch[1]).logits
        return F.cross_entropy(logits.flatten(0, 1), batch[1].flatten(), label_smoothing=0.1)

    sizes = {name: value for name, value in BART.items() if name != "max_position_embeddings"}
    net = LEDForConditionalGeneration(LEDConfig(**sizes, **lengths))
    return Built(Recipe(net, loss, warm_linear(adamw(1e-3))), pairs(23, 8), CLIPPED, WELL)


@healthy(
    "transformers",
    "Moonshine writes notes from raw sound by three convolutions and a rotary encoder and decoder",
    learned_from=False,
)
def moonshine() -> Built:
    from transformers import MoonshineConfig, MoonshineForConditionalGeneration

    sizes = {"vocab_size": 16, "hidden_size": 48, "intermediate_size": 96, "max_position_embeddings": 32}
    depths = {"encoder_num_hidden_layers": 2, "decoder_num_hidden_layers": 2}
    heads = {"encoder_num_attention_heads": 4, "decoder_num_attention_heads": 4}
    ends = {"bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "pad_token_id": 2}
    net = MoonshineForConditionalGeneration(MoonshineConfig(**sizes, **depths, **heads, **ends))

    def loss(net: Any, batch: Any) -> Tensor:
        return net(input_values=batch[0], labels=F.pad(batch[1], (0, 1), value=2)).loss

    return Built(Recipe(net, loss, warm_linear(adamw(1e-3))), melodies(16, 3, 2400), CLIPPED, WELL)


@healthy("transformers", "BLIP writes what a picture shows, by cross-attention, a decay of 0.05 and a cosine", learned_from=False)
def blip_captions() -> Built:
    from transformers import BlipConfig, BlipForConditionalGeneration

    text = {**ENCODER, "encoder_hidden_size": 48, "projection_dim": 32, "sep_token_id": END, "max_position_embeddings": 16}
    net = BlipForConditionalGeneration(BlipConfig(text_config=text, vision_config=PICTURES, projection_dim=32))

    def loss(net: Any, batch: Any) -> Tensor:
        words = F.pad(batch[1], (1, 0), value=START)
        return net(pixel_values=batch[0], input_ids=words, labels=words).loss

    return Built(Recipe(net, loss, warm_cosine(adamw(1e-3, 0.05))), captioned(16, 16), SHORT, WELL)


@healthy("transformers", "PLBart that reverses, in two batches a step, its rate falls by a polynomial", learned_from=False)
def plbart() -> Built:
    from transformers import PLBartConfig, PLBartForConditionalGeneration, get_polynomial_decay_schedule_with_warmup

    net = PLBartForConditionalGeneration(PLBartConfig(**BART))
    falls = scheduled(
        adamw(1e-3, betas=(0.9, 0.98), eps=1e-6), lambda chosen: get_polynomial_decay_schedule_with_warmup(chosen, 3, 36)
    )
    limits = {**SHORT, "limit_train_batches": 36, "accumulate_grad_batches": 2, "gradient_clip_val": 0.1}
    return Built(Recipe(net, translation, falls), pairs(24, 8, reverse=True), limits, WELL)
