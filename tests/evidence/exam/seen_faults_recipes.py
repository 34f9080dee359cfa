"""Faults in recipes that no other family has: the optimizer, its rates, schedules and steps."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.healthy_graphs import adam
from tests.evidence.exam.healthy_peft import with_adapter
from tests.evidence.exam.healthy_timm import create, cross_entropy, trained
from tests.evidence.exam.language_models import ENCODER, language_model, llama_net, masked_language_model
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.planted_timm import expecting
from tests.evidence.exam.schedules import CLIPPED, SHORT, adamw, scheduled
from tests.evidence.exam.seen_faults_models import BATCHES, Forgers, Writer, bigcode_net, next_character, on_digits, sgd
from tests.evidence.exam.seen_faults_scales import Sequence
from tests.evidence.exam.seen_steps import MonitorScope
from tests.evidence.exam.texts import characters

TOO_HIGH = (
    "update_too_large",
    "exploding",
    "dead",
    "loss_nonfinite",
    "nonfinite",
    "loss_spike",
    "loss_diverging",
    "weights_growing",
)
TOO_LOW = ("update_too_small", "not_updated", "lr_zero", "loss_plateau")


def convolutions() -> nn.Module:
    """LeNet with rectifiers."""
    layers = [nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(12, 24, 3, padding=1), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*layers, nn.Linear(384, 64), nn.ReLU(), nn.Linear(64, 10))


@fault("torch", "LeNet with Adam at 0.3")
def lenet_adam_rate(planted: bool = True) -> Built:
    return on_digits(
        convolutions(), adam(0.3 if planted else 2e-3, 0.0), *TOO_HIGH, "update_spike", "spike", "constant", "saturated"
    )


def roformer_net() -> Any:
    """RoFormer, for masked tokens."""
    from transformers import RoFormerConfig, RoFormerForMaskedLM

    return RoFormerForMaskedLM(RoFormerConfig(**ENCODER))


@fault("transformers", "RoFormer at a rate of 1e-8, by an exponent that was mistyped")
def roformer_rate(planted: bool = True) -> Built:
    return Built(
        Recipe(roformer_net(), masked_language_model, adamw(1e-8 if planted else 3e-3)),
        characters(32, 16),
        SHORT,
        Expected(TOO_LOW),
    )


@fault("transformers", "GPT-BigCode: the function of LambdaLR gives the rate itself, not its share")
def bigcode_rate_twice(planted: bool = True) -> Built:
    rate = 3e-3
    share = (lambda step: rate * min((step + 1) / 5, 1.0)) if planted else (lambda step: min((step + 1) / 5, 1.0))
    rates = scheduled(adamw(rate), lambda optimizer: lr_scheduler.LambdaLR(optimizer, share))
    return Built(Recipe(bigcode_net(), language_model, rates), characters(48, 8), SHORT, Expected(TOO_LOW))


@fault("torch", "an Elman net whose exponential schedule, made for epochs, is stepped after each batch")
def elman_schedule_per_batch(planted: bool = True) -> Built:
    interval = "step" if planted else "epoch"
    rates = scheduled(adamw(2e-3), lambda optimizer: lr_scheduler.ExponentialLR(optimizer, 0.5), interval)
    return Built(Recipe(Sequence(1.0), next_character, rates), characters(32, 16), CLIPPED, Expected(TOO_LOW))


@fault("timm", "FasterNet: ReduceLROnPlateau with a patience of 0, stepped after each batch")
def fasternet_no_patience(planted: bool = True) -> Built:
    def rates(module: Any) -> Any:
        chosen = torch.optim.AdamW(module.parameters(), 2e-3)
        schedule = lr_scheduler.ReduceLROnPlateau(chosen, factor=0.1, patience=0 if planted else 200)
        return {"optimizer": chosen, "lr_scheduler": {"scheduler": schedule, "monitor": "loss", "interval": "step"}}

    module = MonitorScope(create("fasternet_t0", embed_dim=16, depths=(1, 1, 1, 1)), cross_entropy, rates)
    return trained(module, 16)._replace(expected=Expected(TOO_LOW))


class TwoOptimizers(Recipe):
    """One for the GRU that reads, one for all else; by hand."""

    def __init__(self, planted: bool) -> None:
        super().__init__(Writer(nullcontext), lambda *_: None, self.both)
        self.planted, self.automatic_optimization = planted, False

    @staticmethod
    def both(module: Any) -> Any:
        reads = list(module.net.reads.parameters())
        others = [parameter for name, parameter in module.net.named_parameters() if "reads" not in name]
        return [torch.optim.Adam(reads, 5e-3), torch.optim.Adam(others, 5e-3)]

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        reads, others = self.optimizers()
        loss = F.cross_entropy(self.net(batch[0]).flatten(0, 1), batch[0].flatten())
        for chosen in (reads, others):
            chosen.zero_grad()
        self.manual_backward(loss)
        others.step()
        if not self.planted:
            reads.step()
        return {"loss": loss.detach()}


@fault("torch", "two optimizers by hand, of which one is never stepped")
def writer_one_optimizer_steps(planted: bool = True) -> Built:
    expected = Expected(("not_updated", "update_too_small"), ("net.reads*",))
    return Built(TwoOptimizers(planted), characters(8, 32), SHORT, expected)


@fault("torch", "a GAN whose judge keeps the gradients of all steps, the generator's too")
def gan_judge_not_zeroed(planted: bool = True) -> Built:
    expected = Expected(("not_zeroed",), ("tells*",))
    return Built(Forgers(False, planted), in_batches(32, *digits(8)), BATCHES, expected)


@fault("timm", "ByobNet with SGD and a weight decay of 1")
def byobnet_decay(planted: bool = True) -> Built:
    rates = lambda module: torch.optim.SGD(module.parameters(), 0.05, 0.9, weight_decay=1.0 if planted else 1e-4)  # noqa: E731
    kinds = ("settings", "optimizer_settings", "vanishing", "update_too_large", "representation_collapse", "constant")
    return expecting(trained(Recipe(create("test_byobnet"), cross_entropy, rates), 16), *kinds, "loss_plateau", "dead")


@fault("torch", "an autoencoder whose loss is the sum over pixels and batch, at the rate of a mean")
def autoencoder_sum(planted: bool = True) -> Built:
    net = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 48), nn.ReLU(), nn.Linear(48, 12), nn.Linear(12, 48), nn.ReLU(), nn.Linear(48, 64)
    )

    def loss(net: Any, batch: Any) -> Tensor:
        return F.mse_loss(net(batch[0]), batch[0].flatten(1), reduction="sum" if planted else "mean")

    kinds = (*TOO_HIGH, "update_spike", "spike", "constant", "representation_collapse")
    return Built(Recipe(net, loss, sgd(0.3)), in_batches(32, *digits(8)), BATCHES, Expected(kinds))


@fault("torch", "LeNet whose loss is divided by the size of the data set, after a mean")
def lenet_divided_twice(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        return cross_entropy(net, batch) / (1797 if planted else 1)

    module = Recipe(convolutions(), loss, sgd(0.05, momentum=0.9))
    return Built(module, in_batches(32, *digits(8)), BATCHES, Expected((*TOO_LOW, "vanishing")))


@fault("torch", "LeNet with RMSprop and an eps of 1, as another library's example has it")
def lenet_rmsprop_eps(planted: bool = True) -> Built:
    rates = lambda module: torch.optim.RMSprop(module.parameters(), 1e-3, eps=1.0 if planted else 1e-8)  # noqa: E731
    kinds = ("second_moment_stale", "optimizer_settings", "settings", *TOO_LOW)
    return on_digits(convolutions(), rates, *kinds)


@fault("peft", "FourierFT at 1e-5, the rate of a full fine-tuning")
def fourier_rate(planted: bool = True) -> Built:
    from peft import FourierFTConfig

    config = FourierFTConfig(n_frequency=100, scaling=30.0, target_modules=["q_proj", "v_proj", "o_proj"], task_type="CAUSAL_LM")
    module = Recipe(with_adapter(llama_net(), config), language_model, adamw(1e-5 if planted else 5e-2))
    return Built(module, characters(48, 8), SHORT, Expected(TOO_LOW))
