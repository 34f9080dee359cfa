"""More models of transformers and schedules, at tiny sizes, with random weights."""

from __future__ import annotations

from typing import Any

from torch.optim import lr_scheduler

from tests.evidence.exam.language_models import BART, DECODER, ENCODER, WIDE
from tests.evidence.exam.schedules import STEPS, Optimizers, scheduled
from tests.evidence.exam.texts import END, START, VOCABULARY


def trapezoid(optimizers: Optimizers, warm_up: int = 5, decay: int = 12) -> Optimizers:
    """A warm-up, a constant rate, then a line down to 0 (WSD)."""

    def share(step: int) -> float:
        return min((step + 1) / warm_up, 1.0, (STEPS - step) / decay)

    return scheduled(optimizers, lambda optimizer: lr_scheduler.LambdaLR(optimizer, share))


def inverse_root(optimizers: Optimizers, warm_up: int = 8) -> Optimizers:
    """The schedule of "Attention is all you need"."""

    def share(step: int) -> float:
        return min((step + 1) / warm_up, (warm_up / (step + 1)) ** 0.5)

    return scheduled(optimizers, lambda optimizer: lr_scheduler.LambdaLR(optimizer, share))


def gpt_neo_net(**options: Any) -> Any:
    """GPT-Neo, whose layers attend to all and to the last tokens in turn."""
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    sizes = {"hidden_size": 48, "num_layers": 2, "num_heads": 4, "intermediate_size": 96, "max_position_embeddings": 64}
    config = {"vocab_size": VOCABULARY, "attention_types": [[["global", "local"], 1]], "window_size": 16}
    return GPTNeoForCausalLM(GPTNeoConfig(**{**sizes, **config, "bos_token_id": START, "eos_token_id": END, **options}))


def falcon_net(**options: Any) -> Any:
    """Falcon: one key for all heads, attention beside the MLP."""
    from transformers import FalconConfig, FalconForCausalLM

    return FalconForCausalLM(FalconConfig(**{**WIDE, "bos_token_id": START, "eos_token_id": END, **options}))


def cohere_net(**options: Any) -> Any:
    """Cohere: blocks in parallel, norms without a bias."""
    from transformers import CohereConfig, CohereForCausalLM

    return CohereForCausalLM(CohereConfig(**{**DECODER, "logit_scale": 0.25, **options}))


def olmo2_net(**options: Any) -> Any:
    """OLMo 2: norms after each branch, and of queries and keys."""
    from transformers import Olmo2Config, Olmo2ForCausalLM

    return Olmo2ForCausalLM(Olmo2Config(**{**DECODER, **options}))


def qwen2_moe_net(**options: Any) -> Any:
    """Qwen2 with experts, one of which is for all tokens."""
    from transformers import Qwen2MoeConfig, Qwen2MoeForCausalLM

    experts = {"num_experts": 4, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "shared_expert_intermediate_size": 48}
    config = {**DECODER, **experts, "output_router_logits": True, "router_aux_loss_coef": 0.01}
    return Qwen2MoeForCausalLM(Qwen2MoeConfig(**{**config, **options}))


def mpnet_net(**options: Any) -> Any:
    """MPNet, for masked tokens."""
    from transformers import MPNetConfig, MPNetForMaskedLM

    return MPNetForMaskedLM(MPNetConfig(**{**ENCODER, **options}))


def mbart_net(**options: Any) -> Any:
    """mBART: norms before each branch."""
    from transformers import MBartConfig, MBartForConditionalGeneration

    return MBartForConditionalGeneration(MBartConfig(**{**BART, **options}))
