"""Healthy trainings of peft's adapters."""

from __future__ import annotations

from typing import Any

import torch

from tests.evidence.exam.cases import Built, Expected, Recipe, healthy
from tests.evidence.exam.healthy_peft import with_adapter
from tests.evidence.exam.language_models import language_model, llama_net, translation
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, trained, warm_linear
from tests.evidence.exam.seen_models import falcon_net, gpt_neo_net, mbart_net, olmo2_net
from tests.evidence.exam.texts import characters, pairs

WELL = Expected()
TEXT = "CAUSAL_LM"
QUERIES = ["q_proj", "v_proj"]


def adapted(net: Any, config: Any, rate: float, **kwargs: Any) -> Built:
    """A language model with an adapter, AdamW at this rate."""
    return Built(Recipe(with_adapter(net, config), language_model, adamw(rate)), characters(48, 8), {**SHORT, **kwargs}, WELL)


@healthy("peft", "AdaLoRA in OLMo 2, which gives ranks where they count")
def adalora() -> Built:
    from peft import AdaLoraConfig

    config = AdaLoraConfig(
        init_r=6, target_r=3, tinit=4, tfinal=16, deltaT=4, total_step=48, target_modules=QUERIES, task_type=TEXT
    )

    class Pruned(Recipe):
        def on_train_batch_end(self, *_: Any) -> None:
            if self.global_step < 40:
                self.net.base_model.update_and_allocate(self.global_step)

    net = with_adapter(olmo2_net(), config)
    return Built(Pruned(net, language_model, adamw(5e-3)), characters(48, 8), SHORT, WELL)


@healthy("peft", "LoKr in all linear layers of Falcon")
def lokr() -> Built:
    from peft import LoKrConfig

    targets = ["query_key_value", "dense", "dense_h_to_4h", "dense_4h_to_h"]
    return adapted(falcon_net(), LoKrConfig(r=4, alpha=8, target_modules=targets, task_type=TEXT), 5e-3)


@healthy("peft", "VeRA: random matrices that are shared, and vectors that learn")
def vera() -> Built:
    from peft import VeraConfig

    config = VeraConfig(r=32, target_modules=["q_proj", "o_proj"], task_type=TEXT)
    return adapted(llama_net(num_key_value_heads=4), config, 2e-2)


@healthy("peft", "orthogonal fine-tuning of GPT-Neo (OFT)")
def oft() -> Built:
    from peft import OFTConfig

    config = OFTConfig(oft_block_size=12, target_modules=[*QUERIES, "out_proj"], task_type=TEXT)
    return adapted(gpt_neo_net(), config, 2e-2)


@healthy("peft", "BOFT of Llama: butterflies of orthogonal blocks")
def boft() -> Built:
    from peft import BOFTConfig

    return adapted(
        llama_net(), BOFTConfig(boft_block_size=4, target_modules=[*QUERIES, "o_proj", "down_proj"], task_type=TEXT), 3e-2
    )


@healthy("peft", "prefix tuning of mBART")
def prefix() -> Built:
    from peft import PrefixTuningConfig

    config = PrefixTuningConfig(task_type="SEQ_2_SEQ_LM", num_virtual_tokens=6)
    module = Recipe(with_adapter(mbart_net(), config), translation, warm_linear(adamw(1e-1)))
    return Built(module, pairs(24, 8), SHORT, WELL)


@healthy("peft", "rank-stabilised LoRA of rank 16, LoRA+: B learns sixteen times as fast as A")
def lora_plus() -> Built:
    from peft import LoraConfig

    config = LoraConfig(r=16, lora_alpha=16, use_rslora=True, target_modules="all-linear", task_type=TEXT)

    def rates(module: Any) -> Any:
        later = [p for name, p in module.named_parameters() if "lora_B" in name]
        others = [p for name, p in module.named_parameters() if "lora_A" in name]
        return torch.optim.AdamW([{"params": others, "lr": 3e-4}, {"params": later, "lr": 16 * 3e-4}])

    return Built(Recipe(with_adapter(falcon_net(), config), language_model, rates), characters(48, 8), CLIPPED, WELL)


@healthy("peft", "norms alone are tuned, Adagrad")
def norm_tuning() -> Built:
    from peft import LNTuningConfig

    net = with_adapter(gpt_neo_net(), LNTuningConfig(task_type=TEXT, target_modules=["ln_1", "ln_2", "ln_f"]))
    adagrad = lambda module: torch.optim.Adagrad(trained(module), lr=3e-2)  # noqa: E731
    return Built(Recipe(net, language_model, adagrad), characters(48, 8), SHORT, WELL)
