"""Decoders of transformers with experts, states or recurrences, and what else they can be taught."""

from __future__ import annotations

import functools
from typing import Any

import torch
from sklearn.datasets import load_digits
from torch import Tensor
from torch.nn import functional as F

from tests.evidence.exam.agents import swings
from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.language_models import (
    DECODER,
    ENCODER,
    TOKENS,
    Preferred,
    classifier,
    gpt_neo_net,
    language_model,
    mixtral_net,
    on_text,
    trained_on_text,
    written,
)
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.schedules import CLIPPED, SHORT, TWICE_75, adamw, decayed_apart, scheduled, warm_cosine, warm_linear
from tests.evidence.exam.texts import END, PAD, START, VOCABULARY, characters, lines, stretches


@healthy("transformers", "Mixtral with its loss for balance")
def mixtral() -> Built:
    return trained_on_text(mixtral_net(), warm_cosine(decayed_apart(2e-3)), CLIPPED)


@healthy("transformers", "OLMoE: eight small experts, two a token, QK-norm")
def olmoe() -> Built:
    from transformers import OlmoeConfig, OlmoeForCausalLM

    config = {**DECODER, "intermediate_size": 32, "num_experts": 8, "num_experts_per_tok": 2, "output_router_logits": True}
    net = OlmoeForCausalLM(OlmoeConfig(**config, router_aux_loss_coef=0.01))
    return trained_on_text(net, warm_cosine(decayed_apart(2e-3)), CLIPPED)


@healthy("transformers", "Mamba, a state-space model")
def mamba() -> Built:
    from transformers import MambaConfig, MambaForCausalLM

    net = MambaForCausalLM(MambaConfig(vocab_size=VOCABULARY, hidden_size=32, num_hidden_layers=2, state_size=8))
    return Built(Recipe(net, language_model, warm_cosine(decayed_apart(2e-3))), characters(24, 8), CLIPPED, WELL)


@healthy(
    "transformers", "Reformer: reversible blocks, which compute their activations again going backward, local and hashed attention"
)
def reformer() -> Built:
    from transformers import ReformerConfig, ReformerModelWithLMHead

    places = {"axial_pos_shape": (6, 8), "axial_pos_embds_dim": (16, 32), "max_position_embeddings": 48}
    lengths = {"local_attn_chunk_length": 16, "lsh_attn_chunk_length": 16, "num_buckets": 4, "num_hashes": 2}
    sizes = {"hidden_size": 48, "num_attention_heads": 4, "attention_head_size": 12, "feed_forward_size": 96}
    layers = ["local", "lsh", "local"]
    config = ReformerConfig(vocab_size=VOCABULARY, **sizes, **lengths, **places, attn_layers=layers, is_decoder=True, **TOKENS)
    net = ReformerModelWithLMHead(config)
    return Built(Recipe(net, language_model, warm_linear(adamw(2e-3))), characters(48, 8), CLIPPED, WELL)


@healthy("transformers", "RecurrentGemma: gated linear recurrences between local attention, beta2 of 0.95, a warm-up and a cosine")
def recurrent_gemma() -> Built:
    from transformers import RecurrentGemmaConfig, RecurrentGemmaForCausalLM

    sizes = {"hidden_size": 48, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 1, "lru_width": 48}
    config = RecurrentGemmaConfig(vocab_size=VOCABULARY, **sizes, intermediate_size=96, attention_window_size=16, **TOKENS)
    net = RecurrentGemmaForCausalLM(config)
    return Built(Recipe(net, language_model, warm_cosine(decayed_apart(3e-3))), characters(32, 8), CLIPPED, WELL)


@healthy("transformers", "gpt-oss: a sink in each head's softmax, four experts, two batches a step, warm up, stay, decay")
def gpt_oss() -> Built:
    from transformers import GptOssConfig, GptOssForCausalLM, get_wsd_schedule

    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 12}
    experts = {"num_local_experts": 4, "num_experts_per_tok": 2, "output_router_logits": True, "router_aux_loss_coef": 0.01}
    rope = {"rope_type": "default", "rope_theta": 10000.0}
    options: dict[str, Any] = {**sizes, **experts, **TOKENS, "intermediate_size": 64, "sliding_window": 16, "rope_parameters": rope}
    net = GptOssForCausalLM(GptOssConfig(vocab_size=VOCABULARY, max_position_embeddings=64, **options))
    steps = functools.partial(get_wsd_schedule, num_warmup_steps=4, num_decay_steps=8, num_training_steps=30)
    limits = {**CLIPPED, "limit_train_batches": 30, "accumulate_grad_batches": 2}
    return Built(Recipe(net, language_model, scheduled(decayed_apart(2e-3), steps)), characters(48, 8), limits, WELL)


@healthy("transformers", "ImageGPT writes digits pixel by pixel, in seventeen colours, Adam's beta2 of 0.95")
def image_gpt() -> Built:
    from transformers import ImageGPTConfig, ImageGPTForCausalImageModeling

    def loss(net: Any, batch: Any) -> Tensor:
        return net(input_ids=F.pad(batch[0], (1, 0), value=17), labels=F.pad(batch[0], (1, 0), value=17)).loss

    net = ImageGPTForCausalImageModeling(ImageGPTConfig(vocab_size=18, n_positions=65, n_embd=48, n_layer=2, n_head=4))
    pixels = torch.tensor(load_digits().data).long()
    optimizers = warm_cosine(adamw(3e-3, betas=(0.9, 0.95)))
    return Built(Recipe(net, loss, optimizers), in_batches(16, pixels), CLIPPED, WELL)


@healthy(
    "transformers and gymnasium", "decision transformer of Pendulum: only actions are in its loss, as in its paper, clipped at 0.25"
)
def decision_transformer() -> Built:
    from transformers import DecisionTransformerConfig, DecisionTransformerModel

    def loss(net: Any, batch: Any) -> Tensor:
        start = int(torch.randint(40, ()))
        states, actions, goals = (rows[:, start : start + 20] for rows in batch)
        times = torch.arange(start, start + 20).expand(len(states), -1)
        seen = torch.ones_like(times)
        found = net(states, actions, rewards=None, returns_to_go=goals, timesteps=times, attention_mask=seen)
        return F.mse_loss(found.action_preds, actions)

    sizes = {"state_dim": 3, "act_dim": 1, "hidden_size": 48, "n_layer": 2, "n_head": 4, "max_ep_len": 64, **TOKENS}
    net = DecisionTransformerModel(DecisionTransformerConfig(**sizes))
    module = Recipe(net, loss, warm_linear(adamw(1e-3, 1e-4), 80, 8))
    return Built(module, in_batches(16, *swings()), {"max_epochs": 20, "gradient_clip_val": 0.25}, WELL)


@healthy("transformers", "Phi-3 for classes: the last token of a line tells its module")
def phi3_classes() -> Built:
    from transformers import Phi3Config, Phi3ForSequenceClassification

    net = Phi3ForSequenceClassification(Phi3Config(**DECODER, num_labels=2))
    return Built(Recipe(net, classifier, warm_linear(adamw(1e-3))), lines(48, 16), {**CLIPPED, "limit_train_batches": 45}, WELL)


def qwen2_moe_net(**options: Any) -> Any:
    """Qwen2 with experts, one of which is for all tokens."""
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 48}
    config = {**DECODER, **experts, "output_router_logits": True, "router_aux_loss_coef": 0.01}
    return Qwen2MoeForCausalLM(Qwen2MoeConfig(**{**config, **options}))


@healthy(
    "transformers",
    "DeepSeek V3: keys and values from few latent numbers, experts by a sigmoid, beta2 of 0.95, a cosine",
)
def deepseek_v3() -> Built:
    from transformers import DeepseekV3Config, DeepseekV3ForCausalLM

    latent = {"q_lora_rank": 24, "kv_lora_rank": 16, "qk_nope_head_dim": 8, "qk_rope_head_dim": 8, "v_head_dim": 12}
    experts = {"n_routed_experts": 4, "num_experts_per_tok": 2, "n_shared_experts": 1, "n_group": 1, "topk_group": 1}
    sizes = {**ENCODER, "moe_intermediate_size": 32, "first_k_dense_replace": 1, "num_key_value_heads": 4}
    net = DeepseekV3ForCausalLM(DeepseekV3Config(**sizes, **latent, **experts))
    return Built(Recipe(net, language_model, warm_cosine(decayed_apart(2e-3))), characters(48, 8), CLIPPED, WELL)


@healthy("transformers", "DiffLlama: a softmax less another one, each by half of the heads, in two batches a step")
def diffllama() -> Built:
    from transformers import DiffLlamaConfig, DiffLlamaForCausalLM

    net = DiffLlamaForCausalLM(DiffLlamaConfig(**DECODER))
    limits = {**CLIPPED, "limit_train_batches": 40, "accumulate_grad_batches": 2}
    return Built(Recipe(net, language_model, warm_cosine(decayed_apart(3e-3), 40, 4)), characters(48, 8), limits, WELL)


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


@healthy("transformers", "a GPT-Neo that learns which of two texts is preferred (DPO)")
def gpt_neo_preferred() -> Built:
    return Built(Preferred(gpt_neo_net()), characters(48, 8), SHORT, WELL)


@healthy(
    "transformers", "Gemma 3 that prefers text as it stands to shuffled text: likelihood and log odds in one loss (ORPO), a cosine"
)
def gemma3_odds_ratio() -> Built:
    from transformers import Gemma3ForCausalLM, Gemma3TextConfig

    rows = stretches(32)

    def said(net: Any, ids: Tensor) -> Tensor:
        told = net(input_ids=ids).logits[:, :-1].log_softmax(-1)
        return told.gather(-1, ids[:, 1:, None])[..., 0].mean(1)

    def loss(net: Any, batch: Any) -> Tensor:
        good, bad = said(net, batch[0]), said(net, batch[1])
        odds = good - bad - (torch.log1p(-good.exp().clamp_max(0.999)) - torch.log1p(-bad.exp().clamp_max(0.999)))
        return -good.mean() - 0.1 * F.logsigmoid(odds).mean()

    config = Gemma3TextConfig(
        **{**DECODER, "head_dim": 12, "sliding_window": 16, "layer_types": ["sliding_attention", "full_attention"]}
    )
    shuffled = rows[:, torch.randperm(32, generator=torch.Generator().manual_seed(0))]
    module = Recipe(Gemma3ForCausalLM(config), loss, warm_cosine(adamw(3e-3), 150))
    return Built(module, in_batches(8, rows, shuffled), {**TWICE_75, "gradient_clip_val": 1.0}, Expected())


@healthy("transformers", "LFM 2: short gated convolutions, then attention with norms of queries and keys", learned_from=False)
def lfm2() -> Built:
    from transformers import Lfm2Config, Lfm2ForCausalLM

    layers = ["conv", "conv", "full_attention"]
    config = {**DECODER, "num_hidden_layers": 3, "layer_types": layers, "block_auto_adjust_ff_dim": False}
    return written(Lfm2ForCausalLM(Lfm2Config(**config)))
