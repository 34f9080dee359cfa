"""Faults of rates and schedules under which models of transformers train."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.optim import lr_scheduler

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.expectations import NOTHING_LEARNED, RATE, TOO_LOW, TOO_MUCH
from tests.evidence.exam.language_models import (
    DECODER,
    ENCODER,
    ENDS,
    PLAIN_LAYERS,
    bigcode_net,
    classifier,
    gpt2_net,
    language_model,
    llama_net,
    mbart_net,
    olmo2_net,
    roberta_net,
    t5_net,
    translation,
)
from tests.evidence.exam.perception_models import beit_net, bright, image_classifier, segformer_net
from tests.evidence.exam.schedules import CLIPPED, SHORT, STEPS, adamw, decayed_apart, scheduled, warm_linear
from tests.evidence.exam.signals import digits_in_colour
from tests.evidence.exam.texts import VOCABULARY, characters, lines, pairs


@fault("transformers", "RoBERTa: a decay of 0.5 per epoch that is applied at every batch")
def roberta_schedule_per_batch(planted: bool = True) -> Built:
    rates = scheduled(adamw(1e-3), lambda o: lr_scheduler.ExponentialLR(o, 0.5), "step" if planted else "epoch")
    return Built(Recipe(roberta_net(), classifier, rates), lines(48, 8), SHORT, Expected(("lr_zero", "update_too_small")))


@fault("transformers", "GPT-2: a cosine that is over after a tenth of the run")
def gpt2_cosine_is_over(planted: bool = True) -> Built:
    def cosine(optimizer: Any) -> Any:
        steps = STEPS // 10 if planted else STEPS
        return lr_scheduler.LambdaLR(optimizer, lambda step: 0.5 + 0.5 * math.cos(math.pi * min(step / steps, 1.0)))

    expected = Expected(("lr_zero", "update_too_small"))
    return Built(Recipe(gpt2_net(), language_model, scheduled(adamw(), cosine)), characters(48, 8), CLIPPED, expected)


@fault("transformers", "T5: a warm-up of 100 000 steps in a training of 48")
def t5_warm_up_too_long(planted: bool = True) -> Built:
    rates = warm_linear(adamw(1e-3), 200_000 if planted else STEPS, 100_000 if planted else 6)
    return Built(Recipe(t5_net(), translation, rates), pairs(24, 8), SHORT, Expected(("lr_zero", "update_too_small")))


@fault("transformers", "Llama: a rate of 0.05 with AdamW and no warm-up, the usual times 50")
def llama_rate_large(planted: bool = True) -> Built:
    module = Recipe(llama_net(), language_model, adamw(0.05 if planted else 1e-3))
    kinds = ("update_too_large", "weights_growing", "loss_diverging", "loss_spike", "exploding", "attention_logits")
    return Built(module, characters(48, 8), SHORT, Expected((*kinds, "attention_collapse", "residual_growth")))


@fault("transformers", "GPT-BigCode: the function of LambdaLR gives the rate itself, not its share")
def bigcode_rate_twice(planted: bool = True) -> Built:
    rate = 3e-3
    share = (lambda step: rate * min((step + 1) / 5, 1.0)) if planted else (lambda step: min((step + 1) / 5, 1.0))
    rates = scheduled(adamw(rate), lambda optimizer: lr_scheduler.LambdaLR(optimizer, share))
    return Built(Recipe(bigcode_net(), language_model, rates), characters(48, 8), SHORT, Expected(TOO_LOW))


@fault("transformers", "MPT with ALiBi: ReduceLROnPlateau looks at the loss of each batch and has a patience of 0")
def mpt_no_patience(planted: bool = True) -> Built:
    from transformers import MptConfig, MptForCausalLM

    net = MptForCausalLM(MptConfig(d_model=48, n_heads=4, n_layers=2, expansion_ratio=2, max_seq_len=64, vocab_size=VOCABULARY))

    def rates(module: Any) -> Any:
        chosen = torch.optim.AdamW(module.parameters(), 2e-3, betas=(0.9, 0.95))
        schedule = lr_scheduler.ReduceLROnPlateau(chosen, factor=0.1, patience=0 if planted else 100)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "monitor": "loss", "interval": "step"}}

    return Built(MonitorScope(net, language_model, rates), characters(48, 8), SHORT, Expected(TOO_LOW))


@fault("transformers", "GPT-NeoX Japanese: MultiplicativeLR is given the share of each step, and multiplies all of them")
def rates_multiplied(planted: bool = True) -> Built:
    from transformers import GPTNeoXJapaneseConfig, GPTNeoXJapaneseForCausalLM

    sizes = {name: size for name, size in ENCODER.items() if name != "intermediate_size"}
    net = GPTNeoXJapaneseForCausalLM(GPTNeoXJapaneseConfig(**sizes, intermediate_multiple_size=2))
    kind: Any = lr_scheduler.MultiplicativeLR if planted else lr_scheduler.LambdaLR
    rates = scheduled(adamw(3e-3), lambda chosen: kind(chosen, lambda step: 1 - step / (STEPS + 1)))
    return Built(Recipe(net, language_model, rates), characters(48, 8), SHORT, Expected(TOO_LOW))


@fault("transformers", "OLMo 2: a warm-up of 500 steps that is stepped once an epoch")
def olmo2_warm_up_per_epoch(planted: bool = True) -> Built:
    rates = scheduled(
        decayed_apart(5e-3),
        lambda o: lr_scheduler.LambdaLR(o, lambda step: min(step / (500 if planted else 5), 1.0)),
        "epoch" if planted else "step",
    )
    expected = Expected(("lr_zero", "update_too_small", "not_updated"))
    return Built(Recipe(olmo2_net(), language_model, rates), characters(48, 8), CLIPPED, expected)


class MonitorScope(Recipe):
    """Logs its loss, for a schedule that looks at it."""

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        loss = super().training_step(batch, batch_idx)
        self.log("loss", loss)
        return loss


@fault("transformers", "BEiT: ReduceLROnPlateau waits for the loss to rise (mode='max')")
def beit_plateau_mode(planted: bool = True) -> Built:
    def rates(module: Any) -> Any:
        chosen = torch.optim.AdamW(module.parameters(), lr=1e-3)
        schedule = lr_scheduler.ReduceLROnPlateau(
            chosen, mode="max" if planted else "min", factor=0.1, patience=1 if planted else 9
        )
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "monitor": "loss", "interval": "step"}}

    expected = Expected(("lr_zero", "update_too_small", "not_updated"))
    return Built(MonitorScope(beit_net(), image_classifier, rates), digits_in_colour(16, 16), SHORT, expected)


@fault("transformers", "SegFormer: the head's own rate is 5 instead of 5e-3")
def segformer_head_rate(planted: bool = True) -> Built:
    def rates(module: Any) -> Any:
        head = {"params": module.net.decode_head.parameters(), "lr": 5.0 if planted else 5e-3}
        return torch.optim.AdamW([{"params": module.net.segformer.parameters(), "lr": 5e-4}, head], weight_decay=0.01)

    kinds = (*RATE, "loss_spike", "spike", "activation_outliers", "dead", "optimizer_settings")
    expected = Expected(kinds, ("net.decode_head*", "loss*", "optimizer*"))
    return Built(Recipe(segformer_net(), bright, rates), digits_in_colour(32, 8), SHORT, expected)


@fault("transformers", "mBART: Adafactor at a fixed rate of 1, which its own step size was to be")
def mbart_adafactor_rate(planted: bool = True) -> Built:
    def rates(module: Any) -> Any:
        from transformers import Adafactor

        lr = 1.0 if planted else 1e-3
        return Adafactor(module.parameters(), lr=lr, scale_parameter=False, relative_step=False)

    kinds = (*RATE, "loss_spike", "residual_growth", "attention_logits", "attention_collapse", "activation_outliers")
    return Built(Recipe(mbart_net(), translation, rates), pairs(24, 8), SHORT, Expected(kinds))


@fault(
    "transformers",
    "DINOv2 with registers: a rate for each part that grows towards the head, 1e-3 times 30 ** n, not 0.7 ** n from it",
)
def dinov2_rates_that_grow(planted: bool = True) -> Built:
    from transformers import Dinov2WithRegistersConfig, Dinov2WithRegistersForImageClassification

    sizes = {"hidden_size": 48, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 16, "patch_size": 4, "mlp_ratio": 2}
    net = Dinov2WithRegistersForImageClassification(Dinov2WithRegistersConfig(**sizes, num_labels=10))

    def optimizers(module: Any) -> Any:
        body = module.net.dinov2_with_registers
        parts = (body.embeddings, nn.ModuleList([body.encoder, body.layernorm]), module.net.classifier)
        rates = [1e-3 * 30**depth if planted else 2e-3 * 0.7 ** (2 - depth) for depth in range(3)]
        return torch.optim.AdamW([{"params": part.parameters(), "lr": rate} for part, rate in zip(parts, rates, strict=True)])

    falling = scheduled(optimizers, lambda chosen: torch.optim.lr_scheduler.CosineAnnealingLR(chosen, 168))
    kinds = (
        *TOO_MUCH,
        *NOTHING_LEARNED,
        "saturated",
        "representation_collapse",
        "constant",
        "attention_logits",
        "attention_collapse",
    )
    return Built(Recipe(net, image_classifier, falling), digits_in_colour(16, 32), {"max_epochs": 3}, Expected(kinds))


@fault("transformers", "Nemotron with squared rectifiers: Adam at a rate of 0.8", learned_from=False)
def nemotron_rate_too_large(planted: bool = True) -> Built:
    from transformers import NemotronConfig, NemotronForCausalLM

    net = NemotronForCausalLM(NemotronConfig(**DECODER))
    module = Recipe(net, language_model, lambda module: torch.optim.Adam(module.parameters(), 0.8 if planted else 1e-3))
    kinds = ("update_too_large", "weights_growing", "loss_diverging", "loss_spike", "exploding", "residual_growth")
    return Built(module, characters(48, 8), SHORT, Expected(kinds))


@fault("transformers", "LED copies, under a linear decay: its rate is 2e-9 instead of 1e-3", learned_from=False)
def led_rate_of_nothing(planted: bool = True) -> Built:
    from transformers import LEDConfig, LEDForConditionalGeneration

    places = {"max_encoder_position_embeddings": 64, "max_decoder_position_embeddings": 64, "attention_window": 8}
    net = LEDForConditionalGeneration(LEDConfig(vocab_size=VOCABULARY, d_model=48, **PLAIN_LAYERS, **places, **ENDS))
    expected = Expected(("lr_zero", "update_too_small", "not_updated", "updates_lost"))
    return Built(Recipe(net, translation, warm_linear(adamw(2e-9 if planted else 1e-3))), pairs(23, 8), CLIPPED, expected)
