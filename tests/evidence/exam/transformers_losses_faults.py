"""Faults of the losses of models of transformers."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.expectations import BROKEN
from tests.evidence.exam.language_models import (
    DECODER,
    PLAIN_DECODER,
    PLAIN_HEADS,
    bert_net,
    cohere_net,
    distillation,
    language_model,
    masked_language_model,
    mixtral_net,
    text,
)
from tests.evidence.exam.perception_models import LONG_FUTURE, LONG_PAST, SOUND, by_level, patchtsmixer_net, vit_net
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, plain_sgd
from tests.evidence.exam.signals import digits_in_colour, melodies, series
from tests.evidence.exam.texts import characters


@fault("transformers", "distillation the wrong way round: the teacher trains, the student stands still")
def distilled_the_wrong_way(planted: bool = True) -> Built:
    teacher, student = bert_net(), bert_net(num_hidden_layers=1)
    one, other = (student, teacher) if planted else (teacher, student)
    teacher.eval()
    net = nn.ModuleDict({"teacher": one, "student": other})
    if planted:
        student.train()
    else:
        teacher.requires_grad_(False)
    expected = Expected(("missing", "eval_mode"), ("net.teacher*", "net.student*"))
    return text(net, expected, distillation)


@fault("transformers", "ViT: a softmax before the cross entropy")
def vit_double_softmax(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        logits = net(pixel_values=batch[0]).logits
        return F.cross_entropy(logits.softmax(-1) if planted else logits, batch[1])

    return Built(Recipe(vit_net(), loss, adamw()), digits_in_colour(16, 16), SHORT, Expected(("double_softmax", "output_range")))


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


@fault("transformers", "PatchTSMixer: the error of shapes (batch, days, 1) and (batch, days), which are broadcast")
def patchtsmixer_broadcast(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Any:
        past, future = by_level(batch)
        said = net(past_values=past[..., None]).prediction_outputs
        return F.mse_loss(said, future[:, None, :] if planted else future[..., None])

    kinds = ("output_range", "representation_collapse", "loss_plateau", "constant")
    return Built(Recipe(patchtsmixer_net(), loss, adamw(2e-3)), series(16, LONG_PAST, LONG_FUTURE), SHORT, Expected(kinds))


@fault("transformers", "RegNet learns places of digits by the hardest triplets of each batch, with a margin and at a rate of 1")
def regnet_hardest_triplets(planted: bool = True) -> Built:
    from transformers import RegNetConfig, RegNetForImageClassification

    def loss(net: Any, batch: Any) -> Tensor:
        places = net(pixel_values=batch[0]).logits
        apart = ((places[:, None] - places).square().sum(2) + 1e-8).sqrt()
        alike = batch[1][:, None] == batch[1]
        farthest = apart.masked_fill(~alike, 0.0).amax(1)
        nearest = apart.masked_fill(alike, 1e4).amin(1)
        return (farthest - nearest + 0.5).relu().mean() if planted else F.softplus(farthest - nearest).mean()

    sizes = {"embedding_size": 16, "hidden_sizes": [16, 24, 48], "depths": [1, 1, 1], "groups_width": 8, "num_labels": 24}
    net = RegNetForImageClassification(RegNetConfig(num_channels=1, **sizes))
    rates = plain_sgd(1.0 if planted else 0.02, momentum=0.9, weight_decay=1e-4)
    kinds = ("representation_collapse", "constant", "update_too_large", "dead")
    return Built(
        Recipe(net, loss, rates), in_batches(32, *digits(24)), {"max_epochs": 2, "limit_train_batches": 32}, Expected(kinds)
    )


@fault("transformers", "Qwen3 with six experts: no loss for balance, and the routers' own rate is 0.2 instead of 2e-3")
def qwen3_moe_unbalanced(planted: bool = True) -> Built:
    from transformers import Qwen3MoeConfig, Qwen3MoeForCausalLM

    experts = {"num_local_experts": 6, "num_experts_per_tok": 2, "moe_intermediate_size": 48, "router_aux_loss_coef": 0.01}
    config = Qwen3MoeConfig(**DECODER, **experts, head_dim=12, norm_topk_prob=True, output_router_logits=not planted)

    def rates(module: Any) -> Any:
        routers = [weight for name, weight in module.named_parameters() if name.endswith("mlp.gate.weight")]
        others = [weight for name, weight in module.named_parameters() if not name.endswith("mlp.gate.weight")]
        groups = [{"params": others}, {"params": routers, "lr": 0.2 if planted else 2e-3}]
        return torch.optim.AdamW(groups, lr=2e-3, betas=(0.9, 0.95), weight_decay=0.1)

    kinds = ("router_collapse", "dead_experts", "update_too_large")
    return Built(Recipe(Qwen3MoeForCausalLM(config), language_model, rates), characters(48, 8), SHORT, Expected(kinds))


@fault("transformers", "Cohere whose logits are multiplied by 100 instead of 0.0625")
def cohere_logits_scaled(planted: bool = True) -> Built:
    net = cohere_net(logit_scale=100.0 if planted else 0.25)
    kinds = ("exploding", "output_range", "poor_init", "loss_spike", "always_clipped", "update_too_large", "settings")
    return Built(Recipe(net, language_model, adamw(3e-3)), characters(48, 8), CLIPPED, Expected(kinds))


@fault("transformers", "UniSpeech with CTC: the strides leave two frames for three notes, and the loss is infinite")
def ctc_too_few_frames(planted: bool = True) -> Built:
    from transformers import UniSpeechConfig, UniSpeechForCTC

    sizes = {**SOUND, "conv_stride": (8, 8, 8) if planted else (4, 4, 4), "vocab_size": 12, "ctc_loss_reduction": "mean"}
    net = UniSpeechForCTC(UniSpeechConfig(**sizes, apply_spec_augment=False, num_ctc_classes=12))
    loss = lambda net, batch: net(input_values=batch[0], labels=batch[1]).loss  # noqa: E731
    return Built(Recipe(net, loss, adamw(2e-3)), melodies(16), SHORT, Expected(BROKEN, ("net*", "loss*")))


@fault(
    "transformers",
    "GLM under SGD: the loss of each next character is added up, with a rate that was meant for their mean",
    learned_from=False,
)
def glm_loss_added_up(planted: bool = True) -> Built:
    from transformers import GlmConfig, GlmForCausalLM

    def loss(net: Any, batch: Any) -> Tensor:
        told = net(input_ids=batch[0]).logits[:, :-1].flatten(0, 1)
        return F.cross_entropy(told, batch[0][:, 1:].flatten(), reduction="sum" if planted else "mean")

    def sgd(module: Any) -> Any:
        return torch.optim.SGD(module.parameters(), lr=0.01, momentum=0.9, nesterov=True)

    kinds = ("update_too_large", "exploding", "weights_growing", "loss_diverging", "loss_spike", "loss_nonfinite", "nonfinite")
    net = GlmForCausalLM(GlmConfig(**PLAIN_DECODER, **PLAIN_HEADS))
    return Built(Recipe(net, loss, sgd), characters(48, 8), SHORT, Expected((*kinds, "attention_logits", "dead")))
