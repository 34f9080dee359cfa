"""Faults in trainings with peft's adapters."""

from __future__ import annotations

from typing import Any

import torch

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.healthy_peft import with_adapter
from tests.evidence.exam.language_models import classifier, gpt2_net, language_model, llama_net, roberta_net, t5_net, translation
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, warm_linear
from tests.evidence.exam.texts import characters, lines, pairs


def lora(net: Any, **options: Any) -> Any:
    """A model with LoRA in queries and values."""
    from peft import LoraConfig

    return with_adapter(net, LoraConfig(**{"r": 4, "target_modules": ["q_proj", "v_proj"], "task_type": "CAUSAL_LM", **options}))


@fault("peft", "LoRA's A and B both start at zero: neither gets a gradient")
def lora_both_zero(planted: bool = True) -> Built:
    net = lora(llama_net())
    if planted:
        with torch.no_grad():
            for name, weight in net.named_parameters():
                if "lora_A" in name:
                    weight.zero_()
    expected = Expected(("constant", "zero", "not_updated"), ("net*lora*",))
    return Built(Recipe(net, language_model, adamw(2e-3)), characters(48, 8), SHORT, expected)


@fault("peft", "an optimizer that was given the body's parameters, all frozen: no adapter trains")
def lora_not_in_optimizer(planted: bool = True) -> Built:
    net = lora(llama_net())

    def rates(module: Any) -> Any:
        wanted = [p for name, p in module.named_parameters() if ("lora" in name) != planted]
        return torch.optim.AdamW(wanted, lr=2e-3)

    return Built(Recipe(net, language_model, rates), characters(48, 8), SHORT, Expected(("not_optimized",)))


@fault("peft", "LoRA in RoBERTa whose new head was not named in modules_to_save: it stays at random")
def lora_head_frozen(planted: bool = True) -> Built:
    net = lora(roberta_net(), target_modules=["query", "value"], task_type=None if planted else "SEQ_CLS")
    expected = Expected(("settings", "not_optimized", "missing"), ("net*classifier*",))
    return Built(Recipe(net, classifier, warm_linear(adamw(1e-3))), lines(48, 8), SHORT, expected)


@fault("peft", "LoRA with an alpha of 100 000: its part is as large as the body's after a step")
def lora_alpha_huge(planted: bool = True) -> Built:
    net = lora(llama_net(), lora_alpha=100_000 if planted else 8)
    kinds = ("update_too_large", "exploding", "loss_diverging", "loss_spike", "attention_logits", "attention_collapse")
    expected = Expected((*kinds, "residual_growth", "activation_outliers", "spike"))
    return Built(Recipe(net, language_model, adamw(2e-3)), characters(48, 8), CLIPPED, expected)


@fault(
    "peft", "IA3's scales start at zero instead of one", "a step of AdamW later they are not zero, and the loss falls as its twin's"
)
def ia3_starts_at_zero(planted: bool = True) -> Built:
    from peft import IA3Config

    config = IA3Config(task_type="SEQ_2_SEQ_LM", target_modules=["k", "v", "wo"], feedforward_modules=["wo"])
    net = with_adapter(t5_net(), config)
    if planted:
        with torch.no_grad():
            for name, weight in net.named_parameters():
                if "ia3" in name:
                    weight.zero_()
    expected = Expected(("constant", "poor_init", "zero"), ("net*",))
    return Built(Recipe(net, translation, adamw(8e-3)), pairs(24, 8), SHORT, expected)


@fault("peft", "prompt tuning at 1e-9 with a body that is frozen: nothing learns")
def prompt_rate_tiny(planted: bool = True) -> Built:
    from peft import PromptTuningConfig

    net = with_adapter(gpt2_net(), PromptTuningConfig(task_type="CAUSAL_LM", num_virtual_tokens=8))
    module = Recipe(net, language_model, adamw(1e-9 if planted else 3e-2))
    expected = Expected(("update_too_small", "lr_zero", "not_updated"))
    return Built(module, characters(48, 8), SHORT, expected)


@fault("peft", "a LoRA of dropout 0.95, the share that was to be kept")
def lora_dropout(planted: bool = True) -> Built:
    net = lora(llama_net(), lora_dropout=0.95 if planted else 0.05)
    return Built(Recipe(net, language_model, adamw(2e-3)), characters(48, 8), SHORT, Expected(("settings",), ("net*lora*",)))
