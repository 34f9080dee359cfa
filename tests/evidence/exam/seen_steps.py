"""Faults: optimizers, schedules, precision and the step."""

from __future__ import annotations

import copy
from typing import Any

import torch
from torch.optim import lr_scheduler

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.counts import cells
from tests.evidence.exam.healthy_diffusers import adamw as diffusion_adamw
from tests.evidence.exam.healthy_diffusers import trained as denoising
from tests.evidence.exam.healthy_scvi import planned
from tests.evidence.exam.healthy_timm import cross_entropy, optimizer, trained
from tests.evidence.exam.language_models import image_classifier, language_model, translation
from tests.evidence.exam.planted_timm import RATE, expecting
from tests.evidence.exam.planted_transformers import Manual
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, decayed_apart, scheduled
from tests.evidence.exam.seen_models import cohere_net, falcon_net, gpt_neo_net, mbart_net, olmo2_net
from tests.evidence.exam.seen_pictures import beit_net, bright, segformer_net
from tests.evidence.exam.seen_timm import convmixer, poolformer, repvgg, res2net, sknet, xcit
from tests.evidence.exam.seen_views import joint_transformer, straightened
from tests.evidence.exam.signals import digits
from tests.evidence.exam.texts import characters, pairs


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
    return Built(MonitorScope(beit_net(), image_classifier, rates), digits(16, 16), SHORT, expected)


@fault("timm", "Lion at 0.05, the rate that was made for SGD")
def xcit_lion_rate(planted: bool = True) -> Built:
    built = trained(Recipe(xcit(), cross_entropy, optimizer("lion", 0.05 if planted else 2e-4)), 16)
    return expecting(built, *RATE, "loss_spike", "spike", "loss_plateau")


@fault("transformers", "GPT-Neo: AdamW with maximize=True, from a script for rewards")
def gpt_neo_maximized(planted: bool = True) -> Built:
    module = Recipe(gpt_neo_net(), language_model, adamw(1e-3, maximize=planted))
    return Built(
        module, characters(48, 8), SHORT, Expected(("loss_diverging", "optimizer_settings", "weights_growing", "exploding"))
    )


class Rare(Recipe):
    """Gradients are accumulated by hand, for as many batches as given."""

    every = 4

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.automatic_optimization = False

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


class Erased(Recipe):
    """``zero_grad`` between the backward pass and the step."""

    planted = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.automatic_optimization = False

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        optimizer: Any = self.optimizers()
        loss = self.loss_of_batch(self.net, batch)
        if not self.planted:
            optimizer.zero_grad()
        self.manual_backward(loss)
        if self.planted:
            optimizer.zero_grad()
        optimizer.step()
        return {"loss": loss.detach()}


@fault("timm", "MetaFormer: zero_grad comes between backward and step")
def poolformer_erased(planted: bool = True) -> Built:
    module = Erased(poolformer(), cross_entropy, optimizer("sgd", 0.05))
    module.planted = planted
    return expecting(trained(module, 16), "not_updated", "update_too_small", "missing", "zero")


@fault("timm", "Res2Net: gradients clipped by value at 1e-6")
def res2net_clipped_by_value(planted: bool = True) -> Built:
    clip = {"gradient_clip_val": 1e-6 if planted else 1.0, "gradient_clip_algorithm": "value"}
    built = trained(Recipe(res2net(), cross_entropy, optimizer("sgd", 0.05)), 16, **clip)
    return expecting(built, "always_clipped", "update_too_small", "not_updated")


@fault("timm", "RepVGG: SGD with a decay of 5")
def repvgg_decay(planted: bool = True) -> Built:
    sgd = lambda m: torch.optim.SGD(m.parameters(), 0.1, momentum=0.9, weight_decay=5.0 if planted else 1e-4)  # noqa: E731
    kinds = ("optimizer_settings", "settings", "update_too_large", "representation_collapse", "constant", "vanishing")
    return expecting(trained(Recipe(repvgg(), cross_entropy, sgd), 16), *kinds, "weights_growing")


@fault("transformers", "Falcon in bf16-true at a rate below the rounding of its weights")
def falcon_rounded(planted: bool = True) -> Built:
    kwargs = {**SHORT, "precision": "bf16-true" if planted else "bf16-mixed"}
    expected = Expected(("updates_lost", "not_updated", "update_too_small"))
    return Built(Recipe(falcon_net(), language_model, adamw(2e-5, 0.0)), characters(48, 8), kwargs, expected)


class CopiedBack(Recipe):
    """An average of the weights, which is written into the net after each step."""

    planted = True

    def __init__(self, *parts: Any) -> None:
        super().__init__(*parts)
        self.average = [p.detach().clone() for p in self.net.parameters()]

    def on_train_batch_end(self, *_: Any) -> None:
        for average, new in zip(self.average, self.net.parameters(), strict=True):
            average.lerp_(new.detach(), 1e-3)
            if self.planted:
                new.data.copy_(average)


@fault("timm", "ConvMixer: the average of the weights is copied back at each step")
def convmixer_copied_back(planted: bool = True) -> Built:
    module = CopiedBack(convmixer(), cross_entropy, optimizer("adamw", 5e-3))
    module.planted = planted
    return expecting(trained(module, 16), "not_updated", "update_too_small", "loss_plateau")


@fault("timm", "the optimizer holds the parameters of a copy of the net")
def sknet_copy_optimized(planted: bool = True) -> Built:
    net = sknet()

    def rates(module: Any) -> Any:
        held = copy.deepcopy(module.net) if planted else module.net
        return torch.optim.SGD(held.parameters(), 0.05, momentum=0.9)

    return expecting(trained(Recipe(net, cross_entropy, rates), 16), "not_optimized", "not_updated", sites=("net*",))


@fault("transformers", "SegFormer: the head's own rate is 5 instead of 5e-3")
def segformer_head_rate(planted: bool = True) -> Built:
    def rates(module: Any) -> Any:
        head = {"params": module.net.decode_head.parameters(), "lr": 5.0 if planted else 5e-3}
        return torch.optim.AdamW([{"params": module.net.segformer.parameters(), "lr": 5e-4}, head], weight_decay=0.01)

    kinds = (*RATE, "loss_spike", "spike", "activation_outliers", "dead", "optimizer_settings")
    expected = Expected(kinds, ("net.decode_head*", "loss*", "optimizer*"))
    return Built(Recipe(segformer_net(), bright, rates), digits(32, 8), SHORT, expected)


@fault("transformers", "mBART: Adafactor at a fixed rate of 1, which its own step size was to be")
def mbart_adafactor_rate(planted: bool = True) -> Built:
    def rates(module: Any) -> Any:
        from transformers import Adafactor

        lr = 1.0 if planted else 1e-3
        return Adafactor(module.parameters(), lr=lr, scale_parameter=False, relative_step=False)

    kinds = (*RATE, "loss_spike", "residual_growth", "attention_logits", "attention_collapse", "activation_outliers")
    return Built(Recipe(mbart_net(), translation, rates), pairs(24, 8), SHORT, Expected(kinds))


@fault("diffusers", "the transformer of Stable Diffusion 3, by hand and without zero_grad")
def diffusers_joint_not_zeroed(planted: bool = True) -> Built:
    module = Manual(joint_transformer(), straightened, diffusion_adamw(1e-3), zero_grad=not planted)
    return expecting(denoising(module), "not_zeroed")


@fault("scvi", "PoissonVI at a rate of 0.5")
def scvi_poisson_rate(planted: bool = True) -> Built:
    from scvi.external import POISSONVI
    from scvi.train import TrainingPlan

    data = cells()
    POISSONVI.setup_anndata(data, batch_key="batch")
    net = POISSONVI(data, n_hidden=32, n_latent=6)
    return expecting(planned(net, TrainingPlan, n_epochs_kl_warmup=2, lr=0.5 if planted else 2e-3), *RATE, "loss_spike", "spike")
