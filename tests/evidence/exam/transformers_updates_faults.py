"""Faults of optimizers, clipping, precision and loops under which models of transformers train."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch import nn

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.expectations import BROKEN, TOO_LOW
from tests.evidence.exam.language_models import (
    BART,
    ENCODER,
    ENDS,
    PLAIN_DECODER,
    PLAIN_HEADS,
    PLAIN_LAYERS,
    bart_net,
    bert_net,
    classifier,
    cohere_net,
    distilbert_net,
    falcon_net,
    language_model,
    llama_net,
    masked_language_model,
    translation,
)
from tests.evidence.exam.loops import ByHand, Manual
from tests.evidence.exam.perception_models import convnext_net, image_classifier, vit_net
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import SHORT, TWICE_40, adamw, plain_sgd, trained, warm_linear
from tests.evidence.exam.signals import digits_in_colour
from tests.evidence.exam.texts import VOCABULARY, characters, lines, pairs


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
    return Built(module, digits_in_colour(16, 16), SHORT, Expected(("optimizer_settings", "update_too_large", "settings")))


@fault("transformers", "Llama: bf16-true with updates below rounding")
def llama_bf16_true(planted: bool = True) -> Built:
    module = Recipe(llama_net(), language_model, adamw(1e-6, 0.0))
    kwargs = {**SHORT, "precision": "bf16-true" if planted else "bf16-mixed"}
    return Built(module, characters(48, 8), kwargs, Expected(("updates_lost", "not_updated", "update_too_small")))


@fault("transformers", "ConvNeXt: SGD with a momentum of 0.9999")
def convnext_momentum(planted: bool = True) -> Built:
    def sgd(module: Any) -> Any:
        return torch.optim.SGD(module.parameters(), lr=1e-3, momentum=0.9999 if planted else 0.9)

    return Built(Recipe(convnext_net(), image_classifier, sgd), digits_in_colour(32, 8), SHORT, Expected(("optimizer_settings",)))


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


@fault("transformers", "BioGPT in 16-true: Adam's eps of 1e-8 is 0 there, and small gradients are divided by 0")
def half_adam_eps(planted: bool = True) -> Built:
    from transformers import BioGptConfig, BioGptForCausalLM

    net = BioGptForCausalLM(BioGptConfig(**ENCODER))
    kwargs = {**SHORT, "precision": "16-true" if planted else "32-true"}
    kinds = (*BROKEN, "updates_lost", "update_too_large", "second_moment_stale", "optimizer_settings", "settings")
    return Built(Recipe(net, language_model, adamw(3e-3)), characters(48, 8), kwargs, Expected(kinds))


class Rare(ByHand):
    """Gradients are accumulated by hand, for as many batches as given."""

    every = 4

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        loss = self.loss_of_batch(self.net, batch)
        self.manual_backward(loss / self.every)
        if (batch_idx + 1) % self.every == 0:
            optimizer.step()
            optimizer.zero_grad()
        return {"loss": loss.detach()}


@fault("transformers", "Cohere: gradients accumulated for 64 batches, in epochs of 24: there is never a step")
def cohere_never_stepped(planted: bool = True) -> Built:
    module = Rare(cohere_net(), language_model, adamw(5e-3))
    module.every = 64 if planted else 4
    return Built(module, characters(48, 8), SHORT, Expected(("not_updated", "update_too_small", "not_zeroed")))


@fault("transformers", "Falcon in bf16-true at a rate below the rounding of its weights")
def falcon_rounded(planted: bool = True) -> Built:
    kwargs = {**SHORT, "precision": "bf16-true" if planted else "bf16-mixed"}
    expected = Expected(("updates_lost", "not_updated", "update_too_small"))
    return Built(Recipe(falcon_net(), language_model, adamw(2e-5, 0.0)), characters(48, 8), kwargs, expected)


@fault(
    "transformers",
    "PVT of two stages, NAdam whose weight_decay of 0.8 is L2: it is far above the gradient of the loss",
    learned_from=False,
)
def pvt_decay_as_gradient(planted: bool = True) -> Built:
    from transformers import PvtConfig, PvtForImageClassification

    sizes: dict[str, Any] = {"depths": [1, 1], "sequence_reduction_ratios": [2, 1], "hidden_sizes": [24, 48], "strides": [4, 2]}
    sizes |= {"num_encoder_blocks": 2, "patch_sizes": [4, 2], "num_attention_heads": [1, 3], "mlp_ratios": [2, 2]}
    net = PvtForImageClassification(PvtConfig(image_size=32, num_labels=10, initializer_range=0.1, **sizes))

    def nadam(module: Any) -> Any:
        return torch.optim.NAdam(module.parameters(), 2e-3, weight_decay=0.8 if planted else 0.0)

    expected = Expected(("optimizer_settings", "settings", "constant", "representation_collapse"))
    return Built(Recipe(net, image_classifier, nadam), digits_in_colour(32, 16), SHORT, expected)


@fault(
    "transformers",
    "Blenderbot writes in reverse: Adam with maximize=True, copied from one that trained on rewards",
    learned_from=False,
)
def blenderbot_maximized(planted: bool = True) -> Built:
    from transformers import BlenderbotSmallConfig, BlenderbotSmallForConditionalGeneration

    net = BlenderbotSmallForConditionalGeneration(BlenderbotSmallConfig(**BART))
    module = Recipe(net, translation, lambda module: torch.optim.Adam(module.parameters(), 1e-3, maximize=planted))
    expected = Expected(("loss_diverging", "optimizer_settings", "weights_growing", "exploding"))
    return Built(module, pairs(24, 8, reverse=True), SHORT, expected)


@fault("transformers", "PLBART copies code: AdamW with an eps of 0.5", learned_from=False)
def plbart_adam_eps(planted: bool = True) -> Built:
    from transformers import PLBartConfig, PLBartForConditionalGeneration

    net = PLBartForConditionalGeneration(PLBartConfig(**BART))
    module = Recipe(net, translation, adamw(1e-3, eps=0.5 if planted else 1e-8))
    return Built(module, pairs(32, 8), SHORT, Expected(("optimizer_settings", "second_moment_stale", "update_too_small")))


@fault("transformers", "MobileNet 1 under SGD with momentum: gradient_clip_val is 1e-6, where an eps was to be", learned_from=False)
def mobilenet_clipped_at_eps(planted: bool = True) -> Built:
    from transformers import MobileNetV1Config, MobileNetV1ForImageClassification

    sizes: dict[str, Any] = {"num_channels": 1, "image_size": 32, "depth_multiplier": 0.25, "classifier_dropout_prob": 0.1}
    net = MobileNetV1ForImageClassification(MobileNetV1Config(**sizes, num_labels=10))
    kwargs = {**TWICE_40, "limit_train_batches": 30, "gradient_clip_val": 1e-6 if planted else 2.0}
    module = Recipe(net, image_classifier, plain_sgd(0.05, momentum=0.9, weight_decay=1e-4))
    return Built(module, in_batches(16, *digits(32)), kwargs, Expected(("always_clipped", "update_too_small")))


class ReadsAndWrites(Recipe):
    """Adam at a small rate for the layers of the encoder and at a larger one for all else, by hand."""

    def __init__(self, net: nn.Module, planted: bool) -> None:
        super().__init__(net, translation, self.both)
        self.planted, self.automatic_optimization = planted, False

    @staticmethod
    def both(module: Any) -> Any:
        encoder = list(module.net.model.encoder.layers.parameters())
        known = set(map(id, encoder))
        others = [parameter for parameter in module.net.parameters() if id(parameter) not in known]
        return [torch.optim.AdamW(encoder, 1e-3), torch.optim.AdamW(others, 3e-3)]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        of_encoder, of_others = self.optimizers()
        of_encoder.zero_grad()
        of_others.zero_grad()
        loss = self.loss_of_batch(self.net, batch)
        self.manual_backward(loss)
        of_others.step()
        if not self.planted:
            of_encoder.step()
        return {"loss": loss.detach()}


@fault(
    "transformers",
    "BlenderbotSmall that copies, two rates by hand: the optimizer of the encoder's layers is never stepped",
    learned_from=False,
)
def blenderbot_encoder_unstepped(planted: bool = True) -> Built:
    from transformers import BlenderbotSmallConfig, BlenderbotSmallForConditionalGeneration

    config = BlenderbotSmallConfig(vocab_size=VOCABULARY, d_model=48, max_position_embeddings=64, **PLAIN_LAYERS, **ENDS)
    module = ReadsAndWrites(BlenderbotSmallForConditionalGeneration(config), planted)
    expected = Expected(("not_updated", "update_too_small"), ("net.model.encoder.layers*",))
    return Built(module, pairs(24, 8), SHORT, expected)


class Smoothed(Recipe):
    """Keeps a smoothed copy of the net, and loads it into the net at the end of each batch."""

    planted = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.smooth = copy.deepcopy(self.net).requires_grad_(False)

    def on_train_batch_end(self, *_: Any) -> None:
        for kept, new in zip(self.smooth.parameters(), self.net.parameters(), strict=True):
            kept.data.mul_(0.998).add_(new.data, alpha=0.002)
        if self.planted:
            self.net.load_state_dict(self.smooth.state_dict())


@fault(
    "transformers", "the first GPT: its smoothed copy, meant for tests, is loaded into the net after each batch", learned_from=False
)
def openai_gpt_smoothed_back(planted: bool = True) -> Built:
    from transformers import OpenAIGPTConfig, OpenAIGPTLMHeadModel

    net = OpenAIGPTLMHeadModel(OpenAIGPTConfig(vocab_size=VOCABULARY, n_positions=64, n_embd=48, n_layer=2, n_head=4))
    module = Smoothed(net, language_model, adamw(3e-3))
    module.planted = planted
    return Built(module, characters(48, 8), SHORT, Expected(("not_updated", "update_too_small", "loss_plateau")))


class Gathers(ByHand):
    """Gathers gradients of some batches by hand."""

    planted, gathered = True, 6

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        chosen: Any = self.optimizers()
        if self.planted:
            chosen.zero_grad()
        loss = self.loss_of_batch(self.net, batch)
        self.manual_backward(loss / self.gathered)
        if batch_idx % self.gathered == self.gathered - 1:
            chosen.step()
            if not self.planted:
                chosen.zero_grad()
        return {"loss": loss.detach()}


@fault("transformers", "Helium under SGD, six batches a step by hand: zero_grad comes before each backward", learned_from=False)
def helium_gathered_in_vain(planted: bool = True) -> Built:
    from transformers import HeliumConfig, HeliumForCausalLM

    module = Gathers(
        HeliumForCausalLM(HeliumConfig(**PLAIN_DECODER, **PLAIN_HEADS)),
        language_model,
        lambda module: torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9),
    )
    module.planted = planted
    return Built(module, characters(48, 4), {"max_epochs": 2, "limit_train_batches": 60}, Expected(("not_zeroed", *TOO_LOW)))
