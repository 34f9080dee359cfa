"""Encoders of transformers: masked tokens, classes, words, answers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.language_models import (
    ENCODER,
    bert_net,
    classifier,
    distilbert_net,
    distillation,
    masked_language_model,
    mpnet_net,
    on_text,
    roberta_net,
    tagged,
    tags,
)
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, layer_wise, warm_linear
from tests.evidence.exam.small_nets import learn
from tests.evidence.exam.texts import END, MASK, PAD, START, VOCABULARY, characters, lines, masked


@healthy("transformers", "BERT, masked tokens, linear decay")
def bert_mlm() -> Built:
    return Built(Recipe(bert_net(), masked_language_model, warm_linear(adamw(1e-3))), characters(48, 8), CLIPPED, WELL)


@healthy("transformers", "BERT for classes, fine-tuned at 5e-5 with linear decay, AdamW's eps of 1e-8")
def bert_finetuned() -> Built:
    from transformers import BertConfig, BertForSequenceClassification

    net = BertForSequenceClassification(BertConfig(**ENCODER, num_labels=2))
    return Built(Recipe(net, classifier, warm_linear(adamw(5e-5))), lines(48, 8), CLIPPED, WELL)


@healthy("transformers", "RoBERTa for classes, with rates that fall from layer to layer")
def roberta_layer_wise() -> Built:
    return Built(Recipe(roberta_net(), classifier, layer_wise(5e-4, 0.8, "encoder.layer.")), lines(48, 8), SHORT, WELL)


@healthy("transformers", "DistilBERT whose body is frozen: the head alone trains")
def distilbert_frozen_body() -> Built:
    net = distilbert_net()
    learn(net, classifier, lines(48, 8), 5)
    net.distilbert.requires_grad_(False)
    return Built(Recipe(net, classifier, adamw(1e-3)), lines(48, 8), SHORT, WELL)


@healthy("transformers", "DistilBERT that learns from a larger BERT, with its temperature")
def distilbert_distilled() -> Built:
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    config = {"vocab_size": VOCABULARY, "dim": 48, "n_layers": 1, "n_heads": 4, "hidden_dim": 96, "max_position_embeddings": 66}
    teacher = bert_net().eval().requires_grad_(False)
    net = torch.nn.ModuleDict({"teacher": teacher, "student": DistilBertForMaskedLM(DistilBertConfig(**config))})
    return Built(Recipe(net, distillation, adamw(1e-3)), characters(48, 8), SHORT, WELL)


@healthy("transformers", "ELECTRA's discriminator, with replaced tokens")
def electra() -> Built:
    from transformers import ElectraConfig, ElectraForPreTraining

    net = ElectraForPreTraining(ElectraConfig(**ENCODER, embedding_size=24))

    def loss(net: Any, batch: Any) -> Any:
        inputs, labels = replaced(batch[0])
        return net(input_ids=inputs, labels=labels).loss

    return Built(Recipe(net, loss, warm_linear(adamw(5e-4))), characters(48, 8), CLIPPED, WELL)


@healthy("transformers", "DeBERTa v2 for classes, with relative positions")
def deberta() -> Built:
    from transformers import DebertaV2Config, DebertaV2ForSequenceClassification

    config = {**ENCODER, "num_labels": 2, "relative_attention": True, "pos_att_type": ["p2c", "c2p"], "position_buckets": 16}
    net = DebertaV2ForSequenceClassification(DebertaV2Config(**config, type_vocab_size=0))
    return Built(Recipe(net, classifier, warm_linear(adamw(5e-4))), lines(32, 8), CLIPPED, WELL)


@healthy("transformers", "ALBERT, whose layers are one and the same")
def albert() -> Built:
    from transformers import AlbertConfig, AlbertForMaskedLM

    net = AlbertForMaskedLM(AlbertConfig(**ENCODER, embedding_size=24))
    return Built(Recipe(net, masked_language_model, warm_linear(adamw(1e-3))), characters(48, 8), CLIPPED, WELL)


@healthy("transformers", "ModernBERT, masked tokens, local and global attention")
def modernbert() -> Built:
    from transformers import ModernBertConfig, ModernBertForMaskedLM

    config = {**ENCODER, "local_attention": 16, "global_attn_every_n_layers": 3, "cls_token_id": 4, "sep_token_id": 5}
    net = ModernBertForMaskedLM(ModernBertConfig(**config))
    return Built(Recipe(net, masked_language_model, warm_linear(adamw(1e-3))), characters(48, 8), CLIPPED, WELL)


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


@healthy("transformers", "MPNet, masked tokens, RAdam")
def mpnet() -> Built:
    radam = lambda module: torch.optim.RAdam(module.parameters(), lr=2e-3, decoupled_weight_decay=True)  # noqa: E731
    return on_text(mpnet_net(), radam, masked_language_model)


@healthy("transformers", "FNet, masked tokens: Fourier transforms in the place of attention")
def fnet() -> Built:
    from transformers import FNetConfig, FNetForMaskedLM

    net = FNetForMaskedLM(FNetConfig(**{k: v for k, v in ENCODER.items() if k != "num_attention_heads"}))

    def loss(net: Any, batch: Any) -> Any:
        inputs, labels = masked(batch[0])
        return net(input_ids=inputs, labels=labels).loss

    return on_text(net, warm_linear(adamw(1e-3)), loss)


@healthy("transformers", "ConvBERT, masked tokens")
def convbert() -> Built:
    from transformers import ConvBertConfig, ConvBertForMaskedLM

    net = ConvBertForMaskedLM(ConvBertConfig(**ENCODER, embedding_size=48, conv_kernel_size=5))
    return on_text(net, warm_linear(adamw(1e-3)), masked_language_model)


@healthy("transformers", "XLNet for classes, AdamW with linear decay")
def xlnet() -> Built:
    from transformers import XLNetConfig, XLNetForSequenceClassification

    sizes = {
        "vocab_size": VOCABULARY,
        "d_model": 48,
        "n_layer": 2,
        "n_head": 4,
        "d_inner": 96,
        "num_labels": 2,
        "summary_type": "mean",
    }
    net = XLNetForSequenceClassification(XLNetConfig(**sizes, pad_token_id=PAD, bos_token_id=START, eos_token_id=END))
    return Built(Recipe(net, classifier, warm_linear(adamw(3e-3))), lines(48, 8), CLIPPED, WELL)


@healthy("transformers", "sentences that lie close to themselves under another dropout (SimCSE): MPNet, in-batch negatives")
def mpnet_sentences() -> Built:
    def embedded(net: Any, ids: Any) -> Any:
        return F.normalize(net.mpnet(input_ids=ids).last_hidden_state.mean(1), dim=1)

    def loss(net: Any, batch: Any) -> Any:
        scores = 20 * embedded(net, batch[0]) @ embedded(net, batch[0]).T
        return F.cross_entropy(scores, torch.arange(len(scores)))

    net = mpnet_net()
    net.lm_head.requires_grad_(False)
    return Built(Recipe(net, loss, warm_linear(adamw(1e-3))), characters(32, 16), SHORT, WELL)


def replaced(ids: Tensor, share: float = 0.15) -> tuple[Tensor, Tensor]:
    """Inputs of which some are other tokens, and which ones: what ELECTRA's discriminator is to find."""
    others = ids.flatten()[torch.randperm(ids.numel())].view_as(ids)
    inputs = torch.where(torch.rand(ids.shape) < share, others, ids)
    return inputs, (inputs != ids).long()


@healthy(
    "transformers",
    "DeBERTa of the first version, masked tokens: what and where in three parts, by gradient of norm 1",
    learned_from=False,
)
def deberta_first() -> Built:
    from transformers import DebertaConfig, DebertaForMaskedLM

    kind = {"relative_attention": True, "pos_att_type": ["c2p", "p2c"], "type_vocab_size": 0, "position_biased_input": False}
    net = DebertaForMaskedLM(DebertaConfig(**{**ENCODER, **kind}))
    return Built(Recipe(net, masked_language_model, warm_linear(adamw(1e-3, eps=1e-6))), characters(48, 8), CLIPPED, WELL)


@healthy(
    "transformers",
    "MobileBERT, masked tokens: narrow bottlenecks in each layer, gains and biases in the place of norms",
    learned_from=False,
)
def mobilebert() -> Built:
    from transformers import MobileBertConfig, MobileBertForMaskedLM

    narrow = {"embedding_size": 32, "intra_bottleneck_size": 24, "num_feedforward_networks": 2}
    net = MobileBertForMaskedLM(MobileBertConfig(**{**ENCODER, "num_attention_heads": 4, **narrow}))
    return Built(Recipe(net, masked_language_model, warm_linear(adamw(1e-3))), characters(48, 8), CLIPPED, WELL)
