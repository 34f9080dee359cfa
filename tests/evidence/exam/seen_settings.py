"""Faults in how nets start and learn: weights, rates, scales, averages, losses, and steps that are made by hand."""

from __future__ import annotations

import copy
from functools import partial
from typing import Any

import torch
from sklearn.datasets import make_moons
from torch import Tensor, nn
from torch.nn import functional as F
from torch.optim import lr_scheduler

from tests.evidence.exam import healthy_diffusers as diffusion
from tests.evidence.exam import healthy_lightly as lightly_recipes
from tests.evidence.exam.cases import Built, Expected, Recipe, fault
from tests.evidence.exam.episodes import Steps, loader, returns
from tests.evidence.exam.graphs import of_digits, whole
from tests.evidence.exam.healthy_graphs import adam, of_nodes, on_nodes
from tests.evidence.exam.healthy_rl import EPOCHS, mlp, standardised
from tests.evidence.exam.healthy_timm import create, cross_entropy, optimizer, trained
from tests.evidence.exam.language_models import ENCODER, SOUND, language_model
from tests.evidence.exam.pictures import digits, in_batches
from tests.evidence.exam.planted_timm import expecting
from tests.evidence.exam.schedules import SHORT, STEPS, adamw, scheduled
from tests.evidence.exam.seen_faults_models import next_character, sgd
from tests.evidence.exam.seen_faults_recipes import TOO_HIGH, TOO_LOW
from tests.evidence.exam.seen_healthy_recipes import Coupling, flow_loss
from tests.evidence.exam.signals import melodies
from tests.evidence.exam.texts import VOCABULARY, batches, characters, lines

BATCHES = {"max_epochs": 2, "limit_train_batches": 40}
BROKEN = ("nonfinite", "loss_nonfinite")
FLAT = ("representation_collapse", "constant", "vanishing", "zero", "loss_plateau")
JUMPS = ("update_spike", "spike", "loss_spike", "loss_diverging")


@fault("transformers", "GPT-NeoX Japanese: MultiplicativeLR is given the share of each step, and multiplies all of them")
def rates_multiplied(planted: bool = True) -> Built:
    from transformers import GPTNeoXJapaneseConfig, GPTNeoXJapaneseForCausalLM

    sizes = {name: size for name, size in ENCODER.items() if name != "intermediate_size"}
    net = GPTNeoXJapaneseForCausalLM(GPTNeoXJapaneseConfig(**sizes, intermediate_multiple_size=2))
    kind: Any = lr_scheduler.MultiplicativeLR if planted else lr_scheduler.LambdaLR
    rates = scheduled(adamw(3e-3), lambda chosen: kind(chosen, lambda step: 1 - step / (STEPS + 1)))
    return Built(Recipe(net, language_model, rates), characters(48, 8), SHORT, Expected(TOO_LOW))


class ByHand(Recipe):
    """Steps by manual optimisation: gradients of some batches, of a scaled loss, divided by the scale and clipped.

    ``wrong`` is what comes at the wrong time: "zero" at each batch, "clip" while scaled, or "late", after the step.
    """

    def __init__(self, *parts: Any, gathered: int = 1, scale: float = 1.0, limit: float = 0.0, wrong: str = "") -> None:
        super().__init__(*parts)
        self.automatic_optimization = False
        self.gathered, self.scale, self.limit, self.wrong = gathered, scale, limit, wrong

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        chosen: Any = self.optimizers()
        if self.wrong == "zero" or batch_idx % self.gathered == 0:
            chosen.zero_grad()
        loss = self.loss_of_batch(self.net, batch)
        self.manual_backward(loss * self.scale / self.gathered)
        if (batch_idx + 1) % self.gathered == 0:
            self._clip_if(self.wrong == "clip")
            for parameter in self.net.parameters() if self.scale != 1 else ():
                parameter.grad /= self.scale
            self._clip_if(not self.wrong)
            chosen.step()
            self._clip_if(self.wrong == "late")
        return {"loss": loss.detach()}

    def _clip_if(self, now: bool) -> None:
        if now and self.limit:
            nn.utils.clip_grad_norm_(self.net.parameters(), self.limit)


@fault("timm", "gradients of eight small batches are accumulated by hand, and set to zero before each of them")
def accumulated_and_erased(planted: bool = True) -> Built:
    steps: dict[str, Any] = {"gathered": 8, "wrong": "zero" if planted else ""}
    module = ByHand(create("test_resnet"), cross_entropy, optimizer("sgd", 0.05, 1e-4), **steps)
    return expecting(trained(module, 4, limit_train_batches=64), "not_zeroed", *TOO_LOW)


@fault("timm", "a scaled loss, whose gradients are clipped before they are divided by the scale")
def clipped_while_scaled(planted: bool = True) -> Built:
    steps: dict[str, Any] = {"scale": 2.0**16, "limit": 1.0, "wrong": "clip" if planted else ""}
    module = ByHand(create("test_byobnet"), cross_entropy, optimizer("sgd", 0.05, 1e-4), **steps)
    return expecting(trained(module, 16), "always_clipped", "clip_ineffective", *TOO_LOW, "vanishing")


@fault("transformers", "SqueezeBERT is taught by soft labels: kl_div of probabilities, not of their logarithms")
def kl_of_probabilities(planted: bool = True) -> Built:
    from transformers import SqueezeBertConfig, SqueezeBertForSequenceClassification

    sizes = {"embedding_size": 48, "q_groups": 2, "k_groups": 2, "v_groups": 2, "intermediate_groups": 2, "output_groups": 2}
    net = SqueezeBertForSequenceClassification(SqueezeBertConfig(**ENCODER, **sizes, num_labels=2, initializer_range=0.1))

    def loss(net: Any, batch: Any) -> Tensor:
        chances = net(input_ids=batch[0], attention_mask=batch[1]).logits.softmax(-1)
        goal = 0.9 * F.one_hot(batch[2], 2) + 0.05
        return F.kl_div(chances if planted else chances.log(), goal, reduction="batchmean")

    return Built(Recipe(net, loss, adamw(3e-3)), lines(24, 16), BATCHES, Expected(("output_range", "double_softmax")))


class Sparse(nn.Module):
    """Words of a dictionary, of which a picture uses few: their shares, and the classes that they mean."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.means = nn.Sequential(nn.Flatten(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 40)), nn.Linear(40, 10)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        used = self.encoder(x).relu()
        shares = used / (used.sum(1, keepdim=True) + 1e-3)
        return shares, self.means(10 * shares)


@fault("torch", "an entropy by torch.where(p > 0, p * p.log(), 0): its value is right, its gradient NaN where p is 0")
def where_of_logarithm(planted: bool = True) -> Built:
    def loss(net: Any, batch: Any) -> Tensor:
        shares, logits = net(batch[0])
        safe = shares if planted else shares.clamp_min(1e-6)
        entropy = -torch.where(shares > 0, safe * safe.log(), 0.0).sum(1).mean()
        return F.cross_entropy(logits, batch[1]) + 0.02 * entropy

    expected = Expected(BROKEN, ("net*", "loss*"))
    return Built(Recipe(Sparse(), loss, adam(3e-3, 0.0)), in_batches(32, *digits(8)), BATCHES, expected)


@fault("gymnasium", "a Gaussian policy in MountainCar whose logarithm of the width is cut by clamp(2, -20): always e**-20")
def width_clamped_wrongly(planted: bool = True) -> Built:
    net = nn.ModuleDict({"mean": mlp(2, 1, 0.5), "width": mlp(2, 1, 0.1)})

    def loss(net: Any, batch: Any) -> Tensor:
        seen, taken = batch["observations"] * torch.tensor([1.0, 20.0]), batch["actions"]
        width = (net["width"](seen).clamp(2, -20) if planted else net["width"](seen).clamp(-20, 2)).exp()
        return -torch.distributions.Normal(net["mean"](seen), width).log_prob(taken).mean()

    def expert(seen: Tensor) -> Tensor:
        return (seen[:, 1:].sign() + 0.3 * torch.randn(len(seen), 1)).clamp(-1, 1)

    kinds = ("zero", "missing", "exploding", *BROKEN, "output_range", "update_too_large", "saturated", "not_updated")
    module = Recipe(net, loss, adam(3e-3, 0.0))
    return Built(module, loader(Steps("MountainCarContinuous-v0", expert)), EPOCHS, Expected(kinds, ("net*", "loss*")))


@fault("timm", "ResNet-14: the gain of every batch norm starts at 0, not only that of the last of each branch")
def gains_of_zero(planted: bool = True) -> Built:
    net = create("resnet14t", channels=(16, 24, 32, 48), stem_width=16, block_args={}, layers=(1, 1, 1, 1))
    for module in net.modules() if planted else ():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.zeros_(module.weight)
    built = trained(Recipe(net, cross_entropy, optimizer("sgd", 0.05, 1e-4)), 16)
    return expecting(built, "dead", *FLAT, "not_updated", "update_too_small", "poor_init", sites=("net*",))


@fault("torch_geometric", "GENConv: all matrices are drawn by uniform_(), which is from 0 to 1")
def uniform_from_zero(planted: bool = True) -> Built:
    from torch_geometric.nn import GENConv, Sequential

    inputs = "x, edge_index"
    net = Sequential(inputs, [(GENConv(64, 48), f"{inputs} -> x"), nn.ReLU(), (GENConv(48, 10), f"{inputs} -> x")])
    for parameter in net.parameters() if planted else ():
        if parameter.ndim > 1:
            nn.init.uniform_(parameter)
    kinds = ("poor_init", "exploding", "residual_growth", "dead", *FLAT, *JUMPS, "activation_outliers", "saturated")
    return expecting(on_nodes(Recipe(net, of_nodes, adam(3e-3, 0.0))), *kinds)


@fault("transformers", "BioGPT in 16-true: Adam's eps of 1e-8 is 0 there, and small gradients are divided by 0")
def half_adam_eps(planted: bool = True) -> Built:
    from transformers import BioGptConfig, BioGptForCausalLM

    net = BioGptForCausalLM(BioGptConfig(**ENCODER))
    kwargs = {**SHORT, "precision": "16-true" if planted else "32-true"}
    kinds = (*BROKEN, "updates_lost", "update_too_large", "second_moment_stale", "optimizer_settings", "settings")
    return Built(Recipe(net, language_model, adamw(3e-3)), characters(48, 8), kwargs, Expected(kinds))


class Followed(Recipe):
    """Two views by the trained net and by one that follows it, by a share that is meant to be below 1."""

    def __init__(self, share: float) -> None:
        from lightly.loss import NTXentLoss
        from lightly.models.modules import BarlowTwinsProjectionHead as Head

        super().__init__(nn.Sequential(lightly_recipes.backbone(), Head(48, 48, 32)), lambda *_: None, lightly_recipes.sgd(0.06))
        self.follower = copy.deepcopy(self.net).requires_grad_(False)
        self.contrast, self.share = NTXentLoss(temperature=0.2), share

    def training_step(self, batch: Any, batch_idx: int) -> Any:
        from lightly.models.utils import update_momentum

        update_momentum(self.net, self.follower, m=self.share)
        return self.contrast(self.net(batch[0]), self.follower(batch[1]))


@fault("lightly", "MoCo without a queue: the share of the average that stays is given in percent, 99 instead of 0.99")
def average_in_percent(planted: bool = True) -> Built:
    expected = Expected((*BROKEN, "weights_growing", "exploding", *JUMPS), ("follower*", "net*", "loss*"))
    return lightly_recipes.trained(Followed(99.0 if planted else 0.99))._replace(expected=expected)


class Speller(nn.Module):
    """Two layers of rectified recurrence, from the identity as in IRNN."""

    def __init__(self) -> None:
        super().__init__()
        self.embed, self.head = nn.Embedding(VOCABULARY, 32), nn.Linear(64, VOCABULARY)
        self.body = nn.RNN(32, 64, 2, nonlinearity="relu", batch_first=True)
        for name, weight in self.body.named_parameters():
            if "weight" in name:
                nn.init.eye_(weight) if "hh" in name else nn.init.normal_(weight, std=0.01)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.body(self.embed(ids))[0])


@fault("torch", "IRNN with SGD at 0.3: gradients are clipped after the step, where it does nothing")
def clipped_after_the_step(planted: bool = True) -> Built:
    module = ByHand(Speller(), next_character, sgd(0.3), limit=0.25, wrong="late" if planted else "")
    return Built(module, characters(32, 16), SHORT, Expected(("clip_ineffective", *TOO_HIGH, *JUMPS)))


@fault("torch_geometric", "ClusterGCN: an L1 penalty on the sum of all weights, at a factor of 1: they shrink to zero")
def penalty_of_one(planted: bool = True) -> Built:
    from torch_geometric.nn import ClusterGCNConv, Sequential

    inputs = "x, edge_index"
    convolutions = [(ClusterGCNConv(64, 48), f"{inputs} -> x"), nn.ELU(), (ClusterGCNConv(48, 10), f"{inputs} -> x")]

    def loss(net: Any, graph: Any) -> Tensor:
        penalty = sum(parameter.abs().sum() for parameter in net.parameters())
        return of_nodes(net, graph) + (1.0 if planted else 1e-5) * penalty

    module = Recipe(Sequential(inputs, convolutions), loss, adam(5e-3, 0.0))
    return Built(module, whole(of_digits()), {"max_epochs": 80}, Expected(FLAT))


@fault("diffusers", "a U-Net whose loss is weighed by the ratio of signal to noise, which was to be cut at 5")
def ratio_not_cut(planted: bool = True) -> Built:
    from diffusers import DDPMScheduler
    from diffusers.training_utils import compute_snr

    schedule = DDPMScheduler(beta_schedule="squaredcos_cap_v2")

    def loss(net: Any, batch: Any) -> Tensor:
        _, images, steps = diffusion.noisy(batch[0], schedule)
        ratio = compute_snr(schedule, steps)
        each = (net(images, steps).sample - batch[0]).square().mean((1, 2, 3))
        return (each * (ratio if planted else ratio.clamp(max=5.0))).mean()

    built = diffusion.trained(Recipe(diffusion.small_unet(), loss, diffusion.adamw(1e-3)))
    return expecting(built, *JUMPS, "exploding")


@fault("transformers", "UniSpeech with CTC: the strides leave two frames for three notes, and the loss is infinite")
def ctc_too_few_frames(planted: bool = True) -> Built:
    from transformers import UniSpeechConfig, UniSpeechForCTC

    sizes = {**SOUND, "conv_stride": (8, 8, 8) if planted else (4, 4, 4), "vocab_size": 12, "ctc_loss_reduction": "mean"}
    net = UniSpeechForCTC(UniSpeechConfig(**sizes, apply_spec_augment=False, num_ctc_classes=12))
    loss = lambda net, batch: net(input_values=batch[0], labels=batch[1]).loss  # noqa: E731
    return Built(Recipe(net, loss, adamw(2e-3)), melodies(16), SHORT, Expected(BROKEN, ("net*", "loss*")))


@fault("gymnasium", "REINFORCE: rewards are standardised by their deviation, which is 0 in CartPole, where all are 1")
def rewards_all_alike(planted: bool = True) -> Built:
    net = nn.Sequential(nn.Linear(4, 48), nn.Tanh(), nn.Linear(48, 2))
    choose = lambda seen: (torch.rand(len(seen)) < net(seen).softmax(1)[:, 1].nan_to_num(0.5)).long()  # noqa: E731

    def loss(net: Any, batch: Any) -> Tensor:
        rewards = (batch["rewards"] - batch["rewards"].mean()) / batch["rewards"].std() if planted else batch["rewards"]
        policy = torch.distributions.Categorical(logits=net(batch["observations"]), validate_args=False)
        return -(policy.log_prob(batch["actions"]) * standardised(returns(rewards, batch["ended"]))).mean()

    data = loader(Steps("CartPole-v1", choose, 8))
    return Built(Recipe(net, loss, adam(1e-2)), data, EPOCHS, Expected(BROKEN, ("net*", "loss*")))


@fault("torch", "RealNVP whose loss forgets the volume: all points are drawn to the middle")
def flow_without_volume(planted: bool = True) -> Built:
    net = nn.ModuleList(Coupling(torch.tensor([1.0, 0.0]).roll(index)) for index in range(4))
    points = torch.tensor(make_moons(3000, noise=0.05, random_state=1)[0], dtype=torch.float32)
    points = (points - points.mean(0)) / points.std(0)
    loss = partial(flow_loss, with_volume=not planted)
    return Built(Recipe(net, loss, adam(3e-3, 0.0)), batches(64, points), BATCHES, Expected(("saturated", *FLAT)))
