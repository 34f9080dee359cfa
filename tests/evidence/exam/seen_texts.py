"""Healthy trainings of language models of transformers: other architectures, other recipes."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import torch
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.language_models import DECODER, ENCODER, classifier, language_model, masked_language_model, translation
from tests.evidence.exam.schedules import CLIPPED, SHORT, Optimizers, adafactor, adamw, decayed_apart, warm_cosine, warm_linear
from tests.evidence.exam.seen_models import (
    cohere_net,
    falcon_net,
    gpt_neo_net,
    inverse_root,
    mbart_net,
    mpnet_net,
    olmo2_net,
    qwen2_moe_net,
    trapezoid,
)
from tests.evidence.exam.texts import END, PAD, START, VOCABULARY, characters, lines, masked, pairs

WELL = Expected()


def on_text(net: Any, optimizers: Optimizers, loss: Callable[..., Any] = language_model, **kwargs: Any) -> Built:
    """Trained on stretches of 48 characters, clipped at 1."""
    return Built(Recipe(net, loss, optimizers), characters(48, 8), {**CLIPPED, **kwargs}, WELL)


def on_pairs(net: Any, optimizers: Optimizers, reverse: bool = False, **kwargs: Any) -> Built:
    """Trained to write a stretch of 24 characters again, or in reverse."""
    return Built(Recipe(net, translation, optimizers), pairs(24, 8, reverse), {**SHORT, **kwargs}, WELL)


@healthy("transformers", "GPT-Neo with global and local layers, a trapezoid of rates")
def gpt_neo() -> Built:
    return on_text(gpt_neo_net(), trapezoid(decayed_apart(2e-3)))


class Orthogonal(Recipe):
    """Muon for the hidden matrices and AdamW for the rest, in manual optimisation."""

    def __init__(self, net: Any, loss: Any) -> None:
        super().__init__(net, loss, self.both)
        self.automatic_optimization = False

    @staticmethod
    def both(module: Any) -> Any:
        hidden = [p for name, p in module.net.named_parameters() if p.ndim == 2 and ".h." in name]
        others = [p for name, p in module.net.named_parameters() if p.ndim != 2 or ".h." not in name]
        muon = torch.optim.Muon(hidden, lr=0.02, momentum=0.95, weight_decay=0.0)
        return [muon, torch.optim.AdamW(others, lr=2e-3, betas=(0.9, 0.95))]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = self.loss_of_batch(self.net, batch)
        for optimizer in self.optimizers():
            optimizer.zero_grad()
        self.manual_backward(loss)
        for optimizer in self.optimizers():
            optimizer.step()
        return {"loss": loss.detach()}


@healthy("transformers", "Falcon by two optimizers: Muon for the hidden matrices, AdamW for the rest")
def falcon_muon() -> Built:
    return Built(Orthogonal(falcon_net(), language_model), characters(48, 8), SHORT, WELL)


@healthy("transformers", "GPT-J: rotary positions, attention beside the MLP, bf16-mixed")
def gptj() -> Built:
    from transformers import GPTJConfig, GPTJForCausalLM

    sizes = {"n_positions": 64, "n_embd": 48, "n_layer": 2, "n_head": 4, "rotary_dim": 8}
    net = GPTJForCausalLM(GPTJConfig(vocab_size=VOCABULARY, **sizes, bos_token_id=START, eos_token_id=END))
    return on_text(net, warm_cosine(adamw(2e-3)), precision="bf16-mixed")


@healthy("transformers", "Cohere with logits times 0.25")
def cohere() -> Built:
    return on_text(cohere_net(), warm_cosine(decayed_apart(3e-3)))


@healthy("transformers", "OLMo 2 with norms after its branches, four batches a step")
def olmo2() -> Built:
    rates = warm_cosine(decayed_apart(5e-3), steps=24, warm_up=3)
    return on_text(olmo2_net(), rates, accumulate_grad_batches=4, limit_train_batches=48)


@healthy("transformers", "Granite with its multipliers, NAdam")
def granite() -> Built:
    from transformers import GraniteConfig, GraniteForCausalLM

    scales = {"embedding_multiplier": 12.0, "residual_multiplier": 0.22, "attention_multiplier": 0.08, "logits_scaling": 8.0}
    net = GraniteForCausalLM(GraniteConfig(**DECODER, **scales))
    return on_text(net, lambda module: torch.optim.NAdam(module.parameters(), lr=3e-3))


@healthy("transformers", "StableLM with a part of each head rotated, gradient checkpointing")
def stablelm() -> Built:
    from transformers import StableLmConfig, StableLmForCausalLM

    net = StableLmForCausalLM(
        StableLmConfig(**DECODER, rope_parameters={"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5})
    )
    net.gradient_checkpointing_enable({"use_reentrant": False})
    return on_text(net, warm_linear(decayed_apart(2e-3)))


@healthy("transformers", "Qwen2 with experts, one for all tokens, and its loss for balance")
def qwen2_moe() -> Built:
    return on_text(qwen2_moe_net(), warm_cosine(decayed_apart(2e-3)))


@healthy("transformers", "Mamba 2")
def mamba2() -> Built:
    from transformers import Mamba2Config, Mamba2ForCausalLM

    sizes = {"hidden_size": 32, "state_size": 8, "num_hidden_layers": 2, "num_heads": 4, "head_dim": 16, "n_groups": 1}
    ends = {"pad_token_id": PAD, "bos_token_id": START, "eos_token_id": END}
    net = Mamba2ForCausalLM(Mamba2Config(vocab_size=VOCABULARY, **sizes, **ends, chunk_size=16))
    return on_text(net, warm_cosine(adamw(3e-3)))


@healthy("transformers", "RWKV")
def rwkv() -> Built:
    from transformers import RwkvConfig, RwkvForCausalLM

    net = RwkvForCausalLM(RwkvConfig(vocab_size=VOCABULARY, hidden_size=48, num_hidden_layers=2, context_length=64))
    return on_text(net, adamw(2e-3), limit_train_batches=16)


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


class Preferred(Recipe):
    """DPO: the text as it is, over the same text with its letters in another order, against a copy that stays."""

    def __init__(self, net: Any) -> None:
        super().__init__(net, lambda *_: None, adamw(5e-4, 0.0))
        self.reference = copy.deepcopy(net).eval().requires_grad_(False)

    def chance(self, net: Any, ids: Any) -> Any:
        logits = net(input_ids=ids).logits[:, :-1].log_softmax(-1)
        return logits.gather(-1, ids[:, 1:, None]).sum((1, 2))

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        good, bad = batch[0], batch[0][:, torch.randperm(batch[0].shape[1])]
        with torch.no_grad():
            before = self.chance(self.reference, good) - self.chance(self.reference, bad)
        return -F.logsigmoid(0.1 * (self.chance(self.net, good) - self.chance(self.net, bad) - before)).mean()


@healthy("transformers", "a GPT-Neo that learns which of two texts is preferred (DPO)")
def gpt_neo_preferred() -> Built:
    return Built(Preferred(gpt_neo_net()), characters(48, 8), SHORT, WELL)


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
