"""Faults in trainings of transformers' models: optimizers, schedules, precision, clipping and the step."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.optim import lr_scheduler

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.language_models import (
    bart_net,
    bert_net,
    classifier,
    convnext_net,
    distilbert_net,
    gpt2_net,
    image_classifier,
    language_model,
    llama_net,
    masked_language_model,
    mixtral_net,
    roberta_net,
    swin_net,
    t5_net,
    translation,
    vit_net,
)
from tests.evidence.exam.schedules import CLIPPED, SHORT, STEPS, adamw, scheduled, trained, warm_linear
from tests.evidence.exam.signals import digits
from tests.evidence.exam.texts import characters, lines, pairs


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


@fault("transformers", "BART: a rate of 1e-9, clipped at 1")
def bart_rate_tiny(planted: bool = True) -> Built:
    expected = Expected(("lr_zero", "update_too_small", "not_updated", "updates_lost"))
    return Built(Recipe(bart_net(), translation, adamw(1e-9 if planted else 5e-4)), pairs(24, 8), CLIPPED, expected)


@fault("transformers", "Llama: Adam with an eps of 1")
def llama_adam_eps(planted: bool = True) -> Built:
    module = Recipe(llama_net(), language_model, adamw(1e-3, eps=1.0 if planted else 1e-8))
    return Built(module, characters(48, 8), SHORT, Expected(("optimizer_settings", "second_moment_stale", "update_too_small")))


@fault("transformers", "BERT: Adam's betas in the wrong order")
def bert_betas_swapped(planted: bool = True) -> Built:
    rates = warm_linear(adamw(1e-3, betas=(0.999, 0.9) if planted else (0.9, 0.999)))
    module = Recipe(bert_net(), masked_language_model, rates)
    return Built(module, characters(48, 8), SHORT, Expected(("optimizer_settings",)))


@fault("transformers", "ViT: AdamW with a decay of 1 at a rate of 1e-2")
def vit_decay_one(planted: bool = True) -> Built:
    module = Recipe(vit_net(), image_classifier, adamw(1e-2 if planted else 1e-3, 1.0 if planted else 0.05))
    return Built(module, digits(16, 16), SHORT, Expected(("optimizer_settings", "update_too_large", "settings")))


@fault(
    "transformers",
    "Swin: a decay of 1 through Adam's gradient (L2), which drowns the loss's",
    missed="how much of a gradient is the decay's is not measured; weights that are small are named for their updates",
)
def swin_l2_one(planted: bool = True) -> Built:
    def adam(module: Any) -> Any:
        return torch.optim.Adam(module.parameters(), lr=1e-3, weight_decay=1.0 if planted else 0.0)

    expected = Expected(("optimizer_settings", "settings", "constant", "representation_collapse"))
    return Built(Recipe(swin_net(), image_classifier, adam), digits(16, 16), SHORT, expected)


@fault("transformers", "Llama: bf16-true with updates below rounding")
def llama_bf16_true(planted: bool = True) -> Built:
    module = Recipe(llama_net(), language_model, adamw(1e-6, 0.0))
    kwargs = {**SHORT, "precision": "bf16-true" if planted else "bf16-mixed"}
    return Built(module, characters(48, 8), kwargs, Expected(("updates_lost", "not_updated", "update_too_small")))


@fault("transformers", "ConvNeXt: SGD with a momentum of 0.9999")
def convnext_momentum(planted: bool = True) -> Built:
    def sgd(module: Any) -> Any:
        return torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9999 if planted else 0.9)

    return Built(Recipe(convnext_net(), image_classifier, sgd), digits(32, 8), SHORT, Expected(("optimizer_settings",)))


@fault("transformers", "GPT-2: a rate of 1 with AdamW")
def gpt2_rate_too_large(planted: bool = True) -> Built:
    module = Recipe(gpt2_net(), language_model, adamw(1.0 if planted else 1e-3))
    kinds = ("update_too_large", "weights_growing", "loss_diverging", "loss_spike", "exploding", "residual_growth")
    return Built(module, characters(48, 8), SHORT, Expected(kinds))


@fault("transformers", "Llama: a rate of 0.05 with AdamW and no warm-up, the usual times 50")
def llama_rate_large(planted: bool = True) -> Built:
    module = Recipe(llama_net(), language_model, adamw(0.05 if planted else 1e-3))
    kinds = ("update_too_large", "weights_growing", "loss_diverging", "loss_spike", "exploding", "attention_logits")
    return Built(module, characters(48, 8), SHORT, Expected((*kinds, "attention_collapse", "residual_growth")))


@fault("transformers", "BERT: a loss summed over the tokens, SGD")
def bert_loss_summed(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        return masked_language_model(net, batch) * (batch[0].numel() * 0.15 if planted else 1.0)

    def sgd(module: Any) -> Any:
        return torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

    kinds = ("update_too_large", "exploding", "weights_growing", "loss_diverging", "loss_spike", "loss_nonfinite", "nonfinite")
    return Built(Recipe(bert_net(), loss, sgd), characters(48, 8), SHORT, Expected((*kinds, "attention_logits", "dead")))


@fault("transformers", "Mixtral without a loss for balance, and a router that learns a hundred times faster")
def mixtral_no_balance(planted: bool = True) -> Built:
    def rates(module: Any) -> Any:
        routers = [p for name, p in module.named_parameters() if "gate.weight" in name]
        others = [p for name, p in module.named_parameters() if "gate.weight" not in name]
        return torch.optim.AdamW([{"params": routers, "lr": 0.1 if planted else 1e-3}, {"params": others, "lr": 1e-3}])

    net = mixtral_net(output_router_logits=not planted)
    kinds = ("router_collapse", "dead_experts", "update_too_large")
    return Built(Recipe(net, language_model, rates), characters(48, 8), SHORT, Expected(kinds))


class Manual(Recipe):
    """Manual optimisation, with or without ``zero_grad``, or with gradients clipped too late."""

    def __init__(self, *args: Any, zero_grad: bool) -> None:
        super().__init__(*args)
        self.automatic_optimization = False
        self.zero_grad_before = zero_grad

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        if self.zero_grad_before:
            optimizer.zero_grad()
        loss = self.loss_of_batch(self.net, batch)
        self.manual_backward(loss)
        optimizer.step()
        return loss.detach()


@fault("transformers", "DistilBERT's loop without zero_grad")
def distilbert_not_zeroed(planted: bool = True) -> Built:
    module = Manual(distilbert_net(), classifier, adamw(5e-4), zero_grad=not planted)
    return Built(module, lines(48, 8), SHORT, Expected(("not_zeroed",)))


class Clipping(Recipe):
    """Clips in ``training_step``, before the backward pass: there is nothing to clip."""

    planted = True

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        if self.planted:
            torch.nn.utils.clip_grad_norm_(trained(self), 1.0)
        return super().training_step(batch, batch_idx)


@fault("transformers", "BART: gradients clipped in training_step, before they are there")
def bart_clipped_too_soon(planted: bool = True) -> Built:
    module = Clipping(bart_net(), translation, adamw(5e-4))
    module.planted = planted
    return Built(module, pairs(24, 8), SHORT, Expected(("clip_ineffective",)))


@fault("transformers", "T5 with SGD, clipped at 1e-4")
def t5_clipped_at_nothing(planted: bool = True) -> Built:
    def sgd(module: Any) -> Any:
        return torch.optim.SGD(module.parameters(), lr=0.05)

    kwargs = {**SHORT, "gradient_clip_val": 1e-4 if planted else 100.0}
    return Built(Recipe(t5_net(), translation, sgd), pairs(24, 8), kwargs, Expected(("always_clipped", "update_too_small")))
