"""Healthy trainings of transformers' models that no other module of the exam has, written without a look at the rules."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.language_models import (
    BART,
    DECODER,
    ENCODER,
    PICTURES,
    SOUND,
    classifier,
    image_classifier,
    language_model,
    masked_language_model,
    translation,
)
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, decayed_apart, warm_cosine, warm_linear
from tests.evidence.exam.signals import digits, melodies, series
from tests.evidence.exam.texts import END, MASK, PAD, START, VOCABULARY, characters, lines, pairs

WELL = Expected()


def tags(ids: Tensor) -> Tensor:
    """For each character whether a word begins there (1), goes on (2), or neither (0)."""
    within = ((ids >= 97) & (ids <= 122)) | ((ids >= 65) & (ids <= 90)) | (ids == 95)
    before = F.pad(within[:, :-1], (1, 0))
    return within.long() + (within & before).long()


def tagged(net: Any, batch: Any) -> Tensor:
    labels = tags(batch[0]).masked_fill(batch[0] == PAD, -100)
    return net(input_ids=batch[0], attention_mask=batch[1], labels=labels).loss


@healthy("transformers", "RoFormer finds words (token classification), warm-up and linear decay")
def roformer_tokens() -> Built:
    from transformers import RoFormerConfig, RoFormerForTokenClassification

    net = RoFormerForTokenClassification(RoFormerConfig(**ENCODER, num_labels=3))
    return Built(Recipe(net, tagged, warm_linear(adamw(5e-4))), lines(48, 8), CLIPPED, WELL)


@healthy("transformers", "LayoutLM finds words by characters and their places on a page")
def layoutlm_tokens() -> Built:
    from transformers import LayoutLMConfig, LayoutLMForTokenClassification

    def loss(net: Any, batch: Any) -> Tensor:
        column = (torch.arange(batch[0].shape[1]) * 8).expand_as(batch[0])
        row = torch.full_like(column, 100)
        boxes = torch.stack([column, row, column + 8, row + 12], -1)
        labels = tags(batch[0]).masked_fill(batch[0] == PAD, -100)
        return net(input_ids=batch[0], bbox=boxes, attention_mask=batch[1], labels=labels).loss

    net = LayoutLMForTokenClassification(LayoutLMConfig(**ENCODER, num_labels=3, max_2d_position_embeddings=512))
    return Built(Recipe(net, loss, warm_linear(adamw(1e-3))), lines(48, 8), CLIPPED, WELL)


@healthy("transformers", "Megatron-BERT answers where the first word begins and ends")
def megatron_answers() -> Built:
    from transformers import MegatronBertConfig, MegatronBertForQuestionAnswering

    def loss(net: Any, batch: Any) -> Tensor:
        found = tags(batch[0])
        starts = (found == 1).long().argmax(1)
        after = (torch.arange(found.shape[1]) > starts[:, None]) & (found != 2)
        ends = (after.long().argmax(1) - 1).clamp_min(0)
        return net(input_ids=batch[0], attention_mask=batch[1], start_positions=starts, end_positions=ends).loss

    net = MegatronBertForQuestionAnswering(MegatronBertConfig(**ENCODER))
    return Built(Recipe(net, loss, warm_linear(adamw(1e-3))), lines(32, 16), CLIPPED, WELL)


@healthy("transformers", "ERNIE chooses which of three stretches is no noise (multiple choice)")
def ernie_choices() -> Built:
    from transformers import ErnieConfig, ErnieForMultipleChoice

    def loss(net: Any, batch: Any) -> Tensor:
        true, others = batch[0], [torch.randint(32, 127, batch[0].shape) for _ in range(2)]
        choices, place = torch.stack([true, *others], 1), torch.randint(3, (len(true),))
        order = (torch.arange(3) - place[:, None]) % 3
        return net(input_ids=choices[torch.arange(len(true))[:, None], order], labels=place).loss

    net = ErnieForMultipleChoice(ErnieConfig(**ENCODER))
    return Built(Recipe(net, loss, warm_linear(adamw(1e-3))), characters(32, 16), CLIPPED, WELL)


@healthy("transformers", "Longformer, masked tokens, windows of 16")
def longformer() -> Built:
    from transformers import LongformerConfig, LongformerForMaskedLM

    net = LongformerForMaskedLM(LongformerConfig(**ENCODER, attention_window=16))
    return Built(Recipe(net, masked_language_model, warm_linear(adamw(1e-3))), characters(48, 8), CLIPPED, WELL)


@healthy("transformers", "Nystromformer, masked tokens, attention by landmarks")
def nystromformer() -> Built:
    from transformers import NystromformerConfig, NystromformerForMaskedLM

    net = NystromformerForMaskedLM(NystromformerConfig(**ENCODER, num_landmarks=8, segment_means_seq_len=48))
    return Built(Recipe(net, masked_language_model, warm_linear(adamw(1e-3))), characters(48, 8), CLIPPED, WELL)


@healthy("transformers", "ESM with rotary positions, Adam's beta2 of 0.98")
def esm() -> Built:
    from transformers import EsmConfig, EsmForMaskedLM

    config = {**ENCODER, "mask_token_id": MASK, "position_embedding_type": "rotary", "emb_layer_norm_before": True}
    net = EsmForMaskedLM(EsmConfig(**config))
    optimizers = warm_linear(adamw(1e-3, betas=(0.9, 0.98)))
    return Built(Recipe(net, masked_language_model, optimizers), characters(48, 8), SHORT, WELL)


@healthy("transformers", "Perceiver, masked characters by way of 16 latents")
def perceiver() -> Built:
    from transformers import PerceiverConfig, PerceiverForMaskedLM

    sizes = {"d_model": 48, "d_latents": 64, "num_latents": 16, "num_self_attends_per_block": 2, "max_position_embeddings": 48}
    heads = {"num_self_attention_heads": 4, "num_cross_attention_heads": 4, "qk_channels": 48, "v_channels": 64}
    net = PerceiverForMaskedLM(PerceiverConfig(vocab_size=VOCABULARY, **sizes, **heads))
    return Built(Recipe(net, masked_language_model, warm_linear(adamw(1e-3))), characters(48, 8), CLIPPED, WELL)


@healthy("transformers", "StarCoder 2, AdamW with beta2 of 0.95, cosine, clipped at 1")
def starcoder2() -> Built:
    from transformers import Starcoder2Config, Starcoder2ForCausalLM

    net = Starcoder2ForCausalLM(Starcoder2Config(**DECODER))
    return Built(Recipe(net, language_model, warm_cosine(decayed_apart(2e-3))), characters(48, 8), CLIPPED, WELL)


@healthy("transformers", "GPTBigCode: one key and value for all heads")
def gpt_big_code() -> Built:
    from transformers import GPTBigCodeConfig, GPTBigCodeForCausalLM

    config = {"vocab_size": VOCABULARY, "n_positions": 64, "n_embd": 48, "n_layer": 2, "n_head": 4, "multi_query": True}
    net = GPTBigCodeForCausalLM(GPTBigCodeConfig(**config, bos_token_id=START, eos_token_id=END))
    return Built(Recipe(net, language_model, warm_cosine(decayed_apart(1e-3))), characters(48, 8), CLIPPED, WELL)


@healthy("transformers", "XGLM: sinusoidal positions, scaled embeddings, linear decay")
def xglm() -> Built:
    from transformers import XGLMConfig, XGLMForCausalLM

    sizes = {"d_model": 48, "num_layers": 2, "attention_heads": 4, "ffn_dim": 96, "max_position_embeddings": 64}
    ends = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
    net = XGLMForCausalLM(XGLMConfig(vocab_size=VOCABULARY, **sizes, **ends))
    return Built(Recipe(net, language_model, warm_linear(decayed_apart(1e-3))), characters(48, 8), CLIPPED, WELL)


@healthy("transformers", "Phi-3 for classes: the last token of a line tells its module")
def phi3_classes() -> Built:
    from transformers import Phi3Config, Phi3ForSequenceClassification

    net = Phi3ForSequenceClassification(Phi3Config(**DECODER, num_labels=2))
    return Built(Recipe(net, classifier, warm_linear(adamw(1e-3))), lines(48, 16), {**CLIPPED, "limit_train_batches": 45}, WELL)


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


@healthy("transformers", "ViT that fills in hidden patches (SimMIM)")
def vit_masked() -> Built:
    from transformers import ViTConfig, ViTForMaskedImageModeling

    def loss(net: Any, batch: Any) -> Tensor:
        return net(pixel_values=batch[0], bool_masked_pos=torch.rand(len(batch[0]), 16) < 0.6).loss

    net = ViTForMaskedImageModeling(ViTConfig(**PICTURES, encoder_stride=4))
    return Built(Recipe(net, loss, warm_cosine(adamw(1e-3, 0.05))), digits(16, 16), CLIPPED, WELL)


@healthy("transformers", "ViT-MSN for ten classes, AdamW with warm-up and cosine")
def vit_msn() -> Built:
    from transformers import ViTMSNConfig, ViTMSNForImageClassification

    net = ViTMSNForImageClassification(ViTMSNConfig(**PICTURES, num_labels=10))
    return Built(
        Recipe(net, image_classifier, warm_cosine(adamw(2e-3, 0.05), 90, 9)),
        digits(16, 16),
        {**SHORT, "limit_train_batches": 45},
        WELL,
    )


@healthy("transformers", "VideoMAE: most patches of a moving digit are hidden")
def videomae() -> Built:
    from transformers import VideoMAEConfig, VideoMAEForPreTraining

    def loss(net: Any, batch: Any) -> Tensor:
        frames = torch.stack([batch[0].roll(shift, 3) for shift in range(4)], 1)
        hidden = torch.rand(32).argsort().argsort() < 24
        return net(pixel_values=frames, bool_masked_pos=hidden.expand(len(frames), -1)).loss

    decoder = {"decoder_hidden_size": 32, "decoder_num_hidden_layers": 1, "decoder_num_attention_heads": 4}
    config = VideoMAEConfig(**PICTURES, **decoder, decoder_intermediate_size=64, num_frames=4, norm_pix_loss=False)
    optimizers = warm_cosine(adamw(1.5e-3, 0.05, betas=(0.9, 0.95)))
    return Built(Recipe(VideoMAEForPreTraining(config), loss, optimizers), digits(16, 16), SHORT, WELL)


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
