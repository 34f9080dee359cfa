"""Healthy trainings of transformers' encoders of text, and of its models from sequence to sequence."""

from __future__ import annotations

from typing import Any

import torch
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.language_models import (
    BART,
    ENCODER,
    bart_net,
    bert_net,
    classifier,
    distilbert_net,
    masked_language_model,
    roberta_net,
    t5_net,
    translation,
)
from tests.evidence.exam.schedules import CLIPPED, SHORT, adafactor, adamw, layer_wise, warm_linear
from tests.evidence.exam.texts import END, PAD, VOCABULARY, characters, lines, pairs, replaced

WELL = Expected()


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
    net.distilbert.requires_grad_(False)
    return Built(Recipe(net, classifier, adamw(1e-3)), lines(48, 8), SHORT, WELL)


@healthy("transformers", "DistilBERT that learns from a larger BERT, with its temperature")
def distilbert_distilled() -> Built:
    from transformers import DistilBertConfig, DistilBertForMaskedLM

    config = {"vocab_size": VOCABULARY, "dim": 48, "n_layers": 1, "n_heads": 4, "hidden_dim": 96, "max_position_embeddings": 66}
    teacher = bert_net().eval().requires_grad_(False)
    net = torch.nn.ModuleDict({"teacher": teacher, "student": DistilBertForMaskedLM(DistilBertConfig(**config))})
    return Built(Recipe(net, distillation, adamw(1e-3)), characters(48, 8), SHORT, WELL)


def distillation(net: Any, batch: Any) -> Any:
    """What the student says of the teacher's soft labels, at temperature 2, and of the tokens."""
    with torch.no_grad():
        soft = (net["teacher"](input_ids=batch[0]).logits / 2).softmax(-1)
    logits = net["student"](input_ids=batch[0]).logits
    hard = F.cross_entropy(logits.flatten(0, 1), batch[0].flatten())
    return 4 * F.kl_div((logits / 2).log_softmax(-1), soft, reduction="batchmean") / logits.shape[1] + hard


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
