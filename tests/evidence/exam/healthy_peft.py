"""Healthy trainings with peft's adapters."""

from __future__ import annotations

from typing import Any

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.language_models import classifier, gpt2_net, language_model, llama_net, roberta_net, t5_net, translation
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, warm_linear
from tests.evidence.exam.texts import characters, lines, pairs

WELL = Expected()


def with_adapter(net: Any, config: Any) -> Any:
    """A model with an adapter; all else is frozen."""
    from peft import get_peft_model

    return get_peft_model(net, config)


@healthy("peft", "LoRA in a Llama's queries and values, warm-up and linear decay")
def lora_llama() -> Built:
    from peft import LoraConfig

    config = LoraConfig(r=4, lora_alpha=8, lora_dropout=0.05, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    module = Recipe(with_adapter(llama_net(), config), language_model, warm_linear(adamw(2e-3)))
    return Built(module, characters(48, 8), CLIPPED, WELL)


@healthy("peft", "LoRA in all linear layers of GPT-2, bf16-mixed")
def lora_gpt2() -> Built:
    from peft import LoraConfig

    config = LoraConfig(r=4, target_modules=["c_attn", "c_proj", "c_fc"], fan_in_fan_out=True, task_type="CAUSAL_LM")
    module = Recipe(with_adapter(gpt2_net(), config), language_model, adamw(2e-3))
    return Built(module, characters(48, 8), {**SHORT, "precision": "bf16-mixed"}, WELL)


@healthy("peft", "LoRA in RoBERTa, with a head that trains beside it")
def lora_roberta() -> Built:
    from peft import LoraConfig

    config = LoraConfig(r=4, target_modules=["query", "value"], task_type="SEQ_CLS")
    return Built(Recipe(with_adapter(roberta_net(), config), classifier, warm_linear(adamw(1e-3))), lines(48, 8), SHORT, WELL)


@healthy("peft", "DoRA in a Llama")
def dora_llama() -> Built:
    from peft import LoraConfig

    config = LoraConfig(r=4, use_dora=True, target_modules=["q_proj", "v_proj"], task_type="CAUSAL_LM")
    return Built(Recipe(with_adapter(llama_net(), config), language_model, adamw(1e-3)), characters(48, 8), SHORT, WELL)


@healthy("peft", "prompt tuning of GPT-2 at 0.03")
def prompt_tuning() -> Built:
    from peft import PromptTuningConfig

    config = PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=8)
    return Built(Recipe(with_adapter(gpt2_net(), config), language_model, adamw(3e-2)), characters(48, 8), SHORT, WELL)


@healthy("peft", "IA3 in T5")
def ia3_t5() -> Built:
    from peft import IA3Config

    config = IA3Config(task_type="SEQ_2_SEQ_LM", target_modules=["k", "v", "wo"], feedforward_modules=["wo"])
    return Built(Recipe(with_adapter(t5_net(), config), translation, adamw(8e-3)), pairs(24, 8), SHORT, WELL)


@healthy("peft", "IA3 in RoBERTa")
def ia3_roberta() -> Built:
    from peft import IA3Config

    config = IA3Config(task_type="SEQ_CLS", target_modules=["key", "value", "output.dense"], feedforward_modules=["output.dense"])
    return Built(Recipe(with_adapter(roberta_net(), config), classifier, adamw(5e-3)), lines(48, 8), SHORT, WELL)


@healthy("peft", "LoHa in a ViT, with its head")
def loha_vit() -> Built:
    from peft import LoHaConfig

    from tests.evidence.exam.language_models import image_classifier, vit_net
    from tests.evidence.exam.signals import digits

    config = LoHaConfig(r=4, alpha=8, target_modules=["q_proj", "v_proj", "query", "value"], modules_to_save=["classifier"])
    return Built(Recipe(with_adapter(vit_net(), config), image_classifier, adamw(2e-3)), digits(16, 16), SHORT, WELL)
