"""Healthy trainings of transformers' decoders: language models, with the recipes of pretraining."""

from __future__ import annotations

from typing import Any

import torch

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.language_models import DECODER, WIDE, gpt2_net, language_model, llama_net, mixtral_net
from tests.evidence.exam.schedules import CLIPPED, SHORT, Optimizers, adamw, decayed_apart, warm_cosine, warm_linear
from tests.evidence.exam.texts import VOCABULARY, characters

WELL = Expected()


def trained_on_text(net: Any, optimizers: Optimizers, kwargs: dict[str, Any] | None = None, loss: Any = language_model) -> Built:
    """A language model in training."""
    return Built(Recipe(net, loss, optimizers), characters(48, 8), kwargs or SHORT, WELL)


@healthy("transformers", "GPT-2, AdamW")
def gpt2() -> Built:
    from transformers import GPT2Config, GPT2LMHeadModel

    net = GPT2LMHeadModel(GPT2Config(vocab_size=128, n_positions=64, n_embd=64, n_layer=4, n_head=4))

    def loss(net: Any, batch: Any) -> Any:
        return net(input_ids=batch[0], labels=batch[0]).loss

    module = Recipe(net, loss, lambda m: torch.optim.AdamW(m.parameters(), lr=1e-3, weight_decay=0.1))
    return Built(module, characters(64, 16), {"max_epochs": 2, "limit_train_batches": 60}, Expected())


@healthy("transformers", "GPT-2 by nanoGPT's recipe: warm-up and cosine, matrices decayed, clipped at 1 at every step")
def gpt2_nano() -> Built:
    return trained_on_text(gpt2_net(resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0), warm_cosine(decayed_apart(1e-3)), CLIPPED)


@healthy("transformers", "Llama, warm-up and cosine, clipped at 1")
def llama() -> Built:
    return trained_on_text(llama_net(), warm_cosine(decayed_apart(3e-3)), CLIPPED)


@healthy("transformers", "Qwen2 with tied embeddings, two batches a step")
def qwen2() -> Built:
    from transformers import Qwen2Config, Qwen2ForCausalLM

    net = Qwen2ForCausalLM(Qwen2Config(**DECODER, tie_word_embeddings=True))
    return trained_on_text(net, warm_cosine(decayed_apart(3e-3), steps=24, warm_up=3), {**CLIPPED, "accumulate_grad_batches": 2})


@healthy("transformers", "Qwen3, bf16-mixed")
def qwen3() -> Built:
    from transformers import Qwen3Config, Qwen3ForCausalLM

    net = Qwen3ForCausalLM(Qwen3Config(**DECODER, head_dim=12))
    return trained_on_text(net, warm_cosine(decayed_apart(3e-3)), {**CLIPPED, "precision": "bf16-mixed"})


@healthy("transformers", "Mistral with a sliding window")
def mistral() -> Built:
    from transformers import MistralConfig, MistralForCausalLM

    net = MistralForCausalLM(MistralConfig(**DECODER, sliding_window=16))
    return trained_on_text(net, warm_linear(decayed_apart(2e-3)), CLIPPED)


@healthy("transformers", "Mixtral with its loss for balance")
def mixtral() -> Built:
    return trained_on_text(mixtral_net(), warm_cosine(decayed_apart(2e-3)), CLIPPED)


@healthy("transformers", "OLMoE: eight small experts, two a token, QK-norm")
def olmoe() -> Built:
    from transformers import OlmoeConfig, OlmoeForCausalLM

    config = {**DECODER, "intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2, "output_router_logits": True}
    net = OlmoeForCausalLM(OlmoeConfig(**config, router_aux_loss_coef=0.01))
    return trained_on_text(net, warm_cosine(decayed_apart(2e-3)), CLIPPED)


@healthy("transformers", "Gemma with gradient checkpointing")
def gemma() -> Built:
    from transformers import GemmaConfig, GemmaForCausalLM

    net = GemmaForCausalLM(GemmaConfig(**DECODER, head_dim=12))
    net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
    return trained_on_text(net, warm_cosine(decayed_apart(1e-3)), CLIPPED)


@healthy("transformers", "Gemma 2 with soft caps")
def gemma2() -> Built:
    from transformers import Gemma2Config, Gemma2ForCausalLM

    net = Gemma2ForCausalLM(Gemma2Config(**DECODER, head_dim=12, query_pre_attn_scalar=12, sliding_window=16))
    return trained_on_text(net, warm_cosine(decayed_apart(1e-3)), CLIPPED)


@healthy("transformers", "Bloom: ALiBi, tied embeddings")
def bloom() -> Built:
    from transformers import BloomConfig, BloomForCausalLM

    net = BloomForCausalLM(BloomConfig(vocab_size=VOCABULARY, hidden_size=48, n_layer=2, n_head=4))
    return trained_on_text(net, warm_cosine(decayed_apart(1e-3)), CLIPPED)


@healthy("transformers", "OPT with dropout, linear decay")
def opt() -> Built:
    from transformers import OPTConfig, OPTForCausalLM

    config = {**WIDE, "ffn_dim": 96, "max_position_embeddings": 64, "word_embed_proj_dim": 48}
    return trained_on_text(OPTForCausalLM(OPTConfig(**config)), warm_linear(decayed_apart(1e-3)), CLIPPED)


@healthy("transformers", "Phi: rotary on a part of each head, parallel blocks")
def phi() -> Built:
    from transformers import PhiConfig, PhiForCausalLM

    return trained_on_text(PhiForCausalLM(PhiConfig(**{**DECODER, "num_key_value_heads": 4})), adamw(2e-3, 0.1, betas=(0.9, 0.98)))


@healthy("transformers", "Pythia, constant rate, no clipping")
def pythia() -> Built:
    from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

    config = {**DECODER, "num_key_value_heads": 4, "hidden_dropout": 0.0}
    return trained_on_text(GPTNeoXForCausalLM(GPTNeoXConfig(**config)), adamw(1e-3))


@healthy("transformers", "Mamba, a state-space model")
def mamba() -> Built:
    from transformers import MambaConfig, MambaForCausalLM

    net = MambaForCausalLM(MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=8))
    return Built(Recipe(net, language_model, warm_cosine(decayed_apart(2e-3))), characters(24, 8), CLIPPED, WELL)


@healthy("transformers", "a GPT-2 that is one long epoch of text, AdamW with a tenth of a tenth of decay")
def gpt2_one_epoch() -> Built:
    kwargs = {"max_epochs": 1, "max_steps": 80, "gradient_clip_val": 1.0}
    return trained_on_text(gpt2_net(), warm_cosine(decayed_apart(1e-3), steps=80, warm_up=8), kwargs)


@healthy("transformers", "a Llama whose hidden blocks are as in muP trained with a smaller rate than its embedding")
def llama_two_rates() -> Built:
    def optimizers(module: Any) -> Any:
        embeddings = [p for name, p in module.named_parameters() if "embed_tokens" in name or "lm_head" in name]
        others = [p for name, p in module.named_parameters() if "embed_tokens" not in name and "lm_head" not in name]
        return torch.optim.Adam([{"params": embeddings, "lr": 5e-3}, {"params": others, "lr": 1e-3}], betas=(0.9, 0.95))

    return trained_on_text(llama_net(), optimizers)
