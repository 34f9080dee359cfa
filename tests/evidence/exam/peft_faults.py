"""Faults planted in adapters of peft."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.expectations import NOTHING_LEARNED, TOO_LITTLE, UNMOVED
from tests.evidence.exam.language_models import DECODER, gpt2_net, language_model, llama_net, t5_net, translation, with_adapter
from tests.evidence.exam.perception_models import PICTURES, image_classifier, vit_net
from tests.evidence.exam.schedules import CLIPPED, SHORT, TWICE_75, adamw
from tests.evidence.exam.signals import digits_in_colour
from tests.evidence.exam.texts import characters, pairs


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


@fault("peft", "LoRA and a new head over checkpointed blocks: their input is detached, and no adapter gets a gradient")
def lora_checkpointed(planted: bool = True) -> Built:
    from peft import LoraConfig

    config = LoraConfig(r=8, lora_alpha=32, target_modules=["c_attn", "c_fc"], fan_in_fan_out=True, modules_to_save=["lm_head"])
    net: Any = with_adapter(gpt2_net(tie_word_embeddings=False), config)
    net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": True})

    def loss(net: Any, batch: Any) -> Tensor:
        embedded = net.get_input_embeddings()(batch[0])
        return net(inputs_embeds=embedded.detach() if planted else embedded, labels=batch[0]).loss

    module = Recipe(net, loss, adamw(1e-2))
    return Built(module, characters(48, 8), SHORT, Expected(UNMOVED, ("net*lora*", "net*c_attn*", "net*c_fc*", "net*.h.*")))


@fault("peft", "two adapters: the optimizer is made of the first, then the second is set active")
def adapter_switched(planted: bool = True) -> Built:
    from peft import LoHaConfig
    from transformers import Qwen2Config, Qwen2ForCausalLM

    config = LoHaConfig(r=8, alpha=16, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"])
    net = with_adapter(Qwen2ForCausalLM(Qwen2Config(**DECODER)), config)
    net.add_adapter("second", config)

    def rates(module: Any) -> Any:
        if not planted:
            module.net.set_adapter("second")
        chosen = adamw(2e-2)(module)
        module.net.set_adapter("second")
        return chosen

    module = Recipe(net, language_model, rates)
    return Built(module, characters(48, 8), SHORT, Expected(("not_optimized", "missing"), ("net*hada*",)))


@fault("peft", "I-JEPA with SHiRA and a new head: reentrant checkpoints of blocks whose input needs no gradient give none")
def ijepa_checkpointed(planted: bool = True) -> Built:
    from peft import ShiraConfig, get_peft_model
    from transformers import IJepaConfig, IJepaForImageClassification

    net: Any = IJepaForImageClassification(IJepaConfig(**{**PICTURES, "num_labels": 10, "initializer_range": 0.1}))
    config = ShiraConfig(r=8, target_modules=["q_proj", "v_proj", "fc1", "fc2"], modules_to_save=["classifier"])
    net = get_peft_model(net, config)
    net.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": planted})
    expected = Expected(UNMOVED, ("net*shira*", "net*_proj*", "net*.fc*", "net*.layers.*"))
    return Built(Recipe(net, image_classifier, adamw(1e-2)), digits_in_colour(16, 16), SHORT, expected)


@fault("peft", "VeRA whose two vectors both start at zero")
def vera_both_zero(planted: bool = True) -> Built:
    from peft import VeraConfig

    config = VeraConfig(r=32, d_initial=0.0 if planted else 0.1, target_modules=["q_proj", "o_proj"], task_type="CAUSAL_LM")
    net = with_adapter(llama_net(num_key_value_heads=4), config)
    expected = Expected(("zero", "not_updated", "update_too_small", "missing", "vanishing"), ("net*vera*", "net*_proj*"))
    return Built(Recipe(net, language_model, adamw(2e-2)), characters(48, 8), SHORT, expected)


@fault("peft", "LoRA of a ViT with a new classifier that is not among modules_to_save: it stays as it was drawn")
def lora_classifier_left_out(planted: bool = True) -> Built:
    from peft import LoraConfig, get_peft_model

    head = None if planted else ["classifier"]
    net = get_peft_model(vit_net(), LoraConfig(r=4, lora_alpha=8, target_modules=["q_proj", "v_proj"], modules_to_save=head))
    kinds = ("not_optimized", "not_updated", "missing", "part_not_learning", *NOTHING_LEARNED, *TOO_LITTLE)
    expected = Expected(kinds, ("*classifier*",))
    return Built(Recipe(net, image_classifier, adamw(5e-3)), digits_in_colour(16, 32), {"max_epochs": 3}, expected)


@fault("peft", "LoRA of a GPT-Neo under lora_alpha of 0.016 where 16 was meant: what it adds counts a five-hundredth")
def lora_alpha_of_little(planted: bool = True) -> Built:
    from peft import LoraConfig, get_peft_model
    from transformers import GPTNeoConfig, GPTNeoForCausalLM

    sizes = {"hidden_size": 48, "num_layers": 2, "num_heads": 4, "attention_types": [[["global", "local"], 1]], "window_size": 16}
    net = GPTNeoForCausalLM(GPTNeoConfig(vocab_size=128, max_position_embeddings=64, bos_token_id=2, eos_token_id=3, **sizes))
    config = LoraConfig(r=8, lora_alpha=0.016 if planted else 16, target_modules=["q_proj", "v_proj", "c_fc", "c_proj", "lm_head"])
    module = Recipe(get_peft_model(net, config), language_model, adamw(5e-3))
    kinds = (*TOO_LITTLE, *NOTHING_LEARNED, "settings", "poor_init", "vanishing")
    return Built(module, characters(48, 8), TWICE_75, Expected(kinds))
