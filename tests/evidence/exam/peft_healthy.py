"""Adapters of peft in models that have been trained before."""

from __future__ import annotations

import html.entities
import inspect
from typing import Any

import torch

from tests.evidence.exam.cases import Built, Recipe, healthy
from tests.evidence.exam.expectations import WELL
from tests.evidence.exam.language_models import (
    classifier,
    falcon_net,
    gpt2_net,
    gpt_neo_net,
    language_model,
    llama_net,
    mbart_net,
    olmo2_net,
    roberta_net,
    t5_net,
    translation,
    with_adapter,
)
from tests.evidence.exam.perception_models import image_classifier, vit_net
from tests.evidence.exam.pictures import in_batches
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, trained, warm_cosine, warm_linear
from tests.evidence.exam.signals import digits_in_colour
from tests.evidence.exam.small_nets import learn
from tests.evidence.exam.texts import characters, codes_of, lines, pairs, stretches

TEXT = "CAUSAL_LM"
QUERIES = ["q_proj", "v_proj"]


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

    config = LoHaConfig(r=4, alpha=8, target_modules=["q_proj", "v_proj", "query", "value"], modules_to_save=["classifier"])
    return Built(Recipe(with_adapter(vit_net(), config), image_classifier, adamw(2e-3)), digits_in_colour(16, 16), SHORT, WELL)


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


@healthy("peft", "HRA: Householder reflections of a GPT-Neo that has read code and now reads a table of names, linear decay")
def hra() -> Built:
    from peft import HRAConfig

    net = gpt_neo_net()
    learn(net, language_model, characters(48, 8), 80)
    config = HRAConfig(r=8, target_modules=["q_proj", "k_proj", "v_proj", "out_proj", "c_fc"], task_type="CAUSAL_LM")
    module = Recipe(with_adapter(net, config), language_model, warm_linear(adamw(2e-2)))
    codes = codes_of(inspect.getsource(html.entities))
    return Built(module, in_batches(8, codes[: len(codes) // 48 * 48].view(-1, 48)), CLIPPED, WELL)


def reader() -> Any:
    """A Llama that has read code."""
    net = llama_net()
    learn(net, language_model, characters(48, 8), 60)
    return net


def names() -> dict[str, Any]:
    """A table of names, which is not like other code."""
    codes = codes_of(inspect.getsource(html.entities))
    return in_batches(8, codes[: len(codes) // 48 * 48].view(-1, 48))


@healthy("peft", "MiSS: one small matrix for all shards of each layer of a Llama that has read code and goes on with names")
def miss() -> Built:
    from peft import MissConfig

    config = MissConfig(r=8, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM")
    module = Recipe(with_adapter(reader(), config), language_model, warm_linear(adamw(3e-3)))
    return Built(module, names(), CLIPPED, WELL)


@healthy("peft", "PiSSA: adapters begin with the largest singular values of a Llama that has read code, a cosine")
def pissa() -> Built:
    from peft import LoraConfig

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = LoraConfig(r=8, lora_alpha=8, init_lora_weights="pissa", target_modules=targets, task_type="CAUSAL_LM")
    module = Recipe(with_adapter(reader(), config), language_model, warm_cosine(adamw(1e-3, 0.0)))
    return Built(module, names(), CLIPPED, WELL)


@healthy("peft", "new tokens for frequent words: of a trained Llama only their rows in the embedding learn")
def new_tokens() -> Built:
    from peft import TrainableTokensConfig

    net = llama_net(tie_word_embeddings=True)
    next_token = lambda net, batch: net(input_ids=batch[0], labels=batch[0]).loss  # noqa: E731
    rows = stretches(48)
    learn(net, next_token, in_batches(16, rows), 100)
    text = "".join(map(chr, rows.flatten().tolist())).replace("    ", "\x04").replace("self.", "\x05").replace("action", "\x06")
    shorter = torch.tensor(list(map(ord, text)))
    net = with_adapter(net, TrainableTokensConfig(token_indices=[4, 5, 6], target_modules=["embed_tokens"], task_type="CAUSAL_LM"))
    data = in_batches(16, shorter[: len(shorter) // 48 * 48].view(-1, 48))
    return Built(Recipe(net, next_token, adamw(2e-2, 0.0)), data, SHORT, WELL)


@healthy("peft", "RandLoRA: random bases of full rank whose two diagonals learn, in a Llama that has read code", learned_from=False)
def rand_lora() -> Built:
    from peft import RandLoraConfig

    config = RandLoraConfig(r=8, randlora_alpha=160, target_modules=["q_proj", "k_proj", "v_proj", "o_proj"])
    module = Recipe(with_adapter(reader(), config), language_model, warm_linear(adamw(3e-3)))
    return Built(module, names(), CLIPPED, WELL)


@healthy("peft", "RoAd: pairs of outputs are turned and stretched, in all layers of a Llama that has read code", learned_from=False)
def road() -> Built:
    from peft import RoadConfig

    targets = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
    config = RoadConfig(variant="road_1", group_size=8, target_modules=targets, task_type="CAUSAL_LM")
    module = Recipe(with_adapter(reader(), config), language_model, warm_linear(adamw(1e-2)))
    return Built(module, names(), CLIPPED, WELL)
