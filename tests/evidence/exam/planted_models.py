"""Faults in transformers' models and their parts: attention, masks, layers, what is frozen and what no optimizer holds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.healthy_encoders import distillation
from tests.evidence.exam.healthy_signals import spoken, transcribed
from tests.evidence.exam.language_models import (
    SOUND,
    bart_net,
    bert_net,
    classifier,
    distilbert_net,
    gpt2_net,
    image_classifier,
    language_model,
    llama_net,
    masked_language_model,
    roberta_net,
    t5_net,
    translation,
    vit_net,
    wav2vec2_net,
    whisper_net,
)
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, warm_linear
from tests.evidence.exam.signals import digits, melodies, spectrograms
from tests.evidence.exam.texts import characters, lines, pairs

Loss = Callable[[Any, Any], Tensor]


def text(net: Any, expected: Expected, loss: Loss = language_model, rate: float = 1e-3) -> Built:
    """A training on stretches of text."""
    return Built(Recipe(net, loss, adamw(rate)), characters(48, 8), SHORT, expected)


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
    return Built(Recipe(net, image_classifier, adamw()), digits(16, 16), SHORT, expected)


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


@fault("transformers", "DistilBERT: the head is frozen instead of the body")
def distilbert_head_frozen(planted: bool = True) -> Built:
    net = distilbert_net()
    frozen = (net.classifier, net.pre_classifier) if planted else (net.distilbert,)
    for part in frozen:
        part.requires_grad_(False)
    expected = Expected(("settings", "not_optimized"), ("net.classifier*", "net.pre_classifier*"))
    return Built(Recipe(net, classifier, adamw(5e-4)), lines(48, 8), SHORT, expected)


@fault("transformers", "distillation the wrong way round: the teacher trains, the student stands still")
def distilled_the_wrong_way(planted: bool = True) -> Built:
    teacher, student = bert_net(), bert_net(num_hidden_layers=1)
    one, other = (student, teacher) if planted else (teacher, student)
    teacher.eval()
    net = nn.ModuleDict({"teacher": one, "student": other})
    if planted:
        student.train()
    else:
        teacher.requires_grad_(False)
    expected = Expected(("missing", "eval_mode"), ("net.teacher*", "net.student*"))
    return text(net, expected, distillation)


@fault("transformers", "BERT's blocks in a Python list: neither moved nor trained")
def bert_blocks_in_a_list(planted: bool = True) -> Built:
    net = bert_net()
    if planted:
        blocks = list(net.bert.encoder.layer)
        del net.bert.encoder.layer
        net.bert.encoder.layer = blocks
    return text(net, Expected(("unregistered",)), masked_language_model)


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


@fault(
    "transformers",
    "Whisper that stays in eval mode, as from_pretrained returns it",
    missed="its dropout is called as a function, with the module's mode: no layer of it is in eval mode",
)
def whisper_in_eval_mode(planted: bool = True) -> Built:
    net = whisper_net(dropout=0.1)
    net.train(not planted)
    expected = Expected(("eval_mode",), ("net*",))
    return Built(Recipe(net, transcribed, warm_linear(adamw())), spectrograms(8), CLIPPED, expected)


@fault("transformers", "T5's decoder does not train its encoder: its output is detached")
def t5_encoder_detached(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        states = net.get_encoder()(input_ids=batch[0])
        if planted:
            states.last_hidden_state = states.last_hidden_state.detach()
        return net(encoder_outputs=states, labels=batch[1]).loss

    expected = Expected(("missing",), ("net.encoder*",))
    return Built(Recipe(t5_net(), loss, adamw()), pairs(24, 8), SHORT, expected)


@fault("transformers", "wav2vec 2.0 whose optimizer does not hold the head")
def wav2vec2_head_forgotten(planted: bool = True) -> Built:
    def rates(module: Any) -> Any:
        part = module.net.wav2vec2 if planted else module.net
        return torch.optim.AdamW(part.parameters(), lr=1e-3)

    expected = Expected(("not_optimized",), ("net.lm_head*",))
    return Built(Recipe(wav2vec2_net(), spoken, rates), melodies(8), CLIPPED, expected)


@fault("transformers", "HuBERT whose blocks are one block twice")
def hubert_one_block(planted: bool = True) -> Built:
    from transformers import HubertConfig, HubertForCTC

    net = HubertForCTC(HubertConfig(**SOUND, vocab_size=12, ctc_loss_reduction="mean"))
    blocks = net.hubert.encoder.layers
    if planted:
        net.hubert.encoder.layers = nn.ModuleList([blocks[0]] * len(blocks))
    return Built(Recipe(net, spoken, adamw()), melodies(8), CLIPPED, Expected(("shared",), ("net.hubert.encoder*",)))


@fault("transformers", "ViT: a softmax before the cross entropy")
def vit_double_softmax(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        logits = net(pixel_values=batch[0]).logits
        return F.cross_entropy(logits.softmax(-1) if planted else logits, batch[1])

    return Built(Recipe(vit_net(), loss, adamw()), digits(16, 16), SHORT, Expected(("double_softmax", "output_range")))


@fault("transformers", "BART whose second decoder block starts with weights 100 times too large")
def bart_one_block_too_large(planted: bool = True) -> Built:
    net = bart_net(decoder_layers=3)
    if planted:
        with torch.no_grad():
            net.model.decoder.layers[1].fc2.weight.mul_(100)
    expected = Expected(("poor_init", "residual_growth", "activation_outliers"), ("net.model.decoder.layers.1*",))
    return Built(Recipe(net, translation, adamw(5e-4)), pairs(24, 8), SHORT, expected)
