"""Faults inside models of transformers: masks, attention, positions, first weights, settings of layers."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.expectations import FLAT, UNMOVED
from tests.evidence.exam.language_models import (
    DECODER,
    ENCODER,
    bart_net,
    bert_net,
    classifier,
    distilbert_net,
    gpt2_net,
    llama_net,
    masked_language_model,
    mbart_net,
    mpnet_net,
    roberta_net,
    text,
    translation,
)
from tests.evidence.exam.perception_models import beit_net, image_classifier, segformer_net, vit_net
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import SHORT, TWICE_40, adamw, warm_linear
from tests.evidence.exam.signals import digits_in_colour
from tests.evidence.exam.texts import characters, lines, pairs


@fault(
    "transformers",
    "GPT-2: a head of its own that was to be tied, and is never used",
    missed="an info: a part that was put onto a library's model is taken for a branch of that model",
)
def gpt2_branch_unused(planted: bool = True) -> Built:
    net = gpt2_net()
    net.scorer = nn.Sequential(nn.Linear(48, 48), nn.GELU(), nn.Linear(48, 1))

    def loss(net: Any, batch: Any) -> Any:
        out = net(input_ids=batch[0], labels=batch[0], output_hidden_states=True)
        return out.loss if planted else out.loss + 0.1 * (net.scorer(out.hidden_states[-1].mean(1)) ** 2).mean()

    return Built(Recipe(net, loss, adamw()), characters(48, 8), SHORT, Expected(("missing", "silent"), ("net.scorer*",)))


def attention_along(dim: int) -> Callable[..., Any]:
    """Attention as transformers calls it, with a softmax along one dimension of ``(batch, heads, queries, keys)``."""

    def attend(module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None, **options: Any) -> Any:
        scores = query @ key.transpose(2, 3) * query.shape[-1] ** -0.5
        hidden = torch.ones(scores.shape[-2:], dtype=torch.bool).triu(1)
        shares = F.softmax(scores.masked_fill(hidden, torch.finfo(scores.dtype).min), dim=dim)
        return (shares @ value).transpose(1, 2).contiguous(), shares

    return attend


@fault("transformers", "GPT-2: attention's softmax along the queries")
def gpt2_softmax_along_queries(planted: bool = True) -> Built:
    from transformers import AttentionInterface

    AttentionInterface.register("along_queries", attention_along(-2))
    AttentionInterface.register("along_keys", attention_along(-1))
    net = gpt2_net(attn_implementation="along_queries" if planted else "along_keys")
    return text(net, Expected(("softmax_dim",), ("net.transformer*",)))


@fault(
    "transformers",
    "Llama: queries and keys that start 30 times too large, under SDPA",
)
def llama_queries_too_large(planted: bool = True) -> Built:
    net = llama_net(num_hidden_layers=3)
    if planted:
        with torch.no_grad():
            for block in net.model.layers:
                block.self_attn.q_proj.weight.mul_(30)
                block.self_attn.k_proj.weight.mul_(30)
    kinds = ("attention_collapse", "attention_logits", "poor_init")
    return text(net, Expected(kinds, ("net.model.layers.*.self_attn*",)))


@fault("transformers", "ViT: one block's queries and keys start 60 times too large")
def vit_queries_too_large(planted: bool = True) -> Built:
    net = vit_net(num_hidden_layers=3)
    if planted:
        with torch.no_grad():
            for name, weight in net.named_parameters():
                if ".1." in name and name.endswith(("query.weight", "key.weight", "q_proj.weight", "k_proj.weight")):
                    weight.mul_(60)
    expected = Expected(("attention_collapse", "attention_logits", "poor_init"), ("net.vit.*.1.*",))
    return Built(Recipe(net, image_classifier, adamw()), digits_in_colour(16, 16), SHORT, expected)


@fault("transformers", "RoBERTa: an inverted attention mask, only padding is seen")
def roberta_mask_inverted(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        ids, mask, labels = batch
        return classifier(net, [ids, 1 - mask if planted else mask, labels])

    return Built(Recipe(roberta_net(), loss, adamw(5e-4)), lines(24, 8), SHORT, Expected(("masked_rows",), ("net.roberta*",)))


@fault(
    "transformers", "BERT: padding that is not masked", "lines of other lengths: what is seen of padding is a matter of the task"
)
def distilbert_padding_seen(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        ids, mask, labels = batch
        return classifier(net, [ids, torch.ones_like(mask) if planted else mask, labels])

    return Built(Recipe(distilbert_net(), loss, adamw(5e-4)), lines(48, 8), SHORT, Expected(("settings",)))


@fault("transformers", "Llama without a causal mask", "it sees what it is to predict: only a loss that is too good says so")
def llama_not_causal(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        seen = torch.ones(len(batch[0]), 1, *[batch[0].shape[1]] * 2, dtype=torch.bool)
        mask = torch.zeros(seen.shape) if planted else torch.zeros(seen.shape).masked_fill(~seen.tril(), -1e9)
        return net(input_ids=batch[0], attention_mask=mask, labels=batch[0]).loss

    return text(llama_net(), Expected(("settings",)), loss)


@fault("transformers", "GPT-2 whose positions are all 0", "a model without positions is a valid one")
def gpt2_positions_zero(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        positions = torch.zeros_like(batch[0]) if planted else torch.arange(batch[0].shape[1]).expand_as(batch[0])
        return net(input_ids=batch[0], position_ids=positions, labels=batch[0]).loss

    return text(gpt2_net(), Expected(("constant", "zero"), ("net.transformer.wpe*",)), loss)


@fault("transformers", "GPT-2: layer norms with an eps of 1e5")
def gpt2_layer_norm_eps(planted: bool = True) -> Built:
    net = gpt2_net(layer_norm_epsilon=1e5 if planted else 1e-5)
    return text(net, Expected(("settings",), ("net.transformer.*ln*",)))


@fault("transformers", "Llama: RMSNorm with an eps of 1e5")
def llama_rms_norm_eps(planted: bool = True) -> Built:
    return text(llama_net(rms_norm_eps=1e5 if planted else 1e-5), Expected(("settings",), ("net.model.*norm*",)))


@fault("transformers", "BERT: dropout of 0.99, the share that was to be kept")
def bert_dropout(planted: bool = True) -> Built:
    net = bert_net(hidden_dropout_prob=0.99 if planted else 0.01)
    return text(net, Expected(("settings",), ("net.bert.*dropout*",)), masked_language_model)


@fault("transformers", "BART whose second decoder block starts with weights 100 times too large")
def bart_one_block_too_large(planted: bool = True) -> Built:
    net = bart_net(decoder_layers=3)
    if planted:
        with torch.no_grad():
            net.model.decoder.layers[1].fc2.weight.mul_(100)
    expected = Expected(("poor_init", "residual_growth", "activation_outliers"), ("net.model.decoder.layers.1*",))
    return Built(Recipe(net, translation, adamw(5e-4)), pairs(24, 8), SHORT, expected)


@fault("transformers", "SegFormer: the softmax of its pixels is taken along the samples")
def segformer_softmax_of_samples(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        logits = net(pixel_values=batch[0]).logits
        labels = F.max_pool2d((batch[0][:, :1] > 0).float(), 32 // logits.shape[-1])[:, 0].long()
        return F.nll_loss(logits.log_softmax(0 if planted else 1), labels)

    return Built(Recipe(segformer_net(), loss, adamw()), digits_in_colour(32, 8), SHORT, Expected(("softmax_dim", "output_range")))


@fault("transformers", "Phi over packed texts: a mask of one's own that hides the diagonal too, the first token sees nothing")
def phi_packed_mask(planted: bool = True) -> Built:
    from transformers import PhiConfig, PhiForCausalLM

    net = PhiForCausalLM(PhiConfig(**{**DECODER, "num_key_value_heads": 4, "attn_implementation": "eager"}))
    seen = torch.block_diag(*[torch.ones(16, 16)] * 3).bool() & torch.ones(48, 48).tril(-1 if planted else 0).bool()
    mask = torch.zeros(48, 48).masked_fill(~seen, -math.inf)

    def loss(net: Any, batch: Any) -> Tensor:
        return net(input_ids=batch[0], attention_mask=mask.expand(len(batch[0]), 1, -1, -1), labels=batch[0]).loss

    expected = Expected(("masked_rows", "nonfinite", "loss_nonfinite"), ("net*", "loss*"))
    return Built(Recipe(net, loss, adamw(3e-3)), characters(48, 8), SHORT, expected)


@fault("transformers", "VisualBERT, asked what a picture shows: the mask of the picture's pieces was made by zeros_like")
def visual_bert_blind(planted: bool = True) -> Built:
    from transformers import VisualBertConfig, VisualBertModel

    body = VisualBertModel(VisualBertConfig(**ENCODER, visual_embedding_dim=16, initializer_range=0.1))
    net = nn.ModuleDict({"body": body, "head": nn.Linear(48, 10)})
    words = torch.tensor([[ord(character) for character in "what digit?"]])

    def loss(net: Any, batch: Any) -> Tensor:
        pieces = F.unfold(batch[0], 4, stride=4).transpose(1, 2)
        mask = torch.full(pieces.shape[:2], 0 if planted else 1)
        ids = words.expand(len(pieces), -1)
        read = net["body"](ids, torch.ones_like(ids), visual_embeds=pieces, visual_attention_mask=mask)
        return F.cross_entropy(net["head"](read.pooler_output), batch[1])

    expected = Expected((*FLAT, *UNMOVED), ("net.body.embeddings.visual*", "net.body*", "net.head*"))
    return Built(Recipe(net, loss, adamw(2e-3)), in_batches(32, *digits(16)), TWICE_40, expected)


@fault("transformers", "MPNet whose weights start with a deviation of 2 instead of 0.02")
def mpnet_wide_start(planted: bool = True) -> Built:
    net = mpnet_net(initializer_range=2.0 if planted else 0.02)
    kinds = ("poor_init", "attention_logits", "attention_collapse", "exploding", "activation_outliers", "residual_growth")
    module = Recipe(net, masked_language_model, adamw(2e-3))
    return Built(module, characters(48, 8), SHORT, Expected((*kinds, "saturated", "update_too_small")))


@fault("transformers", "RemBERT for classes of lines: the tokenizer's mask is not passed on, and padding is read as text")
def rembert_reads_padding(planted: bool = True) -> Built:
    from transformers import RemBertConfig, RemBertForSequenceClassification

    def loss(net: Any, batch: Any) -> Tensor:
        return net(input_ids=batch[0], labels=batch[2]).loss if planted else classifier(net, batch)

    sizes = {"input_embedding_size": 24, "output_embedding_size": 32, "num_labels": 2, "classifier_dropout_prob": 0.1}
    net = RemBertForSequenceClassification(RemBertConfig(**ENCODER, **sizes, initializer_range=0.1))
    return Built(Recipe(net, loss, warm_linear(adamw(2e-3), 80, 8)), lines(40, 16), TWICE_40, Expected(("settings",)))


@fault("transformers", "BEiT whose layer scale is 0 and frozen: its blocks do nothing")
def beit_layer_scale(planted: bool = True) -> Built:
    net = beit_net(layer_scale_init_value=0.1)
    for name, parameter in net.named_parameters() if planted else ():
        if "lambda_" in name:
            nn.init.zeros_(parameter)
            parameter.requires_grad_(False)
    expected = Expected(("zero", "vanishing", "not_updated", "missing", "update_too_small"), ("net.beit.layers*",))
    return Built(
        Recipe(net, image_classifier, adamw(4e-3)), digits_in_colour(16, 16), {**SHORT, "limit_train_batches": 48}, expected
    )


@fault("transformers", "mBART whose decoder does not see the encoder: its attention's output is multiplied by 0")
def mbart_cross_attention_zero(planted: bool = True) -> Built:
    net = mbart_net()
    for layer in net.model.decoder.layers if planted else ():
        layer.encoder_attn.out_proj.register_forward_hook(lambda module, inputs, output: output * 0)
    kinds = ("zero", "missing", "constant", "vanishing", "update_too_small")
    expected = Expected(kinds, ("net.model.encoder*", "net.model.decoder*encoder_attn*"))
    return Built(Recipe(net, translation, adamw(2e-3)), pairs(24, 8), {**SHORT, "max_epochs": 3}, expected)
