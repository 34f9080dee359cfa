"""Healthy trainings of transformers' and timm's models that no other module of the exam has, by their own recipes."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.healthy_timm import create, optimizer, smoothed
from tests.evidence.exam.healthy_timm import trained as on_digits
from tests.evidence.exam.language_models import (
    BART,
    DECODER,
    ENCODER,
    PICTURES,
    image_classifier,
    language_model,
    masked_language_model,
    translation,
)
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, decayed_apart, scheduled, warm_cosine, warm_linear
from tests.evidence.exam.signals import captioned, digits, melodies
from tests.evidence.exam.texts import END, START, characters, pairs

WELL = Expected()


def written(net: Any, rate: float = 2e-3, length: int = 48) -> Built:
    """A decoder that learns to write code: a warm-up and a cosine, matrices decay, clipped at 1."""
    return Built(Recipe(net, language_model, warm_cosine(decayed_apart(rate))), characters(length, 8), CLIPPED, WELL)


@healthy("transformers", "Nemotron: squared rectifiers, layer norms whose gain is told from 1, a half of each head rotated")
def nemotron() -> Built:
    from transformers import NemotronConfig, NemotronForCausalLM

    return written(NemotronForCausalLM(NemotronConfig(**DECODER)))


@healthy("transformers", "GLM 4: a norm before and one after each branch, halves of heads rotated, a warm-up and a cosine")
def glm4() -> Built:
    from transformers import Glm4Config, Glm4ForCausalLM

    return written(Glm4ForCausalLM(Glm4Config(**DECODER, head_dim=12)))


@healthy("transformers", "LFM 2: short gated convolutions, then attention with norms of queries and keys")
def lfm2() -> Built:
    from transformers import Lfm2Config, Lfm2ForCausalLM

    layers = ["conv", "conv", "full_attention"]
    config = {**DECODER, "num_hidden_layers": 3, "layer_types": layers, "block_auto_adjust_ff_dim": False}
    return written(Lfm2ForCausalLM(Lfm2Config(**config)))


@healthy("transformers", "SmolLM 3: each third layer knows no positions; a rate that warms up, stays, and falls at the end")
def smollm3() -> Built:
    from transformers import SmolLM3Config, SmolLM3ForCausalLM, get_wsd_schedule

    net = SmolLM3ForCausalLM(SmolLM3Config(**{**DECODER, "num_hidden_layers": 3}, no_rope_layer_interval=3))
    stays = scheduled(decayed_apart(2e-3), lambda chosen: get_wsd_schedule(chosen, 5, 10, num_training_steps=48))
    return Built(Recipe(net, language_model, stays), characters(48, 8), CLIPPED, WELL)


@healthy("transformers", "DeBERTa of the first version, masked tokens: what and where in three parts, by gradient of norm 1")
def deberta_first() -> Built:
    from transformers import DebertaConfig, DebertaForMaskedLM

    kind = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0, "position_biased_input": False}
    net = DebertaForMaskedLM(DebertaConfig(**{**ENCODER, **kind}))
    return Built(Recipe(net, masked_language_model, warm_linear(adamw(1e-3, eps=1e-6))), characters(48, 8), CLIPPED, WELL)


@healthy("transformers", "MobileBERT, masked tokens: narrow bottlenecks in each layer, gains and biases in the place of norms")
def mobilebert() -> Built:
    from transformers import MobileBertConfig, MobileBertForMaskedLM

    narrow = {"embedding_size": 32, "intra_bottleneck_size": 24, "num_feedforward_networks": 2}
    net = MobileBertForMaskedLM(MobileBertConfig(**{**ENCODER, "num_attention_heads": 4, **narrow}))
    return Built(Recipe(net, masked_language_model, warm_linear(adamw(1e-3))), characters(48, 8), CLIPPED, WELL)


@healthy("transformers", "LED that copies: windows of 8 and one place that all see, smoothed labels")
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


@healthy("transformers", "Moonshine writes notes from raw sound by three convolutions and a rotary encoder and decoder")
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


@healthy("transformers", "TimeSformer tells digits that move: attention over time, then over space, a warm-up and a cosine")
def timesformer() -> Built:
    from transformers import TimesformerConfig, TimesformerForVideoClassification

    def loss(net: Any, batch: Any) -> Tensor:
        frames = torch.stack([batch[0].roll(shift, 3) for shift in range(3)], 1)
        return net(pixel_values=frames, labels=batch[1]).loss

    net = TimesformerForVideoClassification(TimesformerConfig(**PICTURES, num_frames=3, num_labels=10))
    limits = {**CLIPPED, "limit_train_batches": 35}
    return Built(Recipe(net, loss, warm_cosine(adamw(1e-3, 0.05), 70, 7)), digits(16, 16), limits, WELL)


@healthy("transformers", "BLIP writes what a picture shows, by cross-attention, a decay of 0.05 and a cosine")
def blip_captions() -> Built:
    from transformers import BlipConfig, BlipForConditionalGeneration

    text = {**ENCODER, "encoder_hidden_size": 48, "projection_dim": 32, "sep_token_id": END, "max_position_embeddings": 16}
    net = BlipForConditionalGeneration(BlipConfig(text_config=text, vision_config=PICTURES, projection_dim=32))

    def loss(net: Any, batch: Any) -> Tensor:
        words = F.pad(batch[1], (1, 0), value=START)
        return net(pixel_values=batch[0], input_ids=words, labels=words).loss

    return Built(Recipe(net, loss, warm_cosine(adamw(1e-3, 0.05))), captioned(16, 16), SHORT, WELL)


@healthy("transformers", "CLIPSeg finds the pixels of the digit that a text names, of two side by side; binary cross entropy")
def clipseg() -> Built:
    from transformers import CLIPSegConfig, CLIPSegForImageSegmentation

    sizes = {"reduce_dim": 24, "extract_layers": [0, 1], "decoder_num_attention_heads": 4, "decoder_intermediate_size": 48}
    text = {**ENCODER, "max_position_embeddings": 16}
    config = CLIPSegConfig(text_config=text, vision_config={**PICTURES, "image_size": 32}, projection_dim=32, **sizes)
    net = CLIPSegForImageSegmentation(config)

    def loss(net: Any, batch: Any) -> Tensor:
        both = F.pad(torch.cat([batch[0], batch[0].flip(0)], 3), (0, 0, 8, 8), value=-0.8)
        wanted = both.mean(1) > 0.5
        wanted[:, :, 16:] = False
        return net(pixel_values=both, input_ids=batch[1], labels=wanted.float()).loss

    return Built(Recipe(net, loss, warm_cosine(adamw(1e-3, 1e-4))), captioned(16, 8), SHORT, WELL)


@healthy("transformers", "PVT of the first version for ten classes: four stages with positions of their own, AdamW")
def pvt_first() -> Built:
    from transformers import PvtConfig, PvtForImageClassification

    sizes = {"hidden_sizes": [16, 24, 32, 48], "depths": [1, 1, 1, 1], "num_attention_heads": [1, 2, 2, 4], "image_size": 32}
    net = PvtForImageClassification(PvtConfig(**sizes, mlp_ratios=[4, 4, 2, 2], num_labels=10))
    limits = {**CLIPPED, "limit_train_batches": 35}
    return Built(Recipe(net, image_classifier, warm_cosine(adamw(1e-3, 0.05), 70, 7)), digits(32, 16), limits, WELL)


@healthy("transformers", "PLBart that reverses, in two batches a step, its rate falls by a polynomial")
def plbart() -> Built:
    from transformers import PLBartConfig, PLBartForConditionalGeneration, get_polynomial_decay_schedule_with_warmup

    net = PLBartForConditionalGeneration(PLBartConfig(**BART))
    falls = scheduled(
        adamw(1e-3, betas=(0.9, 0.98), eps=1e-6), lambda chosen: get_polynomial_decay_schedule_with_warmup(chosen, 3, 36)
    )
    limits = {**SHORT, "limit_train_batches": 36, "accumulate_grad_batches": 2, "gradient_clip_val": 0.1}
    return Built(Recipe(net, translation, falls), pairs(24, 8, reverse=True), limits, WELL)


def cosine_from_warm(make: Any, rate: float, steps: int = 60) -> Any:
    """As timm's script: a short warm-up in a line, then a cosine."""
    return scheduled(
        make, lambda chosen: torch.optim.lr_scheduler.OneCycleLR(chosen, rate, steps, pct_start=0.1, cycle_momentum=False)
    )


@healthy("timm", "Twins-SVT: attention in windows and to a summary of all, in turn, smoothed labels, clipped at 5")
def timm_twins() -> Built:
    sizes = {"embed_dims": (16, 32, 48, 64), "num_heads": (1, 2, 3, 4), "mlp_ratios": (2, 2, 2, 2), "depths": (1, 1, 2, 1)}
    net = create("twins_svt_small", img_size=32, **sizes, sr_ratios=(4, 2, 1, 1), wss=(4, 2, 2, 1))
    return on_digits(Recipe(net, smoothed, cosine_from_warm(optimizer("adamw", 2e-3, 0.05), 2e-3)), 32, gradient_clip_val=5.0)


@healthy("timm", "RepViT: depthwise convolutions in two branches and a head for each of two classifiers, cautious AdamW")
def timm_repvit() -> Built:
    net = create("repvit_m0_9", embed_dim=(16, 24, 32, 48), depth=(1, 1, 2, 1))
    return on_digits(Recipe(net, smoothed, cosine_from_warm(optimizer("cadamw", 2e-3, 0.025), 2e-3)), 16)
