"""Decoders of transformers that write the next character."""

from __future__ import annotations

from typing import Any

import torch
from torch.optim import lr_scheduler

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.language_models import (
    DECODER,
    WIDE,
    cohere_net,
    falcon_net,
    gpt2_net,
    gpt_neo_net,
    language_model,
    llama_net,
    olmo2_net,
    on_text,
    trained_on_text,
    written,
)
from tests.evidence.exam.schedules import (
    CLIPPED,
    SHORT,
    STEPS,
    Optimizers,
    adamw,
    decayed_apart,
    scheduled,
    warm_cosine,
    warm_linear,
)
from tests.evidence.exam.texts import END, PAD, START, VOCABULARY, characters


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


def trapezoid(optimizers: Optimizers, warm_up: int = 5, decay: int = 12) -> Optimizers:
    """A warm-up, a constant rate, then a line down to 0 (WSD)."""

    def share(step: int) -> float:
        return min((step + 1) / warm_up, 1.0, (STEPS - step) / decay)

    return scheduled(optimizers, lambda optimizer: lr_scheduler.LambdaLR(optimizer, share))


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


@healthy(
    "transformers",
    "Nemotron: squared rectifiers, layer norms whose gain is told from 1, a half of each head rotated",
    learned_from=False,
)
def nemotron() -> Built:
    from transformers import NemotronConfig, NemotronForCausalLM

    return written(NemotronForCausalLM(NemotronConfig(**DECODER)))


@healthy(
    "transformers",
    "GLM 4: a norm before and one after each branch, halves of heads rotated, a warm-up and a cosine",
    learned_from=False,
)
def glm4() -> Built:
    from transformers import Glm4Config, Glm4ForCausalLM

    return written(Glm4ForCausalLM(Glm4Config(**DECODER, head_dim=12)))


@healthy(
    "transformers",
    "SmolLM 3: each third layer knows no positions; a rate that warms up, stays, and falls at the end",
    learned_from=False,
)
def smollm3() -> Built:
    from transformers import SmolLM3Config, SmolLM3ForCausalLM, get_wsd_schedule

    net = SmolLM3ForCausalLM(SmolLM3Config(**{**DECODER, "num_hidden_layers": 3}, no_rope_layer_interval=3))
    stays = scheduled(decayed_apart(2e-3), lambda chosen: get_wsd_schedule(chosen, 5, 10, num_training_steps=48))
    return Built(Recipe(net, language_model, stays), characters(48, 8), CLIPPED, WELL)
